"""Which tuples are shed.

    drop          of the stream buffer, all alike; nothing is stored
    keep          of the stream buffer, all alike: up front, as MESHJOIN's journal version has it
    sample        of buffer and window, all alike
    considering   the tuples of the window that came first: they have waited long, so their pages are seldom wanted
    selective     of buffer and window, tuples that wait for pages with the fewest tuples for what a read of them costs

For an inner join whose pages serve everyone who waits (a scan), or one tuple each, no choice is better than another:
`selective` sheds up front there. A tuple that a front stage answers costs nothing, so `selective` never sheds one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from millrace.core.arrays import BoolArray, FloatArray, Int64Array
from millrace.core.errors import ParameterError
from millrace.core.protocols import NO_PLACE, Waiting
from millrace.joins.shedding.buffer import StreamBuffer

_NONE = np.zeros(0, np.int64)


@dataclass
class Inside:
    """What a policy chooses from: the buffer, the join, and numbers that are not shed any more."""

    buffer: StreamBuffer
    join: Any
    random: np.random.Generator
    safe: Int64Array = field(default_factory=lambda: _NONE)

    def waiting(self) -> Waiting:
        """Tuples of the join that may be shed."""
        found: Waiting = stage_that_waits(self.join).waiting()
        free = self._free(found.numbers)
        return found if free.all() else Waiting(found.numbers[free], found.places[free])

    def arrived(self) -> Int64Array:
        """Positions in the buffer that may be shed."""
        return np.flatnonzero(self._free(self.buffer.whole().numbers))

    def _free(self, numbers: Int64Array) -> BoolArray:
        return ~np.isin(numbers, self.safe) if len(self.safe) else np.ones(len(numbers), np.bool_)


@dataclass(frozen=True)
class Chosen:
    """Positions in the buffer, and numbers of tuples in the join."""

    positions: Int64Array = field(default_factory=lambda: _NONE)
    numbers: Int64Array = field(default_factory=lambda: _NONE)


class Policy(Protocol):
    asks_window: bool  # it looks through the window, and needs memory for this

    def arrive(self, rows: pa.RecordBatch, join: Any) -> None:
        """These rows come into the buffer."""

    def choose(self, count: int, inside: Inside) -> Chosen:
        """About so many tuples to shed."""


class Keep:
    """Up front, everyone with the same probability."""

    asks_window = False

    def arrive(self, rows: pa.RecordBatch, join: Any) -> None:
        """Rows are all alike."""

    def choose(self, count: int, inside: Inside) -> Chosen:
        return Chosen(_some(inside.arrived(), count, inside))


class Sample:
    """Buffer and window, everyone with the same probability."""

    asks_window = True

    def arrive(self, rows: pa.RecordBatch, join: Any) -> None:
        """Rows are all alike."""

    def choose(self, count: int, inside: Inside) -> Chosen:
        arrived, numbers = inside.arrived(), inside.waiting().numbers
        count = min(count, len(arrived) + len(numbers))
        early = int(inside.random.hypergeometric(len(arrived), len(numbers), count)) if count else 0
        return Chosen(_some(arrived, early, inside), _some(numbers, count - early, inside))


class Considering:
    """The tuples that arrived first, of those in the join."""

    asks_window = True

    def arrive(self, rows: pa.RecordBatch, join: Any) -> None:
        """Tuples are told apart in the join."""

    def choose(self, count: int, inside: Inside) -> Chosen:
        return Chosen(numbers=_oldest(inside, count))


class Selective:
    """Those on the poorest pages. What a place is worth: how often tuples for it came lately. Joins choose places that cost
    the same: a partition of HYBRIDJOIN, or a zone of SWEEPJOIN that is long enough for skipping it to save time.

    The number of tuples that wait for a page now would mislead: nobody waits for the richest page just after it was read. So
    arrivals are counted by page, and counts are halved from time to time. If a look-up costs a read, those that wait now count.
    """

    asks_window = True

    def __init__(self) -> None:
        self._counts: FloatArray | None = None
        self._since = 0  # arrivals since counts were halved
        self._poor = 0.0  # pages of at most this worth were shed last

    def arrive(self, rows: pa.RecordBatch, join: Any) -> None:
        places = self._places(rows, join)
        if places is None:
            return
        count = int(stage_that_waits(join).places)
        if self._counts is None or len(self._counts) != count:
            self._counts = np.zeros(count)
        self._counts += np.bincount(places[places != NO_PLACE], minlength=len(self._counts))
        self._since += len(places)
        if self._since > 16 * join.capacity:
            self._counts /= 2
            self._since = 0

    def choose(self, count: int, inside: Inside) -> Chosen:
        arrived = self._not_answered(inside)
        if not hasattr(stage_that_waits(inside.join), "places"):
            # All cost the same. Keys that come often are learned from tuples that were taken, so those go where they count.
            numbers = _oldest(inside, count) if getattr(inside.join, "counts_recent_keys", False) else _NONE
            return Chosen(_some(arrived, count - len(numbers), inside), numbers)
        rows = inside.buffer.whole().rows.take(pa.array(arrived)) if self._counts is not None else None
        worth = np.full(len(arrived), np.inf)
        if rows is not None:
            worth = self._worth(self._places(rows, inside.join), self._counts)
        poor = np.flatnonzero(worth <= self._poor)
        if len(poor) >= count:
            return Chosen(arrived[poor[_lowest(worth[poor], count)]])
        return self._of_both(count, inside, arrived, worth)

    def _of_both(self, count: int, inside: Inside, arrived: Int64Array, worth: FloatArray) -> Chosen:
        waiting = inside.waiting()
        stage = stage_that_waits(inside.join)
        counts = self._counts
        if counts is None:
            counts = np.bincount(waiting.places[waiting.places != NO_PLACE], minlength=stage.places).astype(np.float64)
        every = np.concatenate((worth, self._worth(waiting.places, counts)))
        every[np.isinf(every)] = np.finfo(np.float64).max
        chosen = _lowest(every, min(count, len(every)))
        if self._counts is not None and len(chosen):
            self._poor = float(every[chosen].max())
        early = chosen[chosen < len(arrived)]
        return Chosen(arrived[early], waiting.numbers[chosen[chosen >= len(arrived)] - len(arrived)])

    @staticmethod
    def _worth(places: Int64Array | None, counts: FloatArray | None) -> FloatArray:
        """By tuple. A tuple that waits for no page costs nothing: it is worth more than any other."""
        assert places is not None
        assert counts is not None
        known = places != NO_PLACE
        worth = np.full(len(places), np.inf)
        worth[known] = counts[places[known]]
        return worth

    @staticmethod
    def _not_answered(inside: Inside) -> Int64Array:
        """Positions in the buffer that may be shed, without tuples that a front stage would answer."""
        arrived = inside.arrived()
        if not hasattr(inside.join, "answers") or not len(arrived):
            return arrived
        return arrived[~inside.join.answers(inside.buffer.whole().rows.take(pa.array(arrived)))]

    @staticmethod
    def _places(rows: pa.RecordBatch, join: Any) -> Int64Array | None:
        """None if no tuple waits for a place of its own, or if a look-up costs a read. Where a front stage answers: none."""
        stage = stage_that_waits(join)
        found: Int64Array | None = stage.place_of(rows) if hasattr(stage, "place_of") else None
        if found is not None and hasattr(join, "answers"):
            found = np.where(join.answers(rows), NO_PLACE, found)
        return found


def stage_that_waits(join: Any) -> Any:
    """Where tuples wait: the join itself, or its back stage."""
    return join if hasattr(join, "waiting") else getattr(join, "back", join)


def make_policy(name: str, join: Any) -> Policy:
    kinds: dict[str, type[Keep] | type[Sample] | type[Considering] | type[Selective]] = {
        "drop": Keep, "sample": Sample, "keep": Keep, "considering": Considering, "selective": Selective,
    }  # fmt: skip
    if name not in kinds:
        raise ParameterError(f"there is no policy {name!r}; choose one of {', '.join(kinds)}")
    policy = kinds[name]()
    if policy.asks_window and not hasattr(stage_that_waits(join), "waiting"):
        raise ParameterError(f"policy {name!r} needs a join that says which tuples wait; use 'keep' or 'drop'")
    return policy


def _oldest(inside: Inside, count: int) -> Int64Array:
    """The tuples of the window that came first."""
    numbers = inside.waiting().numbers
    return np.partition(numbers, count)[:count] if len(numbers) > count else numbers


def _some(values: Int64Array, count: int, inside: Inside) -> Int64Array:
    return inside.random.permutation(values)[:count]


def _lowest(values: FloatArray, count: int) -> Int64Array:
    """Positions of the lowest values."""
    if count >= len(values):
        return np.arange(len(values))
    return np.argpartition(values, count)[:count] if count else _NONE
