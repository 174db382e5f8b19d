"""Arrival order of waiting tuples: a linked queue that any tuple may leave, and a ring that they leave in turn."""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.core.budget import Budget
from millrace.core.compiled import kernel
from millrace.core.memoryaccess import prefetch
from millrace.core.step import Int64Array

_NEXT, _PREVIOUS = 0, 1  # what a node of the queue says
_AHEAD = 64  # nodes asked for at once


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
        self._links = budget.array("queue", 2 * (capacity + 1), np.int32).reshape(capacity + 1, 2)

    @property
    def oldest(self) -> int | None:
        """The slot that has waited longest, or None when nothing waits."""
        node = int(self._links[0, _NEXT])
        return node - 1 if node else None

    def append(self, slots: Int64Array) -> None:
        """These slots, none of which is in the queue, come last, in the given order."""
        _append(self._links, slots)

    def remove(self, slots: Int64Array) -> None:
        """Take out slots, each of which is in the queue, wherever they stand."""
        _remove(self._links, slots)

    def slots(self) -> Int64Array:
        """All slots, oldest first."""
        return _in_order(self._links[:, _NEXT])


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
def _append(links: Any, slots: Any) -> None:
    last = np.int64(links[0, _PREVIOUS])
    for i in range(len(slots)):
        node = slots[i] + 1
        links[last, _NEXT] = node
        links[node, _PREVIOUS] = last
        links[node, _NEXT] = 0
        last = node
    links[0, _PREVIOUS] = last


@kernel
def _remove(links: Any, slots: Any) -> None:
    """Many nodes are asked for at once, and then their neighbours."""
    at = links.ctypes.data
    for first in range(0, len(slots), _AHEAD):
        last = min(first + _AHEAD, len(slots))
        for i in range(first, last):
            prefetch(at + 8 * (slots[i] + 1))
        for i in range(first, last):
            prefetch(at + 8 * np.int64(links[slots[i] + 1, _NEXT]))
            prefetch(at + 8 * np.int64(links[slots[i] + 1, _PREVIOUS]))
        for i in range(first, last):
            after, before = links[slots[i] + 1, _NEXT], links[slots[i] + 1, _PREVIOUS]
            links[before, _NEXT] = after
            links[after, _PREVIOUS] = before


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
