"""The partition-based join: tuples wait by partition of the relation, until a partition is worth its read.

Chakraborty, Singh: A Partition-based Approach to Support Streaming Updates over Persistent Data in an Active Data Warehouse,
IPDPS 2009.

The loop:
    1. look new stream tuples up in the index. A tuple whose page is in the cache is joined at once; a key that the index knows
       to be absent leaves; any other tuple waits in the slot of its partition;
    2. choose one partition: the one whose tuples have waited longest, if this is `age_limit` steps or more; otherwise the one
       with most tuples, if these are `worth_tuples` or more, or if the window is full, or if the stream pauses;
    3. read what the cache lacks of the partition: `buffer_pages` neighbouring pages, fixed and non-overlapping;
    4. join all tuples that wait for the partition. Its pages take the place of the pages that were wanted least recently.

Memory:

    stream --> [ window ]   wait area   partition -->  0: t t t    1: t    2: -    3: t t t t t   ...
                   |        queue       of partitions, by when the first tuple began to wait
                   |____ online                     |
                            |                       |
            cache [ p7 | p2 | p9 | ... ]   [ one partition ] <-- index <-- R   p0 p1 p2 | p3 p4 p5 | p6 ...

A tuple leaves after at most `age_limit` + partitions + 1 reads for each page of its key, whatever else comes. With an index on
disk, add `COLD_STEPS`: see `reading`.

Needs an index on the join key. Serves equality. Runs in process. The code that SSIJ shares is in `blocks`.

Guessed: the paper itself was not at hand, only what others say of it.
    - Which tuples make a partition worth reading: twice its even share of the window, and at least 2.
    - Which pages stay in the cache: those that tuples wanted last. The cache gets a sixteenth of the spare memory. Pages of a
      partition that no tuple wanted are the first to go.
    - With a full window, the partition with most tuples is read.

Differs from what is said of the paper:
    - Others say that the time a tuple waits has no bound. `age_limit` is ours: two steps for each partition, unless given.
    - The paper switches between an index join and MESHJOIN by the fill of its input buffer. Here there is no scan.
    - The two-level hash table that answers new tuples is a cache of whole pages, in which keys are found by binary search.
    - Tuples wait with all that the output needs, not only with their keys.
    - A step without new tuples reads a partition in any case, so that a paused stream leaves nobody waiting.
    - Duplicate keys in R: a tuple whose rows go on behind its page wants the next page then; if this is not in memory, it waits
      for the partition of this page.
    - Where pages are used in place there is no read to save: each page counts as cached, and nobody waits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.protocols import IndexedRelation, JoinSpec
from millrace.core.unitcosts import UnitCosts
from millrace.cost import partitionjoin as cost
from millrace.cost.expected import Expected, StreamShape
from millrace.cost.hybridjoin import rate_alike
from millrace.joins.blocks import BlockJoin, Division, blocks, divide_blocks, expected_of_blocks
from millrace.joins.reading import COLD_STEPS, check_index, disk_index
from millrace.joins.sizing import check_at_least_one, costs_with_calls, letters
from millrace.structures.counted_lists import CountedLists
from millrace.structures.page_cache import PageCache
from millrace.structures.queue import Queue

_SINCE_BYTES = 8
CACHE_SHARE = 1 / 16  # of the spare memory: a tuple that waits in its place saves more reads than a page


class PartitionJoin(BlockJoin):
    """Reads a partition when enough tuples wait for it, or one has waited long enough.

    `cache_share`: of the spare memory, for pages that stay. `worth_tuples`: so many tuples make a partition worth reading.

    >>> import pyarrow as pa
    >>> from millrace.relations.memory import MemoryRelation
    >>> products = MemoryRelation(pa.table({"id": [1, 2, 3], "price": [10, 20, 30]}), "id", rows_per_page=1)
    >>> sales = pa.record_batch({"product": [1, 3, 3]})
    >>> spec = JoinSpec(sales.schema, (("product", "id"),), "inner", ("product",), ("price",))
    >>> join = PartitionJoin(products, spec, Budget("64k"), buffer_pages=1, worth_tuples=2)
    >>> join.offer(sales), join.step().output.to_pydict(), join.step().output.to_pydict(), products.reads
    (3, {'product': [3, 3], 'price': [30, 30]}, {'product': [1], 'price': [10]}, [(2, 1), (0, 1)])
    """

    def __init__(
        self, relation: IndexedRelation, spec: JoinSpec, budget: Budget, *,
        buffer_pages: int | None = None, cache_share: float = CACHE_SHARE, worth_tuples: int | None = None,
        age_limit: int | None = None, costs: UnitCosts | None = None,
    ) -> None:  # fmt: skip
        division = self.divide(
            relation, spec, budget, buffer_pages=buffer_pages, cache_share=cache_share, worth_tuples=worth_tuples,
            age_limit=age_limit, costs=costs,
        )  # fmt: skip
        super().__init__(relation, spec, budget, division, division.sizing.buffer_pages)
        self.worth_tuples = worth_tuples or max(2, 2 * division.sizing.capacity // self.blocks)
        self.age_limit = age_limit or 2 * self.blocks
        self._queue = Queue(self.blocks, budget)
        self._since = budget.array("wait since", self.blocks, np.int64)  # per partition: step of its first tuple

    @staticmethod
    def divide(
        relation: IndexedRelation, spec: JoinSpec, budget: Budget, *,
        buffer_pages: int | None = None, cache_share: float = CACHE_SHARE, worth_tuples: int | None = None,
        age_limit: int | None = None, costs: UnitCosts | None = None,
    ) -> Division:  # fmt: skip
        """How the budget would be shared out; an error if it is too small. No array is made."""
        check_index(relation, "partitionjoin")
        check_at_least_one("worth_tuples", worth_tuples)
        check_at_least_one("age_limit", age_limit)
        each = CountedLists.bytes_per_list + Queue.bytes_each + _SINCE_BYTES
        most = max(1, relation.pages)
        return divide_blocks(
            relation, spec, budget, buffer_pages=buffer_pages, cache_share=cache_share,
            fixed_bytes=lambda pages: Queue.fixed_bytes + blocks(relation, min(pages, most)) * each,
            rate=lambda window, pages: rate_alike(window, pages, **letters(relation), costs=costs_with_calls(costs)),
        )  # fmt: skip

    @classmethod
    def expect(
        cls, relation: IndexedRelation, spec: JoinSpec, budget: Budget, stream: StreamShape, **parameters: Any
    ) -> Expected:
        """What the join is expected to do in the long run; an error if the budget is too small. No array is made."""
        division = cls.divide(relation, spec, budget, **parameters)
        sizing = division.sizing
        age_limit = parameters.get("age_limit") or 2 * blocks(relation, sizing.buffer_pages)
        iteration = cost.iteration(
            sizing.capacity, division.cache_pages, sizing.buffer_pages,
            stream.demand(relation.rows, relation.pages), age_limit=age_limit, R_t=relation.rows, N_R=max(1, relation.pages),
            v_P=relation.page_bytes, sigma=stream.sigma * (1 - stream.absent), output_rows=sizing.output_rows,
        )  # fmt: skip
        return expected_of_blocks(relation, spec, budget, division, iteration)

    @property
    def longest_wait(self) -> int:
        """The most reads for which a tuple stays inside, whatever else comes: for each page of its key, the age limit and a
        read of every partition. If the index lies on disk, also the steps that a tuple may wait for a look-up."""
        look_up = COLD_STEPS + 1 if disk_index(self._relation) is not None else 0
        if self._relation.resident:
            return look_up + self._looks_in_place
        return look_up + self._key_pages * (self.age_limit + self.blocks + 1)

    def _look_up_due(self) -> bool:
        # step 1
        return True

    def _read_due(self) -> None:
        partition = self._chosen()
        if partition is not None:
            self._read(np.array([partition]))  # step 3
            self._queue.remove(np.array([partition]))

    def _chosen(self) -> int | None:
        # step 2
        oldest = self._queue.oldest
        assert oldest is not None
        if self._window.steps - int(self._since[oldest]) >= self.age_limit:
            return oldest
        fullest = int(self._lists.sizes.argmax())
        worth = int(self._lists.sizes[fullest]) >= self.worth_tuples
        return fullest if worth or self._quiet or not self._window.free_slots else None

    def _waits(self, filled: Int64Array) -> None:
        self._since[filled] = self._window.steps
        self._queue.append(filled)

    def _met(self, cache: PageCache, pages: Int64Array, tuples: Int64Array) -> None:
        # step 4
        cache.set_worth(pages, self._window.steps + 1)
