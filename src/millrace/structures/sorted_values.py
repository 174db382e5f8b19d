"""Waiting tuples in the order of their values, so that all of them inside a range are found at once.

    group   [ 3 | 3 | 3 | 8 | 8 ]     key code, where equal keys are asked for too; all 0 otherwise
    value   [ 1 | 4 | 4 | 0 | 7 ]     sorted inside a group
    slot    [ 9 | 2 | 5 | 0 | 3 ]     of the window

New tuples are sorted by themselves and merged in from the back; those that leave are squeezed out. Both go once over the
arrays, which is little beside probing with the rows of a page.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.compiled import kernel


class Place(NamedTuple):
    """Where a probe goes on: at relation row `row`, and at `at` among the sorted tuples (-1: the row has not begun).

    Where tuples look for rows, the other way round: tuple `at` goes on at `row` (-1: it has not begun), and all rows before
    `first` are done with.
    """

    row: int = 0
    at: int = -1
    first: int = 0


FIRST = Place()
_MOST = np.iinfo(np.int64).max


class OrderedSlots:
    """Slots sorted by (group, value).

    >>> slots = OrderedSlots(capacity=4, budget=Budget("1k"))
    >>> slots.add(np.zeros(3, np.int64), np.array([50, 10, 30]), np.array([0, 1, 2]))
    >>> low, high = np.array([20, 0]), np.array([60, 10])
    >>> found, rows, place = slots.inside(np.zeros(2, np.int64), low, high, FIRST, limit=9)
    >>> found.tolist(), rows.tolist(), place
    ([2, 0, 1], [0, 0, 1], None)
    """

    bytes_per_slot = 8 + 8 + 4 + 1 + 3 * 8  # arrays, and the copies of what comes in while it is sorted

    def __init__(self, capacity: int, budget: Budget) -> None:
        self._groups = budget.array("sorted groups", capacity, np.int64)
        self._values = budget.array("sorted values", capacity, np.int64)
        self._slots = budget.array("sorted slots", capacity, np.int32)
        self._leaving = budget.array("slots that leave", capacity, np.bool_)
        budget.reserve("slots being sorted", capacity * 24)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, groups: Int64Array, values: Int64Array, slots: Int64Array) -> None:
        """Slot `slots[i]`, which is not here, holds a tuple of that group and value."""
        order = np.lexsort((values, groups)) if groups.any() else np.argsort(values, kind="stable")
        _merge(
            self._groups, self._values, self._slots, self._count, groups[order], values[order], slots[order].astype(np.int32)
        )
        self._count += len(slots)

    def remove(self, slots: Int64Array) -> None:
        if len(slots):
            self._leaving[slots] = True
            self._count = _squeeze(self._groups, self._values, self._slots, self._count, self._leaving)
            self._leaving[slots] = False

    def inside(
        self, groups: Int64Array, lows: Int64Array, highs: Int64Array, place: Place, limit: int
    ) -> tuple[Int64Array, Int64Array, Place | None]:
        """Pairs (slot, row) with the group of the row and a value from `lows[row]` to `highs[row]`; at most `limit` from
        `place` on. Call again with the same rows and the place returned to go on; it is None at the end."""
        slots = np.empty(limit, np.int64)
        rows = np.empty(limit, np.int64)
        count, row, at = _inside(
            self._groups, self._values, self._slots, self._count, groups, lows, highs, place.row, place.at, slots, rows
        )
        return slots[:count], rows[:count], Place(row, at) if row < len(lows) else None

    def covered(
        self, lows: Int64Array, highs: Int64Array, place: Place, limit: int
    ) -> tuple[Int64Array, Int64Array, Place | None]:
        """The same without groups, for rows whose lows ascend and whose highs do: each tuple then lies in one run of rows.
        That takes time with the tuples there, and hardly with the rows."""
        slots = np.empty(limit, np.int64)
        rows = np.empty(limit, np.int64)
        if not len(lows):
            return slots[:0], rows[:0], None
        start, end = np.searchsorted(self._values[: self._count], [lows[0], highs[-1] + 1 if highs[-1] < _MOST else _MOST])
        if highs[-1] == _MOST:
            end = self._count
        at, row = (int(start), -1) if place == FIRST else (place.at, place.row)
        count, at, row, first = _covered(self._values, self._slots, end, lows, highs, at, row, place.first, slots, rows)
        return slots[:count], rows[:count], Place(row, at, first) if at < end else None


@kernel
def _merge(groups: Any, values: Any, slots: Any, count: Any, new_groups: Any, new_values: Any, new_slots: Any) -> None:
    """Merge sorted tuples into sorted ones, from the back, in place."""
    old = count - 1
    new = len(new_values) - 1
    at = old + new + 1
    while new >= 0:
        if old >= 0 and (groups[old] > new_groups[new] or (groups[old] == new_groups[new] and values[old] > new_values[new])):
            groups[at], values[at], slots[at] = groups[old], values[old], slots[old]
            old -= 1
        else:
            groups[at], values[at], slots[at] = new_groups[new], new_values[new], new_slots[new]
            new -= 1
        at -= 1


@kernel
def _squeeze(groups: Any, values: Any, slots: Any, count: Any, leaving: Any) -> Any:
    kept = 0
    for at in range(count):
        if not leaving[slots[at]]:
            groups[kept], values[kept], slots[kept] = groups[at], values[at], slots[at]
            kept += 1
    return kept


@kernel
def _below(groups: Any, values: Any, at: Any, group: Any, value: Any) -> Any:
    return groups[at] < group or (groups[at] == group and values[at] < value)


@kernel
def _first_not_below(groups: Any, values: Any, count: Any, group: Any, value: Any, near: Any) -> Any:
    """The first place that is not below (group, value), looked for in ever longer steps from `near`: rows of a page are
    often in order themselves."""
    step = 1
    if near < count and _below(groups, values, near, group, value):
        low = near + 1  # all before it are below
        while low + step < count and _below(groups, values, low + step, group, value):
            low += step + 1
            step *= 2
        high = min(low + step, count)
    else:
        high = near  # not below
        while high - step >= 0 and not _below(groups, values, high - step, group, value):
            high -= step
            step *= 2
        low = max(high - step, 0)
    while low < high:
        middle = (low + high) // 2
        if _below(groups, values, middle, group, value):
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _inside(
    groups: Any, values: Any, slots: Any, count: Any, row_groups: Any, lows: Any, highs: Any,
    row: Any, at: Any, out_slots: Any, out_rows: Any,
) -> Any:  # fmt: skip
    found = 0
    near = max(at, 0)
    while row < len(lows):
        group, high = row_groups[row], highs[row]
        if at < 0:
            near = _first_not_below(groups, values, count, group, lows[row], near)
            at = near
        while at < count and groups[at] == group and values[at] <= high:
            if found == len(out_slots):
                return found, row, at
            out_slots[found] = slots[at]
            out_rows[found] = row
            found += 1
            at += 1
        at = -1
        row += 1
    return found, row, -1


@kernel
def _first_at_least(numbers: Any, value: Any, start: Any) -> Any:
    """The first place from `start` whose number is not below `value`, looked for in ever longer steps; numbers ascend."""
    low, step = start, 1
    while low + step <= len(numbers) and numbers[low + step - 1] < value:
        low += step
        step *= 2
    high = min(low + step - 1, len(numbers))
    while low < high:
        middle = (low + high) // 2
        if numbers[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _covered(
    values: Any, slots: Any, end: Any, lows: Any, highs: Any, at: Any, row: Any, first: Any, out_slots: Any, out_rows: Any
) -> Any:
    found = 0
    while at < end:
        value = values[at]
        if row < 0:
            first = _first_at_least(highs, value, first)
            row = first
        while row < len(lows) and lows[row] <= value:
            if found == len(out_slots):
                return found, at, row, first
            out_slots[found] = slots[at]
            out_rows[found] = row
            found += 1
            row += 1
        row = -1
        at += 1
    return found, at, -1, first


@kernel
def ascending(numbers: Any) -> Any:
    at = 1
    while at < len(numbers) and numbers[at] >= numbers[at - 1]:
        at += 1
    return at >= len(numbers)
