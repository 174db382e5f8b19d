"""Index nested loop join (INLJ): the baseline of all semi-stream joins.

Polyzotis, Skiadopoulos, Vassiliadis, Simitsis, Frantzell: Supporting Streaming Updates in an Active Data Warehouse,
ICDE 2007, section 2, under the name INL. Later papers on semi-stream joins also compare with this join.

The loop:
    1. take the next stream tuple;
    2. look its key up in the index; an absent key leaves here;
    3. read the page that holds the key, and the next pages while they go on with the same key; with a buffer pool, only
       pages that are not in the pool;
    4. join the tuple with the rows of its key, and let it leave.

Memory:
    stream --> [ tuples of this step ]        disk buffer, or buffer pool [ p7 p2 p9 ... ] <-- R
                        |______ index ______________________|

A tuple leaves after at most 2 x (tuples of a step) x (pages of the longest key) reads, whatever else comes.

Needs an index on the join key. Serves equality.

There are two baselines. The paper gives its index join a buffer pool with the memory of MESHJOIN (`pool_bytes`). Later papers
on caching have no pool, which is the default here. A ratio must say which baseline it means.

Differs from the paper:
    - `tuples_per_step` groups tuples into one step to save calls; `None` takes as many as fit. Without a pool tuples share
      nothing: pages are read, and counted, for each tuple, into as many buffers as there is room for.
    - The pool keeps the pages that were wanted last. All pages of a step have the same age. Where pages are used in place
      there is no read to save, and no pool.
    - A key with more rows than a step may put out is continued in the next step, from the same page.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.errors import ParameterError
from millrace.core.protocols import NO_PLACE, IndexedRelation, JoinSpec, PageRun, Waiting
from millrace.core.step import Step, StepCounts
from millrace.cost import inlj as cost
from millrace.cost.expected import Expected, StreamShape
from millrace.joins.door import Door
from millrace.joins.emit import OUTPUT_ROWS, Emitter
from millrace.joins.found_matches import Pairs
from millrace.joins.reading import Reader, check_index
from millrace.joins.sizing import Sizing, check_at_least_one, memory_parts, open_index, plan_window, reserve
from millrace.structures.pool import PagePool
from millrace.structures.window import Window, Windowed

REST = "rest"


class IndexNestedLoopJoin(Windowed):
    """One tuple, one look-up, one page read, unless the page is in the buffer pool.

    `pool_bytes`: the pool's part of the budget. `"rest"`: all that the other parts leave. None or 0: no pool.

    >>> from millrace.relations.memory import MemoryRelation
    >>> products = MemoryRelation(pa.table({"id": [1, 2, 3], "price": [10, 20, 30]}), "id", rows_per_page=1)
    >>> sales = pa.record_batch({"product": [3, 3]})
    >>> spec = JoinSpec(sales.schema, (("product", "id"),), "inner", ("product",), ("price",))
    >>> join = IndexNestedLoopJoin(products, spec, Budget("64k"), tuples_per_step=2)
    >>> join.offer(sales), join.step().output.to_pydict(), products.reads
    (2, {'product': [3, 3], 'price': [30, 30]}, [(2, 1), (2, 1)])
    >>> join = IndexNestedLoopJoin(products, spec, Budget("64k"), pool_bytes=1024)
    >>> products.reads.clear(), join.offer(sales), join.step().output.num_rows, join.offer(sales), join.step().output.num_rows
    (None, 1, 1, 1, 1)
    >>> products.reads
    [(2, 1)]
    """

    def __init__(
        self, relation: IndexedRelation, spec: JoinSpec, budget: Budget, *,
        tuples_per_step: int | None = 1, pool_bytes: int | Literal["rest"] | None = None,
    ) -> None:  # fmt: skip
        sizing, frames = self.divide(relation, spec, budget, tuples_per_step=tuples_per_step, pool_bytes=pool_bytes)
        self.pool_pages = frames
        reserve(relation, spec, budget, sizing)
        budget.reserve("tuples of this step", sizing.capacity * _WAITING_BYTES)
        self._pool: PagePool | None = None
        if frames:
            budget.reserve("disk buffer", frames * relation.page_bytes)
            self._pool = PagePool(relation.pages, frames, budget)
        self._buffers = frames or sizing.buffer_pages
        self._frames = None if relation.resident else relation.frames(self._buffers)
        self.pending = 0
        self._relation = relation
        self._budget = budget
        self._window = Window(relation, spec, budget, sizing.capacity)
        self._emitter = Emitter(relation, spec, self._window, sizing.output_rows)
        self._door = Door(self._emitter)
        self._reader = Reader(relation, open_index(relation, budget, sizing.hot_keys))
        self._inbox: list[Int64Array] = []
        self._slots = self._first = self._last = np.zeros(0, np.int64)  # tuples being joined, and their pages
        self._at = 0  # of `_slots`
        self._page = 0  # next page of that tuple
        self._key_pages = 1  # of one key, the most so far
        self._run: PageRun | None = None
        self._pairs: Pairs | None = None  # what was found in the run and is still to be put out
        self._probes = 0  # since the last step

    @staticmethod
    def divide(
        relation: IndexedRelation, spec: JoinSpec, budget: Budget, *,
        tuples_per_step: int | None = 1, pool_bytes: int | Literal["rest"] | None = None,
    ) -> tuple[Sizing, int]:  # fmt: skip
        """How the budget would be shared out; an error if it is too small. No array is made."""
        check_index(relation, "inlj")
        check_at_least_one("tuples_per_step", tuples_per_step)
        return _plan(relation, spec, budget, tuples_per_step, pool_bytes)

    @classmethod
    def expect(
        cls, relation: IndexedRelation, spec: JoinSpec, budget: Budget, stream: StreamShape, *, rows: float | None = None,
        **parameters: Any,
    ) -> Expected:  # fmt: skip
        """What the join is expected to do: in the long run, or with so many rows and then no more. An error if the budget is
        too small. No array is made."""
        sizing, frames = cls.divide(relation, spec, budget, **parameters)
        rows_per_page = relation.rows / max(1, relation.pages)
        iteration = (cost.iteration if rows is None else partial(cost.drained, rows))(
            sizing.capacity, stream.demand(relation.rows, relation.pages), pool_pages=frames, N_R=max(1, relation.pages),
            v_P=relation.page_bytes, sigma=stream.sigma * (1 - stream.absent), output_rows=sizing.output_rows,
            pages_each=1 + max(0.0, stream.sigma - 1) / max(1.0, rows_per_page),
        )  # fmt: skip
        parts = memory_parts(relation, spec, sizing, budget.memory_bytes, _WAITING_BYTES)
        parts["buffer pool"] = frames * relation.page_bytes
        settings = {"buffer_pages": sizing.buffer_pages, "tuples_per_step": sizing.capacity, "pool_pages": frames}
        return Expected(iteration, sizing.capacity, parts, settings)

    @property
    def longest_wait(self) -> int:
        """The most reads for which a tuple stays inside, whatever else comes: reads for the tuples before it, and for the
        tuples that are looked up with it."""
        return 2 * self.capacity * self._key_pages

    def offer(self, batch: pa.RecordBatch) -> int:
        """Take what one step will join."""
        if self._door.shut and self.pending:
            return 0
        taken, slots = self._window.admit(batch, self._window.free_slots)  # step 1
        self._inbox.append(slots)
        self.pending += taken
        return taken

    def step(self) -> Step:
        step = self._emitter.go_on() if self._emitter.behind else self._loop()
        self.pending -= step.counts.removed
        return step

    def _let_go(self, slots: Int64Array) -> Int64Array:
        """Tuples that are not looked up yet."""
        marks = self._window.marked(slots)
        new = np.concatenate((np.zeros(0, np.int64), *self._inbox))
        self._inbox = [new[~marks[new]]]
        gone = new[marks[new]]
        self.pending -= len(gone)
        return gone

    def waiting(self) -> Waiting:
        """Tuples that can be given back. They share no reads."""
        slots = np.concatenate((np.zeros(0, np.int64), *self._inbox))
        return self._window.waiting(slots, np.full(len(slots), NO_PLACE))

    def _loop(self) -> Step:
        self._door.begin()
        if self._at == len(self._slots) and self._pairs is None:
            self._look_up()
        while (self._at < len(self._slots) or self._pairs is not None) and self._emitter.room:
            self._go_on()
        step = self._emitter.finish(StepCounts(probes=self._probes) + self._reader.counts())
        self._probes = 0
        return step

    def _look_up(self) -> None:
        """Step 2."""
        slots = np.concatenate((np.zeros(0, np.int64), *self._inbox))
        if len(slots) == 0:
            return
        first, last = self._reader.locate(self._window.code[slots])
        self._inbox = []
        present = last >= first
        self._emitter.leave(slots[~present])
        self._slots, self._first, self._last = slots[present], first[present], last[present]
        self._key_pages = max(self._key_pages, 1 + int((self._last - self._first).max(initial=0)))
        self._at = 0
        self._page = int(self._first[0]) if len(self._first) else 0

    def _go_on(self) -> None:
        """Put out what was found, then look for more."""
        if self._pairs is None:
            slots, pages, whole = self._next_reads(self._most_reads())
            self._run = self._read(pages)
            first, count = self._run.match(self._window.code[slots], pages)
            self._probes += len(slots)
            done = self._slots[self._at : self._at + whole]
            self._pairs = Pairs(slots, first, count, done, unique=self._relation.unique)
            self._at += whole
            if self._at < len(self._slots):
                goes_on = int(slots[-1]) == int(self._slots[self._at])
                self._page = int(pages[-1]) + 1 if goes_on else int(self._first[self._at])
        assert self._run is not None
        slots, rows = self._pairs.next(min(self._emitter.room, OUTPUT_ROWS))  # step 4
        self._emitter.pairs(self._run, slots, rows)
        if self._pairs.empty:
            self._emitter.leave(self._pairs.done)
            self._pairs = None

    def _most_reads(self) -> int:
        """How many pages the next tuples may need together."""
        if self._frames is not None and self._pool is None:
            return self._buffers
        return len(self._slots)

    def _read(self, pages: Int64Array) -> PageRun:
        """Step 3: these pages, the same ones more than once if tuples need them."""
        if self._frames is None:
            return self._reader.use_each(pages)
        distinct, at = np.unique(pages, return_index=True)
        if self._pool is not None:
            return self._frames.run(distinct, self._pool.fetch(distinct, partial(self._reader.load, self._frames)))
        self._reader.load(self._frames, pages, np.arange(len(pages)), each=True)
        return self._frames.run(distinct, at)

    def _next_reads(self, most: int) -> tuple[Int64Array, Int64Array, int]:
        """The slots that the next pages are read for, those pages, and of how many tuples no page is left behind them."""
        slots = self._slots[self._at : self._at + most]
        first, last = self._first[self._at : self._at + most].copy(), self._last[self._at : self._at + most]
        first[0] = self._page
        wanted = np.minimum(last - first + 1, most + 1)
        upto = np.cumsum(wanted)
        whole = int(np.searchsorted(upto, most, "right"))
        tuples = np.repeat(np.arange(len(wanted[: whole + 1])), wanted[: whole + 1])[:most]
        pages = first[tuples] + np.arange(len(tuples)) - (upto - wanted)[tuples]
        if self._pool is not None:
            fit = self._fitting(pages)
            whole, tuples, pages = int(np.searchsorted(upto, fit, "right")), tuples[:fit], pages[:fit]
        return slots[tuples], pages, whole

    def _fitting(self, pages: Int64Array) -> int:
        """How many of the pages, from the front, the pool can hold together."""
        new = np.sort(np.unique(pages, return_index=True)[1])
        return int(new[self._buffers]) if len(new) > self._buffers else len(pages)


_MAX_TUPLES = 4096
_WAITING_BYTES = 10 * 8  # slot, first and last page; what is read for it, and what was found


def _plan(
    relation: IndexedRelation, spec: JoinSpec, budget: Budget, tuples_per_step: int | None, pool_bytes: int | str | None
) -> tuple[Sizing, int]:
    """Slots, buffers and output, and the pages of the pool. The pool includes the page that any join needs to read."""

    def planned(buffer_pages: int | None, fixed_bytes: int = 0) -> Sizing:
        return plan_window(
            relation, spec, budget, extra_bytes_per_slot=_WAITING_BYTES, buffer_pages=buffer_pages, fixed_bytes=fixed_bytes,
            min_slots=tuples_per_step or 1, max_slots=tuples_per_step or _MAX_TUPLES,
        )  # fmt: skip

    if relation.resident or not pool_bytes:
        return planned(None if tuples_per_step != 1 else 1), 0
    places, frame = PagePool.bytes_per_page * relation.pages, PagePool.bytes_per_frame + relation.page_bytes
    if pool_bytes == REST:
        sizing = planned(1)
        spare = (
            budget.free_bytes
            - sizing.bytes_of(relation, spec, budget.memory_bytes, _WAITING_BYTES)
            - places
            - PagePool.bytes_per_frame
        )
        if spare < 0:
            return planned(None), 0
        return sizing, min(1 + spare // frame, max(1, relation.pages))
    if isinstance(pool_bytes, str) or pool_bytes < places + frame:
        least = places + frame
        raise ParameterError(f"pool_bytes must be at least {least}, for one page, or 0 for no pool; got {pool_bytes!r}")
    frames = min((pool_bytes - places) // frame, max(1, relation.pages))
    return planned(1, places + frames * frame - relation.page_bytes), frames
