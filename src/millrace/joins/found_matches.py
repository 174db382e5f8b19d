"""Matches that were found and not yet put out, because a step puts out only so many. Shared by joins that look keys up."""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.compiled import kernel


class Pairs:
    """Matches that are still to be put out: tuple i with `count[i]` rows from `first[i]` on."""

    def __init__(self, slots: Int64Array, first: Int64Array, count: Int64Array, done: Int64Array, *, unique: bool) -> None:
        self.done = done  # tuples that wait for nothing else once these are put out
        hits = np.flatnonzero(count)
        self._slots, self._first, self._count = slots[hits], first[hits], count[hits]
        self._unique = unique
        self._tuple = 0
        self._row = 0

    @property
    def empty(self) -> bool:
        return self._tuple >= len(self._slots)

    @property
    def slots(self) -> Int64Array:
        """Tuples with matches that are still to be put out."""
        return self._slots[self._tuple :]

    def next(self, limit: int) -> tuple[Int64Array, Int64Array]:
        """The next pairs (slot, row), at most `limit`."""
        if self._unique:
            start, self._tuple = self._tuple, min(self._tuple + limit, len(self._slots))
            return self._slots[start : self._tuple], self._first[start : self._tuple]
        slots = np.empty(limit, np.int64)
        rows = np.empty(limit, np.int64)
        pairs, self._tuple, self._row = _expand(self._tuple, self._row, self._slots, self._first, self._count, slots, rows)
        return slots[:pairs], rows[:pairs]


@kernel
def _expand(at: Any, row: Any, slots: Any, first: Any, count: Any, out_slots: Any, out_rows: Any) -> Any:
    pairs = 0
    while at < len(slots):
        while row < count[at]:
            if pairs == len(out_slots):
                return pairs, at, row
            out_slots[pairs] = slots[at]
            out_rows[pairs] = first[at] + row
            pairs += 1
            row += 1
        at += 1
        row = 0
    return pairs, at, row
