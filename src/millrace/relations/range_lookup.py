"""Looking values up in ranges that lie side by side, in pages that lie in memory.

Where no two ranges of a table overlap, and its rows are sorted by where ranges begin, a value can only lie in one of them: the
last that begins at or before it. So it is found as a key is, and no page is scanned.

    ranges   [0 .. 9]   [20 .. 29]   [30 .. 45]
    value           15 ^   the last that begins before it ends before it too: it lies in none
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from millrace.core.arrays import BoolArray, Int32Array, Int64Array
from millrace.core.compiled import kernel
from millrace.core.conditions import Between
from millrace.core.errors import SchemaError
from millrace.core.instant_lookup import Answer
from millrace.core.memoryaccess import load8, load32, load64
from millrace.core.order_codes import LEAST, floors, has_floors, ordered_codes, same_codes
from millrace.core.step import StepCounts
from millrace.relations.key_lookup import first_nested
from millrace.relations.row_records import AHEAD, copy_records
from millrace.relations.search import ask_for_cards, guess_rows, guess_rows_again, record_at, seek_code
from millrace.relations.stored import StoredRelation

_CHUNK_ROWS = 1 << 16  # checked at a time

_apart: WeakKeyDictionary[StoredRelation, dict[tuple[Any, ...], tuple[bool, int]]] = WeakKeyDictionary()


def serves(relation: StoredRelation, condition: Between, value: pa.DataType) -> bool:
    """Whether values of this type can be looked up by this condition: the table is sorted by the beginning of its ranges, it is
    known which beginnings lie before a value, and no range overlaps the next."""
    if condition.on or relation.key != (condition.low,) or condition.low == condition.high:
        return False
    if not relation.resident or not relation.codec.ordered or relation.disk_index is not None:
        return False
    try:
        common = _common_type(relation, condition, value)
    except SchemaError:
        return False
    return has_floors(relation.schema.field(condition.low).type, common) and _checked(relation, condition, common)[0]


def _common_type(relation: StoredRelation, condition: Between, value: pa.DataType) -> pa.DataType:
    return condition.common_type(pa.schema([(condition.value, value)]), relation.schema)


def _checked(relation: StoredRelation, condition: Between, common: pa.DataType) -> tuple[bool, int]:
    """Whether ranges lie apart, and how many end before they begin. Once for a table version: every row is looked at."""
    known = _apart.setdefault(relation, {})
    name = (condition.low, condition.high, condition.closed, condition.open_ended, str(common), condition.zone)
    if name not in known:
        known[name] = _check(relation, condition, common)
    return known[name]


def _check(relation: StoredRelation, condition: Between, common: pa.DataType) -> tuple[bool, int]:
    if relation.pages == 0:
        return True, 0
    relation.touch(np.arange(relation.pages))
    run = relation.whole()
    bounds = (condition.low, condition.high)
    before, reversed_ranges = _NO_RANGE, 0
    for start in range(0, run.rows, _CHUNK_ROWS):
        batch = run.take(np.arange(start, min(start + _CHUNK_ROWS, run.rows)), bounds)
        lows, _ = ordered_codes(batch.column(0), common, condition.zone)
        highs, ends = ordered_codes(batch.column(1), common, condition.zone)
        reversed_ranges += int(np.count_nonzero(ends & (highs < lows)))
        chunk = _Ranges(lows, np.where(ends, highs, LEAST), ~ends & condition.open_ended)
        if not _apart_in(before, chunk, touching=condition.closed != "both"):
            return False, reversed_ranges
        before = _Ranges(lows[-1:], chunk.highs[-1:], chunk.endless[-1:])
    return True, reversed_ranges


class _Ranges(NamedTuple):
    """Ranges in the order of their beginnings."""

    lows: Int64Array
    highs: Int64Array  # LEAST where a range holds nothing, and anything where it has no end
    endless: BoolArray


_NO_RANGE = _Ranges(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.bool_))


def _apart_in(before: _Ranges, chunk: _Ranges, *, touching: bool) -> bool:
    """Whether each range ends before the next begins (or there, if they may touch), and no two begin at one place; `before` is
    the last range before this chunk. Ranges further back need no look: none reaches behind the beginning of its next."""
    lows, highs, endless = (np.concatenate(pair) for pair in zip(before, chunk, strict=True))
    overlap = endless[:-1] | (highs[:-1] > lows[1:]) | (lows[:-1] >= lows[1:])
    if not touching:
        overlap |= highs[:-1] == lows[1:]
    return not overlap.any()


class End(NamedTuple):
    """How the end of a range is found in its record and compared: what a kernel needs."""

    place: int
    width: int  # bytes; 0: not to be compared here
    null_place: int
    null_bit: int
    inclusive: bool
    open_ended: bool


class RangesInPlace:
    """Look-ups of values in a mapped relation whose ranges lie apart: see `serves`."""

    def __init__(self, relation: StoredRelation, columns: Sequence[str], condition: Between, value: pa.DataType) -> None:
        self._relation = relation
        self._columns = columns
        self._low = relation.schema.field(condition.low).type
        self._common = _common_type(relation, condition, value)
        self._zone = condition.zone
        self.reversed_ranges = _checked(relation, condition, self._common)[1]
        self._mapped = relation.mapped_pages
        self._whole = relation.whole()
        known = relation.page_columns
        packed, self._others = known.split(columns)
        self._code_column = known.code_column
        self._nested = [name for name in self._others if name != self._code_column]
        self._values = known.unpacker(packed)
        self._highs = known.unpacker((condition.high,))
        self._nothing = known.unpacker(())
        self._beyond = condition.closed in ("right", "neither")  # a value must lie behind the beginning of its range
        self._end = self._end_of(condition)

    def look_up(self, keys: Sequence[pa.Array], limit_bytes: int | None = None) -> Answer:
        """The ranges of these values, or of the first of them: see `Answer`."""
        codes, valid = ordered_codes(keys[0], self._common, self._zone)
        begins = codes
        if self._beyond:  # begins before the value: begins at the code before it or earlier
            begins, valid = codes - 1, valid & (codes > LEAST)
        begins = floors(begins, self._common, self._low, self._zone)
        pages, used = self._mapped.preceding_pages(begins, valid)
        rows = np.empty(len(codes), np.int32)
        records = np.empty(len(codes), np.int64)
        values, count = self._find(codes, begins, pages, rows, records, limit_bytes)
        if self._nested and limit_bytes is not None:
            values, count = first_nested(self._whole, self._nested, records[:count], pages, rows, values, limit_bytes)
        pages, rows, found = pages[:count], rows[:count], records[:count] != 0
        for name in self._others:
            if name == self._code_column:
                lows = pa.array(self._lows(pages, rows, found), mask=None if found.all() else ~found)
                values[name] = lows.view(self._relation.schema.field(name).type)
            else:
                values[name] = self._whole.nested(name, np.where(found, pages, np.int32(-1)), rows)
        matches, lacking = int(np.count_nonzero(found)), keys[0].slice(0, count).null_count
        counts = StepCounts(
            tuples_in=count, pages_read=used, bytes_read=used * self._relation.page_bytes,
            probes=int(np.count_nonzero(pages >= 0)), matches=matches, removed=count, matched=matches,
            condition_false=count - matches - lacking, null_keys=lacking,
        )  # fmt: skip
        return Answer(found, [values[name] for name in self._columns], counts)

    def _end_of(self, condition: Between) -> End:
        """Ends that are their own codes are compared where they stand."""
        column = self._relation.page_columns.layout.by_name[condition.high]
        own = same_codes(column.type, self._common) and not pa.types.is_unsigned_integer(column.type)
        return End(
            column.place, column.width if own and column.width in (4, 8) else 0, column.number >> 3, 1 << (column.number & 7),
            condition.closed in ("both", "right"), condition.open_ended,
        )  # fmt: skip

    def _find(
        self, codes: Int64Array, begins: Int64Array, pages: Int32Array, rows: Int32Array,
        records: Int64Array, limit_bytes: int | None,
    ) -> tuple[dict[str, pa.Array], int]:  # fmt: skip
        """Find the record of the range of each value, 0 where it lies in none, and unpack it; how many were: see
        `Unpacker.unpack`."""
        out = self._values if self._end.width else self._nothing
        sink = out.begin(len(codes), limit_bytes)
        arrays, done = tuple(sink), 0
        cards = self._mapped.cards
        while (done := find_range(codes, begins, pages, cards, self._end, rows, records, done, arrays)) < len(codes):
            if not out.grow(sink, done):
                break
        if self._end.width:
            return out.finish(records[:done], sink), done
        (high,) = self._highs.unpack(records)[0].values()
        highs, ends = ordered_codes(high, self._common, self._zone)
        before = codes <= highs if self._end.inclusive else codes < highs
        records[~np.where(ends, before, self._end.open_ended)] = 0
        return self._values.unpack(records, limit_bytes)

    def _lows(self, pages: Int32Array, rows: Int32Array, found: BoolArray) -> Int64Array:
        """Where the ranges that were found begin; anything for others."""
        if not found.any():  # there may be no page to look at
            return np.zeros(len(pages), np.int64)
        return self._whole.codes_at(np.where(found, pages, 0), np.where(found, rows, 0))


@kernel
def find_range(
    codes: Any, begins: Any, pages: Any, cards: Any, end: Any, rows: Any, records: Any, start: Any, sink: Any
) -> Any:
    """Find the last row of page `pages[i]` (-1: none) whose code is not above `begins[i]`, and copy it if its range goes on to
    `codes[i]`. From row `start` on, `AHEAD` rows at a time; returns the row to go on with, as `find_and_copy` does."""
    for first in range(start, len(codes), AHEAD):
        last = min(len(codes), first + AHEAD)
        ask_for_cards(pages, cards, last, min(len(codes), last + AHEAD))
        guess_rows(begins, pages, cards, rows, first, last)
        guess_rows_again(begins, pages, cards, rows, first, last)
        for i in range(first, last):
            page = np.int64(pages[i])
            records[i] = 0
            if page >= 0:
                card = cards[page]
                size = np.int64(card.rows)
                row = seek_code(card.codes, size, begins[i], np.int64(rows[i]))
                if row == size or load64(card.codes + 8 * row) != begins[i]:
                    row -= 1
                rows[i] = row
                records[i] = record_at(card, row)
        if end.width:
            for i in range(first, last):
                if records[i] != 0 and not _goes_on_to(codes[i], records[i], end):
                    records[i] = 0
        done = copy_records(records, first, last, sink)
        if done < last:
            return done
    return len(codes)


@kernel
def _goes_on_to(code: Any, record: Any, end: Any) -> Any:
    """Whether the range of a record, which begins before a value, does not end before it."""
    if load8(record + end.null_place) & np.uint8(end.null_bit):
        return end.open_ended
    high = load64(record + end.place) if end.width == 8 else np.int64(load32(record + end.place))
    return code < high or (end.inclusive and code == high)
