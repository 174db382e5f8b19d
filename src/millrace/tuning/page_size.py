"""Which size of page is best for a table: the rate of a join over page sizes, with rows and bytes of the table as they are.

    4 KiB   8 KiB   16 KiB  ...  1 MiB     a small page wastes little on rows that nobody wants, a large one few seeks

The table is only described: no page of another size is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from millrace.core.errors import BudgetError, ParameterError
from millrace.core.protocols import JoinSpec, Relation
from millrace.core.unitcosts import UnitCosts
from millrace.cost.expected import StreamShape
from millrace.joins.sizing import costs_with_calls
from millrace.tuning.choose import Forecast, forecast

PAGE_SIZES = tuple(4096 << power for power in range(9))  # 4 KiB to 1 MiB


class PageSize(NamedTuple):
    """A size of pages, and what a join does with it; without a forecast, why it does nothing."""

    page_bytes: int
    forecast: Forecast | None
    why_not: str = ""


class DescribedRelation:
    """A relation as if it had pages of another size. All else is the relation's own; nothing can be read."""

    def __init__(self, relation: Relation, page_bytes: int) -> None:
        self._relation: Any = relation
        row_bytes = bytes_of_row(relation)
        self.page_bytes = page_bytes
        self.rows_per_page = int(page_bytes // row_bytes)
        if not self.rows_per_page:
            raise ParameterError(f"a page of {page_bytes} bytes does not hold a row of {row_bytes:.0f}; give larger pages")
        self.rows = relation.rows
        self.pages = -(-relation.rows // self.rows_per_page)
        self.longest_row_bytes = min(page_bytes, getattr(relation, "longest_row_bytes", page_bytes))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._relation, name)


def bytes_of_row(relation: Relation) -> float:
    """Bytes of a row on its page, on average."""
    if not relation.rows:
        raise ParameterError("the table is empty: no size of pages is better than another")
    known: float | None = getattr(relation, "row_bytes", None)
    total: float = getattr(relation, "total_bytes", relation.page_bytes * relation.pages)
    return max(1.0, known or total / relation.rows)


def tune_page_bytes(
    name: str, relation: Relation, spec: JoinSpec, memory_bytes: int, stream: StreamShape, *,
    costs: UnitCosts | None = None, sizes: Sequence[int] = PAGE_SIZES, **parameters: Any,
) -> tuple[PageSize, ...]:  # fmt: skip
    """What the join does with each size of pages, with the sizes that it chooses itself. See `best_page`."""
    costs = costs_with_calls(costs)
    found = []
    for size in sizes:
        try:
            described: Any = DescribedRelation(relation, size)
            one = forecast(name, described, spec, memory_bytes, stream, costs_of=lambda _: costs, **parameters)
        except BudgetError as small:
            found.append(PageSize(size, None, f"needs memory={small.needed_bytes}"))
        except ParameterError as wrong:
            found.append(PageSize(size, None, str(wrong)))
        else:
            found.append(PageSize(size, one))
    return tuple(found)


def best_page(sizes: Sequence[PageSize]) -> PageSize:
    """The size with the highest rate."""
    able = [one for one in sizes if one.forecast is not None]
    if not able:
        raise ParameterError(f"no size of pages will do: {sizes[0].why_not if sizes else 'none was given'}")
    return max(able, key=lambda one: one.forecast.tuples_per_second if one.forecast is not None else 0.0)
