"""Lists of window slots that know how long they are: one for every page or partition of a relation.

    heads   [ 3 | -1 | 1 ]     per list: its newest slot, or -1
    sizes   [ 2 |  0 | 1 ]     per list: its slots
    links   [ . | -1 | . | 1 ] per slot: the one behind it in its list, or -1

`Lists` does the same with 44 bytes a list and short ways to memory. Here a list takes 8 bytes: lists by page are many, and each
is short.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.compiled import kernel


class CountedLists:
    """Lists of slots; a slot is in one of them at most.

    >>> lists = CountedLists("page", count=3, capacity=4, budget=Budget("1k"))
    >>> lists.add(np.array([2, 0, 2]), np.array([0, 1, 3])).tolist()
    [2, 0]
    >>> lists.sizes.tolist(), lists.take(np.array([2])).tolist(), lists.waiting
    ([1, 0, 2], [3, 0], 1)
    """

    bytes_per_list = 8
    bytes_per_slot = 4

    def __init__(self, name: str, count: int, capacity: int, budget: Budget) -> None:
        self._heads = budget.array(f"{name} list heads", count, np.int32)
        self._heads[:] = -1
        self.sizes = budget.array(f"{name} list sizes", count, np.int32)
        self._links = budget.array(f"{name} list links", capacity, np.int32)
        self.waiting = 0  # slots in all lists

    def add(self, lists: Int64Array, slots: Int64Array) -> Int64Array:
        """Put `slots[i]`, which is in no list, into list `lists[i]`; returns the lists that were empty, in order."""
        filled = np.empty(min(len(slots), len(self.sizes)), np.int64)
        count = _add(self._heads, self.sizes, self._links, lists, slots, filled)
        self.waiting += len(slots)
        return filled[:count]

    def take(self, lists: Int64Array) -> Int64Array:
        """The slots of these lists, each named once, which are empty then."""
        slots = np.empty(int(self.sizes[lists].sum()), np.int64)
        _take(self._heads, self.sizes, self._links, lists, slots)
        self.waiting -= len(slots)
        return slots


@kernel
def _add(heads: Any, sizes: Any, links: Any, lists: Any, slots: Any, filled: Any) -> Any:
    count = 0
    for i in range(len(slots)):
        at = lists[i]
        if sizes[at] == 0:
            filled[count] = at
            count += 1
        links[slots[i]] = heads[at]
        heads[at] = slots[i]
        sizes[at] += 1
    return count


@kernel
def _take(heads: Any, sizes: Any, links: Any, lists: Any, out: Any) -> None:
    count = 0
    for at in lists:
        slot = heads[at]
        while slot >= 0:
            out[count] = slot
            count += 1
            slot = links[slot]
        heads[at] = -1
        sizes[at] = 0
