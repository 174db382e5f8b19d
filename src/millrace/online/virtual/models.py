"""The analytical models of Chen, Gibbons and Nath, "PR-Join" (SIGMOD 2010): I/O times and early result rates.

I/O time only. Two inputs are read together, at speeds in proportion to their sizes; no skew; the join's output costs nothing.

    A, B    pages of the inputs                       T_ri   seconds to read a page of input
    M       pages of memory                           T_wt   seconds to write a page to temporary storage
    F       fudge factor of hash tables               T_rt   seconds to read a page from there
    a, b    pages of A and B when memory is first full: A M/((A+B) F), B M/((A+B) F); a + b = M/F
    S       A B M/((A+B)^2 F) = ab/(a+b): what all early rates have in common

A result rate is newly covered area (pages x pages) x density per second of I/O; times the selectivity per page pair it is
matches per second. With T_ri = T_wt = T_rt = T, c = S/T is the rate of the symmetric hash join in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from millrace.core.errors import ParameterError

FUDGE_FACTOR = 1.29


@dataclass(frozen=True)
class Setting:
    """Sizes in pages, times in seconds per page."""

    pages_a: float
    pages_b: float
    memory_pages: float
    read_input_seconds: float
    write_temporary_seconds: float
    read_temporary_seconds: float
    fudge_factor: float = FUDGE_FACTOR

    def __post_init__(self) -> None:
        for name in ("pages_a", "pages_b", "memory_pages", "read_input_seconds"):
            self._check(name, getattr(self, name) > 0, "more than 0")
        for name in ("write_temporary_seconds", "read_temporary_seconds"):
            self._check(name, getattr(self, name) >= 0, "0 or more")
        self._check("fudge_factor", self.fudge_factor >= 1, "1 or more")

    def _check(self, name: str, right: bool, wanted: str) -> None:
        if not (right and math.isfinite(getattr(self, name))):
            raise ParameterError(f"{name} must be {wanted} and finite; got {getattr(self, name)!r}")

    @property
    def in_memory_a(self) -> float:
        """a"""
        return self.pages_a * self.memory_pages / (self.input_pages * self.fudge_factor)

    @property
    def in_memory_b(self) -> float:
        """b"""
        return self.pages_b * self.memory_pages / (self.input_pages * self.fudge_factor)

    @property
    def input_pages(self) -> float:
        return self.pages_a + self.pages_b

    @property
    def common_rate(self) -> float:
        """S, pages x pages per page"""
        return self.in_memory_a * self.in_memory_b / (self.in_memory_a + self.in_memory_b)

    @property
    def fits(self) -> bool:
        """Both inputs fit in memory, and the symmetric hash join is all there is."""
        return self.input_pages * self.fudge_factor <= self.memory_pages


@dataclass(frozen=True)
class ModelStep:
    """One step that brings results. `early`: while input was still being read."""

    name: str
    seconds: float
    area: float  # newly covered, times density
    early: bool = True

    @property
    def rate(self) -> float:
        return self.area / self.seconds if self.seconds > 0 else math.inf


@dataclass(frozen=True)
class Model:
    """What an algorithm comes to: its steps, and the I/O time from start to end."""

    algorithm: str
    steps: tuple[ModelStep, ...]
    total_seconds: float
    temporary_read_pages: float
    temporary_written_pages: float


def _symmetric_hash(s: Setting) -> ModelStep:
    """Equation 2, first part: ab/((a+b) T_ri)."""
    a, b = s.in_memory_a, s.in_memory_b
    if s.fits:
        a, b = s.pages_a, s.pages_b
    return ModelStep("symmetric hash", (a + b) * s.read_input_seconds, a * b)


def _in_memory(algorithm: str, s: Setting) -> Model:
    step = _symmetric_hash(s)
    return Model(algorithm, (step,), step.seconds, 0.0, 0.0)


def grace(s: Setting) -> Model:
    """Equation 1. Partition all, then join: (A+B)(T_ri+T_wt+T_rt); no early result; AB/((A+B) T_rt) while joining."""
    read, write, again = s.read_input_seconds, s.write_temporary_seconds, s.read_temporary_seconds
    pages = s.input_pages
    steps = (
        ModelStep("partition", pages * (read + write), 0.0),
        ModelStep("join", pages * again, s.pages_a * s.pages_b, early=False),
    )
    return Model("grace", steps, pages * (read + write + again), pages, pages)


def ripple(s: Setting) -> Model:
    """Equations 2 and 3. The k-th block: S (2k+1)/(T_ri+T_wt+k T_rt); l = (A+B)F/M blocks in all, the first in memory.

    Total: (a+b)[l T_ri + (l-1) T_wt + l(l-1)/2 T_rt]. A last block that is not full is taken as its share of one.
    """
    if s.fits:
        return _in_memory("ripple", s)
    read, write, again = s.read_input_seconds, s.write_temporary_seconds, s.read_temporary_seconds
    a, b = s.in_memory_a, s.in_memory_b
    blocks = s.input_pages / (a + b)  # l
    steps = [_symmetric_hash(s)]
    read_again = 0.0
    for k in range(1, math.ceil(blocks - 1e-9)):
        part = min(1.0, blocks - k)
        seconds = (a + b) * (part * (read + write) + k * again)
        steps.append(ModelStep(f"block {k}", seconds, (2 * k * part + part**2) * a * b))
        read_again += (a + b) * k
    return Model("ripple", tuple(steps), sum(step.seconds for step in steps), read_again, s.input_pages - (a + b))


def hash_ripple(s: Setting) -> Model:
    """Equations 4 and 5. New rows of A meet the b pages of B in memory: S/(T_ri+T_wt).

    Total: (A+B) T_ri + (A+B-b)(T_wt+T_rt).
    """
    if s.fits:
        return _in_memory("hash_ripple", s)
    read, write, again = s.read_input_seconds, s.write_temporary_seconds, s.read_temporary_seconds
    a, b, pages = s.in_memory_a, s.in_memory_b, s.input_pages
    first = _symmetric_hash(s)
    extend = ModelStep("extend", (pages - a - b) * (read + write), (s.pages_a - a) * b)
    left = s.pages_a * s.pages_b - s.pages_a * b
    spilled_first = ModelStep("spill what was in memory", a * write, 0.0)
    join = ModelStep("join", (pages - b) * again, left, early=False)
    total = pages * read + (pages - b) * (write + again)
    return Model("hash_ripple", (first, spilled_first, extend, join), total, pages - b, pages - b)


def sms(s: Setting) -> Model:
    """Equations 6 and 7. Sorted runs of (a+b)F pages, no hash table: S F/(T_ri+T_wt) early. Total as GRACE."""
    return _sorted_runs("sms", s, overlaps=1)


def dbo(s: Setting) -> Model:
    """Equation 8. Runs overlap alternately, so that each meets two of the other side: twice SMS early. Total as GRACE."""
    return _sorted_runs("dbo", s, overlaps=2)


def _sorted_runs(name: str, s: Setting, overlaps: int) -> Model:
    if s.input_pages <= s.memory_pages:
        only = ModelStep("in memory", s.input_pages * s.read_input_seconds, s.pages_a * s.pages_b)
        return Model(name, (only,), only.seconds, 0.0, 0.0)
    read, write, again = s.read_input_seconds, s.write_temporary_seconds, s.read_temporary_seconds
    a, b = s.in_memory_a * s.fudge_factor, s.in_memory_b * s.fudge_factor
    runs = s.input_pages / (a + b)
    early = min(overlaps * runs * a * b, s.pages_a * s.pages_b)
    pages = s.input_pages
    steps = (
        ModelStep("sort", pages * (read + write), early),
        ModelStep("merge", pages * again, s.pages_a * s.pages_b - early, early=False),
    )
    return Model(name, steps, pages * (read + write + again), pages, pages)


def prjoin(s: Setting, gamma: float = 1.0, stop: bool = True, partitions: int = 16) -> Model:
    """Equations 10 to 13. Partition i of n is joined for the j-th time when (a+b)(1+gamma)^(j+i/n) pages have been read.

    With the stop constraint only while (a+b)/n (1+gamma)^(j+1+i/n) is at most what the partition will hold: temporary storage
    is then read at most (1+1/gamma) times, and the total is at most (A+B)(T_ri+T_wt+(1+1/gamma) T_rt). Without it, while
    input comes. The third phase reads every partition once more and joins what is left.
    """
    _check_gamma(gamma, partitions)
    if s.fits:
        return _in_memory("prjoin", s)
    read, write, again = s.read_input_seconds, s.write_temporary_seconds, s.read_temporary_seconds
    a, b, pages = s.in_memory_a, s.in_memory_b, s.input_pages
    steps = [_symmetric_hash(s)]
    joined = [1.0] * partitions  # how much of each was last joined, in units of (a+b)/n
    read_pages, read_again = a + b, 0.0
    for j, i in _invocations(partitions, gamma, pages / (a + b), stop):
        size = (1 + gamma) ** (j + i / partitions)
        now = min(pages, (a + b) * size)
        mu, nu = joined[i], size / joined[i] - 1
        # Spilled pages of the partition: all but what is in memory; those of the first rows are spilled in the course of it.
        spilled = (a + b) / partitions * (nu * mu + (mu - 1))
        area = (size**2 - joined[i] ** 2) * a * b / partitions
        steps.append(ModelStep(f"join {j} of partition {i}", (now - read_pages) * (read + write) + spilled * again, area))
        read_pages, read_again = now, read_again + spilled
        joined[i] = size
    rest = ModelStep("read the rest", (pages - read_pages) * (read + write), 0.0)
    area = sum(((pages / (a + b)) ** 2 - size**2) * a * b / partitions for size in joined)
    last = ModelStep("join what is left", (pages - (a + b)) * again, area, early=False)
    steps += [rest, last]
    spilled = pages - (a + b)
    return Model("prjoin", tuple(steps), sum(step.seconds for step in steps), read_again + spilled, spilled)


def _invocations(partitions: int, gamma: float, most: float, stop: bool) -> Iterator[tuple[int, int]]:
    """(j, i) in the order of the joins: while the data read, in units of a+b, can get there; `stop`: with a factor to spare."""
    j = 1
    while True:
        for i in range(partitions):
            size = (1 + gamma) ** (j + i / partitions)
            if size * (1 + gamma if stop else 1) > most * (1 + 1e-12):
                return
            yield j, i
        j += 1


def _check_gamma(gamma: float, partitions: int) -> None:
    if not (gamma > 0 and math.isfinite(gamma)):
        raise ParameterError(f"gamma must be above 0; got {gamma!r}")
    if partitions < 1:
        raise ParameterError(f"there must be at least one partition; got {partitions}")


MODELS: dict[str, Callable[[Setting], Model]] = {
    "grace": grace,
    "ripple": ripple,
    "hash_ripple": hash_ripple,
    "sms": sms,
    "dbo": dbo,
    "prjoin": prjoin,
}
