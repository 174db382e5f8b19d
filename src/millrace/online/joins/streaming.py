"""Joins of finite streams that put out pairs as early as they can, without statistics: what XJoin, HMJ and RPJ share.

    stage mm   rows in memory meet rows in memory             as they come; at the latest before one of them is spilled
    stage md   rows in memory meet spilled rows               while both inputs have nothing to give
    stage dd   spilled rows meet spilled rows                 likewise, and in the end

Rows of a bucket are numbered by side in the order of their arrival; the oldest are spilled first. So what has met is a set of
rectangles of numbers, and a stage joins what is left of its own rectangle: each pair is found once.

    B  |####|              #  met while both were in memory
       |####|___
       |    |###|___       a stage on [spilled A x all B] joins the rest
       |____|###|###|
         A  spilled|memory
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.compiled import kernel
from millrace.online.pair_functions import Functions
from millrace.online.protocol import A, B, Counters, Input, Pieces, Progress
from millrace.online.storage.memory_plan import Layout, Plan, divide_partitions
from millrace.online.storage.paired_reading import Readers
from millrace.online.storage.partitions import Partitions
from millrace.online.storage.rectangles import join_parts
from millrace.online.storage.sizing import Shape, divided
from millrace.online.storage.spill import Spill, count_transfers

MD_A, MD_B, DD = 0, 1, 2  # spilled rows of A meet rows of B in memory; the other way round; spilled rows meet spilled rows


class Area(NamedTuple):
    """Rows of A from `a` to before `a_end`, by rows of B from `b` to before `b_end`."""

    a: int
    a_end: int
    b: int
    b_end: int

    @property
    def size(self) -> int:
        return max(0, self.a_end - self.a) * max(0, self.b_end - self.b)


def without(area: Area, holes: Int64Array) -> Int64Array:
    """What is left of an area, as areas that do not overlap; all are rows of (a, a_end, b, b_end).

    >>> without(Area(0, 4, 0, 4), np.array([[1, 2, 1, 9]])).tolist()
    [[0, 1, 0, 4], [2, 4, 0, 4], [1, 2, 0, 1]]
    """
    parts: Int64Array = _without(*area, holes) if area.size else holes[:0]
    return parts


class MetAreas:
    """What of a bucket has met: areas, which may overlap."""

    def __init__(self) -> None:
        self._areas: Int64Array = np.zeros((8, 4), np.int64)
        self._count = 0

    def missing(self, area: Area) -> Int64Array:
        """What of an area has not met, as areas that do not overlap."""
        return without(area, self._areas[: self._count])

    def add(self, area: Area) -> None:
        """One more; those inside it are forgotten."""
        areas = self._areas[: self._count]
        inside = (areas[:, 0] >= area.a) & (areas[:, 1] <= area.a_end) & (areas[:, 2] >= area.b) & (areas[:, 3] <= area.b_end)
        kept = areas[~inside]
        if len(kept) == len(self._areas):
            self._areas = np.concatenate((kept, np.zeros_like(kept)))
        self._areas[: len(kept)] = kept
        self._areas[len(kept)] = area
        self._count = len(kept) + 1

    @property
    def size(self) -> int:
        """Pairs of rows in the areas; some are counted twice."""
        areas = self._areas[: self._count]
        return int(((areas[:, 1] - areas[:, 0]) * (areas[:, 3] - areas[:, 2])).sum())


class StreamJoin(ABC):
    """`pieces` are sums by bucket, of kind `counts`: what has met depends on the data, so they allow no estimate."""

    @abstractmethod
    def victims(self, pages: Int64Array, least: int) -> list[tuple[int, int]]:
        """Memory is full: which (bucket, side) each give up an extent. `pages` by 2 bucket + side; each must have `least`."""

    @abstractmethod
    def task(self) -> tuple[int, Area] | None:
        """Both inputs have nothing now: a bucket, and the rows of it to bring together."""

    def __init__(
        self, a: Input, b: Input, functions: Functions, budget: Budget, spill: Spill, *, layout: Layout | None = None
    ) -> None:
        shape = Shape.of(a, b, functions, spill)
        plan = divided(partial(self.divide, shape, layout=layout), shape, budget)
        self.counters = Counters()
        self._readers = Readers((a, b), self.counters)
        self._spill = spill
        self.widths = shape.widths
        self.buckets = Partitions(shape, plan, budget, spill)
        self.buckets.choose_victims = self._victims
        held, passing = _beside(shape, plan)
        self._held: Int64Array = budget.array("rows of a bucket", held, np.int64)
        self._passing: Int64Array = budget.array("rows they meet", passing, np.int64)
        self.pieces = Pieces("counts", self.buckets.count, functions.functions, functions.groups, budget)
        self.met = [MetAreas() for _ in range(self.buckets.count)]
        self._report_rows = max(1, plan.pool_pages * (plan.page_words // max(self.widths)) // 8)
        self._reported_at = 0
        self._left: list[int] | None = None  # buckets to end with
        count = self.buckets.count
        self._seen: Int64Array = np.full((5, count), -1, np.int64)  # of each bucket, when what it could gain was worked out
        self._settled: Int64Array = np.zeros(count, np.int64)
        self._gain: Int64Array = np.zeros((count, 3), np.int64)
        self._cost: Int64Array = np.zeros((count, 3), np.int64)
        self.met_pairs: Int64Array = np.zeros(count, np.int64)

    @staticmethod
    def divide(shape: Shape, budget: Budget, *, layout: Layout | None = None) -> Plan:
        """Set aside what the join takes."""
        plan = divide_partitions(shape, budget, layout, per_row=10 * shape.widest, extents=1)
        held, passing = _beside(shape, plan)
        budget.reserve_all({"rows of a bucket": 8 * held, "rows they meet": 8 * passing})
        budget.reserve("sums", plan.partitions * shape.piece_bytes)
        return plan

    def step(self) -> Progress:
        if self._readers.ended:
            return self._end()
        taken = self._readers.next(self.buckets.plan.batch_rows)
        if taken is None:
            return self._stalled()
        self.buckets.add(*taken)
        if sum(self._readers.read) - self._reported_at < self._report_rows:
            return self._progress()
        self._meet_in_memory()
        return self._progress(reported=True)

    def _victims(self, pages: Int64Array, least: int) -> list[tuple[int, int]]:
        chosen = self.victims(pages, least)
        for bucket in {bucket for bucket, _ in chosen}:
            self.settle(bucket, self.in_memory(bucket))
        return chosen

    def _meet_in_memory(self) -> None:
        self._reported_at = sum(self._readers.read)
        for bucket in range(self.buckets.count):
            self.settle(bucket, self.in_memory(bucket))

    def in_memory(self, bucket: int) -> Area:
        a, b = self.buckets.rows_of(bucket)
        return Area(self.buckets.spilled_rows(bucket, A), a, self.buckets.spilled_rows(bucket, B), b)

    def stage(self, bucket: int, stage: int) -> Area:
        """The rows that a stage brings together."""
        memory = self.in_memory(bucket)
        if stage == MD_A:
            return Area(0, memory.a, memory.b, memory.b_end)
        return Area(memory.a, memory.a_end, 0, memory.b) if stage == MD_B else Area(0, memory.a, 0, memory.b)

    def gains(self) -> tuple[Int64Array, Int64Array]:
        """By bucket and stage: pairs of rows that have not met, and how many spilled rows are read to bring them together. Only
        buckets that have changed are looked at again."""
        buckets = self.buckets
        spilled = [buckets.spilled_by_side(side) for side in (A, B)]
        now = np.stack([buckets.rows(A), buckets.rows(B), *spilled, self._settled])
        for bucket in np.flatnonzero((now != self._seen).any(axis=0)).tolist():
            for stage in (MD_A, MD_B, DD):
                parts = self.met[bucket].missing(self.stage(bucket, stage))
                self._gain[bucket, stage] = ((parts[:, 1] - parts[:, 0]) * (parts[:, 3] - parts[:, 2])).sum()
            a, b = spilled[A][bucket], spilled[B][bucket]
            self._cost[bucket] = a, b, a + b
            self.met_pairs[bucket] = self.met[bucket].size
        self._seen = now
        return self._gain, self._cost

    def settle(self, bucket: int, area: Area) -> None:
        """Bring together what has not met in an area: rows of the side that has fewer are held, as many as there is room for,
        and those of the other pass by, some extents at a time."""
        if not area.size:
            return
        side = A if area.a_end - area.a <= area.b_end - area.b else B
        low, end = (area.a, area.a_end) if side == A else (area.b, area.b_end)
        for start in range(low, end, self.buckets.plan.table_rows):
            self._settle_strip(bucket, area, side, start, min(start + self.buckets.plan.table_rows, end))
        self.met[bucket].add(area)
        self._settled[bucket] += 1

    def _settle_strip(self, bucket: int, area: Area, side: int, low: int, high: int) -> None:
        held: Int64Array | None = None
        start, end = (area.b, area.b_end) if side == A else (area.a, area.a_end)
        each, most = self.buckets.extent_rows(1 - side), len(self._passing) // self.widths[1 - side]
        while start < end:
            stop = min(end, max(start // each + 1, (start + most) // each) * each)  # no extent is read twice
            tile = Area(low, high, start, stop) if side == A else Area(start, stop, low, high)
            parts = self.met[bucket].missing(tile)
            if len(parts):
                held = self._load(bucket, side, low, high, self._held) if held is None else held
                met = self._load(bucket, 1 - side, start, stop, self._passing)
                self._join(bucket, parts, (held, met) if side == A else (met, held), (tile.a, tile.b))
            start = stop
        self.counters.joins += held is not None

    def _join(self, bucket: int, parts: Int64Array, rows: tuple[Int64Array, Int64Array], starts: tuple[int, int]) -> None:
        a, b = starts
        sums = join_parts(self.buckets.rectangle, rows, parts - np.array([a, a, b, b]))
        self.pieces.t[bucket] += sums.t
        self.pieces.pairs[bucket] += sums.pairs
        self.counters.results += int(sums.pairs.sum())

    def _load(self, bucket: int, side: int, low: int, high: int, out: Int64Array) -> Int64Array:
        rows = out[: (high - low) * self.widths[side]].reshape(-1, self.widths[side])
        place = 0
        for words in self.buckets.rows_between(bucket, side, low, high):
            rows[place : place + len(words)] = words
            place += len(words)
        return rows

    def _stalled(self) -> Progress:
        if self._readers.ended:
            return self._progress()
        if self._reported_at < sum(self._readers.read):
            self._meet_in_memory()
            return self._progress(reported=True)
        task = self.task()
        if task is None:
            return self._progress(stalled=True)
        self.settle(*task)
        return self._progress(reported=True)

    def _end(self) -> Progress:
        if self._left is None:
            self._left = list(range(self.buckets.count))[::-1]
        if self._left:
            bucket = self._left.pop()
            a, b = self.buckets.rows_of(bucket)
            self.settle(bucket, Area(0, a, 0, b))
            self.pieces.exact[bucket] = True
        return self._progress(reported=True)

    def _progress(self, *, reported: bool = False, stalled: bool = False) -> Progress:
        count_transfers(self.counters, self._spill)
        return Progress(self.counters, self.pieces, reported, stalled, self._readers.ended, self._left == [])

    def close(self) -> None:
        self.buckets.close()


def _beside(shape: Shape, plan: Plan) -> tuple[int, int]:
    """Words for rows of a bucket, and for the rows that they meet."""
    return plan.table_rows * shape.widest, plan.extent_bytes // 8 + plan.table_rows // 4 * shape.widest


@kernel
def _without(a: Any, a_end: Any, b: Any, b_end: Any, holes: Any) -> Any:
    """Hole by hole: each part that it overlaps is replaced by what lies left of it, right, below and above."""
    parts, cut = np.empty((8, 4), np.int64), np.empty((8, 4), np.int64)
    parts[0] = a, a_end, b, b_end
    count = 1
    for number in range(len(holes)):
        left, right, bottom, top = holes[number]
        if left >= a_end or right <= a or bottom >= b_end or top <= b or left >= right or bottom >= top:
            continue
        if len(cut) < 4 * count:
            cut = np.empty((8 * count, 4), np.int64)
        made = 0
        for i in range(count):
            x, x_end, y, y_end = parts[i]
            low, high, under, over = max(x, left), min(x_end, right), max(y, bottom), min(y_end, top)
            if low >= high or under >= over:
                cut[made] = x, x_end, y, y_end
                made += 1
                continue
            if x < low:
                cut[made] = x, low, y, y_end
                made += 1
            if high < x_end:
                cut[made] = high, x_end, y, y_end
                made += 1
            if y < under:
                cut[made] = low, high, y, under
                made += 1
            if over < y_end:
                cut[made] = low, high, over, y_end
                made += 1
        parts, cut, count = cut, parts, made
    return parts[:count].copy()
