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
64 neighbouring buckets, begun anywhere: rows find most buckets in the cache. A bucket that holds one code has a mark of it
beside the link, in bits that no link needs: most rows with other codes pass without a look at the slot.

    record of a slot   [ code, 8 bytes | following | before ]     what is used together lies together in memory

Going along the slots of one code waits for memory at every slot, so a probe goes along many codes at once, a slot of each in
turn. One that finds more than it may return goes on later where it stopped, even in the middle of several codes.

What kernels take:

    table   heads     per bucket, the slot of its first code, and in the bits above it a mark; links are slot + 1, or 0
            codes     the records as words of 8 bytes: the code of a slot is at 2 * slot
            links     the records as words of 4 bytes, see `_following` and `_before`
    scale   apart     bits between codes
            buckets   their number less 1
            link_bits of a head; the mark has the others

A mark is made of bits of the code's product. A bucket of several codes has none of them set, an empty one has all: a row may
find its code where its product has all bits of the mark. Arrays are taken out of their tuples before a loop, as inside each
access would count references.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np

from millrace.core.arrays import BoolArray, Int32Array, Int64Array
from millrace.core.budget import Budget
from millrace.core.compiled import inlined, kernel
from millrace.core.memoryaccess import prefetch


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
_LINE = 16  # buckets in a line of the processor's cache
_WORDS, _FOLLOWING, _BEFORE = 4, 2, 3  # of a record: its words, and which are links


class Probe(NamedTuple):
    """Tuple `slots[i]` and relation row `rows[i]` have the same code. `cursor` is None when all rows are probed."""

    slots: Int64Array
    rows: Int64Array
    cursor: Cursor | None


def slot_records(capacity: int, budget: Budget) -> Int32Array:
    """Room for the records of slots, as words of 4 bytes."""
    return budget.array("window codes and links", _WORDS * capacity, np.int32)


def codes_in(records: Int32Array) -> Int64Array:
    """The codes of slots, where they lie in their records."""
    return records.view(np.int64)[:: _WORDS // 2]


class HashTable:
    """Multimap from key code to slot, of slots with these records. The code of a slot must not change while it is in the table.

    `apart`: codes are so many bits apart, about: 0 for numbers in a row. Hashes of 2^20 keys would be 44 bits apart.

    >>> budget = Budget("1k")
    >>> records = slot_records(4, budget)
    >>> codes_in(records)[:3] = 7, 9, 7
    >>> table = HashTable(records, budget)
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

    def __init__(self, records: Int32Array, budget: Budget, *, apart: int = 0) -> None:
        capacity = len(records) // _WORDS
        buckets = 1 << max(0, capacity - 1).bit_length()
        link_bits = np.uint32((1 << capacity.bit_length()) - 1)
        heads = budget.array("hash table buckets", buckets, np.uint32)
        heads[:] = ~link_bits
        self._arrays = heads, records.view(np.int64), records  # plain tuples: others take longer to pass
        self._scale = np.uint64(apart), np.uint64(buckets - 1), link_bits
        self._before = records[_BEFORE::_WORDS]
        self._room = 64  # for slots that are counted only as they are walked along: as many as there were at most

    @property
    def present(self) -> BoolArray:
        """Which slots are in the table."""
        return np.asarray(self._before != 0)

    @property
    def links_before(self) -> Int32Array:
        """By slot: 0 if it is not in the table, below 0 if it is the first of its code."""
        return self._before

    def firsts(self, codes: Int64Array) -> Int64Array:
        """The first slot of each code, or -1."""
        return cast("Int64Array", _firsts(codes, self._arrays, self._scale))

    def add(self, slots: Int64Array) -> BoolArray:
        """Slots that are not in the table come in; returns which are first of their code."""
        return cast("BoolArray", _add(slots, self._arrays, self._scale))

    def remove(self, slots: Int64Array) -> None:
        """Take out slots; one that is not in the table is passed over."""
        _remove(slots, self._arrays, self._scale)

    def take(self, firsts: Int64Array, found: Int64Array | None = None) -> Int64Array:
        """All slots with the codes of these, each of which was the first of its code; they leave.

        `found`: what a probe found, if it was all that a probe finds for each code found at all; then these are not looked for
        again.
        """
        before = self._before
        _drop(firsts, self._arrays, self._scale)
        left = firsts
        if found is not None:
            before[found] = 0
            left = firsts[before[firsts] != 0]
        if found is not None and not len(left):
            return found
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
    """A Fibonacci product, whose upper half differs for neighbouring blocks of 64 codes, and whose lower half is the mark."""
    return (np.uint64(code) >> apart >> np.uint64(6)) * np.uint64(0x9E3779B97F4A7C15)


@inlined
def _bucket(code: Any, product: Any, apart: Any, buckets: Any) -> Any:
    """As far behind the first one of its block as the code is."""
    return ((np.uint64(code) >> apart) + (product >> np.uint64(32))) & buckets


@inlined
def _bucket_of(code: Any, apart: Any, buckets: Any) -> Any:
    return _bucket(code, _product(code, apart), apart, buckets)


@inlined
def _following(slot: Any) -> Any:
    """Where the link to the next slot with the same code stands."""
    return _WORDS * slot + _FOLLOWING


@inlined
def _before(slot: Any) -> Any:
    """Where the link to the slot before with the same code stands; 0: the slot is not in the table; negative: it is the first
    of its code, see `_across`."""
    return _WORDS * slot + _BEFORE


@inlined
def _across(before: Any) -> Any:
    """From what stands before the first slot of a code, the link to the first slot of the next code in the bucket."""
    return -1 - np.int64(before)


@kernel
def _add(slots: Any, table: Any, scale: Any) -> Any:
    """Returns which slots are the first of their code."""
    heads, codes, links = table
    apart, buckets, link_bits = scale
    heads_at, records_at = heads.ctypes.data, codes.ctypes.data
    is_first = np.zeros(len(slots), np.bool_)
    asked = np.empty(_AHEAD, np.uint64)
    for first in range(0, len(slots), _AHEAD):
        count = min(_AHEAD, len(slots) - first)
        for i in range(count):
            prefetch(records_at + 16 * slots[first + i])
        for i in range(count):
            asked[i] = _bucket_of(codes[2 * slots[first + i]], apart, buckets)
            prefetch(heads_at + 4 * np.int64(asked[i]))
        for i in range(count):
            prefetch(records_at + 16 * (np.int64(heads[asked[i]] & link_bits) - 1))
        for i in range(count):
            slot = slots[first + i]
            code = codes[2 * slot]
            head = np.int64(heads[asked[i]] & link_bits)
            owner = head
            while owner != 0 and codes[2 * (owner - 1)] != code:
                owner = _across(links[_before(owner - 1)])
            if owner == 0:
                links[_following(slot)] = 0
                links[_before(slot)] = -1 - head
                mark = np.uint32(_product(code, apart)) & ~link_bits if head == 0 else np.uint32(0)
                heads[asked[i]] = np.uint32(slot + 1) | mark
                is_first[first + i] = True
            else:
                after = np.int64(links[_following(owner - 1)])
                links[_following(slot)] = after
                links[_before(slot)] = owner
                links[_following(owner - 1)] = slot + 1
                if after != 0:
                    links[_before(after - 1)] = slot + 1
    return is_first


@kernel
def _firsts(wanted: Any, table: Any, scale: Any) -> Any:
    heads, codes, links = table
    apart, buckets, link_bits = scale
    slots = np.empty(len(wanted), np.int64)
    for i in range(len(wanted)):
        owner = np.int64(heads[_bucket_of(wanted[i], apart, buckets)] & link_bits)
        while owner != 0 and codes[2 * (owner - 1)] != wanted[i]:
            owner = _across(links[_before(owner - 1)])
        slots[i] = owner - 1
    return slots


@kernel
def _members(firsts: Any, table: Any, out: Any) -> int:
    """Count the slots with the codes of some, and write down as many as `out` takes."""
    _, _, links = table
    count = 0
    for i in range(len(firsts)):
        link = np.int64(firsts[i]) + 1
        while link != 0:
            if count < len(out):
                out[count] = link - 1
            count += 1
            link = np.int64(links[_following(link - 1)])
    return count


@inlined
def _replace(slot: Any, instead: Any, heads: Any, codes: Any, links: Any, apart: Any, buckets: Any, link_bits: Any) -> None:
    """In the bucket of slot, which is the first of its code, another link stands in its place from now on."""
    bucket = _bucket_of(codes[2 * slot], apart, buckets)
    head = heads[bucket]
    link = np.int64(head & link_bits)
    if link == slot + 1:
        # the mark stays: it was of the only code, whose next slot this is, or there were several
        heads[bucket] = np.uint32(instead) | (head & ~link_bits if instead != 0 else ~link_bits)
    else:
        while _across(links[_before(link - 1)]) != slot + 1:
            link = _across(links[_before(link - 1)])
        links[_before(link - 1)] = -1 - instead


@kernel
def _drop(firsts: Any, table: Any, scale: Any) -> None:
    """Take codes out of their buckets."""
    heads, codes, links = table
    apart, buckets, link_bits = scale
    heads_at, records_at = heads.ctypes.data, codes.ctypes.data
    for first in range(0, len(firsts), _AHEAD):
        last = min(first + _AHEAD, len(firsts))
        for i in range(first, last):
            prefetch(records_at + 16 * firsts[i])
        for i in range(first, last):
            prefetch(heads_at + 4 * np.int64(_bucket_of(codes[2 * firsts[i]], apart, buckets)))
        for i in range(first, last):
            across = _across(links[_before(firsts[i])])
            _replace(firsts[i], across, heads, codes, links, apart, buckets, link_bits)


@kernel
def _remove(slots: Any, table: Any, scale: Any) -> None:
    heads, codes, links = table
    apart, buckets, link_bits = scale
    heads_at, records_at = heads.ctypes.data, codes.ctypes.data
    for first in range(0, len(slots), _AHEAD):
        last = min(first + _AHEAD, len(slots))
        for i in range(first, last):
            slot = slots[i]
            previous = np.int64(links[_before(slot)])
            if previous > 0:
                prefetch(records_at + 16 * (previous - 1))
            elif previous < 0:
                prefetch(heads_at + 4 * np.int64(_bucket_of(codes[2 * slot], apart, buckets)))
            prefetch(records_at + 16 * (np.int64(links[_following(slot)]) - 1))
        for i in range(first, last):
            slot = slots[i]
            previous, after = np.int64(links[_before(slot)]), np.int64(links[_following(slot)])
            if previous == 0:
                continue
            if previous > 0:
                links[_following(previous - 1)] = after
            else:
                instead = after if after != 0 else _across(previous)
                _replace(slot, instead, heads, codes, links, apart, buckets, link_bits)
            if after != 0:  # which becomes the first of the code if the slot was
                links[_before(after - 1)] = previous
            links[_before(slot)] = 0


@kernel
def _probe(
    probed: Any, table: Any, scale: Any, row: Any, begun_rows: Any, begun_links: Any, begun: Any, slots: Any, rows: Any
) -> Any:  # fmt: skip
    """As many rows as there is room for: those whose buckets may hold their code, those whose codes are there, and then,
    round after round, a slot of each until there is none."""
    heads, codes, links = table
    apart, buckets, link_bits = scale
    heads_at, records_at = heads.ctypes.data, codes.ctypes.data
    count = 0
    while True:
        if begun == 0:
            new = np.int64(0)
            while row < len(probed) and new < len(begun_rows) - _LINE:
                later = probed[min(row + 8 * _LINE, len(probed) - 1)]
                prefetch(heads_at + 4 * np.int64(_bucket_of(later, apart, buckets)))
                for at in range(row, min(row + _LINE, len(probed))):
                    product = _product(probed[at], apart)
                    head = heads[_bucket(probed[at], product, apart, buckets)]
                    begun_rows[new] = at
                    begun_links[new] = np.int64(head & link_bits)
                    new += np.int64((head & ~np.uint32(product)) <= link_bits)
                row = min(row + _LINE, len(probed))
            for i in range(min(_NEAR, int(new))):
                prefetch(records_at + 16 * (begun_links[i] - 1))
            for i in range(new):
                prefetch(records_at + 16 * (begun_links[min(i + _NEAR, new - 1)] - 1))
                link = begun_links[i]
                while link != 0 and codes[2 * (link - 1)] != probed[begun_rows[i]]:
                    link = _across(links[_before(link - 1)])
                begun_rows[begun] = begun_rows[i]
                begun_links[begun] = link
                begun += np.int64(link != 0)
            if begun == 0:
                if row == len(probed):
                    return count, row, begun
                continue
        taken = min(begun, len(slots) - count)
        left = np.int64(0)
        for i in range(taken):
            prefetch(records_at + 16 * (begun_links[min(i + _NEAR, begun - 1)] - 1))
            link = begun_links[i]
            slots[count + i] = link - 1
            rows[count + i] = begun_rows[i]
            link = np.int64(links[_following(link - 1)])
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
