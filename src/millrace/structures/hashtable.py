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
_AHEAD = 64  # slots for which memory is asked at once
_NEAR = 24  # steps of a short loop that memory is asked for before it is used
_BEGUN = 512  # codes that a probe goes along at once


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
        begun_rows, begun_links = np.empty(_BEGUN, np.int64), np.empty(_BEGUN, np.int64)
        begun = len(cursor.begun_rows)
        begun_rows[:begun], begun_links[:begun] = cursor.begun_rows, cursor.begun_links
        count, row, begun = _probe(
            codes, self._arrays, self._scale, cursor.row, begun_rows, begun_links, begun, slots, rows
        )  # fmt: skip
        rest = None if row == len(codes) and begun == 0 else Cursor(row, begun_rows[:begun], begun_links[:begun])
        return Probe(slots[:count], rows[:count], rest)


@inlined
def _product(code: Any, apart: Any) -> Any:
    """A Fibonacci product, whose upper bits differ for neighbouring blocks of 64 codes."""
    return (np.uint64(code) >> apart >> np.uint64(6)) * np.uint64(0x9E3779B97F4A7C15)


@inlined
def _bucket(code: Any, product: Any, apart: Any, buckets: Any) -> Any:
    """The block from the upper bits of the product; the place in it from the code's low bits."""
    place = ((np.uint64(code) >> apart) + (product >> np.uint64(58))) & np.uint64(63)
    return (((product >> np.uint64(32)) << np.uint64(6)) | place) & buckets


@inlined
def _bucket_of(code: Any, apart: Any, buckets: Any) -> Any:
    return _bucket(code, _product(code, apart), apart, buckets)


@inlined
def _mark(product: Any, marks: Any) -> Any:
    """Differs, mostly, where codes that are not neighbours share a bucket: from bits that don't choose the bucket."""
    return ((product >> np.uint64(12)) | np.uint64(1)) & marks


@inlined
def _across(slot: Any, before: Any) -> Any:
    """From the first slot of a code, the link to that of the next code in the bucket."""
    return -1 - np.int64(before[slot])


@kernel
def _add(slots: Any, table: Any, scale: Any) -> Any:
    """Returns which slots are the first of their code."""
    heads, codes, following, before = table
    apart, buckets, link_bits, links, marks = scale
    heads_at, codes_at, following_at = heads.ctypes.data, codes.ctypes.data, following.ctypes.data
    is_first = np.zeros(len(slots), np.bool_)
    asked = np.empty(_AHEAD, np.uint64)
    for first in range(0, len(slots), _AHEAD):
        count = min(_AHEAD, len(slots) - first)
        for i in range(count):
            code = codes[slots[first + i]]
            asked[i] = _bucket_of(code, apart, buckets)
            prefetch(heads_at + 4 * np.int64(asked[i]))
        for i in range(count):
            link = np.int64(heads[asked[i]] & links)
            prefetch(codes_at + 8 * (link - 1))
            prefetch(following_at + 4 * (link - 1))
        for i in range(count):
            slot = slots[first + i]
            code = codes[slot]
            head = np.int64(heads[asked[i]] & links)
            owner = head
            while owner != 0 and codes[owner - 1] != code:
                owner = _across(owner - 1, before)
            if owner == 0:
                following[slot] = 0
                before[slot] = -1 - head
                mark = _mark(_product(code, apart), marks) if head == 0 else np.uint64(0)
                heads[asked[i]] = np.uint64(slot + 1) | (mark << link_bits)
                is_first[first + i] = True
            else:
                after = np.int64(following[owner - 1])
                following[slot] = after
                before[slot] = owner
                following[owner - 1] = slot + 1
                if after != 0:
                    before[after - 1] = slot + 1
    return is_first


@kernel
def _members(firsts: Any, table: Any, out: Any) -> int:
    """Count the slots with the codes of some, and write down as many as `out` takes."""
    _, _, following, _ = table
    count = 0
    for i in range(len(firsts)):
        link = np.int64(firsts[i]) + 1
        while link != 0:
            if count < len(out):
                out[count] = link - 1
            count += 1
            link = np.int64(following[link - 1])
    return count


@inlined
def _replace(slot: Any, instead: Any, heads: Any, codes: Any, before: Any, apart: Any, buckets: Any, links: Any) -> None:
    """In the bucket of slot, which is the first of its code, another link stands in its place from now on."""
    bucket = _bucket_of(codes[slot], apart, buckets)
    head = np.uint64(heads[bucket])
    link = np.int64(head & links)
    if link == slot + 1:
        # the mark stays: it was of the only code, whose next slot this is, or there were several
        heads[bucket] = np.uint64(instead) | (head & ~links if instead != 0 else np.uint64(0))
    else:
        while _across(link - 1, before) != slot + 1:
            link = _across(link - 1, before)
        before[link - 1] = -1 - instead


@kernel
def _drop(firsts: Any, table: Any, scale: Any) -> None:
    """Take codes out of their buckets."""
    heads, codes, _, before = table
    apart, buckets, _, links, _ = scale
    heads_at = heads.ctypes.data
    for first in range(0, len(firsts), _AHEAD):
        last = min(first + _AHEAD, len(firsts))
        for i in range(first, last):
            code = codes[firsts[i]]
            prefetch(heads_at + 4 * np.int64(_bucket_of(code, apart, buckets)))
        for i in range(first, last):
            _replace(firsts[i], _across(firsts[i], before), heads, codes, before, apart, buckets, links)


@kernel
def _remove(slots: Any, table: Any, scale: Any) -> None:
    heads, codes, following, before = table
    apart, buckets, _, links, _ = scale
    heads_at, before_at, following_at = heads.ctypes.data, before.ctypes.data, following.ctypes.data
    for first in range(0, len(slots), _AHEAD):
        last = min(first + _AHEAD, len(slots))
        for i in range(first, last):
            slot = slots[i]
            previous = np.int64(before[slot])
            if previous > 0:
                prefetch(following_at + 4 * (previous - 1))
            elif previous < 0:
                prefetch(heads_at + 4 * np.int64(_bucket_of(codes[slot], apart, buckets)))
            prefetch(before_at + 4 * (np.int64(following[slot]) - 1))
        for i in range(first, last):
            slot = slots[i]
            previous, after = np.int64(before[slot]), np.int64(following[slot])
            if previous == 0:
                continue
            if previous > 0:
                following[previous - 1] = after
            else:
                instead = after if after != 0 else -1 - previous
                _replace(slot, instead, heads, codes, before, apart, buckets, links)
            if after != 0:  # which becomes the first of the code if the slot was
                before[after - 1] = previous
            before[slot] = 0


@kernel
def _probe(
    probed: Any, table: Any, scale: Any, row: Any, begun_rows: Any, begun_links: Any, begun: Any, slots: Any, rows: Any
) -> Any:  # fmt: skip
    """As many rows as there is room for: those whose buckets may hold their code, those whose codes are there, and then,
    round after round, a slot of each until there is none."""
    heads, codes, following, before = table
    apart, buckets, link_bits, links, marks = scale
    codes_at, following_at = codes.ctypes.data, following.ctypes.data
    none = np.uint64(0)
    count = 0
    while True:
        if begun == 0:
            new = 0
            while row < len(probed) and new < len(begun_rows):
                product = _product(probed[row], apart)
                head = np.uint64(heads[_bucket(probed[row], product, apart, buckets)])
                mark = head >> link_bits
                begun_rows[new] = row
                begun_links[new] = np.int64(head & links)
                new += np.int64((head != none) & ((mark == none) | (mark == _mark(product, marks))))
                row += 1
            for i in range(min(_NEAR, new)):
                prefetch(codes_at + 8 * (begun_links[i] - 1))
            for i in range(new):
                prefetch(codes_at + 8 * (begun_links[min(i + _NEAR, new - 1)] - 1))
                link = begun_links[i]
                while link != 0 and codes[link - 1] != probed[begun_rows[i]]:
                    link = _across(link - 1, before)
                begun_rows[begun] = begun_rows[i]
                begun_links[begun] = link
                begun += np.int64(link != 0)
            if begun == 0:
                if row == len(probed):
                    return count, row, begun
                continue
        taken = min(begun, len(slots) - count)
        left = 0
        for i in range(taken):
            prefetch(following_at + 4 * (begun_links[min(i + _NEAR, begun - 1)] - 1))
            link = begun_links[i]
            slots[count + i] = link - 1
            rows[count + i] = begun_rows[i]
            link = np.int64(following[link - 1])
            begun_rows[left] = begun_rows[i]
            begun_links[left] = link
            left += np.int64(link != 0)
        count += taken
        for i in range(taken, begun):
            begun_rows[left] = begun_rows[i]
            begun_links[left] = begun_links[i]
            left += 1
        begun = left
        if count == len(slots):
            return count, row, begun
