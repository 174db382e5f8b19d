"""`between` and `near`: the waiting tuples are sorted by value, so the tuples in a row's range lie side by side.

    row of R      low ............ high                 near:   other - width ... other + width
    tuples     [ 3  7  7  9  12  15  21 ]
                     ^-----------^   all of these

The MESHJOIN paper proposes this for ranges. If ranges are sorted, as they often are in a file, the tuples look for their rows
instead, which takes no time for ranges without a tuple. If keys must be equal too, tuples are sorted by key code first. A band
of floats is searched a little wider, and each match is then measured: |x - y| <= width, in doubles.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.arrays import BoolArray, Int64Array
from millrace.core.budget import Budget
from millrace.core.conditions import Between, Near
from millrace.core.keys import Codes, KeyCodec
from millrace.core.order_codes import LEAST, MOST, float_codes, floats_of, ordered_codes
from millrace.core.protocols import JoinSpec, PageRun, Relation
from millrace.joins.matching.matcher import Found, MatcherBytes
from millrace.joins.sizing import rows_per_page
from millrace.structures.sorted_values import FIRST, OrderedSlots, Place, ascending
from millrace.structures.window import Window, row_bytes

_EMPTY = np.zeros(0, np.int64)


class RangeMatcher:
    """Tuples whose value lies inside the range of a row, and whose key equals the row's key if keys are asked for."""

    def __init__(self, relation: Relation, spec: JoinSpec, window: Window, budget: Budget) -> None:
        assert isinstance(spec.condition, (Between, Near))
        self._condition = condition = spec.condition
        self._common = condition.common_type(spec.stream_schema, relation.schema)
        self._width: float | int = condition.units(self._common) if isinstance(condition, Near) else 0
        keys = tuple(relation.schema.field(theirs).type for _, theirs in condition.on)
        self._codec = KeyCodec(keys) if keys else None
        self._columns = condition.table_columns(relation.schema)
        self._window = window
        self._waiting = OrderedSlots(window.capacity, budget)
        self._run: PageRun | None = None
        self._rows = self._groups = self._lows = self._highs = _EMPTY
        self._others = _EMPTY  # codes of a band's middle
        self._place: Place = FIRST
        self._ascending = False
        self._seen_pages = 0
        self.reversed_ranges = 0

    @staticmethod
    def bytes_of(relation: Relation, spec: JoinSpec, condition: Between | Near, memory_bytes: int) -> MatcherBytes:
        columns = [relation.schema.field(name) for name in condition.table_columns(relation.schema)]
        row = 2 * row_bytes(pa.schema(columns)) + 8 * 8  # the columns, and what is computed from them
        return MatcherBytes(OrderedSlots.bytes_per_slot, row * rows_per_page(relation))

    def encode(self, batch: pa.RecordBatch) -> Codes:
        codes, valid = self._codes(batch.column(self._condition.value))
        nulls = ~valid
        if isinstance(self._width, float):
            valid &= codes <= float_codes(np.array([np.inf]))[0]  # nothing is near to what is no number
        if self._codec is not None:
            keys = self._codec.encode([batch.column(mine) for mine, _ in self._condition.on])
            valid &= keys.valid
            nulls |= keys.nulls
        return Codes(codes, valid & ~nulls, nulls)

    def enter(self, slots: Int64Array) -> None:
        if len(slots) == 0:
            return
        groups = np.zeros(len(slots), np.int64)
        if self._codec is not None:
            assert self._window.rows is not None
            waiting = self._window.rows.take(slots)
            groups = self._codec.encode([waiting.column(mine) for mine, _ in self._condition.on]).codes
        self._waiting.add(groups, self._window.code[slots], slots)

    def leave(self, slots: Int64Array) -> None:
        self._waiting.remove(slots)

    def begin(self, run: PageRun) -> None:
        batch = run.take(np.arange(run.rows), self._columns)
        lows, highs, valid = self._bounds(batch, run)
        groups = np.zeros(run.rows, np.int64)
        if self._codec is not None:
            keys = self._codec.encode([batch.column(theirs) for _, theirs in self._condition.on])
            groups, valid = keys.codes, valid & keys.valid
        self._rows = np.flatnonzero(valid & (lows <= highs))
        self._groups, self._lows, self._highs = groups[self._rows], lows[self._rows], highs[self._rows]
        self._ascending = self._codec is None and ascending(self._lows) and ascending(self._highs)
        self._run, self._place = run, FIRST

    def next(self, limit: int) -> Found:
        assert self._run is not None
        if self._ascending:
            slots, places, following = self._waiting.covered(self._lows, self._highs, self._place, limit)
        else:
            slots, places, following = self._waiting.inside(self._groups, self._lows, self._highs, self._place, limit)
        rows = self._rows[places]
        if isinstance(self._width, float):
            apart = np.abs(floats_of(self._window.code[slots]) - floats_of(self._others[rows]))
            slots, rows = slots[apart <= self._width], rows[apart <= self._width]
        if self._codec is not None and not self._codec.exact and len(slots):
            same = self._same_keys(self._codec, self._run, slots, rows)
            slots, rows = slots[same], rows[same]
        if following is None:
            self._run, self._rows, self._others = None, _EMPTY, _EMPTY
            return slots, rows, True
        self._place = following
        return slots, rows, False

    def _codes(self, column: pa.Array) -> tuple[Int64Array, BoolArray]:
        return ordered_codes(column, self._common, self._condition.zone)

    def _bounds(self, batch: pa.RecordBatch, run: PageRun) -> tuple[Int64Array, Int64Array, BoolArray]:
        """The lowest and highest code of a row's tuples, both included, and which rows have such codes."""
        condition = self._condition
        if isinstance(condition, Near):
            others, valid = self._codes(batch.column(condition.other))
            if isinstance(self._width, float):
                self._others = others
                return _float_band(floats_of(others), self._width, valid)
            return *_band(others, int(self._width)), valid
        lows, has_low = self._codes(batch.column(condition.low))
        highs, has_high = self._codes(batch.column(condition.high))
        lows, highs = lows.copy(), highs.copy()
        if int(run.pages[-1]) >= self._seen_pages:  # the first time round
            self.reversed_ranges += int(np.count_nonzero(has_low & has_high & (lows > highs)))
            self._seen_pages = int(run.pages[-1]) + 1
        valid = np.ones(len(lows), np.bool_) if condition.open_ended else has_low & has_high
        if condition.closed in ("right", "neither"):
            valid &= ~has_low | (lows < MOST)
            lows += lows < MOST
        if condition.closed in ("left", "neither"):
            valid &= ~has_high | (highs > LEAST)
            highs -= highs > LEAST
        if condition.open_ended:
            lows[~has_low], highs[~has_high] = LEAST, MOST
        return lows, highs, valid

    def _same_keys(self, codec: KeyCodec, run: PageRun, slots: Int64Array, rows: Int64Array) -> BoolArray:
        assert self._window.rows is not None
        waiting = self._window.rows.take(slots)
        found = run.take(rows, [theirs for _, theirs in self._condition.on])
        return codec.equal([waiting.column(mine) for mine, _ in self._condition.on], found.columns)


def _band(middles: Int64Array, width: int) -> tuple[Int64Array, Int64Array]:
    """Whole numbers at most `width` from the middle, within 64 bits."""
    if width > MOST - LEAST:
        return np.full(len(middles), LEAST), np.full(len(middles), MOST)
    wrapped = np.uint64(width)
    lows = (middles.view(np.uint64) - wrapped).view(np.int64)  # right unless it wraps round, and then there is no bound
    highs = (middles.view(np.uint64) + wrapped).view(np.int64)
    return np.where(lows > middles, LEAST, lows), np.where(highs < middles, MOST, highs)


def _float_band(middles: Any, width: float, valid: BoolArray) -> tuple[Int64Array, Int64Array, BoolArray]:
    """A band that surely holds all floats at most `width` from the middle, whatever was rounded."""
    with np.errstate(invalid="ignore", over="ignore"):
        slack = 4 * np.finfo(np.float64).eps * (np.abs(middles) + width)
        lows, highs = middles - width - slack, middles + width + slack
    real = ~np.isnan(middles) & ~np.isnan(lows) & ~np.isnan(highs)
    return float_codes(np.where(real, lows, 0.0)), float_codes(np.where(real, highs, -1.0)), valid & real
