"""Index nested loop join (INLJ): the baseline of all semi-stream joins.

Polyzotis, Skiadopoulos, Vassiliadis, Simitsis, Frantzell: Supporting Streaming Updates in an Active Data Warehouse,
ICDE 2007, section 2, where it is called INL. Later papers on semi-stream joins compare themselves with it as well.

The loop:
    1. take the next stream tuple;
    2. look its key up in the index; an absent key leaves here;
    3. read the page that holds it, and the pages after it while they go on with the same key;
    4. join the tuple with the rows of its key, and let it leave.

Memory:
    stream --> [ tuples of this step ]        disk buffer [ 1 page ] <-- index <-- R
                        |______________ look up ____________|

Needs an index on the join key. Serves equality.

Differs from the paper:
    - No buffer pool yet: each tuple reads its own page, even if the tuple before read the same. The MESHJOIN paper
      gives its index join a pool of the same memory; a ratio against the join here is not a ratio against that one.
    - `tuples_per_step` groups tuples into one step to save calls, `None` as many as fit. Nothing is shared between them:
      pages are read, and counted, for each tuple; only where pages are used in place are those of a step looked up in one go.
    - A key with more rows than a step may put out is continued in the next step, from the same page.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.core.budget import Budget
from millrace.core.protocols import IndexedRelation, JoinSpec, PageRun
from millrace.core.step import Int64Array, Step, StepCounts
from millrace.joins.emit import OUTPUT_ROWS, Emitter
from millrace.joins.pairs import Pairs
from millrace.joins.reading import Reader, check_index
from millrace.joins.sizing import check_at_least_one, plan_window, reserve
from millrace.structures.window import Window, Windowed


class IndexNestedLoopJoin(Windowed):
    """One tuple, one look-up, one page read.

    >>> from millrace.relations.memory import MemoryRelation
    >>> products = MemoryRelation(pa.table({"id": [1, 2, 3], "price": [10, 20, 30]}), "id", rows_per_page=1)
    >>> sales = pa.record_batch({"product": [3, 3]})
    >>> spec = JoinSpec(sales.schema, (("product", "id"),), "inner", ("product",), ("price",))
    >>> join = IndexNestedLoopJoin(products, spec, Budget("64k"), tuples_per_step=2)
    >>> join.offer(sales), join.step().output.to_pydict(), products.reads
    (2, {'product': [3, 3], 'price': [30, 30]}, [(2, 1), (2, 1)])
    """

    def __init__(self, relation: IndexedRelation, spec: JoinSpec, budget: Budget, *, tuples_per_step: int | None = 1) -> None:
        check_index(relation, "inlj")
        check_at_least_one("tuples_per_step", tuples_per_step)
        sizing = plan_window(
            relation, spec, budget, extra_bytes_per_slot=_WAITING_BYTES, buffer_pages=1,
            min_slots=tuples_per_step or 1, max_slots=tuples_per_step or _MAX_TUPLES,
        )  # fmt: skip
        reserve(relation, spec, budget, sizing)
        budget.reserve("tuples of this step", sizing.capacity * _WAITING_BYTES)
        self.pending = 0
        self._relation = relation
        self._budget = budget
        self._window = Window(relation, spec, budget, sizing.capacity)
        self._emitter = Emitter(relation, spec, self._window, sizing.output_rows)
        self._reader = Reader(relation)
        self._inbox: list[Int64Array] = []
        self._slots = self._first = self._last = np.zeros(0, np.int64)  # tuples being joined, and their pages
        self._at = 0  # of `_slots`
        self._page = 0  # next page of that tuple
        self._run: PageRun | None = None
        self._pairs: Pairs | None = None  # what was found in the run and is still to be put out
        self._look_ups = self._probes = 0  # since the last step

    def offer(self, batch: pa.RecordBatch) -> int:
        """Take what one step will join."""
        taken, slots = self._window.admit(batch, self._window.free_slots)  # step 1
        self._inbox.append(slots)
        self.pending += taken
        return taken

    def step(self) -> Step:
        self._emitter.begin()
        if self._at == len(self._slots) and self._pairs is None:
            self._look_up()
        while (self._at < len(self._slots) or self._pairs is not None) and self._emitter.room:
            self._go_on()
        counts = StepCounts(index_reads=self._look_ups, probes=self._probes)
        step = self._emitter.finish(counts + self._reader.counts())
        self._look_ups = self._probes = 0
        self.pending -= step.counts.removed
        return step

    def _look_up(self) -> None:
        """Step 2."""
        slots = np.concatenate((np.zeros(0, np.int64), *self._inbox))
        self._inbox = []
        if len(slots) == 0:
            return
        first, last = self._relation.locate(self._window.code[slots])
        self._look_ups += len(slots)
        present = last >= first
        self._emitter.leave(slots[~present])
        self._slots, self._first, self._last = slots[present], first[present], last[present]
        self._at = 0
        self._page = int(self._first[0]) if len(self._first) else 0

    def _go_on(self) -> None:
        """Put out what was found; look for more when that is done."""
        if self._pairs is None:
            slots, pages, whole = self._next_reads(len(self._slots) if self._relation.resident else 1)
            if self._relation.resident:  # step 3
                self._run = self._reader.use_each(pages)
            else:
                self._run = self._reader.read(int(pages[0]), 1)
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
        return slots[tuples], pages, whole


_MAX_TUPLES = 4096
_WAITING_BYTES = 10 * 8  # slot, first and last page; what is read for it, and what was found
