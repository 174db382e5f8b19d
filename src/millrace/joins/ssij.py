"""SSIJ, the Semi-Streamed Index Join: blocks that serve many tuples stay in memory, and other tuples are joined in batches.

Bornea, Deligiannakis, Kotidis, Vassalos: Semi-Streamed Index Join for Near-Real Time Execution of ETL Transformations,
ICDE 2011.

The loop:
    1. pending phase: gather stream tuples in the input buffer, until `pending_tuples` are there or the stream pauses;
    2. online phase: look the gathered tuples up in the index. A tuple whose block is in the cache is joined at once; a key that
       the index knows to be absent leaves; any other tuple goes to the stream buffer, where it waits for its block;
    3. join phase, begun when `waiting_tuples` are in the stream buffer, or the stream pauses: read every block that a tuple
       waits for, those with most tuples first, `buffer_pages` in a step, and join the tuples that wait for them;
    4. a block that was read stays in the cache if its utility is above that of another block, which makes room. The utility of
       a block is the number of tuples that it has served; all utilities fade when a join phase begins.

Memory:

    stream --> [ input buffer ] --> [ stream buffer: block -> waiting tuples ]        both are slots of one window
                      |                   |   0   1   2   3   4  ...
                      |____ online        |____ join phase
                               |                    |
               cache [ b7 | b2 | b9 | ... ]   [ read at once: b0 | b4 ] <-- index <-- R
               utility 40   12    3              3    1

A tuple leaves after a bounded number of reads, whatever else comes: for each page of its key, the rest of one join phase and a
whole one, and `age_limit` steps between them. Before this a tuple is `age_limit` steps in the input buffer at most. With an
index on disk, add `COLD_STEPS`: see `reading`.

Needs an index on the join key. Serves equality. Runs in process. The code that partitionjoin shares is in `blocks`.

Guessed: the paper itself was not at hand, only what others say of it.
    - What a block is: a page. What its utility is, and how it fades (`fading`).
    - The thresholds. The input buffer begins the online phase with an eighth of the window, and the stream buffer begins the
      join phase when it fills the rest. The cache gets a tenth of the spare memory.
    - A join phase serves all blocks that are wanted when it begins. Tuples that come for a block which is still to be read in
      this phase are served with it; others wait for the next phase.

Differs from what is said of the paper:
    - A step without new tuples stands for the end of the stream: then nothing is gathered, and the join phase begins.
    - `age_limit`: a tuple that nobody else waits with would stay for ever if all other keys are in the cache. So many steps
      after the first tuple came, a phase begins in any case.
    - Duplicate keys in R: a tuple whose rows go on behind a block waits for the next block, unless this is in memory.
    - Where pages are used in place there is no read to save: each page counts as cached, and all tuples are joined online.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.protocols import IndexedRelation, JoinSpec
from millrace.core.unitcosts import UnitCosts
from millrace.cost import ssij as cost
from millrace.cost.expected import Expected, StreamShape
from millrace.joins.blocks import BlockJoin, Division, blocks, check_share, divide_blocks, expected_of_blocks
from millrace.joins.reading import COLD_STEPS, check_index, disk_index
from millrace.joins.sizing import check_at_least_one, costs_with_calls, letters
from millrace.structures.counted_lists import CountedLists
from millrace.structures.page_cache import PageCache

_PLAN_BYTES = 8  # per block, in the order of a join phase
_PENDING_SHARE = 8  # of the window
CACHE_SHARE = 0.1  # of the spare memory: found best for Zipf's law, and costs little for keys wanted alike


class SemiStreamedIndexJoin(BlockJoin):
    """Joins tuples online if their block is in memory, and all others in phases.

    `cache_share`: of the spare memory, for blocks that stay. `fading`: what is left of a utility when a join phase begins.

    >>> from millrace.relations.memory import MemoryRelation
    >>> products = MemoryRelation(pa.table({"id": [1, 2, 3], "price": [10, 20, 30]}), "id", rows_per_page=1)
    >>> sales = pa.record_batch({"product": [3, 1, 3]})
    >>> spec = JoinSpec(sales.schema, (("product", "id"),), "inner", ("product",), ("price",))
    >>> join = SemiStreamedIndexJoin(products, spec, Budget("64k"), buffer_pages=1, pending_tuples=3, waiting_tuples=3)
    >>> join.offer(sales), join.step().output.to_pydict(), join.step().output.to_pydict(), products.reads
    (3, {'product': [3, 3], 'price': [30, 30]}, {'product': [1], 'price': [10]}, [(2, 1), (0, 1)])
    >>> join.offer(sales), join.step().counts.matched, products.reads
    (3, 3, [(2, 1), (0, 1)])
    """

    def __init__(
        self, relation: IndexedRelation, spec: JoinSpec, budget: Budget, *,
        buffer_pages: int | None = None, cache_share: float = CACHE_SHARE, pending_tuples: int | None = None,
        waiting_tuples: int | None = None, age_limit: int = 64, fading: float = 0.5,
        costs: UnitCosts | None = None,
    ) -> None:  # fmt: skip
        division = self.divide(
            relation, spec, budget, buffer_pages=buffer_pages, cache_share=cache_share, pending_tuples=pending_tuples,
            waiting_tuples=waiting_tuples, age_limit=age_limit, fading=fading, costs=costs,
        )  # fmt: skip
        super().__init__(relation, spec, budget, division)
        budget.reserve("join phase", self.blocks * _PLAN_BYTES)
        capacity = division.sizing.capacity
        self.pending_tuples = min(pending_tuples or max(1, capacity // _PENDING_SHARE), capacity)
        self.waiting_tuples = min(waiting_tuples or max(1, capacity - self.pending_tuples), capacity)
        self._age_limit = age_limit
        self._fading = fading
        self._gathers_since = 0  # step of the first tuple in the input buffer, or of the last look-up
        self._waits_since = 0  # step of the first tuple that began to wait after the last join phase had begun
        self._nobody_waits = True  # since then
        self._plan = np.zeros(0, np.int64)  # blocks that this join phase still has to read

    @staticmethod
    def divide(
        relation: IndexedRelation, spec: JoinSpec, budget: Budget, *,
        buffer_pages: int | None = None, cache_share: float = CACHE_SHARE, pending_tuples: int | None = None,
        waiting_tuples: int | None = None, age_limit: int = 64, fading: float = 0.5,
        costs: UnitCosts | None = None,
    ) -> Division:  # fmt: skip
        """How the budget would be shared out; an error if it is too small. No array is made."""
        check_index(relation, "ssij")
        check_at_least_one("pending_tuples", pending_tuples)
        check_at_least_one("waiting_tuples", waiting_tuples)
        check_at_least_one("age_limit", age_limit)
        check_share("fading", fading, 1)
        fixed = blocks(relation, 1) * (CountedLists.bytes_per_list + _PLAN_BYTES)
        return divide_blocks(
            relation, spec, budget, buffer_pages=buffer_pages, cache_share=cache_share, fixed_bytes=lambda pages: fixed,
            rate=lambda window, pages: cost.rate_alike(window, pages, **letters(relation), costs=costs_with_calls(costs)),
        )  # fmt: skip

    @classmethod
    def expect(
        cls, relation: IndexedRelation, spec: JoinSpec, budget: Budget, stream: StreamShape, **parameters: Any
    ) -> Expected:
        """What the join is expected to do in the long run; an error if the budget is too small. No array is made."""
        division = cls.divide(relation, spec, budget, **parameters)
        sizing = division.sizing
        iteration = cost.iteration(
            sizing.capacity, division.cache_pages, sizing.buffer_pages, stream.demand(relation.rows, relation.pages),
            pending=parameters.get("pending_tuples") or sizing.capacity // _PENDING_SHARE, N_R=max(1, relation.pages),
            v_P=relation.page_bytes, sigma=stream.sigma * (1 - stream.absent), output_rows=sizing.output_rows,
        )  # fmt: skip
        return expected_of_blocks(relation, spec, budget, division, iteration)

    @property
    def longest_wait(self) -> int:
        """The most reads for which a tuple stays inside, whatever else comes: two join phases for each page of its key, and the
        steps before them."""
        look_up = self._age_limit + 1 + (COLD_STEPS if disk_index(self._relation) is not None else 0)
        if self._relation.resident:
            return look_up + self._looks_in_place
        phase = -(-self.blocks // self.buffer_pages)
        return look_up + self._key_pages * (2 * phase + self._age_limit + 1)

    def offer(self, batch: pa.RecordBatch) -> int:
        """Take as many tuples as there are free slots."""
        if not len(self._arrivals):
            self._gathers_since = self._window.steps
        return super().offer(batch)

    def _look_up_due(self) -> bool:
        # step 1
        aged = self._window.steps - self._gathers_since >= self._age_limit
        return self._quiet or aged or len(self._arrivals) >= self.pending_tuples

    def _look_up(self) -> None:
        # step 2
        super()._look_up()
        self._gathers_since = self._window.steps

    def _read_due(self) -> None:
        # step 3
        if not len(self._plan):
            if not self._phase_due():
                return
            self._begin_phase()
        self._read(np.sort(self._plan[: self.buffer_pages]))
        self._plan = self._plan[self.buffer_pages :]

    def _phase_due(self) -> bool:
        aged = self._window.steps - self._waits_since >= self._age_limit
        return self._quiet or aged or self._lists.waiting >= self.waiting_tuples

    def _begin_phase(self) -> None:
        wanted = np.flatnonzero(self._lists.sizes)
        self._plan = wanted[np.argsort(-self._lists.sizes[wanted], kind="stable")]
        self._nobody_waits = True
        assert self._cache is not None
        self._cache.fade(self._fading)

    def _waits(self, filled: Int64Array) -> None:
        if self._nobody_waits:
            self._waits_since, self._nobody_waits = self._window.steps, False

    def _met(self, cache: PageCache, pages: Int64Array, tuples: Int64Array) -> None:
        # step 4
        cache.add_worth(pages, tuples)
