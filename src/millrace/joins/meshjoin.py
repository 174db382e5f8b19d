"""MESHJOIN: a cyclic scan of the relation meshed with a sliding window over the stream.

Polyzotis, Skiadopoulos, Vassiliadis, Simitsis, Frantzell: Supporting Streaming Updates in an Active Data Warehouse,
ICDE 2007.

The loop, with b = `buffer_pages` and w = `tuples_per_step`:
    1. read the next b pages of R and up to w tuples of S;
    2. add the new tuples to the hash table, and their slots to the queue as one chunk;
    3. probe the hash table with every row of the b pages, and put out the matches;
    4. the chunk that entered one pass ago has met all of R: its tuples leave the queue and the hash table.

Memory, for R of 8 pages and b = 2, so 4 chunks:

    stream --> [ w ] --> queue [ chunk | chunk | chunk | chunk ] --> leaves unless it met a row
                                   |       |       |       |
                         hash table of the same tuples, by key code
                                   ^ probed with every row
                         disk buffer [ p4 p5 ]  <-- scan of R:  p0 p1 | p2 p3 | p4 p5 | p6 p7 | p0 p1 ...

A tuple leaves after one pass over R: N_R/b reads, at most N_R, whatever else comes.

Needs nothing of R: no index, no order. Serves every condition: see `matching`.

Differs from the paper:
    - A chunk leaves at the end of the step that completes its pass, not at the start of the next (the paper's lines
      3-6), so that it does not wait for the next read, and w slots are free when new tuples come.
    - A step runs with fewer than w tuples, or none. The paper's loop waits for w tuples, for ever if the stream pauses. Each
      chunk is stamped with the scan position at which it entered, and leaves when the scan comes round to this position:
      see `scan`, which has the loop. If no tuple waits, a step reads nothing.
    - The number of pages need not be a multiple of b: the last read of a pass is shorter.
    - More matches than fit into the output of a step: the next steps go on with the same pages, without reading.
    - b and w are fixed when the join is made; `rmeshjoin` can change both while it runs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from millrace.core.budget import Budget
from millrace.core.protocols import JoinSpec, Relation
from millrace.core.unitcosts import UnitCosts
from millrace.cost import meshjoin as cost
from millrace.cost.expected import Expected, StreamShape
from millrace.joins.scan import ScanJoin, buffer_choices, scan_bytes, scan_parts, scan_prices, wanted_pages
from millrace.joins.sizing import MAX_SLOTS, Sizing, check_at_least_one, check_budget, costs_with_calls, letters


class MeshJoin(ScanJoin):
    """Every page of R serves every waiting tuple; every tuple waits for one pass over R.

    >>> import pyarrow as pa
    >>> from millrace.relations.memory import MemoryRelation
    >>> products = MemoryRelation(pa.table({"id": [1, 2, 3], "price": [10, 20, 30]}), "id", rows_per_page=1)
    >>> sales = pa.record_batch({"product": [3, 1]})
    >>> spec = JoinSpec(sales.schema, (("product", "id"),), "inner", ("product",), ("price",))
    >>> join = MeshJoin(products, spec, Budget("64k"), buffer_pages=2, tuples_per_step=8)
    >>> join.offer(sales), join.step().output.to_pydict(), join.step().output.to_pydict(), join.pending
    (2, {'product': [1], 'price': [10]}, {'product': [3], 'price': [30]}, 0)
    """

    def __init__(
        self, relation: Relation, spec: JoinSpec, budget: Budget, *,
        buffer_pages: int | None = None, tuples_per_step: int | None = None, costs: UnitCosts | None = None,
    ) -> None:  # fmt: skip
        sizing, w = self.divide(relation, spec, budget, buffer_pages=buffer_pages, tuples_per_step=tuples_per_step, costs=costs)
        self.chunks = int(cost.chunks(relation.pages, sizing.buffer_pages))
        super().__init__(relation, spec, budget, sizing, w, self.chunks + 1)

    @staticmethod
    def divide(
        relation: Relation, spec: JoinSpec, budget: Budget, *,
        buffer_pages: int | None = None, tuples_per_step: int | None = None, costs: UnitCosts | None = None,
    ) -> tuple[Sizing, int]:  # fmt: skip
        """How the budget would be shared out; an error if it is too small. No array is made."""
        return _plan(relation, spec, budget, buffer_pages, tuples_per_step, costs)

    @classmethod
    def expect(
        cls, relation: Relation, spec: JoinSpec, budget: Budget, stream: StreamShape, *,
        rows: float | None = None, **parameters: Any,
    ) -> Expected:  # fmt: skip
        """What the join is expected to do: in the long run, or with so many rows and then no more. An error if the budget is
        too small. No array is made."""
        sizing, w = cls.divide(relation, spec, budget, **parameters)
        iterate = cost.iteration if rows is None else partial(cost.drained, rows, sizing.capacity)
        iteration = iterate(
            w, sizing.buffer_pages, **letters(relation), sigma=stream.sigma * (1 - stream.absent),
            output_rows=sizing.output_rows, wanted=wanted_pages(relation, stream, sizing),
        )  # fmt: skip
        settings = {"buffer_pages": sizing.buffer_pages, "tuples_per_step": w}
        return Expected(iteration, sizing.capacity, scan_parts(relation, spec, budget, sizing), settings)


def _plan(
    relation: Relation,
    spec: JoinSpec,
    budget: Budget,
    buffer_pages: int | None,
    tuples_per_step: int | None,
    costs: UnitCosts | None,
) -> tuple[Sizing, int]:
    """b and w: of all b that fit, the b with the highest rate (see `cost.meshjoin`)."""
    check_at_least_one("buffer_pages", buffer_pages)
    check_at_least_one("tuples_per_step", tuples_per_step)
    prices = scan_prices(relation, spec, budget)
    pages = max(1, relation.pages)
    b = buffer_choices(pages, buffer_pages)
    chunks = cost.chunks(pages, b)
    fixed = b * prices.page_bytes + scan_bytes(relation, spec, budget, chunks + 1)
    least = fixed + chunks * (tuples_per_step or 1) * prices.slot_bytes + prices.least_output_bytes
    check_budget(budget, int(least.min()))
    output_rows = prices.output_rows(budget.free_bytes - int(least.min()))
    left = budget.free_bytes - prices.output_bytes(output_rows) - fixed
    most = cost.tuples_per_step(left, chunks, prices.slot_bytes)
    w = most if tuples_per_step is None else np.full(len(b), tuples_per_step)
    w = np.minimum(w, MAX_SLOTS // chunks)
    fits = (w >= 1) & (w * chunks * prices.slot_bytes <= left)
    # pages used in place cost no buffer, but a longer read still delays every result: rated as if they did
    rated = w - (b * relation.page_bytes if relation.resident else 0) // (chunks * prices.slot_bytes)
    rate = cost.rate(rated, b, **letters(relation), costs=costs_with_calls(costs))
    best = int(np.argmax(np.where(fits, rate, -np.inf)))
    return Sizing(int(w[best] * chunks[best]), int(b[best]), output_rows), int(w[best])
