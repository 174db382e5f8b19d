"""SWEEPJOIN: the disk head sweeps round the relation, reads only wanted pages, and reads no page twice in a sweep.

Our own join. MESHJOIN (Polyzotis et al.) reads everything in order. HYBRIDJOIN (Naeem et al.) reads only what is wanted, in
random order. SWEEPJOIN reads only what is wanted, in order.

The loop:
1. take stream tuples while there is room; the index says which pages a tuple needs, and the tuple waits for the first of them;
2. plan the next reads from the position of the head, as many as fit the disk buffer. Two wanted pages share a read if reading
   the gap between them costs less than a seek. After the last page the first page follows;
3. read; 4. look up the waiting tuples in their pages, put out the matches; a tuple that has met its last page leaves.

    stream -> [ buckets: page -> waiting tuples ]      disk buffer
                  0   1   2   3   4   5   6  ...       [ 2 | 3 | 5 ]   one read crosses page 4
                          ^^^^^^^^^^^^^ head, moving right

What it needs: an index, in memory or on disk. If every page is wanted, it is MESHJOIN's scan; if few pages are wanted, an index
join. A tuple waits at most one sweep for each page of its key. If pages can be used in place (`mmap`), there is nothing to
buffer, and a step serves as many tuples as the output holds.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.protocols import NO_PLACE, IndexedRelation, JoinSpec, PageRun, Waiting
from millrace.core.step import Step, StepCounts
from millrace.core.unitcosts import UnitCosts
from millrace.cost import sweepjoin as cost
from millrace.cost.expected import Expected, StreamShape
from millrace.joins.door import Door
from millrace.joins.emit import OUTPUT_ROWS, Emitter
from millrace.joins.found_matches import Pairs
from millrace.joins.reading import COLD_STEPS, Arrivals, Reader, check_index, disk_index, pages_of
from millrace.joins.sizing import (
    MAX_SLOTS,
    MIN_OUTPUT_ROWS,
    Sizing,
    check_at_least_one,
    costs_with_calls,
    letters,
    memory_parts,
    open_index,
    plan_window,
    reserve,
    some_sizes,
)
from millrace.structures.buckets import Cursor, PageBuckets, Reads
from millrace.structures.window import Window, Windowed

BUFFER_BYTES = 16 << 20  # long enough that a step's own cost does not count
_FEW_PAGES = 6
_ALIKE = 0.99  # of the best rate: of such buffers the longest, which crosses gaps where few tuples wait
_ZONE_GAPS, _ZONES = 4, 16  # of a zone: gaps; and how many zones there are at least
_STAYS = 8  # windows of tuples that pages serve before the head moves on: hot pages are not read for each window again
_SCRATCH_BYTES = 80  # per comparison of a step: slots, pages, done, first row, count, and the pairs made of them


class SweepJoin(Windowed):
    """Join a stream with an indexed relation, one sweep after the other.

    >>> import pyarrow as pa
    >>> from millrace.relations.memory import MemoryRelation
    >>> relation = MemoryRelation(pa.record_batch({"id": [1, 2, 3], "name": ["a", "b", "c"]}), "id", rows_per_page=1)
    >>> stream = pa.record_batch({"id": [3, 1, 3]})
    >>> join = SweepJoin(relation, JoinSpec(stream.schema, (("id", "id"),), "inner", ("id",), ("name",)), Budget("1m"))
    >>> join.offer(stream), join.step().output.to_pydict(), relation.reads
    (3, {'id': [1, 3, 3], 'name': ['a', 'c', 'c']}, [(0, 3)])
    """

    def __init__(
        self,
        relation: IndexedRelation,
        spec: JoinSpec,
        budget: Budget,
        *,
        buffer_pages: int | None = None,
        window_tuples: int | None = None,
        costs: UnitCosts | None = None,
    ) -> None:
        self._relation = relation
        self._budget = budget
        sizing, self._limit = self.divide(
            relation, spec, budget, buffer_pages=buffer_pages, window_tuples=window_tuples, costs=costs
        )
        reserve(relation, spec, budget, sizing)
        budget.reserve("step scratch", self._limit * _SCRATCH_BYTES)
        self._buffer_pages = sizing.buffer_pages
        self._gap_pages = (costs or UnitCosts()).gap_bytes() // relation.page_bytes
        self._window = Window(relation, spec, budget, sizing.capacity)
        self._buckets = PageBuckets(relation.pages, sizing.capacity, budget)
        self._emitter = Emitter(relation, spec, self._window, sizing.output_rows)
        self._door = Door(self._emitter)
        self._reader = Reader(relation, open_index(relation, budget, sizing.hot_keys))
        self._arrivals = Arrivals(self._reader, self._window)
        self._position = 0
        self._run: PageRun | None = None
        self._reads = Reads(np.zeros(0, np.int64), np.zeros(0, np.int64))
        self._cursor = Cursor(0, 0)
        self._served = 0  # comparisons with what the run holds
        self._exhausted = False  # no tuple waits any more for the pages of the run
        self._key_pages = 1  # of one key, the most so far
        self._pairs: Pairs | None = None
        self._probes = 0  # since the last step

    @staticmethod
    def divide(
        relation: IndexedRelation, spec: JoinSpec, budget: Budget, *,
        buffer_pages: int | None = None, window_tuples: int | None = None, costs: UnitCosts | None = None,
    ) -> tuple[Sizing, int]:  # fmt: skip
        """How the budget would be shared out; an error if it is too small. No array is made."""
        check_index(relation, "sweepjoin")
        spec.check_against(relation)
        return _plan(relation, spec, budget, buffer_pages, window_tuples, costs)

    @classmethod
    def expect(
        cls, relation: IndexedRelation, spec: JoinSpec, budget: Budget, stream: StreamShape, *,
        costs: UnitCosts | None = None, rows: float | None = None, **parameters: Any,
    ) -> Expected:  # fmt: skip
        """What the join is expected to do: in the long run, or with so many rows and then no more. An error if the budget is
        too small. No array is made."""
        sizing, limit = cls.divide(relation, spec, budget, costs=costs, **parameters)
        rows_per_page = relation.rows / max(1, relation.pages)
        iteration = (cost.iteration if rows is None else partial(cost.drained, rows))(
            sizing.capacity, sizing.buffer_pages, stream.demand(relation.rows, relation.pages),
            gap_pages=(costs or UnitCosts()).gap_bytes() // relation.page_bytes, N_R=max(1, relation.pages),
            v_P=relation.page_bytes, sigma=stream.sigma * (1 - stream.absent), limit=min(limit, sizing.output_rows),
            pages_each=1 + max(0.0, stream.sigma - 1) / max(1.0, rows_per_page),
        )  # fmt: skip
        parts = memory_parts(relation, spec, sizing, budget.memory_bytes, PageBuckets.BYTES_PER_SLOT)
        return Expected(iteration, sizing.capacity, parts, {"buffer_pages": sizing.buffer_pages})

    @property
    def pending(self) -> int:
        return self._window.pending

    @property
    def longest_wait(self) -> int:
        """The most reads for which a tuple stays inside, whatever else comes: one sweep for each page of its key.
        If the index lies on disk, also the steps that a tuple may wait for a look-up."""
        look_up = COLD_STEPS + 1 if disk_index(self._relation) is not None else 0
        if self._relation.resident:
            return look_up + 1
        return look_up + self._key_pages * (2 + -(-self._relation.pages // self._buffer_pages))

    def offer(self, batch: pa.RecordBatch) -> int:
        if self._door.shut and self.pending:
            return 0
        count, slots = self._window.admit(batch, batch.num_rows)
        self._arrivals.add(slots)
        return count

    def step(self) -> Step:
        return self._emitter.go_on() if self._emitter.behind else self._loop()

    def _let_go(self, slots: Int64Array) -> Int64Array:
        if self._pairs is not None:  # a tuple may wait for its next page while matches on this page are put out
            slots = np.setdiff1d(slots, self._pairs.slots)
        gone = self._arrivals.remove(self._window.marked(slots))
        return np.concatenate((gone, self._buckets.remove(np.setdiff1d(slots, gone))))

    def waiting(self) -> Waiting:
        """Tuples that can be given back, and the zones of pages that they wait for."""
        new = self._arrivals.slots
        slots, pages = self._buckets.slots()
        places = np.concatenate((pages // self._zone_pages, np.full(len(new), NO_PLACE)))
        return self._window.waiting(np.concatenate((slots, new)), places)

    @property
    def places(self) -> int:
        """Zones of pages. Skipping a zone saves time: it is several times as long as a gap that is read through."""
        return -(-self._relation.pages // self._zone_pages)

    @property
    def _zone_pages(self) -> int:
        return max(1, min(_ZONE_GAPS * self._gap_pages, self._relation.pages // _ZONES))

    def place_of(self, rows: pa.RecordBatch) -> Int64Array | None:
        """The zone that each of these tuples will wait for first. None if telling costs a read."""
        pages = pages_of(self._relation, self._window, rows)
        return None if pages is None else np.where(pages == NO_PLACE, NO_PLACE, pages // self._zone_pages)

    def _loop(self) -> Step:
        if len(self._arrivals) and self._takes_more:
            self._place()
        self._door.begin()
        if self._pairs is None and self._buckets.waiting:
            self._advance()
        if self._pairs is not None:
            assert self._run is not None
            slots, rows = self._pairs.next(min(self._limit, self._emitter.room))  # step 4
            self._emitter.pairs(self._run, slots, rows)
            if self._pairs.empty:
                self._emitter.leave(self._pairs.done)
                self._pairs = None
                self._run = None if self._exhausted else self._run
        step = self._emitter.finish(StepCounts(probes=self._probes) + self._reader.counts())
        self._probes = 0
        return step

    @property
    def _takes_more(self) -> bool:
        """Whether new tuples may wait for pages now. They may not once the pages at hand have served `_STAYS` windows of
        tuples: otherwise tuples that come faster than they leave would keep the head where it is. Where pages are used in
        place, another look costs nothing, and only pages that were wanted last have been checked."""
        return self._run is None or (not self._relation.resident and self._served < _STAYS * self._window.capacity)

    def _place(self) -> None:
        # step 1
        window = self._window
        slots, runs = self._arrivals.take(idle=self._buckets.waiting == 0 and self._pairs is None)
        self._key_pages = max(self._key_pages, 1 + int((runs.last - runs.first).max(initial=0)))
        known = runs.last >= runs.first
        if known.all():
            self._buckets.add(slots, runs.first, runs.last)
        else:
            self._buckets.add(slots[known], runs.first[known], runs.last[known])
            window.impossible_slots = np.concatenate((window.impossible_slots, slots[~known]))

    def _advance(self) -> None:
        """Read on if the pages in the buffer are used up, and look up the next tuples in the buffer."""
        if self._run is None:
            self._read_on()
        assert self._run is not None
        collected = self._buckets.collect(self._reads, self._cursor, self._limit)
        self._cursor = collected.cursor
        first, count = self._run.match(self._window.code[collected.slots], collected.pages)
        self._pairs = Pairs(collected.slots, first, count, collected.done, unique=self._relation.unique)
        self._exhausted = self._cursor.read == len(self._reads.firsts) or not self._buckets.waiting
        self._served += len(collected.slots)
        self._probes += len(collected.slots)

    def _read_on(self) -> None:
        # steps 2 and 3
        self._served = 0
        if self._relation.resident:
            wanted = self._buckets.wanted(crossing=not self._relation.unique)
            self._run = self._reader.use(wanted)
            self._reads = Reads(np.zeros(1, np.int64), np.array([self._relation.pages]))
            self._cursor = Cursor(0, 0)
            return
        reads = self._buckets.plan(self._position, self._buffer_pages, self._gap_pages)
        if not len(reads.firsts):
            reads = self._buckets.plan(0, self._buffer_pages, self._gap_pages)
        self._run = self._reader.read_many(reads.firsts, reads.counts)
        self._reads = reads
        self._cursor = Cursor(0, int(reads.firsts[0]))
        self._position = int(reads.firsts[-1] + reads.counts[-1])


def _plan(
    relation: IndexedRelation,
    spec: JoinSpec,
    budget: Budget,
    buffer_pages: int | None,
    window_tuples: int | None,
    costs: UnitCosts | None,
) -> tuple[Sizing, int]:
    """What the window, the buffer and the output may take, and how many comparisons a step makes.

    First the least that works, which is what an error speaks of. A little of the spare memory goes to the scratch of a step.
    The disk buffer takes what gives the highest rate (see `cost.sweepjoin`). Where no more than `window_tuples` come, more
    memory for the window is of no use: then the buffer takes an eighth, or a few pages.
    """
    check_at_least_one("window_tuples", window_tuples)
    check_at_least_one("buffer_pages", buffer_pages)
    heads = relation.pages * PageBuckets.BYTES_PER_PAGE

    def planned(pages: int, rows: int, max_slots: int) -> Sizing:
        return plan_window(
            relation,
            spec,
            budget,
            extra_bytes_per_slot=PageBuckets.BYTES_PER_SLOT,
            buffer_pages=pages,
            fixed_bytes=heads + rows * _SCRATCH_BYTES,
            max_slots=max_slots,
        )

    least = planned(buffer_pages or 1, MIN_OUTPUT_ROWS, MAX_SLOTS)
    spare = least.capacity * (Window.bytes_per_tuple(relation, spec) + PageBuckets.BYTES_PER_SLOT)
    rows = min(MIN_OUTPUT_ROWS + spare // 32 // _SCRATCH_BYTES, OUTPUT_ROWS)
    buffer = max(min(spare // 8, BUFFER_BYTES), min(spare // 4, _FEW_PAGES * relation.page_bytes))
    pages = buffer_pages or 1 + buffer // relation.page_bytes
    if buffer_pages is None and window_tuples is None and not relation.resident:
        slot_bytes = Window.bytes_per_tuple(relation, spec) + PageBuckets.BYTES_PER_SLOT
        b = some_sizes(min(max(1, relation.pages), 1 + BUFFER_BYTES // relation.page_bytes))
        window = (spare - rows * _SCRATCH_BYTES - (b - 1) * relation.page_bytes) / slot_bytes
        gap = (costs or UnitCosts()).gap_bytes() // relation.page_bytes
        rate = cost.rate_alike(
            np.maximum(window, 1.0), b, gap_pages=gap, limit=rows, **letters(relation), costs=costs_with_calls(costs)
        )
        rate = np.where((window >= 1) | (b == 1), rate, -np.inf)
        pages = int(b[np.flatnonzero(rate >= _ALIKE * rate.max())[-1]])
    return planned(pages, rows, window_tuples or MAX_SLOTS), rows
