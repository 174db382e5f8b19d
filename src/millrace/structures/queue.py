"""Arrival order of waiting tuples: a linked queue that any tuple may leave, and a ring that they leave in turn."""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.core.budget import Budget
from millrace.core.compiled import kernel
from millrace.core.step import Int64Array


class Queue:
    """Slots in order of arrival, linked both ways; node 0 is the seam between newest and oldest, slot s is node s + 1.

    >>> queue = Queue(capacity=4, budget=Budget("1k"))
    >>> queue.append(np.array([2, 0, 3]))
    >>> queue.remove(np.array([2]))
    >>> queue.oldest, queue.slots().tolist()
    (0, [0, 3])
    """

    bytes_per_slot = 8
    fixed_bytes = 8

    def __init__(self, capacity: int, budget: Budget) -> None:
        self._next = budget.array("queue next", capacity + 1, np.int32)
        self._prev = budget.array("queue prev", capacity + 1, np.int32)

    @property
    def oldest(self) -> int | None:
        """The slot that has waited longest, or None when nothing waits."""
        node = int(self._next[0])
        return node - 1 if node else None

    def append(self, slots: Int64Array) -> None:
        """These slots, none of which is in the queue, come last, in the given order."""
        _append(self._next, self._prev, slots)

    def remove(self, slots: Int64Array) -> None:
        """Take out slots, each of which is in the queue, wherever they stand."""
        _remove(self._next, self._prev, slots)

    def slots(self) -> Int64Array:
        """All slots, oldest first."""
        return _in_order(self._next)


class Ring:
    """Slots in order of arrival that leave in the same order.

    >>> ring = Ring(capacity=4, budget=Budget("1k"))
    >>> ring.append(np.array([2, 0, 3]))
    >>> ring.take(2).tolist(), len(ring)
    ([2, 0], 1)
    """

    bytes_per_slot = 4

    def __init__(self, capacity: int, budget: Budget) -> None:
        self._slots = budget.array("queue", capacity, np.int32)
        self._first = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, slots: Int64Array) -> None:
        """These slots come last; there must be room for them."""
        places = (self._first + self._size + np.arange(len(slots))) % len(self._slots)
        self._slots[places] = slots
        self._size += len(slots)

    def take(self, count: int) -> Int64Array:
        """The `count` oldest slots, which leave."""
        places = (self._first + np.arange(count)) % len(self._slots)
        self._first = (self._first + count) % len(self._slots)
        self._size -= count
        return self._slots[places].astype(np.int64)


@kernel
def _append(following: Any, previous: Any, slots: Any) -> None:
    last = previous[0]
    for i in range(len(slots)):
        node = slots[i] + 1
        following[last] = node
        previous[node] = last
        following[node] = 0
        last = node
    previous[0] = last


@kernel
def _remove(following: Any, previous: Any, slots: Any) -> None:
    for i in range(len(slots)):
        node = slots[i] + 1
        following[previous[node]] = following[node]
        previous[following[node]] = previous[node]


@kernel
def _in_order(following: Any) -> Any:
    count = 0
    node = following[0]
    while node != 0:
        count += 1
        node = following[node]
    slots = np.empty(count, np.int64)
    for i in range(count):
        node = following[node]
        slots[i] = node - 1
    return slots
