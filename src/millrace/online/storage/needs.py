"""How much memory a join needs: where a budget is too small, the error states an amount that is enough.

A join divides its memory by shares and by minima, so what it needs is found by trying: the join is made with larger budgets,
with nothing read and no file opened, until it can be.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget, format_bytes
from millrace.core.errors import BudgetError
from millrace.online.storage.spill import Fetch, Spill

_CLOSE = 1.05  # the amount stated is at most so many times the least
_MOST = 1 << 50


Init = TypeVar("Init", bound=Callable[..., None])


def states_what_it_needs(init: Init) -> Init:
    """For `__init__(a, b, functions, budget, spill, ...)` of a join. After an error the budget is as it was."""

    @functools.wraps(init)
    def checked(join: Any, a: Any, b: Any, functions: Any, budget: Budget, spill: Spill, **options: Any) -> None:
        before = budget.holdings()
        try:
            init(join, a, b, functions, budget, spill, **options)
        except BudgetError:
            spill.close()
            for name in budget.holdings():
                budget.release(name)
            budget.reserve_all(before)

            def fits(memory: int) -> bool:
                trial = Budget(memory)
                try:
                    trial.reserve("what was in use before", sum(before.values()))
                    init(object.__new__(type(join)), a, b, functions, trial, _Unopened(spill), **options)
                except BudgetError:
                    return False
                return True

            needed = least_memory(fits, budget.memory_bytes)
            raise BudgetError(
                f"the memory budget of {format_bytes(budget.memory_bytes)} is too small to join {a.rows:,} with {b.rows:,} "
                f"rows; give memory={needed} or more",
                needed,
            ) from None

    return cast(Init, checked)


def least_memory(fits: Callable[[int], bool], too_small: int) -> int:
    """An amount that fits, near the least one that does; `too_small` does not."""
    low, high = too_small, 2 * too_small
    while not fits(high):
        low, high = high, 2 * high
        if high > _MOST:
            raise AssertionError("no memory is enough")
    while high > _CLOSE * low:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle
    return high


class _Unopened:
    """A store that reserves what another would, and holds nothing."""

    written_bytes = read_bytes = seeks = 0

    def __init__(self, spill: Spill) -> None:
        self._spill = spill

    def buffer_bytes(self, extent_bytes: int) -> int:
        return self._spill.buffer_bytes(extent_bytes)

    def open(self, extent_bytes: int, budget: Budget) -> None:
        budget.reserve("spill buffers", self.buffer_bytes(extent_bytes))

    def room(self, words: int) -> tuple[int, Int64Array]:
        raise NotImplementedError

    def flush(self) -> None:
        raise NotImplementedError

    def fetch(self, places: Sequence[int], words: Sequence[int]) -> Fetch:
        raise NotImplementedError

    def close(self) -> None:
        pass
