"""Lists of window slots, one per head, linked both ways so that any slot can be taken out at once.

    heads   [  3 |  0 |  2 ]       per list: its first slot + 1, 0 when empty
    next    [  0 |  0 |  1 ]       per slot: the next slot + 1, 0 at the end
    prev    [  3 | -3 | -1 ]       per slot: the slot before + 1, for the first -(list + 1); 0: in no list

The picture has slots 2 and 0 in list 0, and slot 1 in list 2.
All zero means empty, so that memory is touched only as slots come into use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from millrace.core.budget import Budget
from millrace.core.compiled import kernel
from millrace.core.step import Int64Array


class Room:
    """For slots that are counted only as they are walked along: as much as was needed at most so far."""

    def __init__(self) -> None:
        self._slots = 64

    def filled(self, walk: Callable[[Int64Array], int]) -> Int64Array:
        """What `walk` puts into an array. It returns how many slots there are, and puts down as many as there is room for."""
        slots = np.empty(self._slots, np.int64)
        count = walk(slots)
        if count > len(slots):
            self._slots = count + count // 2
            slots = np.empty(self._slots, np.int64)
            walk(slots)
        return slots[:count]


class Chains:
    """Lists of slots.

    >>> chains = Chains("bucket", heads=2, capacity=4, budget=Budget("1k"))
    >>> chains.add(np.array([0, 1, 0]), np.array([0, 1, 2]))
    >>> chains.remove(np.array([0]))
    >>> chains.members(0, 0).tolist(), chains.members(0, 1).tolist()
    ([2], [2, 1])
    >>> chains.take(0, 0).tolist(), chains.members(0, 1).tolist()
    ([2], [1])
    """

    bytes_per_slot = 8
    bytes_per_head = 4

    def __init__(self, name: str, heads: int, capacity: int, budget: Budget) -> None:
        self.heads = budget.array(f"{name} heads", heads, np.int32)
        self.next = budget.array(f"{name} next", capacity, np.int32)
        self.prev = budget.array(f"{name} prev", capacity, np.int32)
        self._room = Room()

    def add(self, heads: Int64Array, slots: Int64Array) -> None:
        """Put `slots[i]`, which is in no list, at the front of list `heads[i]`."""
        _link(self.heads, self.next, self.prev, heads, slots)

    def remove(self, slots: Int64Array) -> None:
        """Take slots out of their lists; one that is in none is passed over."""
        _unlink(self.heads, self.next, self.prev, slots)

    def members(self, first: int, last: int) -> Int64Array:
        """The slots in lists `first` to `last`."""
        return self._room.filled(lambda out: _walk(self.heads, self.next, first, last, out))

    def take(self, first: int, last: int) -> Int64Array:
        """The slots in lists `first` to `last`, which leave them."""
        slots = self.members(first, last)
        self.heads[first : last + 1] = 0
        self.prev[slots] = 0
        return slots


@kernel
def _link(heads: Any, following: Any, previous: Any, keys: Any, slots: Any) -> None:
    for i in range(len(slots)):
        slot, head = slots[i], keys[i]
        first = heads[head]
        following[slot] = first
        previous[slot] = -(head + 1)
        if first != 0:
            previous[first - 1] = slot + 1
        heads[head] = slot + 1


@kernel
def _unlink(heads: Any, following: Any, previous: Any, slots: Any) -> None:
    for i in range(len(slots)):
        slot = slots[i]
        after, before = following[slot], previous[slot]
        if before == 0:
            continue
        if before < 0:
            heads[-before - 1] = after
        else:
            following[before - 1] = after
        if after != 0:
            previous[after - 1] = before
        following[slot] = 0
        previous[slot] = 0


@kernel
def _walk(heads: Any, following: Any, first: int, last: int, out: Any) -> int:
    """Count the slots of some lists, and write down as many as `out` takes."""
    count = 0
    for head in range(first, last + 1):
        link = heads[head]
        while link != 0:
            if count < len(out):
                out[count] = link - 1
            count += 1
            link = following[link - 1]
    return count
