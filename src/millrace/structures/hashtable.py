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

Most rows of a relation meet no waiting tuple, and rows mostly come in the order of their codes. So 64 neighbouring codes have
64 neighbouring buckets, begun anywhere among them, in a block whose place is random: rows find most buckets in the cache.

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
    """The arrays. Links are slot + 1, and 0 where there is none."""

    heads: Any  # per bucket: the slot of its first code
    code: Any  # per slot, as all that follow
    following: Any  # the next slot with the same code
    before: Any
    """The slot before with the same code; 0: the slot is not in the table; negative: the first of its code, see `_across`."""


class HashTable:
    """Multimap from key code to slot. `codes[slot]` is the code of a slot; it must not change while the slot is in the table.

    `apart`: codes are so many bits apart, about: 0 for numbers in a row. Hashes of 2^20 keys would be 44 bits apart.

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

    bytes_per_slot = 2 * 4 + 2 * 4  # links, at most two buckets

    def __init__(self, codes: Int64Array, budget: Budget, *, apart: int = 0) -> None:
        self.codes = codes
        capacity = len(codes)
        buckets = 1 << max(0, capacity - 1).bit_length()
        self._scale = np.array([apart, buckets - 1], np.uint64)  # how a code finds its bucket
        self._arrays = _Slots(
            budget.array("hash table buckets", buckets, np.int32),
            codes,
            budget.array("hash table following", capacity, np.int32),
            budget.array("hash table before", capacity, np.int32),
        )
        self._room = 64  # for slots that are counted only as they are walked along: as many as there were at most

    def add(self, slots: Int64Array) -> npt.NDArray[np.bool_]:
        """Slots that are not in the table come in; returns which are first of their code."""
        return cast("npt.NDArray[np.bool_]", _add(slots, self._arrays, self._scale))

    def remove(self, slots: Int64Array) -> None:
        """Take out slots; one that is not in the table is passed over."""
        _remove(slots, self._arrays, self._scale)

    def take(self, firsts: Int64Array, found: Int64Array | None = None) -> Int64Array:
        """All slots with the codes of these, each of which was the first of its code; they leave.

        `found`: what a probe found, if it was all that a probe finds for each code found at all; then these are not looked for
        again.
        """
        before = self._arrays.before
        _drop(firsts, self._arrays, self._scale)
        left = firsts
        if found is not None:
            before[found] = 0
            left = firsts[before[firsts] != 0]
        slots = np.empty(self._room, np.int64)
        count = _members(left, self._arrays, slots)
        if count > len(slots):
            self._room = count + count // 2
            slots = np.empty(self._room, np.int64)
            _members(left, self._arrays, slots)
        slots = slots[:count]
        before[slots] = 0
        return slots if found is None else np.concatenate((found, slots))

    def probe(self, codes: Int64Array, cursor: Cursor, limit: int) -> Probe:
        """For relation rows with these codes, every slot with the same code; at most `limit` pairs from `cursor` on.

        To go on, call again with the same codes and the cursor returned; the table must not change in between.
        """
        slots = np.empty(limit, np.int64)
        rows = np.empty(limit, np.int64)
        count, row, link = _probe(codes, self._arrays, self._scale, cursor.row, cursor.link, slots, rows)
        return Probe(slots[:count], rows[:count], Cursor(row, link) if row < len(codes) else None)


@kernel
def _bucket(code: Any, scale: Any) -> Any:
    """The block from a Fibonacci product, whose upper bits differ for neighbours; the place in it from the code's low bits."""
    near = np.uint64(code) >> scale[0]
    product = (near >> np.uint64(6)) * np.uint64(0x9E3779B97F4A7C15)
    place = (near + (product >> np.uint64(58))) & np.uint64(63)
    return np.int64((((product >> np.uint64(32)) << np.uint64(6)) | place) & scale[1])


@kernel
def _across(slot: Any, table: Any) -> Any:
    """From the first slot of a code, the link to that of the next code in the bucket."""
    return -1 - np.int64(table.before[slot])


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
        link = _across(link - 1, table)
    return link


@kernel
def _add(slots: Any, table: Any, scale: Any) -> Any:
    """Returns which slots are the first of their code."""
    is_first = np.zeros(len(slots), np.bool_)
    asked = np.empty(_AHEAD, np.int64)
    for first in range(0, len(slots), _AHEAD):
        last = min(first + _AHEAD, len(slots))
        for i in range(first, last):
            asked[i - first] = _bucket(table.code[slots[i]], scale)
        _ask_for_heads(asked, last - first, table)
        for i in range(first, last):
            slot = slots[i]
            code = table.code[slot]
            bucket = _bucket(code, scale)
            head = np.int64(table.heads[bucket])
            owner = _with_code(code, head, table)
            if owner == 0:
                table.following[slot] = 0
                table.before[slot] = -1 - head
                table.heads[bucket] = slot + 1
                is_first[i] = True
            else:
                after = table.following[owner - 1]
                table.following[slot] = after
                table.before[slot] = owner
                table.following[owner - 1] = slot + 1
                if after != 0:
                    table.before[after - 1] = slot + 1
    return is_first


@kernel
def _members(firsts: Any, table: Any, out: Any) -> int:
    """Count the slots with the codes of some, and write down as many as `out` takes."""
    count = 0
    for i in range(len(firsts)):
        link = np.int64(firsts[i]) + 1
        while link != 0:
            if count < len(out):
                out[count] = link - 1
            count += 1
            link = np.int64(table.following[link - 1])
    return count


@kernel
def _drop(firsts: Any, table: Any, scale: Any) -> None:
    """Take codes out of their buckets."""
    heads_at = table.heads.ctypes.data
    for i in range(len(firsts)):
        if i % _AHEAD == 0:
            for j in range(i, min(i + _AHEAD, len(firsts))):
                prefetch(heads_at + 4 * _bucket(table.code[firsts[j]], scale))
        _replace(firsts[i], _across(firsts[i], table), table, scale)


@kernel
def _replace(slot: Any, instead: Any, table: Any, scale: Any) -> None:
    """In the bucket of slot, which is the first of its code, another link stands in its place from now on."""
    bucket = _bucket(table.code[slot], scale)
    link = np.int64(table.heads[bucket])
    if link == slot + 1:
        table.heads[bucket] = instead
        return
    while _across(link - 1, table) != slot + 1:
        link = _across(link - 1, table)
    table.before[link - 1] = -1 - instead


@kernel
def _remove(slots: Any, table: Any, scale: Any) -> None:
    for i in range(len(slots)):
        slot = slots[i]
        before, after = table.before[slot], table.following[slot]
        if before == 0:
            continue
        if before > 0:
            table.following[before - 1] = after
        else:
            _replace(slot, np.int64(after) if after != 0 else _across(slot, table), table, scale)
        if after != 0:  # which becomes the first of the code if the slot was
            table.before[after - 1] = before
        table.before[slot] = 0


@kernel
def _probe(codes: Any, table: Any, scale: Any, row: Any, link: Any, slots: Any, rows: Any) -> Any:
    """Rows whose buckets hold something are gathered, so that many of them ask for memory at once."""
    count = 0
    found = np.empty(_AHEAD, np.int64)
    firsts = np.empty(_AHEAD, np.int64)
    code_at, following_at = table.code.ctypes.data, table.following.ctypes.data
    while row < len(codes):
        gathered = 0
        while row < len(codes) and gathered < _AHEAD:
            first = np.int64(table.heads[_bucket(codes[row], scale)])
            found[gathered] = row
            firsts[gathered] = first
            gathered += first != 0
            row += 1
        for i in range(gathered):
            prefetch(code_at + 8 * (firsts[i] - 1))
            prefetch(following_at + 4 * (firsts[i] - 1))
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
