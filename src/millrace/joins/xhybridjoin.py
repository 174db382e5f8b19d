"""X-HYBRIDJOIN: HYBRIDJOIN that keeps the first pages of R in memory. These pages hold the rows that are wanted most.

Naeem, Dobbie, Weber: Efficient Processing of Streaming Updates with Archived Master Data in Near-Real-Time Data
Warehousing, Knowledge and Information Systems, 2013; first as X-HYBRIDJOIN for Near-Real-Time Data Warehousing, BNCOD 2011.

The loop, with l = `pinned_pages` and k = `buffer_pages`:
    0. when the first tuple comes, read the first l pages of R. These pages are pinned: they stay for good;
    1. load stream tuples into the free slots, and look each tuple up in the index; an absent key leaves at once;
    2. a tuple whose key is on pinned pages meets its rows there, and leaves; all others go to the hash table and the list of
       their partition. The first tuple in a list brings the partition to the queue;
    3. take the partition of the oldest waiting tuple; if no tuple waits, read nothing;
    4. read the partition: k neighbouring pages behind the pinned pages, fixed and non-overlapping;
    5. probe the hash table with every row of the partition, and put out the matches;
    6. every tuple whose key could only be in this partition leaves.

Memory:

    stream --> index --> on a pinned page? --yes--> pinned pages [ p0 p1 p2 ] --> out
                                |
                                no --> [ slots ]  hash table, queue and lists, as in HYBRIDJOIN
                                                     |
                                          disk buffer [ one partition ] <-- R   p3 p4 | p5 p6 | p7 ...

A tuple leaves after at most as many reads as in HYBRIDJOIN, plus one for the pinned pages.

Needs an index on the join key, and does well where the rows that are wanted most come first: a table built with
`layout="frequency"`. Serves equality. The code is in `fetch`, which HYBRIDJOIN shares.

Differs from the paper:
    - The paper probes the hash table with every pinned row in every iteration, d_N c_H each time. Here a tuple is looked up
      once, when it comes, so that pinned pages cost only memory, and their tuples take no place in the queue.
    - The paper's line 4 loads only when w tuples are available: the last tuples of a paused stream would never come in. Here
      all available tuples are loaded.
    - The split of memory is tuned by equation (5) with w as a mean, where the paper's (9) has a variance: see
      `cost.xhybridjoin`.
    - A key may begin on pinned pages and go on behind them. Its tuples meet the pinned rows at once, and wait only for the
      other rows. No pinned page is ever read again.
    - What HYBRIDJOIN does differently: slots that are counted, absent keys, duplicate keys in R, long outputs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from millrace.core.budget import Budget
from millrace.core.errors import ParameterError
from millrace.core.protocols import IndexedRelation, JoinSpec
from millrace.core.unitcosts import UnitCosts
from millrace.cost import xhybridjoin as cost
from millrace.cost.expected import Expected, StreamShape
from millrace.joins.fetch import FetchJoin, fixed_bytes, slot_bytes
from millrace.joins.reading import check_index, disk_index
from millrace.joins.sizing import (
    MAX_SLOTS,
    Prices,
    Sizing,
    check_at_least_one,
    check_budget,
    code_bytes_per_page,
    costs_with_calls,
    letters,
    memory_parts,
    some_sizes,
)


class XHybridJoin(FetchJoin):
    """Answers most of a skewed stream from memory, and reads for all other tuples as HYBRIDJOIN does.

    >>> import pyarrow as pa
    >>> from millrace.relations.memory import MemoryRelation
    >>> products = MemoryRelation(pa.table({"id": [1, 2, 3], "price": [10, 20, 30]}), "id", rows_per_page=1)
    >>> sales = pa.record_batch({"product": [1, 3, 1]})
    >>> spec = JoinSpec(sales.schema, (("product", "id"),), "inner", ("product",), ("price",))
    >>> join = XHybridJoin(products, spec, Budget("64k"), buffer_pages=1, pinned_pages=1)
    >>> join.offer(sales), join.step().output.to_pydict(), products.reads
    (3, {'product': [1, 1, 3], 'price': [10, 10, 30]}, [(0, 1), (2, 1)])
    """

    def __init__(
        self, relation: IndexedRelation, spec: JoinSpec, budget: Budget, *,
        buffer_pages: int | None = None, pinned_pages: int | None = None,
        zipf_exponent: float = 1.0, costs: UnitCosts | None = None,
    ) -> None:  # fmt: skip
        sizing, pinned = self.divide(
            relation,
            spec,
            budget,
            buffer_pages=buffer_pages,
            pinned_pages=pinned_pages,
            zipf_exponent=zipf_exponent,
            costs=costs,
        )
        super().__init__(relation, spec, budget, sizing, pinned)

    @staticmethod
    def divide(
        relation: IndexedRelation, spec: JoinSpec, budget: Budget, *,
        buffer_pages: int | None = None, pinned_pages: int | None = None,
        zipf_exponent: float = 1.0, costs: UnitCosts | None = None,
    ) -> tuple[Sizing, int]:  # fmt: skip
        """How the budget would be shared out; an error if it is too small. No array is made."""
        check_index(relation, "xhybridjoin")
        check_at_least_one("buffer_pages", buffer_pages)
        if pinned_pages is not None and pinned_pages < 0:
            raise ParameterError(f"pinned_pages must be 0 or more; got {pinned_pages}")
        if not zipf_exponent >= 0:
            raise ParameterError(f"zipf_exponent must be 0 (keys wanted alike) or more; got {zipf_exponent}")
        return _plan(relation, spec, budget, buffer_pages, pinned_pages, zipf_exponent, costs)

    @classmethod
    def expect(
        cls, relation: IndexedRelation, spec: JoinSpec, budget: Budget, stream: StreamShape, *, rows: float | None = None,
        **parameters: Any,
    ) -> Expected:  # fmt: skip
        """What the join is expected to do: in the long run, or with so many rows and then no more. An error if the budget is
        too small. No array is made."""
        sizing, pinned = cls.divide(relation, spec, budget, **parameters)
        iteration = (cost.iteration if rows is None else partial(cost.drained, rows))(
            sizing.capacity, sizing.buffer_pages, pinned, stream.demand(relation.rows, relation.pages), **letters(relation),
            sigma=stream.sigma * (1 - stream.absent), output_rows=sizing.output_rows,
        )  # fmt: skip
        parts = memory_parts(relation, spec, sizing, budget.memory_bytes, slot_bytes(relation))
        parts["pinned pages"] = 0 if relation.resident else pinned * relation.page_bytes
        settings = {"buffer_pages": sizing.buffer_pages, "pinned_pages": pinned}
        return Expected(iteration, sizing.capacity, parts, settings)


def _plan(
    relation: IndexedRelation, spec: JoinSpec, budget: Budget, buffer_pages: int | None, pinned_pages: int | None,
    zipf_exponent: float, costs: UnitCosts | None,
) -> tuple[Sizing, int]:  # fmt: skip
    """k and l with the highest rate (see `cost.xhybridjoin`), with the bytes of our own structures.

    M = k v_P + l v_P + h_S (bytes of a slot) + N/k (bytes of a list) + output of a step        (4)
    """
    prices = Prices.of(relation, spec, budget.memory_bytes, slot_bytes(relation), code_bytes_per_page(relation))
    pages, index = relation.pages, disk_index(relation)
    page_keys = -(-relation.rows // max(1, pages)) if index is not None else 0  # of a page: those of pinned pages are hot
    pinned_bytes = 0 if relation.resident else relation.page_bytes
    index_bytes = 0
    if index is not None:
        index_bytes, pinned_bytes = index.least_bytes, pinned_bytes + page_keys * index.hot_key_bytes
    k = some_sizes(max(1, pages), buffer_pages)[:, None]
    pinned = some_sizes(pages, pinned_pages, least=0)[None, :]
    taken = index_bytes + fixed_bytes(relation, k, pinned) + k * prices.page_bytes + pinned * pinned_bytes
    least = int(taken.min()) + prices.slot_bytes + prices.least_output_bytes
    check_budget(budget, least)
    output_rows = prices.output_rows(budget.free_bytes - least)
    window = (budget.free_bytes - prices.output_bytes(output_rows) - taken) // prices.slot_bytes
    # pages used in place take no memory, but are to be looked at one by one: rated as if they did
    used = (k + pinned) * relation.page_bytes // prices.slot_bytes if relation.resident else 0
    demand = StreamShape.zipf(zipf_exponent, relation.rows, "sorted").demand(relation.rows, pages)
    rate = cost.rate(
        np.maximum(window - used, 1.0), k, pinned, demand, **letters(relation),
        costs=costs_with_calls(costs), output_rows=output_rows,
    )  # fmt: skip
    rate[window < 1] = float("-inf")
    rate[(pinned >= pages) & (window - used >= output_rows)] = float("inf")  # then nobody waits, and nothing is read
    best = np.unravel_index(int(rate.argmax()), rate.shape)
    chosen_k, chosen = int(k[best[0], 0]), int(pinned[0, best[1]])
    hot_keys = min(chosen * page_keys, index.hot_keys) if index is not None else 0
    return Sizing(min(int(window[best]), MAX_SLOTS), chosen_k, output_rows, hot_keys), chosen
