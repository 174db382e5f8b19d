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
64 neighbouring buckets, begun anywhere among them, in a block whose place is random: rows find most buckets in the cache. A
bucket that holds one code has a mark of it beside the link, in bits that no link needs: rows with other codes pass without a
look at the slot.

Going along the slots of one code waits for memory at every slot, so a probe goes along many codes at once, a slot of each in
turn. One that finds more than it may return goes on later where it stopped, even in the middle of several codes.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from millrace.core.budget import Budget
from millrace.core.compiled import inlined, kernel
from millrace.core.memoryaccess import prefetch
from millrace.core.step import Int64Array


class Cursor(NamedTuple):
    """Where a probe goes on: at relation row `row`, and before that with codes it has begun with. For each of those: its row,
    and the link (slot + 1) that comes next."""

    row: int
    begun_rows: Int64Array
    begun_links: Int64Array


START = Cursor(0, np.zeros(0, np.int64), np.zeros(0, np.int64))
_AHEAD = 64  # codes for which memory is asked at once


class Probe(NamedTuple):
    """Tuple `slots[i]` and relation row `rows[i]` have the same code. `cursor` is None when all rows are probed."""

    slots: Int64Array
    rows: Int64Array
    cursor: Cursor | None


class _Slots(NamedTuple):
    """The arrays. Links are slot + 1, and 0 where there is none."""

    heads: Any  # per bucket: the slot of its first code, and above it the mark if it is the only one, see `_Scale`
    code: Any  # per slot, as all that follow
    following: Any  # the next slot with the same code
    before: Any
    """The slot before with the same code; 0: the slot is not in the table; negative: the first of its code, see `_across`."""


class _Scale(NamedTuple):
    """How a code finds its bucket and its mark. A mark is odd; 0 stands for several codes."""

    apart: Any  # bits between codes
    buckets: Any  # their number less 1
    link_bits: Any  # of a head; the mark has the others
    link: Any  # a head with only these bits is a link
    mark: Any  # bits of a mark


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
        link_bits = capacity.bit_length()
        numbers = (apart, buckets - 1, link_bits, (1 << link_bits) - 1, (1 << (32 - link_bits)) - 1)
        self._scale = _Scale(*(np.uint64(number) for number in numbers))
        self._arrays = _Slots(
            budget.array("hash table buckets", buckets, np.uint32),
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
        slots, rows = np.empty(limit, np.int64), np.empty(limit, np.int64)
        begun_rows, begun_links = np.empty(_AHEAD, np.int64), np.empty(_AHEAD, np.int64)
        begun = len(cursor.begun_rows)
        begun_rows[:begun], begun_links[:begun] = cursor.begun_rows, cursor.begun_links
        count, row, begun = _probe(
            codes, self._arrays, self._scale, cursor.row, begun_rows, begun_links, begun, slots, rows
        )  # fmt: skip
        rest = None if row == len(codes) and begun == 0 else Cursor(row, begun_rows[:begun], begun_links[:begun])
        return Probe(slots[:count], rows[:count], rest)


@kernel
def _product(code: Any, scale: Any) -> Any:
    """A Fibonacci product, whose upper bits differ for neighbouring blocks of 64 codes."""
    return (np.uint64(code) >> scale.apart >> np.uint64(6)) * np.uint64(0x9E3779B97F4A7C15)


@kernel
def _bucket(code: Any, product: Any, scale: Any) -> Any:
    """The block from the upper bits of the product; the place in it from the code's low bits."""
    place = ((np.uint64(code) >> scale.apart) + (product >> np.uint64(58))) & np.uint64(63)
    return np.int64((((product >> np.uint64(32)) << np.uint64(6)) | place) & scale.buckets)


@kernel
def _mark(product: Any, scale: Any) -> Any:
    """Differs, mostly, where codes that are not neighbours share a bucket: from bits that don't choose the bucket."""
    return ((product >> np.uint64(12)) | np.uint64(1)) & scale.mark


@kernel
def _bucket_of(code: Any, scale: Any) -> Any:
    return _bucket(code, _product(code, scale), scale)


@inlined
def _first_of(bucket: Any, table: Any, scale: Any) -> Any:
    """The link to the slot of the first code in a bucket."""
    return np.int64(table.heads[bucket] & scale.link)


@inlined
def _across(slot: Any, table: Any) -> Any:
    """From the first slot of a code, the link to that of the next code in the bucket."""
    return -1 - np.int64(table.before[slot])


@kernel
def _ask_for_heads(buckets: Any, count: Any, table: Any, scale: Any) -> None:
    """The first slot (as a link) of each bucket, in place of its number. What one of them waits for, all do at once."""
    heads_at, code_at, following_at = table.heads.ctypes.data, table.code.ctypes.data, table.following.ctypes.data
    for i in range(count):
        prefetch(heads_at + 4 * buckets[i])
    for i in range(count):
        link = _first_of(buckets[i], table, scale)
        buckets[i] = link
        if link != 0:
            prefetch(code_at + 8 * (link - 1))
            prefetch(following_at + 4 * (link - 1))


@inlined
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
            asked[i - first] = _bucket_of(table.code[slots[i]], scale)
        _ask_for_heads(asked, last - first, table, scale)
        for i in range(first, last):
            slot = slots[i]
            code = table.code[slot]
            product = _product(code, scale)
            bucket = _bucket(code, product, scale)
            head = _first_of(bucket, table, scale)
            owner = _with_code(code, head, table)
            if owner == 0:
                table.following[slot] = 0
                table.before[slot] = -1 - head
                mark = _mark(product, scale) if head == 0 else np.uint64(0)
                table.heads[bucket] = np.uint64(slot + 1) | (mark << scale.link_bits)
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
                prefetch(heads_at + 4 * _bucket_of(table.code[firsts[j]], scale))
        _replace(firsts[i], _across(firsts[i], table), table, scale)


@kernel
def _replace(slot: Any, instead: Any, table: Any, scale: Any) -> None:
    """In the bucket of slot, which is the first of its code, another link stands in its place from now on."""
    bucket = _bucket_of(table.code[slot], scale)
    link = _first_of(bucket, table, scale)
    if link == slot + 1:
        # the mark stays: it was of the only code, whose next slot this is, or there were several
        mark = table.heads[bucket] & ~scale.link if instead != 0 else np.uint64(0)
        table.heads[bucket] = np.uint64(instead) | mark
        return
    while _across(link - 1, table) != slot + 1:
        link = _across(link - 1, table)
    table.before[link - 1] = -1 - instead


@kernel
def _remove(slots: Any, table: Any, scale: Any) -> None:
    heads_at, before_at, following_at = table.heads.ctypes.data, table.before.ctypes.data, table.following.ctypes.data
    for first in range(0, len(slots), _AHEAD):
        last = min(first + _AHEAD, len(slots))
        for i in range(first, last):
            before, after = np.int64(table.before[slots[i]]), np.int64(table.following[slots[i]])
            if before > 0:
                prefetch(following_at + 4 * (before - 1))
            elif before < 0:
                prefetch(heads_at + 4 * _bucket_of(table.code[slots[i]], scale))
            if after != 0:
                prefetch(before_at + 4 * (after - 1))
        for i in range(first, last):
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
def _probe(
    codes: Any, table: Any, scale: Any, row: Any, begun_rows: Any, begun_links: Any, begun: Any, slots: Any, rows: Any
) -> Any:  # fmt: skip
    """Round after round: look for rows whose buckets may hold their code, take one slot of every code that was begun with."""
    code_at, following_at = table.code.ctypes.data, table.following.ctypes.data
    count = 0
    while begun != 0 or row < len(codes):
        new = begun
        while row < len(codes) and new < len(begun_rows):
            product = _product(codes[row], scale)
            head = np.uint64(table.heads[_bucket(codes[row], product, scale)])
            mark = head >> scale.link_bits
            begun_rows[new] = row
            begun_links[new] = np.int64(head & scale.link)
            new += (head != 0) & ((mark == 0) | (mark == _mark(product, scale)))
            row += 1
        for i in range(begun, new):
            prefetch(code_at + 8 * (begun_links[i] - 1))
            prefetch(following_at + 4 * (begun_links[i] - 1))
        left = 0
        for i in range(begun):
            link = begun_links[i]
            if count < len(slots):
                slots[count] = link - 1
                rows[count] = begun_rows[i]
                count += 1
                link = np.int64(table.following[link - 1])
                prefetch(following_at + 4 * (link - 1))
            begun_rows[left] = begun_rows[i]
            begun_links[left] = link
            left += link != 0
        for i in range(begun, new):
            link = _with_code(codes[begun_rows[i]], begun_links[i], table)
            begun_rows[left] = begun_rows[i]
            begun_links[left] = link
            left += link != 0
        begun = left
        if count == len(slots):
            break
    return count, row, begun
