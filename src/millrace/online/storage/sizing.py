"""What a join takes, in bytes by name, worked out before any array is made: the one answer to "how much memory would do".

    divide(shape, budget)   sets aside what a join of this shape takes, and says how it is divided
      |-- the join itself   on its own budget; then it makes its arrays, of these sizes and under these names
      `-- the search        on budgets of other sizes, where the join's own is too small (`core.least_memory`)

So the amount that an error names comes from the sizes that the join will ask for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from millrace.core.budget import Budget, format_bytes
from millrace.core.errors import BudgetError
from millrace.core.least_memory import fits, least_memory
from millrace.online.pair_functions import Functions
from millrace.online.protocol import Input, Pieces
from millrace.online.storage.rectangles import rectangle_sizes
from millrace.online.storage.spill import Spill

Division = TypeVar("Division")


@dataclass(frozen=True)
class Shape:
    """What is joined, as far as memory depends on it."""

    functions: Functions
    widths: tuple[int, int]  # words of a record
    rows: tuple[int, int]  # of the two inputs, known or estimated
    buffer_bytes: Callable[[int], int]  # what the temporary file's buffers take, by extent

    @classmethod
    def of(cls, a: Input, b: Input, functions: Functions, spill: Spill) -> Shape:
        return cls(functions, (a.width, b.width), (a.rows, b.rows), spill.buffer_bytes)

    @property
    def widest(self) -> int:
        return max(self.widths)

    @property
    def piece_bytes(self) -> int:
        return Pieces.bytes_each(self.functions.functions, self.functions.groups)

    def table_sizes(self, rows: int, name: str = "join", *, sure: bool = False) -> dict[str, int]:
        """Of a table to join so many rows in."""
        return rectangle_sizes(self.functions, self.widths, rows, name, sure=sure)

    def batches_bytes(self, rows: int) -> int:
        """Of batches of so many rows on their way into the join."""
        return 3 * rows * 8 * self.widest


def divided(divide: Callable[[Budget], Division], shape: Shape, budget: Budget) -> Division:
    """What `divide` makes of a budget. If that is too small, the error names an amount that is enough, and the budget is as it
    was."""
    before = budget.holdings()
    try:
        return divide(budget)
    except BudgetError:
        for name in budget.holdings():
            budget.release(name)
        budget.reserve_all(before)
    used = sum(before.values())
    needed = least_memory(lambda memory: fits(lambda more: divide(_trial(more, used)), memory), budget.memory_bytes)
    raise BudgetError(
        f"the memory budget of {format_bytes(budget.memory_bytes)} is too small to join {shape.rows[0]:,} with "
        f"{shape.rows[1]:,} rows; give memory={needed} or more",
        needed,
    )


def _trial(memory_bytes: int, used: int) -> Budget:
    budget = Budget(memory_bytes)
    budget.reserve("what was in use before", used)
    return budget
