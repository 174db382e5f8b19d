"""R-MESHJOIN: MESHJOIN with a disk buffer of any size, and all the rest of the memory for waiting tuples.

Naeem, Dobbie, Weber, Alam: R-MESHJOIN for Near-real-time Data Warehousing, DOLAP 2010. We know the abstract and what
later papers say: the disk buffer does not depend on the size of R or on the number of chunks, and memory goes where it is
needed.

The loop, with b = `buffer_pages`:
    1. read the next b pages of R, fewer where a chunk has to leave or R ends, and as many tuples of S as there is room for;
    2. add the new tuples to the hash table, and their slots to the queue as one chunk, stamped with the scan position;
    3. probe the hash table with every row of the pages, and put out the matches;
    4. when the scan comes round to the stamp of a chunk, the chunk has met all of R: its tuples leave queue and hash table.

Memory:

    stream --> [ any number ] --> queue [ chunk | chunk | chunk ] --> leaves unless it met a row
                                            |       |       |
                                  hash table of the same tuples, by key code
                                            ^ probed with every row
                                  disk buffer [ b pages ]  <-- scan of R

A tuple leaves after one pass over R: N_R/b reads, at most N_R, whatever else comes and however often b changes.

Needs nothing of R: no index, no order. Serves every condition: see `matching`.

Differs from what we know of the paper:
    - b is chosen by the cost of a read against the cost of memory, from `costs`; we do not know the paper's own rule.
    - b and the most tuples that a step takes may change while the join runs (`resize`), and R may grow at its end.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from millrace.core.budget import Budget
from millrace.core.protocols import JoinSpec, Relation
from millrace.core.unitcosts import UnitCosts
from millrace.cost import rmeshjoin as cost
from millrace.cost.expected import Expected, StreamShape
from millrace.joins.matching.matcher import matcher_bytes
from millrace.joins.scan import ScanJoin, buffer_choices, scan_bytes, scan_parts, scan_prices, wanted_pages
from millrace.joins.sizing import MAX_SLOTS, Sizing, check_at_least_one, check_budget, costs_with_calls, letters


class RMeshJoin(ScanJoin):
    """Every page of R serves every waiting tuple; a free slot is filled at the next read.

    >>> import pyarrow as pa
    >>> from millrace.relations.memory import MemoryRelation
    >>> products = MemoryRelation(pa.table({"id": [1, 2, 3], "price": [10, 20, 30]}), "id", rows_per_page=1)
    >>> sales = pa.record_batch({"product": [3, 1]})
    >>> spec = JoinSpec(sales.schema, (("product", "id"),), "inner", ("product",), ("price",))
    >>> join = RMeshJoin(products, spec, Budget("64k"), buffer_pages=1)
    >>> join.offer(sales), join.step().output.to_pydict()
    (2, {'product': [1], 'price': [10]})
    >>> join.resize(buffer_pages=2)
    >>> join.step().output.to_pydict(), join.pending, products.reads
    ({'product': [3], 'price': [30]}, 0, [(0, 1), (1, 2)])
    """

    def __init__(
        self, relation: Relation, spec: JoinSpec, budget: Budget, *,
        buffer_pages: int | None = None, tuples_per_step: int | None = None, costs: UnitCosts | None = None,
    ) -> None:  # fmt: skip
        sizing, chunks = self.divide(
            relation, spec, budget, buffer_pages=buffer_pages, tuples_per_step=tuples_per_step, costs=costs
        )
        super().__init__(relation, spec, budget, sizing, tuples_per_step or sizing.capacity, chunks)

    @staticmethod
    def divide(
        relation: Relation, spec: JoinSpec, budget: Budget, *,
        buffer_pages: int | None = None, tuples_per_step: int | None = None, costs: UnitCosts | None = None,
    ) -> tuple[Sizing, int]:  # fmt: skip
        """How the budget would be shared out; an error if it is too small. No array is made."""
        check_at_least_one("tuples_per_step", tuples_per_step)
        return _plan(relation, spec, budget, buffer_pages, costs)

    @classmethod
    def expect(
        cls, relation: Relation, spec: JoinSpec, budget: Budget, stream: StreamShape, *,
        rows: float | None = None, **parameters: Any,
    ) -> Expected:  # fmt: skip
        """What the join is expected to do: in the long run, or with so many rows and then no more. An error if the budget is
        too small. No array is made."""
        sizing, _ = cls.divide(relation, spec, budget, **parameters)
        iteration = (cost.iteration if rows is None else partial(cost.drained, rows))(
            sizing.capacity, sizing.buffer_pages, **letters(relation), sigma=stream.sigma * (1 - stream.absent),
            output_rows=sizing.output_rows, wanted=wanted_pages(relation, stream, sizing),
        )  # fmt: skip
        settings = {"buffer_pages": sizing.buffer_pages}
        return Expected(iteration, sizing.capacity, scan_parts(relation, spec, budget, sizing), settings)

    def resize(self, *, buffer_pages: int | None = None, tuples_per_step: int | None = None) -> None:
        """Change b, w, or both, from the next read on. A larger buffer must fit into what is left of the budget."""
        check_at_least_one("buffer_pages", buffer_pages)
        check_at_least_one("tuples_per_step", tuples_per_step)
        if buffer_pages is not None:
            page_bytes = 0 if self._relation.resident else self._relation.page_bytes
            code_bytes = matcher_bytes(self._relation, self._spec, self._budget.memory_bytes).per_page
            self._budget.reserve_all({"disk buffer": buffer_pages * page_bytes, "page codes": buffer_pages * code_bytes})
            self.buffer_pages = buffer_pages
        if tuples_per_step is not None:
            self.tuples_per_step = tuples_per_step


def _plan(
    relation: Relation, spec: JoinSpec, budget: Budget, buffer_pages: int | None, costs: UnitCosts | None
) -> tuple[Sizing, int]:
    """The b with the highest rate (see `cost.rmeshjoin`)."""
    check_at_least_one("buffer_pages", buffer_pages)
    prices = scan_prices(relation, spec, budget)
    b = buffer_choices(relation.pages, buffer_pages)
    chunks = 2 * -(-max(1, relation.pages) // b) + 8  # twice what one b makes: another b cuts reads elsewhere
    fixed = b * prices.page_bytes + scan_bytes(relation, spec, budget, chunks)
    least = fixed + prices.slot_bytes + prices.least_output_bytes
    check_budget(budget, int(least.min()))
    output_rows = prices.output_rows(budget.free_bytes - int(least.min()))
    left = budget.free_bytes - prices.output_bytes(output_rows) - fixed
    window = (left // prices.slot_bytes).clip(0, MAX_SLOTS)
    # pages used in place cost no buffer, but a longer read still delays every result: rated as if they did
    rated = window - (b * relation.page_bytes if relation.resident else 0) // prices.slot_bytes
    rate = cost.rate(
        rated, b, N_R=max(1, relation.pages), R_t=relation.rows, v_P=relation.page_bytes, costs=costs_with_calls(costs)
    )
    rate[window < 1] = float("-inf")
    best = int(rate.argmax())
    return Sizing(int(window[best]), int(b[best]), output_rows), int(chunks[best])
