"""Lists of window slots, many of them, that are filled one by one and emptied as a whole.

    heads   [ 3 | 0 | 1 ]     per list: its newest block + 1, 0 when empty
    sizes   [ 9 | 0 | 2 ]     per list: its slots
    oldest  [ . | . | . ]     per list: the slot that came first, unless it is empty

    block 2  [ 2 | slot slot                ]     the newest one of list 0: the block behind it + 1, then up to 7 slots
    block 1  [ 0 | slot slot slot ... slot  ]
    block 0  [ 0 | slot slot                ]     of list 2

A block is half a line of the processor's cache: going along a list waits for memory once in seven slots. Blocks of lists that
were taken are used again.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from millrace.core.arrays import Int32Array, Int64Array
from millrace.core.budget import Budget
from millrace.core.compiled import kernel

_EACH = 7  # slots of a block


class Lists:
    """Lists of slots; a slot is in one of them at most.

    >>> lists = Lists("bucket", heads=2, capacity=4, budget=Budget("1k"))
    >>> lists.add(np.array([1, 0, 1]), np.array([0, 1, 2])).tolist()
    [1, 0]
    >>> lists.oldest(1), lists.take(1, 1).tolist(), lists.take(0, 1).tolist()
    (0, [0, 2], [1])
    """

    bytes_per_slot = 5
    bytes_per_head = 4 + 4 + 4 + 32
    fixed_bytes = 32 + 16

    def __init__(self, name: str, heads: int, capacity: int, budget: Budget) -> None:
        blocks = capacity // _EACH + min(heads, capacity) + 1
        self._heads = budget.array(f"{name} heads", heads, np.int32)
        self._sizes = budget.array(f"{name} sizes", heads, np.int32)
        self._oldest = budget.array(f"{name} oldest", heads, np.int32)
        self._blocks = budget.array(f"{name} blocks", blocks * (1 + _EACH), np.int32).reshape(blocks, 1 + _EACH)
        self._state = budget.array(f"{name} state", 2, np.int64)  # a block to use again + 1; blocks that were ever used

    def add(self, heads: Int64Array, slots: Int64Array) -> Int64Array:
        """Put `slots[i]`, which is in no list, into list `heads[i]`; returns the lists that were empty, in order."""
        filled = np.empty(min(len(slots), len(self._heads)), np.int64)
        count = _add(self._heads, self._sizes, self._oldest, self._blocks, self._state, heads, slots, filled)
        return filled[:count]

    def filled(self, first: int, last: int) -> Int64Array:
        """Those of lists `first` to `last` that are not empty."""
        return first + np.flatnonzero(self._sizes[first : last + 1])

    def oldest(self, head: int) -> int:
        """The slot that came first into a list, which must not be empty."""
        return int(self._oldest[head])

    def take(self, first: int, last: int) -> Int64Array:
        """The slots in lists `first` to `last`, which are empty then."""
        slots = np.empty(int(self._sizes[first : last + 1].sum()), np.int64)
        _take(self._heads, self._sizes, self._blocks, self._state, first, last, slots)
        return slots

    def replace(self, heads: Int64Array, stays: Int32Array, instead: Int32Array) -> Int64Array:
        """In these lists, slot s stays if `stays[s]` is not 0. Otherwise `instead[s]` takes its place, or nothing if that is
        below 0. Returns the lists that are empty then."""
        left = np.empty(int(self._sizes[heads].max(initial=0)), np.int64)
        arrays = self._heads, self._sizes, self._oldest, self._blocks, self._state
        for_each = cast("Int64Array", _replace(*arrays, heads, stays, instead, left))
        return heads[for_each == 0]


@kernel
def _add(heads: Any, sizes: Any, oldest: Any, blocks: Any, state: Any, keys: Any, slots: Any, filled: Any) -> Any:
    count = 0
    for i in range(len(slots)):
        head = keys[i]
        size = np.int64(sizes[head])
        if size == 0:
            oldest[head] = slots[i]
            filled[count] = head
            count += 1
        place = size % _EACH
        if place == 0:
            if state[0] != 0:
                block = state[0] - 1
                state[0] = blocks[block, 0]
            else:
                block = state[1]
                state[1] += 1
            blocks[block, 0] = heads[head]
            heads[head] = block + 1
        else:
            block = np.int64(heads[head]) - 1
        blocks[block, 1 + place] = slots[i]
        sizes[head] = size + 1
    return count


@kernel
def _take(heads: Any, sizes: Any, blocks: Any, state: Any, first: Any, last: Any, out: Any) -> None:
    count = 0
    for head in range(first, last + 1):
        inside = (sizes[head] - 1) % _EACH + 1
        link = np.int64(heads[head])
        while link != 0:
            block = link - 1
            for place in range(inside):
                out[count] = blocks[block, 1 + place]
                count += 1
            inside = _EACH
            link = np.int64(blocks[block, 0])
            blocks[block, 0] = state[0]
            state[0] = block + 1
        heads[head] = 0
        sizes[head] = 0


@kernel
def _replace(
    heads: Any, sizes: Any, oldest: Any, blocks: Any, state: Any, keys: Any, stays: Any, instead: Any, left: Any
) -> Any:  # fmt: skip
    """Take the slots of a list out, newest first, and put in again what is left of them, oldest first."""
    counts = np.empty(len(keys), np.int64)
    empty = np.empty(1, np.int64)
    for i in range(len(keys)):
        head = keys[i]
        count = 0
        inside = (sizes[head] - 1) % _EACH + 1
        link = np.int64(heads[head])
        first = np.int64(oldest[head])
        while link != 0:
            block = link - 1
            for place in range(inside - 1, -1, -1):
                slot = np.int64(blocks[block, 1 + place])
                now = slot if stays[slot] != 0 else np.int64(instead[slot])
                if slot == first:
                    oldest[head] = now
                if now >= 0:
                    left[count] = now
                    count += 1
            inside = _EACH
            link = np.int64(blocks[block, 0])
            blocks[block, 0] = state[0]
            state[0] = block + 1
        first = np.int64(oldest[head])
        heads[head] = 0
        sizes[head] = 0
        counts[i] = count
        for at in range(count - 1, -1, -1):
            _add(heads, sizes, oldest, blocks, state, keys[i : i + 1], left[at : at + 1], empty)
        if first >= 0:
            oldest[head] = first
    return counts
