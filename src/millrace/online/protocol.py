"""What every join of online aggregation takes and gives: inputs, progress, and the pieces of the pairs that it has joined.

    Input A --read--> |                    | --step()--> Progress: counters, pieces, done
                      |  join(budget)      |
    Input B --read--> |    |  ^            |
                           v  |
                       spill store

A join reads no clock and never waits for an input: whoever drives it does. `step()` does one bounded piece of work. What is
joined is told in *pieces* of the rectangle of all pairs; the statistics make estimates of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from millrace.core.arrays import BoolArray, FloatArray, Int64Array
from millrace.core.budget import Budget
from millrace.online.statistics.pieces_snapshot import COUNTS, SUMS, Kind, PiecesSnapshot, by_group
from millrace.online.statistics.totals import Sums

A, B = 0, 1  # the two sides


@dataclass(frozen=True)
class Batch:
    """The next rows of an input, as records of int64 words: word 0 is the key code, the others what the functions need.

    `rows` counts what was read, before filters; rows whose key is null or that a filter drops are counted there and are not
    among `words`. No rows at all: the input is stalled, or has ended.
    """

    words: Int64Array  # (kept rows, width), C-contiguous
    rows: int
    bytes: int


class Input(Protocol):
    """A finite input in random order."""

    rows: int  # in all: known, or estimated and then not used for anything exact
    width: int  # words of a record

    @property
    def ended(self) -> bool: ...

    def read(self, rows: int) -> Batch:
        """At most so many of the next rows; none when it has ended, or has nothing now."""
        ...


@dataclass
class Counters:
    """What a join did so far."""

    rows_a: int = 0  # input rows read, before filters
    rows_b: int = 0
    bytes_a: int = 0
    bytes_b: int = 0
    temp_written_bytes: int = 0
    temp_read_bytes: int = 0
    seeks: int = 0  # transfers of the temporary file that did not go on where the one before had ended
    joins: int = 0  # how often a report became better
    results: int = 0  # pairs found so far


class Pieces:
    """What has been joined, piece by piece, as arrays with one row per piece. They are the join's own, and
    change as it goes on: `snapshot` gives what stays.

    `kind` says what a piece is, and so which formula serves:

    - `partitions` (PR-Join): piece i is hash partition i. It was last joined when `rows_a[i]` and `rows_b[i]` rows of A and B
      had been read, all partitions together. `own_a[i]`, `own_b[i]` rows of the partition itself were joined then, of
      `total_a[i]`, `total_b[i]` that it is known to have by now; those are final once both inputs have ended.
    - `samples` (GRACE): each piece that is exact is one of all pieces, drawn at random; the others hold nothing.
    - `rectangles` (Ripple, Hash Ripple, SMS, DBO): piece i holds all pairs of `own_a[i]` rows from row `first_a[i]` on with
      `own_b[i]` rows from `first_b[i]` on (rows counted as read). Pieces do not overlap.
    - `counts` (XJoin, RPJ, HMJ): what is covered depends on the data. Only sums so far; no estimate.

    `certain` holds pairs that are in no piece and need no estimate: those of some keys of all rows (SMS and DBO as they merge;
    the pieces then lack these keys), or of some rows of B with all of A (Hash Ripple in the end). The answer is `certain` plus
    what the pieces estimate.
    """

    def __init__(self, kind: Kind, count: int, functions: int, groups: int, budget: Budget, name: str = "sums") -> None:
        self.kind = kind
        self.functions, self.groups = functions, groups
        k, g = functions, groups
        self._budget, self._name = budget, name
        self._make(count, k, g)
        self.certain = Sums.zeros(g, k)

    @staticmethod
    def bytes_each(functions: int, groups: int) -> int:
        """Of one piece."""
        return groups * (functions + 3 * functions * functions + 1) * 8 + 8 * 8 + 1

    def _make(self, count: int, k: int, g: int) -> None:
        self._budget.reserve(self._name, count * self.bytes_each(k, g))
        self.t: FloatArray = np.zeros((count, g, k))
        self.sx: FloatArray = np.zeros((count, g, k, k))
        self.sy: FloatArray = np.zeros((count, g, k, k))
        self.q: FloatArray = np.zeros((count, g, k, k))
        self.pairs: Int64Array = np.zeros((count, g), np.int64)
        self.rows_a, self.rows_b, self.own_a, self.own_b, self.total_a, self.total_b, self.first_a, self.first_b = np.zeros(
            (8, count), np.int64
        )
        self.exact: BoolArray = np.zeros(count, np.bool_)

    def __len__(self) -> int:
        return len(self.exact)

    def put(self, piece: int, sums: Sums) -> None:
        self.t[piece], self.sx[piece], self.sy[piece], self.q[piece] = sums.t, sums.sx, sums.sy, sums.q
        self.pairs[piece] = sums.pairs

    def finish(self, piece: int, sums: Sums, read: Sequence[int]) -> None:
        """A partition has been joined whole, when `read` rows of A and B had been read."""
        self.put(piece, sums)
        self.own_a[piece], self.own_b[piece] = self.total_a[piece], self.total_b[piece]
        self.rows_a[piece], self.rows_b[piece] = read
        self.exact[piece] = True

    def snapshot(self, groups: Int64Array | None = None) -> PiecesSnapshot:
        """The pieces as they are now, of some groups or of all; a copy."""
        certain = [getattr(self.certain, name) for name in SUMS]
        return PiecesSnapshot(
            self.kind,
            **{name: by_group(getattr(self, name), groups) for name in SUMS},
            **{name: getattr(self, name).copy() for name in (*COUNTS, "exact")},
            certain=Sums(*(each.copy() if groups is None else each[groups] for each in certain)),
        )

    def append(self, sums: Sums) -> int:
        """One more piece, at the end."""
        count, fields = len(self), (*SUMS, *COUNTS, "exact")
        before = {name: getattr(self, name) for name in fields}
        self._make(count + 1, self.functions, self.groups)
        for name in fields:
            getattr(self, name)[:count] = before[name]
        self.put(count, sums)
        return count

    def fold(self, rows_a: int, rows_b: int) -> None:
        """All pieces, which together are the rectangle of all rows read, become one: there is no room for more. The sums of
        squares over a row of A or B need all of its pairs at once, so they are not known from now on (NaN)."""
        whole = Sums(*(field.sum(axis=0) for field in (self.t, self.sx, self.sy, self.q, self.pairs)))
        self._make(1, self.functions, self.groups)
        self.put(0, whole)
        self.sx[:] = self.sy[:] = np.nan
        self.own_a[0] = self.rows_a[0] = rows_a
        self.own_b[0] = self.rows_b[0] = rows_b

    def drop(self) -> None:
        """Forget all pieces. What is `certain` stays."""
        self._make(0, self.functions, self.groups)

    def answer(self) -> FloatArray:
        """Sums of what has been joined, (groups, functions): the answer itself once the join is done."""
        total: FloatArray = self.certain.t + self.t.sum(axis=0)
        return total

    def pairs_joined(self) -> int:
        return int(self.certain.pairs.sum() + self.pairs.sum())


@dataclass(frozen=True)
class Progress:
    """What one step came to. `reported`: the pieces are in a state that may be estimated from, and better than before."""

    counters: Counters
    pieces: Pieces
    reported: bool = False
    stalled: bool = False  # nothing to do until an input gives rows: wait, then step again
    input_ended: bool = False
    done: bool = False  # the pieces hold the exact answer


class OnlineJoin(Protocol):
    """Never raises for what the data are; an error of the store or an input ends the run and leaves the last pieces."""

    @property
    def pieces(self) -> Pieces: ...

    @property
    def counters(self) -> Counters: ...

    def step(self) -> Progress: ...

    def close(self) -> None:
        """Give back the temporary space. May be called at any time, and twice."""
        ...


def run(join: OnlineJoin) -> Iterable[Progress]:
    """Step until done, and close, whatever happens. For inputs that never stall: it does not wait."""
    try:
        while True:
            progress = join.step()
            yield progress
            if progress.done:
                return
    finally:
        join.close()


def finished(join: OnlineJoin) -> Progress:
    """Run to the end."""
    last: Progress | None = None
    for progress in run(join):
        last = progress
    assert last is not None
    return last
