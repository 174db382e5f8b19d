"""How much memory is enough: one search, used wherever a budget is too small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace.core.errors import BudgetError

_CLOSE = 1.05  # the amount found is at most this many times the least amount
_MOST = 1 << 50


def least_memory(fits: Callable[[int], bool], too_small: int) -> int:
    """An amount of memory that fits, near the least amount that fits. `too_small` does not fit. If an amount fits, every larger
    amount must fit too.

    `fits` should only compute sizes: it is called some ten times.

    >>> 1000 <= least_memory(lambda memory: memory >= 1000, 1) <= 1050
    True
    """
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


def fits(make: Callable[[int], Any], memory_bytes: int) -> bool:
    """Whether `make` can do with this much memory."""
    try:
        make(memory_bytes)
    except BudgetError:
        return False
    return True
