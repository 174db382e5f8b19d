"""HYBRIDJOIN: the oldest waiting tuple picks the pages to read, and these pages serve every waiting tuple.

Naeem, Dobbie, Weber: HYBRIDJOIN for Near-Real-Time Data Warehousing, International Journal of Data Warehousing and
Mining 7(4), 2011.

The loop:
    1. load stream tuples into the free slots: look each tuple up in the index and add it to the hash table. The first tuple
       that waits for a key also goes to the list of its partition; the first tuple in a list brings the partition to the
       queue. A key that the index knows to be absent leaves at once;
    2. take the partition of the oldest waiting tuple; if no tuple waits, read nothing;
    3. read the partition: `buffer_pages` neighbouring pages, fixed and non-overlapping;
    4. probe the hash table with every row of the partition, and put out the matches;
    5. every tuple whose key could only be in this partition leaves hash table and list, and the partition leaves the queue.

Memory:

    stream --> [ slots ]  hash table  key code  --> slots                 probed with every row read
                          lists       partition --> slots                 who leaves after a read
                          queue       of partitions, oldest <-> . <-> . <-> newest
                                         |
                          disk buffer [ one partition ] <-- index <-- R   p0 p1 p2 | p3 p4 p5 | p6 ...

A tuple leaves after at most (partitions + 1) x turns reads, whatever else comes. A partition takes one turn; where keys repeat,
1 + (pages of the longest key) / `buffer_pages` turns. With an index on disk, add `COLD_STEPS`: see `reading`.

Needs an index on the join key: sparse and in memory where R is sorted by key code, dense and on disk where R is in the order of
how often keys are wanted. Serves equality. The code is in `fetch`, which X-HYBRIDJOIN shares.

Differs from the paper:
    - Free slots are counted. The paper keeps them in w, and resets w to zero even if it loaded fewer than w tuples.
    - Tuples are loaded before the read, not after it, so that a first step has something to do.
    - An absent key would stay at the head of the paper's queue for ever. Here it leaves unmatched: at loading if it
      falls between pages, otherwise after the first read of its partition. The lists of tuples by partition (5 bytes a
      slot) are there for this: without them each absent key would cost its own read. A dense index knows all keys, so an
      absent key leaves at loading.
    - The queue holds partitions, by the oldest tuple that waits for each; the paper's queue holds tuples. A read serves all
      tuples that wait for its partition, so both name the same read next, and a tuple takes 8 bytes less.
    - Tuples that wait for the same key leave together, so the first tuple stands for all in the lists.
    - Each tuple remembers its pages (4 bytes, 8 where keys repeat in R): the index is asked once for a tuple.
    - Duplicate keys in R: rows of a key may go on in the next partition. The oldest tuple's key is then read from its
      first page on, in pieces of `buffer_pages` over consecutive steps if one read can't hold it. Any other tuple whose
      rows are not all in the pages at hand waits for a read that has all of its rows.
    - A partition has two turns: one for a key that goes on behind it, and one for all others. If tuples still wait for the
      partition, it then goes to the end of the queue.
    - More matches than fit into the output of a step: the next steps go on with the same pages, without reading. Tuples
      offered meanwhile are loaded afterwards.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from millrace.core.budget import Budget
from millrace.core.protocols import IndexedRelation, JoinSpec
from millrace.core.unitcosts import UnitCosts
from millrace.cost import hybridjoin as cost
from millrace.cost.expected import Expected, StreamShape
from millrace.joins.fetch import FetchJoin, fixed_bytes, slot_bytes
from millrace.joins.reading import check_index
from millrace.joins.sizing import (
    Prices,
    Sizing,
    check_at_least_one,
    code_bytes_per_page,
    costs_with_calls,
    letters,
    memory_parts,
    plan_window,
    some_sizes,
)


class HybridJoin(FetchJoin):
    """Reads only pages that a tuple waits for; the oldest tuple comes first.

    >>> import pyarrow as pa
    >>> from millrace.relations.memory import MemoryRelation
    >>> products = MemoryRelation(pa.table({"id": [1, 2, 3], "price": [10, 20, 30]}), "id", rows_per_page=1)
    >>> sales = pa.record_batch({"product": [3, 1, 3]})
    >>> spec = JoinSpec(sales.schema, (("product", "id"),), "inner", ("product",), ("price",))
    >>> join = HybridJoin(products, spec, Budget("64k"), buffer_pages=1)
    >>> join.offer(sales), join.step().output.to_pydict(), join.step().output.to_pydict(), products.reads
    (3, {'product': [3, 3], 'price': [30, 30]}, {'product': [1], 'price': [10]}, [(2, 1), (0, 1)])
    """

    def __init__(
        self, relation: IndexedRelation, spec: JoinSpec, budget: Budget, *,
        buffer_pages: int | None = None, costs: UnitCosts | None = None,
    ) -> None:  # fmt: skip
        super().__init__(relation, spec, budget, self.divide(relation, spec, budget, buffer_pages=buffer_pages, costs=costs))

    @staticmethod
    def divide(
        relation: IndexedRelation, spec: JoinSpec, budget: Budget, *,
        buffer_pages: int | None = None, costs: UnitCosts | None = None,
    ) -> Sizing:  # fmt: skip
        """How the budget would be shared out; an error if it is too small. No array is made."""
        check_index(relation, "hybridjoin")
        return _plan(relation, spec, budget, buffer_pages, costs)

    @classmethod
    def expect(
        cls, relation: IndexedRelation, spec: JoinSpec, budget: Budget, stream: StreamShape, *, rows: float | None = None,
        **parameters: Any,
    ) -> Expected:  # fmt: skip
        """What the join is expected to do: in the long run, or with so many rows and then no more. An error if the budget is
        too small. No array is made."""
        sizing = cls.divide(relation, spec, budget, **parameters)
        iteration = (cost.iteration if rows is None else partial(cost.drained, rows))(
            sizing.capacity, sizing.buffer_pages, stream.demand(relation.rows, relation.pages), **letters(relation),
            sigma=stream.sigma * (1 - stream.absent), output_rows=sizing.output_rows,
        )  # fmt: skip
        parts = memory_parts(relation, spec, sizing, budget.memory_bytes, slot_bytes(relation))
        return Expected(iteration, sizing.capacity, parts, {"buffer_pages": sizing.buffer_pages})


def _plan(
    relation: IndexedRelation, spec: JoinSpec, budget: Budget, buffer_pages: int | None, costs: UnitCosts | None
) -> Sizing:
    """The partition size with the highest rate, if partitions are wanted alike (see `cost.hybridjoin`), and what it leaves."""
    check_at_least_one("buffer_pages", buffer_pages)

    def planned(pages: int) -> Sizing:
        return plan_window(
            relation, spec, budget, extra_bytes_per_slot=slot_bytes(relation), buffer_pages=pages,
            extra_bytes_per_page=code_bytes_per_page(relation), fixed_bytes=int(fixed_bytes(relation, pages)),
        )  # fmt: skip

    if buffer_pages is not None:
        return planned(buffer_pages)
    least = planned(1)
    prices = Prices.of(relation, spec, budget.memory_bytes, slot_bytes(relation), code_bytes_per_page(relation))
    k = some_sizes(max(1, relation.pages))
    # pages used in place cost no buffer, but a longer read still delays every result: rated as if they did
    page_bytes = prices.page_bytes + (relation.page_bytes if relation.resident else 0)
    more = (k - 1) * page_bytes + fixed_bytes(relation, k) - fixed_bytes(relation, 1)
    window = least.capacity - more / prices.slot_bytes
    rate = cost.rate_alike(np.maximum(window, 1.0), k, **letters(relation), costs=costs_with_calls(costs))
    return planned(int(k[np.argmax(np.where((window >= 1) | (k == 1), rate, -np.inf))]))
