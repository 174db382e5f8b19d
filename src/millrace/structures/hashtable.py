"""The hash table of waiting tuples: key code -> window slots, as many per code as there are.

    bucket   [ . | . | . | . ]      a power of two of them, at least one per slot
               |       |
               3 - 0   1            slots whose codes fall into the bucket, linked both ways (see `Chains`)
    code     [ .. | .. | .. | .. ]  per slot

A probe that finds more than it may return goes on later where it stopped, even in the middle of a bucket.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from millrace.core.budget import Budget
from millrace.core.compiled import kernel
from millrace.core.step import Int64Array
from millrace.structures.chains import Chains


class Cursor(NamedTuple):
    """Where a probe goes on: at relation row `row`, and inside its bucket at `link` (slot + 1; 0: at the start)."""

    row: int = 0
    link: int = 0


START = Cursor()


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

    bytes_per_slot = 8 + Chains.bytes_per_slot + 2 * Chains.bytes_per_head  # code, links, at most two buckets

    def __init__(self, capacity: int, budget: Budget) -> None:
        buckets = 1 << max(0, capacity - 1).bit_length()
        self._mask = np.uint64(buckets - 1)
        self._chains = Chains("hash table", buckets, capacity, budget)
        self._codes = budget.array("hash table codes", capacity, np.int64)

    def add(self, codes: Int64Array, slots: Int64Array) -> None:
        """Slot `slots[i]`, which is not in the table, holds a tuple with code `codes[i]`."""
        self._codes[slots] = codes
        self._chains.add(_buckets(codes, self._mask), slots)

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
            codes, self._codes, chains.heads, chains.next, self._mask, cursor.row, cursor.link, slots, rows
        )
        return Probe(slots[:count], rows[:count], Cursor(row, link) if row < len(codes) else None)


@kernel
def _bucket(code: Any, mask: Any) -> Any:
    """Upper bits of a Fibonacci product: neighbouring codes go to different buckets."""
    return np.int64(((np.uint64(code) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) & mask)


@kernel
def _buckets(codes: Any, mask: Any) -> Any:
    buckets = np.empty(len(codes), np.int64)
    for i in range(len(codes)):
        buckets[i] = _bucket(codes[i], mask)
    return buckets


@kernel
def _probe(
    codes: Any, held: Any, heads: Any, following: Any, mask: Any, row: int, link: int, slots: Any, rows: Any
) -> tuple[int, int, int]:
    count = 0
    while row < len(codes):
        code = codes[row]
        if link == 0:
            link = heads[_bucket(code, mask)]
        while link != 0:
            if held[link - 1] == code:
                if count == len(slots):
                    return count, row, link
                slots[count] = link - 1
                rows[count] = row
                count += 1
            link = following[link - 1]
        row += 1
    return count, row, 0
