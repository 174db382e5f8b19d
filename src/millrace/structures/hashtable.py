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

Most rows of a relation meet no waiting tuple. A byte for each bucket has a bit for every eighth of the codes that could be in
it: the bytes stay in the processor's cache, where a row that nobody waits for is mostly done with at once.

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


class Cursor(NamedTuple):
    """Where a probe goes on: at relation row `row`, and among the slots of its code at `link` (slot + 1; 0: at the start)."""

    row: int = 0
    link: int = 0


START = Cursor()
_AHEAD = 64  # codes whose buckets are asked for at once


class Probe(NamedTuple):
    """Tuple `slots[i]` and relation row `rows[i]` have the same code. `cursor` is None when all rows are probed."""

    slots: Int64Array
    rows: Int64Array
    cursor: Cursor | None


class _Slots(NamedTuple):
    """The arrays. Links are slot + 1, and 0 where there is none, so that all zero means empty."""

    marks: Any  # per bucket: the bits of its codes
    heads: Any  # per bucket: the slot of its first code
    code: Any  # per slot, as all that follow
    across: Any  # of the first slot of a code: the slot of the next code in the bucket
    following: Any  # the next slot with the same code
    previous: Any  # the slot before with the same code, -1 for the first; 0: the slot is not in the table


class HashTable:
    """Multimap from key code to slot. `codes[slot]` is the code of a slot; it must not change while the slot is in the table.

    >>> table = HashTable(np.array([7, 9, 7, 0]), budget=Budget("1k"))
    >>> table.add(np.array([0, 1, 2])).tolist()
    [True, True, False]
    >>> slots, rows, cursor = table.probe(np.array([5, 7]), START, limit=1)
    >>> slots.tolist(), rows.tolist()
    ([0], [1])
    >>> table.probe(np.array([5, 7]), cursor, limit=9).slots.tolist()
    [2]
    >>> table.take(np.array([0])).tolist(), table.probe(np.array([7]), START, limit=9).slots.tolist()
    ([0, 2], [])
    """

    bytes_per_slot = 3 * 4 + 2 * (4 + 1)  # links, at most two buckets

    def __init__(self, codes: Int64Array, budget: Budget) -> None:
        self.codes = codes
        capacity = len(codes)
        buckets = 1 << max(0, capacity - 1).bit_length()
        self._mask = np.uint64(buckets - 1)
        self._arrays = _Slots(
            budget.array("hash table marks", buckets, np.uint8),
            budget.array("hash table buckets", buckets, np.int32),
            codes,
            budget.array("hash table across", capacity, np.int32),
            budget.array("hash table next", capacity, np.int32),
            budget.array("hash table previous", capacity, np.int32),
        )
        self._room = 64  # for slots that are counted only as they are walked along: as many as there were at most

    def add(self, slots: Int64Array) -> npt.NDArray[np.bool_]:
        """Slots that are not in the table come in; returns which are first of their code."""
        return cast("npt.NDArray[np.bool_]", _add(slots, self._arrays, self._mask))

    def remove(self, slots: Int64Array) -> None:
        """Take out slots; one that is not in the table is passed over."""
        _remove(slots, self._arrays, self._mask)

    def take(self, firsts: Int64Array) -> Int64Array:
        """All slots with the codes of these, each of which was the first of its code; they leave."""
        slots = np.empty(self._room, np.int64)
        count = _members(firsts, self._arrays.following, slots)
        if count > len(slots):
            self._room = count + count // 2
            slots = np.empty(self._room, np.int64)
            _members(firsts, self._arrays.following, slots)
        slots = slots[:count]
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
def _bit(code: Any) -> Any:
    """From the bits of the product below those of the bucket: which of eight it is."""
    return np.int64((np.uint64(code) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(29)) & np.uint64(7))


@kernel
def _ask_for_heads(buckets: Any, count: Any, table: Any) -> None:
    """The first slot (as a link) of each bucket, in place of its number. What one of them waits for, all do at once."""
    heads_at, code_at, following_at = table.heads.ctypes.data, table.code.ctypes.data, table.following.ctypes.data
    for i in range(count):
        prefetch(heads_at + 4 * buckets[i])
    for i in range(count):
        link = np.int64(table.heads[buckets[i]])
        buckets[i] = link
        if link != 0:
            prefetch(code_at + 8 * (link - 1))
            prefetch(following_at + 4 * (link - 1))


@kernel
def _with_code(code: Any, link: Any, table: Any) -> Any:
    """From `link` across the bucket to the slot of a code; 0 if it is not there."""
    while link != 0 and table.code[link - 1] != code:
        link = np.int64(table.across[link - 1])
    return link


@kernel
def _add(slots: Any, table: Any, mask: Any) -> Any:
    """Returns which slots are the first of their code."""
    is_first = np.zeros(len(slots), np.bool_)
    asked = np.empty(_AHEAD, np.int64)
    for first in range(0, len(slots), _AHEAD):
        last = min(first + _AHEAD, len(slots))
        for i in range(first, last):
            asked[i - first] = _bucket(table.code[slots[i]], mask)
        _ask_for_heads(asked, last - first, table)
        for i in range(first, last):
            slot = slots[i]
            code = table.code[slot]
            bucket = _bucket(code, mask)
            owner = _with_code(code, np.int64(table.heads[bucket]), table)
            if owner == 0:
                table.across[slot] = table.heads[bucket]
                table.following[slot] = 0
                table.previous[slot] = -1
                table.heads[bucket] = slot + 1
                table.marks[bucket] |= np.uint8(1 << _bit(code))
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
        if i % _AHEAD == 0:
            _ask_for_buckets(firsts, i, table, mask)
        _forget(firsts[i], table, mask)


@kernel
def _ask_for_buckets(slots: Any, first: Any, table: Any, mask: Any) -> None:
    """Those of the next slots that are the first of their code."""
    heads_at, marks_at = table.heads.ctypes.data, table.marks.ctypes.data
    for i in range(first, min(first + _AHEAD, len(slots))):
        if table.previous[slots[i]] == -1:
            bucket = _bucket(table.code[slots[i]], mask)
            prefetch(heads_at + 4 * bucket)
            prefetch(marks_at + bucket)


@kernel
def _replace(slot: Any, instead: Any, table: Any, mask: Any) -> None:
    """In the bucket of slot, which is the first of its code, another link stands in its place from now on."""
    bucket = _bucket(table.code[slot], mask)
    link = np.int64(table.heads[bucket])
    if link == slot + 1:
        table.heads[bucket] = instead
        return
    while table.across[link - 1] != slot + 1:
        link = np.int64(table.across[link - 1])
    table.across[link - 1] = instead


@kernel
def _forget(slot: Any, table: Any, mask: Any) -> None:
    """Slot, the first of its code, leaves its bucket; the bucket's bits are those of the codes that stay."""
    bucket = _bucket(table.code[slot], mask)
    if table.across[slot] == 0 and table.heads[bucket] == slot + 1:  # mostly it is alone
        table.heads[bucket] = 0
        table.marks[bucket] = 0
        return
    _replace(slot, table.across[slot], table, mask)
    link, bits = np.int64(table.heads[bucket]), 0
    while link != 0:
        bits |= 1 << _bit(table.code[link - 1])
        link = np.int64(table.across[link - 1])
    table.marks[bucket] = bits


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
        elif after != 0:  # which becomes the first of the code
            table.across[after - 1] = table.across[slot]
            table.previous[after - 1] = -1
            _replace(slot, after, table, mask)
        else:
            _forget(slot, table, mask)
        table.previous[slot] = 0


@kernel
def _probe(codes: Any, table: Any, mask: Any, row: Any, link: Any, slots: Any, rows: Any) -> Any:
    """Rows that somebody may wait for are gathered, so that many of them ask for memory at once."""
    count = 0
    found = np.empty(_AHEAD, np.int64)
    firsts = np.empty(_AHEAD, np.int64)
    while row < len(codes):
        gathered = 0
        while row < len(codes) and gathered < _AHEAD:
            bucket = _bucket(codes[row], mask)
            found[gathered] = row
            firsts[gathered] = bucket
            gathered += (np.int64(table.marks[bucket]) >> _bit(codes[row])) & 1
            row += 1
        _ask_for_heads(firsts, gathered, table)
        for i in range(gathered):
            if link == 0:
                link = _with_code(codes[found[i]], firsts[i], table)
            while link != 0:
                if count == len(slots):
                    return count, found[i], link
                slots[count] = link - 1
                rows[count] = found[i]
                count += 1
                link = np.int64(table.following[link - 1])
    return count, row, 0
