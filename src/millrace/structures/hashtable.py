"""The hash table of waiting tuples: key code -> window slots, as many per code as there are.

    bucket   [ . | . | . | . ]      a power of two of them, at least one per slot
               |       |
               3 - 0   1            slots whose codes fall into the bucket, linked both ways (see `Chains`)
    marks    [ . | . | . | . ]      per bucket: which of 32 kinds of code are in it, or were since it was last empty
    code     [ .. | .. | .. | .. ]  per slot

Most rows of a relation have nobody waiting for them, and under skew some buckets hold thousands of tuples of one key. The marks
keep rows of other keys from walking along all of those.

A probe that finds more than it may return goes on later where it stopped, even in the middle of a bucket.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from millrace.core.budget import Budget
from millrace.core.compiled import kernel
from millrace.core.memoryaccess import prefetch
from millrace.core.step import Int64Array
from millrace.structures.chains import Chains


class Cursor(NamedTuple):
    """Where a probe goes on: at relation row `row`, and inside its bucket at `link` (slot + 1; 0: at the start)."""

    row: int = 0
    link: int = 0


START = Cursor()
_AHEAD = 64  # rows whose buckets are asked for at once


class Probe(NamedTuple):
    """Tuple `slots[i]` and relation row `rows[i]` have the same code. `cursor` is None when all rows are probed."""

    slots: Int64Array
    rows: Int64Array
    cursor: Cursor | None


class HashTable:
    """Multimap from key code to slot.

    >>> table = HashTable(capacity=4, budget=Budget("1k"))
    >>> table.add(np.array([7, 9, 7]), np.array([0, 1, 2]))
    >>> slots, rows, cursor = table.probe(np.array([5, 7]), START, limit=1)
    >>> slots.tolist(), rows.tolist()
    ([2], [1])
    >>> table.probe(np.array([5, 7]), cursor, limit=9).slots.tolist()
    [0]
    """

    bytes_per_slot = 8 + Chains.bytes_per_slot + 2 * (Chains.bytes_per_head + 4)  # code, links, at most two buckets

    def __init__(self, capacity: int, budget: Budget) -> None:
        buckets = 1 << max(0, capacity - 1).bit_length()
        self._mask = np.uint64(buckets - 1)
        self._chains = Chains("hash table", buckets, capacity, budget)
        self._codes = budget.array("hash table codes", capacity, np.int64)
        self._marks = budget.array("hash table marks", buckets, np.uint32)

    def add(self, codes: Int64Array, slots: Int64Array) -> None:
        """Slot `slots[i]`, which is not in the table, holds a tuple with code `codes[i]`."""
        self._codes[slots] = codes
        self._chains.add(_buckets(codes, self._mask, self._chains.heads, self._marks), slots)

    def remove(self, slots: Int64Array) -> None:
        """Take out slots; one that is not in the table is passed over."""
        self._chains.remove(slots)

    def probe(self, codes: Int64Array, cursor: Cursor, limit: int) -> Probe:
        """For relation rows with these codes, every slot with the same code; at most `limit` pairs from `cursor` on.

        To go on, call again with the same codes and the cursor returned; the table must not change in between.
        """
        slots = np.empty(limit, np.int64)
        rows = np.empty(limit, np.int64)
        chains = self._chains
        count, row, link = _probe(
            codes, self._codes, chains.heads, chains.next, self._marks, self._mask, cursor.row, cursor.link, slots, rows
        )
        return Probe(slots[:count], rows[:count], Cursor(row, link) if row < len(codes) else None)


@kernel
def _mixed(code: Any) -> Any:
    """A Fibonacci product: its upper bits differ for neighbouring codes."""
    return np.uint64(code) * np.uint64(0x9E3779B97F4A7C15)


@kernel
def _bucket(mixed: Any, mask: Any) -> Any:
    return np.int64((mixed >> np.uint64(32)) & mask)


@kernel
def _mark(mixed: Any) -> Any:
    """The one of 32 marks that a code has in its bucket."""
    return np.uint32(1) << np.uint32(mixed >> np.uint64(59))


@kernel
def _buckets(codes: Any, mask: Any, heads: Any, marks: Any) -> Any:
    """The bucket of each code, which will be there: it is marked. Buckets that nobody is in lose their old marks."""
    buckets = np.empty(len(codes), np.int64)
    for i in range(len(codes)):
        buckets[i] = _bucket(_mixed(codes[i]), mask)
        if heads[buckets[i]] == 0:
            marks[buckets[i]] = 0
    for i in range(len(codes)):
        marks[buckets[i]] |= _mark(_mixed(codes[i]))
    return buckets


@kernel
def _probe(
    codes: Any, held: Any, heads: Any, following: Any, marks: Any, mask: Any, row: Any, link: Any, slots: Any, rows: Any
) -> Any:
    """Rows go in groups: all of their buckets are asked for, then all first slots, so that a group waits once."""
    count = 0
    firsts = np.empty(_AHEAD, np.int64)
    heads_at, marks_at, held_at, next_at = heads.ctypes.data, marks.ctypes.data, held.ctypes.data, following.ctypes.data
    while row < len(codes):
        end = min(row + _AHEAD, len(codes))
        for i in range(row, end):
            bucket = _bucket(_mixed(codes[i]), mask)
            firsts[i - row] = bucket
            prefetch(marks_at + 4 * bucket)
            prefetch(heads_at + 4 * bucket)
        for i in range(row, end):
            bucket, first = firsts[i - row], np.int64(0)
            if marks[bucket] & _mark(_mixed(codes[i])):
                first = np.int64(heads[bucket])
                if first != 0:
                    prefetch(held_at + 8 * (first - 1))
                    prefetch(next_at + 4 * (first - 1))
            firsts[i - row] = first
        start = row
        while row < end:
            code = codes[row]
            if link == 0:
                link = firsts[row - start]
            while link != 0:
                after = np.int64(following[link - 1])
                if held[link - 1] == code:
                    if count == len(slots):
                        return count, row, link
                    slots[count] = link - 1
                    rows[count] = row
                    count += 1
                link = after
            row += 1
    return count, row, 0
