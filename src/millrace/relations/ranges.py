"""Looking values up in ranges that lie side by side, in pages that lie in memory.

Where no two ranges of a table overlap, and its rows are sorted by where ranges begin, a value can only lie in one of them: the
last that begins at or before it. So it is found as a key is, and no page is scanned.

    ranges   [0 .. 9]   [20 .. 29]   [30 .. 45]
    value           15 ^   the last that begins before it ends before it too: it lies in none
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.compiled import kernel
from millrace.core.conditions import Between
from millrace.core.errors import SchemaError
from millrace.core.memoryaccess import load32, load64, prefetch
from millrace.core.ordered import LEAST, MOST, common_type, ordered_codes
from millrace.core.step import Int64Array, StepCounts
from millrace.relations.inplace import Answer
from millrace.relations.records import AHEAD, LINE
from millrace.relations.search import guess_row, seek_code, take_codes
from millrace.relations.stored import StoredRelation

_CHUNK_ROWS = 1 << 16  # checked at a time

_apart: WeakKeyDictionary[StoredRelation, dict[tuple[Any, ...], tuple[bool, int]]] = WeakKeyDictionary()


def serves(relation: StoredRelation, condition: Between, value: pa.DataType) -> bool:
    """Whether values of this type can be looked up by this condition: the table is sorted by the beginning of its ranges, its
    codes sort as the values do, and no range overlaps the next."""
    if condition.on or relation.key != (condition.low,) or not relation.resident or not relation.codec.ordered:
        return False
    fields = [pa.field("value", value), *(relation.schema.field(name) for name in (condition.low, condition.high))]
    try:
        common = common_type(fields)
    except SchemaError:
        return False
    own = fields[1].type
    same_codes = common == own or pa.types.is_integer(own) or (pa.types.is_decimal(own) and common.scale == own.scale)
    return same_codes and _checked(relation, condition, common)[0]


def _checked(relation: StoredRelation, condition: Between, common: pa.DataType) -> tuple[bool, int]:
    """Whether ranges lie apart, and how many end before they begin. Once for a table version: every row is looked at."""
    known = _apart.setdefault(relation, {})
    name = (condition.low, condition.high, condition.closed, condition.open_ended, str(common))
    if name not in known:
        known[name] = _check(relation, condition, common)
    return known[name]


def _check(relation: StoredRelation, condition: Between, common: pa.DataType) -> tuple[bool, int]:
    if relation.pages == 0:
        return True, 0
    relation.touch(np.arange(relation.pages))
    run = relation.whole()
    before, is_open, reversed_ranges = LEAST, False, 0
    touching = condition.closed in ("left", "right", "neither")
    for start in range(0, run.rows, _CHUNK_ROWS):
        batch = run.take(np.arange(start, min(start + _CHUNK_ROWS, run.rows)), (condition.low, condition.high))
        lows, _ = ordered_codes(batch.column(0), common)
        highs, ends = ordered_codes(batch.column(1), common)
        reversed_ranges += int(np.count_nonzero(ends & (highs < lows)))
        last = np.where(ends, highs, MOST if condition.open_ended else LEAST)
        last = np.concatenate(([before], last))
        overlap = (last[:-1] > lows) | ((last[:-1] == lows) & (not touching))
        if start == 0:
            overlap[0] = False
        if overlap.any() or is_open or (np.diff(lows) == 0).any():
            return False, reversed_ranges
        before, is_open = int(last[-1]), bool(last[-1] == MOST and condition.open_ended)
    return True, reversed_ranges


class RangesInPlace:
    """Look-ups of values in a mapped relation whose ranges lie apart: see `serves`."""

    def __init__(self, relation: StoredRelation, columns: Sequence[str], condition: Between, value: pa.DataType) -> None:
        self._relation = relation
        self._condition = condition
        self._columns = columns
        fields = [pa.field("value", value), relation.schema.field(condition.low), relation.schema.field(condition.high)]
        self._common = common_type(fields)
        self.reversed_ranges = _checked(relation, condition, self._common)[1]
        self._whole = relation.whole()
        self._packed, self._others = relation.split(columns)
        self._values = relation.unpacker(self._packed)
        self._ends = relation.unpacker((condition.high,))

    def look_up(self, keys: Sequence[pa.Array]) -> Answer:
        codes, valid = ordered_codes(keys[0], self._common)
        nulls = ~valid
        pages, used = self._pages(codes, valid)
        rows = np.empty(len(codes), np.int32)
        records = np.empty(len(codes), np.int64)
        find_preceding(codes, pages, self._whole.places, self._relation.index, rows, records)
        records[~self._inside(codes, records, rows, pages)] = 0
        found = records != 0
        values = dict(zip(self._packed, self._values.unpack(records), strict=True))
        for name in self._others:
            if name == self._relation.version.code_column:
                begins = pa.array(self._begins(pages, rows, found), mask=None if found.all() else ~found)
                values[name] = begins.view(self._relation.schema.field(name).type)
            else:
                values[name] = self._whole.nested(name, np.where(found, pages, np.int32(-1)), rows)
        count, matches, lacking = len(codes), int(np.count_nonzero(found)), int(np.count_nonzero(nulls))
        counts = StepCounts(
            tuples_in=count, pages_read=used, bytes_read=used * self._relation.page_bytes,
            probes=int(np.count_nonzero(pages >= 0)), matches=matches, removed=count, matched=matches,
            condition_false=count - matches - lacking, null_keys=lacking,
        )  # fmt: skip
        return Answer(found, [values[name] for name in self._columns], counts)

    def _pages(self, codes: Int64Array, valid: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int32], int]:
        """The last page that begins at or before each value, -1 where there is none, checked; and how many pages that are."""
        pages = (np.searchsorted(self._relation.index.firsts, codes, "right") - 1).astype(np.int32)
        pages[~valid] = -1
        used = np.zeros(self._relation.pages, np.bool_)
        used[pages[pages >= 0]] = True
        self._relation.touch(np.flatnonzero(used))
        return pages, int(np.count_nonzero(used))

    def _inside(
        self, codes: Int64Array, records: Int64Array, rows: npt.NDArray[np.int32], pages: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.bool_]:
        """Whether each value lies in the range that begins at or before it."""
        condition = self._condition
        highs, ends = ordered_codes(self._ends.unpack(records)[0], self._common)
        right = condition.closed in ("both", "right")
        below = np.where(ends, codes <= highs if right else codes < highs, condition.open_ended)
        found = below & (records != 0)
        if condition.closed in ("right", "neither"):
            found &= self._begins(pages, rows, found) < codes
        return found

    def _begins(self, pages: npt.NDArray[np.int32], rows: npt.NDArray[np.int32], found: npt.NDArray[np.bool_]) -> Int64Array:
        """The codes of rows that were found; anything for others."""
        begins = np.zeros(len(pages), np.int64)
        if found.any():
            place, inside = np.where(found, pages, 0), np.where(found, rows, 0)
            take_codes(place, inside, self._whole.places, self._relation.index, begins)
        return begins


@kernel
def find_preceding(codes: Any, pages: Any, places: Any, index: Any, rows: Any, records: Any) -> None:
    """The record of the last row of page `pages[i]` whose code is not above `codes[i]`; 0 where the page is -1."""
    for first in range(0, len(codes), AHEAD):
        last = min(len(codes), first + AHEAD)
        for i in range(first, last):
            page = np.int64(pages[i])
            if page >= 0:
                row = guess_row(codes[i], index.firsts[page], index.lasts[page], np.int64(places.sizes[page]))
                rows[i] = row
                prefetch(places.addresses[page] + index.codes[page] + 8 * row)
        for i in range(first, last):
            page = np.int64(pages[i])
            records[i] = 0
            if page >= 0:
                start = places.addresses[page] + index.codes[page]
                size = np.int64(places.sizes[page])
                row = seek_code(start, size, codes[i], np.int64(rows[i]))
                if row == size or load64(start + 8 * row) != codes[i]:
                    row -= 1
                rows[i] = row
                inside = np.int64(load32(places.addresses[page] + index.starts[page] + 4 * row))
                records[i] = places.addresses[page] + index.data[page] + inside
                prefetch(records[i])
                prefetch(records[i] + LINE)
