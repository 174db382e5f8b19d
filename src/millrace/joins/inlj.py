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
    - `tuples_per_step` groups tuples into one step to save calls. Nothing is shared between them: pages are read, and
      counted, for each tuple.
    - A key with more rows than a step may put out is continued in the next step, from the same page.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.core.budget import Budget
from millrace.core.protocols import IndexedRelation, JoinSpec, PageRun
from millrace.core.step import Int64Array, Step, StepCounts
from millrace.joins.emit import Emitter
from millrace.joins.reading import Reader, check_index
from millrace.joins.sizing import check_at_least_one, plan_window, reserve
from millrace.structures.window import Window


class IndexNestedLoopJoin:
    """One tuple, one look-up, one page read.

    >>> from millrace.relations.memory import MemoryRelation
    >>> products = MemoryRelation(pa.table({"id": [1, 2, 3], "price": [10, 20, 30]}), "id", rows_per_page=1)
    >>> sales = pa.record_batch({"product": [3, 3]})
    >>> spec = JoinSpec(sales.schema, (("product", "id"),), "inner", ("product",), ("price",))
    >>> join = IndexNestedLoopJoin(products, spec, Budget("64k"), tuples_per_step=2)
    >>> join.offer(sales), join.step().output.to_pydict(), products.reads
    (2, {'product': [3, 3], 'price': [30, 30]}, [(2, 1), (2, 1)])
    """

    def __init__(self, relation: IndexedRelation, spec: JoinSpec, budget: Budget, *, tuples_per_step: int = 1) -> None:
        check_index(relation, "inlj")
        check_at_least_one("tuples_per_step", tuples_per_step)
        sizing = plan_window(
            relation, spec, budget, extra_bytes_per_slot=_WAITING_BYTES, buffer_pages=1,
            min_slots=tuples_per_step, max_slots=tuples_per_step,
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
        self._rest: tuple[PageRun, int, int] | None = None  # rows of its last page that did not fit into a step
        self._look_ups = self._probes = 0  # since the last step

    @property
    def capacity(self) -> int:
        """Tuples that can wait at once."""
        return self._window.capacity

    @property
    def bytes_used(self) -> int:
        return self._budget.used_bytes

    def offer(self, batch: pa.RecordBatch) -> int:
        """Take what one step will join."""
        taken, slots = self._window.admit(batch, self._window.free_slots)  # step 1
        self._inbox.append(slots)
        self.pending += taken
        return taken

    def step(self) -> Step:
        self._emitter.begin()
        if self._at == len(self._slots):
            self._look_up()
        while self._at < len(self._slots) and self._emitter.room:
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
        """The next rows of the current tuple: what is left of a page, or another page."""
        slot = self._slots[self._at]
        if self._rest is None:
            run = self._reader.read(self._page, 1)  # step 3
            first, found = run.match(self._window.code[slot : slot + 1], np.array([self._page]))
            begin, end = int(first[0]), int(first[0] + found[0])
            self._probes += 1
            self._page += 1
        else:
            run, begin, end = self._rest
        count = min(end - begin, self._emitter.room)
        self._emitter.pairs(run, np.full(count, slot), np.arange(begin, begin + count))  # step 4
        self._rest = (run, begin + count, end) if begin + count < end else None
        if self._rest is None and self._page > self._last[self._at]:
            self._emitter.leave(self._slots[self._at : self._at + 1])
            self._at += 1
            self._page = int(self._first[self._at]) if self._at < len(self._slots) else 0


_WAITING_BYTES = 3 * 8  # slot, first and last page
