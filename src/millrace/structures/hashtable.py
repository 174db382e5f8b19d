"""The hash table of waiting tuples: key code -> window slots, as many per code as there are.

    bucket   [ . | . | . | . ]      a power of two of them, at least one per slot
               |       |
               3 ----- 1            one slot for each code in the bucket, linked one way
               |       |
               0       2            other slots with the same code, linked both ways
               |
               5

Under skew thousands of tuples have one code. A row with another code passes all of them in one step, and a row with theirs
compares a code once.

A probe that finds more than it may return goes on later where it stopped, even in the middle of a code.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from millrace.core.budget import Budget
from millrace.core.compiled import kernel
from millrace.core.memoryaccess import prefetch
from millrace.core.step import Int64Array
from millrace.structures.chains import Room


class Cursor(NamedTuple):
    """Where a probe goes on: at relation row `row`, and among the slots of its code at `link` (slot + 1; 0: at the start)."""

    row: int = 0
    link: int = 0


START = Cursor()
_AHEAD = 64  # rows whose buckets are asked for at once


class Probe(NamedTuple):
    """Tuple `slots[i]` and relation row `rows[i]` have the same code. `cursor` is None when all rows are probed."""

    slots: Int64Array
    rows: Int64Array
    cursor: Cursor | None


class _Slots(NamedTuple):
    """The arrays. Links are slot + 1, and 0 where there is none, so that all zero means empty."""

    heads: Any  # per bucket: the slot of its first code
    code: Any  # per slot, as all that follow
    across: Any  # of the first slot of a code: the slot of the next code in the bucket
    following: Any  # the next slot with the same code
    previous: Any  # the slot before with the same code, -1 for the first; 0: the slot is not in the table


class HashTable:
    """Multimap from key code to slot.

    >>> table = HashTable(capacity=4, budget=Budget("1k"))
    >>> table.add(np.array([7, 9, 7]), np.array([0, 1, 2])).tolist()
    [True, True, False]
    >>> slots, rows, cursor = table.probe(np.array([5, 7]), START, limit=1)
    >>> slots.tolist(), rows.tolist()
    ([0], [1])
    >>> table.probe(np.array([5, 7]), cursor, limit=9).slots.tolist()
    [2]
    >>> table.take(np.array([0])).tolist(), table.probe(np.array([7]), START, limit=9).slots.tolist()
    ([0, 2], [])
    """

    bytes_per_slot = 8 + 3 * 4 + 2 * 4  # code, links, at most two buckets

    def __init__(self, capacity: int, budget: Budget) -> None:
        buckets = 1 << max(0, capacity - 1).bit_length()
        self._mask = np.uint64(buckets - 1)
        self._arrays = _Slots(
            budget.array("hash table buckets", buckets, np.int32),
            budget.array("hash table codes", capacity, np.int64),
            budget.array("hash table across", capacity, np.int32),
            budget.array("hash table next", capacity, np.int32),
            budget.array("hash table previous", capacity, np.int32),
        )
        self._room = Room()

    def add(self, codes: Int64Array, slots: Int64Array) -> npt.NDArray[np.bool_]:
        """Slot `slots[i]`, which is not in the table, holds a tuple with code `codes[i]`; returns which are first of a code."""
        return cast("npt.NDArray[np.bool_]", _add(codes, slots, self._arrays, self._mask))

    def remove(self, slots: Int64Array) -> None:
        """Take out slots; one that is not in the table is passed over."""
        _remove(slots, self._arrays, self._mask)

    def take(self, firsts: Int64Array) -> Int64Array:
        """All slots with the codes of these, each of which was the first of its code; they leave."""
        slots = self._room.filled(lambda out: _members(firsts, self._arrays.following, out))
        _drop(firsts, self._arrays, self._mask)
        self._arrays.previous[slots] = 0
        return slots

    def probe(self, codes: Int64Array, cursor: Cursor, limit: int) -> Probe:
        """For relation rows with these codes, every slot with the same code; at most `limit` pairs from `cursor` on.

        To go on, call again with the same codes and the cursor returned; the table must not change in between.
        """
        slots = np.empty(limit, np.int64)
        rows = np.empty(limit, np.int64)
        count, row, link = _probe(codes, self._arrays, self._mask, cursor.row, cursor.link, slots, rows)
        return Probe(slots[:count], rows[:count], Cursor(row, link) if row < len(codes) else None)


@kernel
def _bucket(code: Any, mask: Any) -> Any:
    """From a Fibonacci product, whose upper bits differ for neighbouring codes."""
    return np.int64((np.uint64(code) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) & mask)


@kernel
def _first_slots(codes: Any, first: Any, last: Any, table: Any, mask: Any, out: Any) -> None:
    """The first slot (as a link) in the bucket of each code from `first` to `last`, asked for: what one of them waits for, all
    do at once."""
    heads_at, code_at = table.heads.ctypes.data, table.code.ctypes.data
    across_at, following_at = table.across.ctypes.data, table.following.ctypes.data
    for i in range(first, last):
        out[i - first] = _bucket(codes[i], mask)
        prefetch(heads_at + 4 * out[i - first])
    for i in range(last - first):
        link = np.int64(table.heads[out[i]])
        out[i] = link
        if link != 0:
            prefetch(code_at + 8 * (link - 1))
            prefetch(across_at + 4 * (link - 1))
            prefetch(following_at + 4 * (link - 1))


@kernel
def _with_code(code: Any, link: Any, table: Any) -> Any:
    """From `link` across the bucket to the slot of a code; 0 if it is not there."""
    while link != 0 and table.code[link - 1] != code:
        link = np.int64(table.across[link - 1])
    return link


@kernel
def _add(codes: Any, slots: Any, table: Any, mask: Any) -> Any:
    """Returns which slots are the first of their code."""
    is_first = np.zeros(len(slots), np.bool_)
    asked = np.empty(_AHEAD, np.int64)
    for first in range(0, len(slots), _AHEAD):
        last = min(first + _AHEAD, len(slots))
        _first_slots(codes, first, last, table, mask, asked)
        for i in range(first, last):
            slot, code, bucket = slots[i], codes[i], _bucket(codes[i], mask)
            table.code[slot] = code
            owner = _with_code(code, np.int64(table.heads[bucket]), table)
            if owner == 0:
                table.across[slot] = table.heads[bucket]
                table.following[slot] = 0
                table.previous[slot] = -1
                table.heads[bucket] = slot + 1
                is_first[i] = True
            else:
                after = table.following[owner - 1]
                table.following[slot] = after
                table.previous[slot] = owner
                table.following[owner - 1] = slot + 1
                if after != 0:
                    table.previous[after - 1] = slot + 1
    return is_first


@kernel
def _members(firsts: Any, following: Any, out: Any) -> int:
    """Count the slots with the codes of some, and write down as many as `out` takes."""
    count = 0
    for i in range(len(firsts)):
        link = np.int64(firsts[i]) + 1
        while link != 0:
            if count < len(out):
                out[count] = link - 1
            count += 1
            link = np.int64(following[link - 1])
    return count


@kernel
def _drop(firsts: Any, table: Any, mask: Any) -> None:
    """Take codes out of their buckets."""
    for i in range(len(firsts)):
        _replace(firsts[i], table.across[firsts[i]], table, mask)


@kernel
def _replace(slot: Any, instead: Any, table: Any, mask: Any) -> None:
    """In the bucket of slot, which is the first of its code, another link stands in its place from now on."""
    bucket = _bucket(table.code[slot], mask)
    link = table.heads[bucket]
    if link == slot + 1:
        table.heads[bucket] = instead
        return
    while table.across[link - 1] != slot + 1:
        link = table.across[link - 1]
    table.across[link - 1] = instead


@kernel
def _remove(slots: Any, table: Any, mask: Any) -> None:
    for i in range(len(slots)):
        slot = slots[i]
        before, after = table.previous[slot], table.following[slot]
        if before == 0:
            continue
        if before > 0:
            table.following[before - 1] = after
            if after != 0:
                table.previous[after - 1] = before
        else:
            instead = table.across[slot]
            if after != 0:  # it becomes the first of the code
                table.across[after - 1] = instead
                table.previous[after - 1] = -1
                instead = after
            _replace(slot, instead, table, mask)
        table.previous[slot] = 0


@kernel
def _probe(codes: Any, table: Any, mask: Any, row: Any, link: Any, slots: Any, rows: Any) -> Any:
    """Rows go in groups: all of their buckets are asked for, then all first slots, so that a group waits once."""
    count = 0
    firsts = np.empty(_AHEAD, np.int64)
    while row < len(codes):
        start, end = row, min(row + _AHEAD, len(codes))
        _first_slots(codes, start, end, table, mask, firsts)
        while row < end:
            if link == 0:
                link = _with_code(codes[row], firsts[row - start], table)
            while link != 0:
                if count == len(slots):
                    return count, row, link
                slots[count] = link - 1
                rows[count] = row
                count += 1
                link = np.int64(table.following[link - 1])
            row += 1
    return count, row, 0
