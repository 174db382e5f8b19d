"""Order of arrival: a linked queue that anything may leave, and a ring of waiting tuples that they leave in turn."""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.core.arrays import BoolArray, Int64Array
from millrace.core.budget import Budget
from millrace.core.compiled import kernel

_NEXT, _PREVIOUS = 0, 1  # what a node of the queue says


class Queue:
    """Numbers below `capacity` in order of arrival, linked both ways; node 0 is the seam between newest and oldest, number n is
    node n + 1.

    >>> queue = Queue(capacity=4, budget=Budget("1k"))
    >>> queue.append(np.array([2, 0, 3]))
    >>> queue.remove(np.array([2]))
    >>> queue.oldest, queue.items().tolist()
    (0, [0, 3])
    """

    bytes_each = 8
    fixed_bytes = 8

    def __init__(self, capacity: int, budget: Budget) -> None:
        self._links = budget.array("queue", 2 * (capacity + 1), np.int32).reshape(capacity + 1, 2)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def oldest(self) -> int | None:
        """What has waited longest, or None when nothing waits."""
        node = int(self._links[0, _NEXT])
        return node - 1 if node else None

    def append(self, items: Int64Array) -> None:
        """These, none of which is in the queue, come last, in the given order."""
        _append(self._links, items)
        self._size += len(items)

    def remove(self, items: Int64Array) -> None:
        """Take out some, each of which is in the queue, wherever they stand."""
        _remove(self._links, items)
        self._size -= len(items)

    def at(self, place: int) -> int | None:
        """What stands so many places behind the oldest, or the newest if there are not so many."""
        node = int(_at(self._links[:, _NEXT], place))
        return node - 1 if node else None

    def items(self) -> Int64Array:
        """All of them, oldest first."""
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

    def items(self) -> Int64Array:
        """All slots, oldest first."""
        return self._slots[(self._first + np.arange(self._size)) % len(self._slots)].astype(np.int64)

    def remove(self, marks: BoolArray, parts: Int64Array) -> None:
        """Take out slots that are marked, wherever they stand. The ring is made of parts of these sizes, oldest first; the
        sizes are changed."""
        _close_gaps(self._slots, self._first, marks, parts)
        self._size = int(parts.sum())


@kernel
def _append(links: Any, items: Any) -> None:
    last = np.int64(links[0, _PREVIOUS])
    for i in range(len(items)):
        node = items[i] + 1
        links[last, _NEXT] = node
        links[node, _PREVIOUS] = last
        links[node, _NEXT] = 0
        last = node
    links[0, _PREVIOUS] = last


@kernel
def _remove(links: Any, items: Any) -> None:
    for i in range(len(items)):
        after, before = links[items[i] + 1, _NEXT], links[items[i] + 1, _PREVIOUS]
        links[before, _NEXT] = after
        links[after, _PREVIOUS] = before


@kernel
def _at(following: Any, place: Any) -> Any:
    node = following[0]
    for _ in range(place):
        if following[node] == 0:
            break
        node = following[node]
    return node


@kernel
def _close_gaps(ring: Any, first: Any, marks: Any, parts: Any) -> None:
    at = to = np.int64(first)
    for part in range(len(parts)):
        stay = 0
        for _ in range(parts[part]):
            slot = ring[at % len(ring)]
            at += 1
            if not marks[slot]:
                ring[to % len(ring)] = slot
                to += 1
                stay += 1
        parts[part] = stay


@kernel
def _in_order(following: Any) -> Any:
    count = 0
    node = following[0]
    while node != 0:
        count += 1
        node = following[node]
    items = np.empty(count, np.int64)
    for i in range(count):
        node = following[node]
        items[i] = node - 1
    return items
