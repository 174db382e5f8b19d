"""The keys of a task, counted in bounded memory, with the values of the keys that are counted: see `core.heavy_hitters`.

    batch --> codes --> counters                 of 10 times the keys that are reported
          --> key columns at the rows where a counter started --> kept values

Codes of texts and of several columns are hashes of 64 bits. Two keys with the same hash would count as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.heavy_hitters import HeavyHitters
from millrace.core.keys import KeyCodec, family
from millrace.spark.key_text import as_json, kept_values, shortened, value_bytes

MOST_KEYS = 1_000
_COUNTERS = 10  # for each key that is reported
_LEAST_COUNTERS = 500
_VALUES = 3  # times `HeavyHitters.kept`: so many values, and those of counters that are gone are cleared away


def counters_for_keys(wanted: int) -> int:
    return max(_LEAST_COUNTERS, _COUNTERS * wanted)


def sketch_bytes(wanted: int, kinds: Sequence[pa.DataType]) -> int:
    """Memory of a sketch, at most."""
    kept = counters_for_keys(wanted)
    copies = 2 * _VALUES + 2  # while values are cleared away: in parts, in one array, and those that stay
    return HeavyHitters.bytes_for(kept) + copies * kept * sum(map(value_bytes, kinds))


class KeySketch:
    """The most frequent keys of the rows that a task was given."""

    def __init__(self, wanted: int, kinds: Sequence[pa.DataType]) -> None:
        self._wanted = wanted
        self._kinds = kinds
        self._codec = KeyCodec(tuple(kinds))  # of the stream: a key that no table can have counts too
        self._counters = HeavyHitters(counters_for_keys(wanted))
        self._parts: list[list[pa.Array]] = []  # kept values; the notes of counters are places in all parts together
        self._values = 0

    def add(self, columns: Sequence[pa.Array]) -> None:
        """Count the keys of a batch."""
        counters = self._counters
        encoded = self._codec.encode(columns)
        counters.add(encoded.codes, encoded.valid)
        started = counters.started()
        if not len(started):
            return
        rows = pa.array(-1 - counters.notes[started])
        counters.notes[started] = -1
        if self._values + len(rows) > _VALUES * counters.kept:
            self._clear_away()
        counters.notes[started] = np.arange(self._values, self._values + len(rows))
        self._parts.append([kept_values(column, rows) for column in columns])
        self._values += len(rows)

    def as_json(self) -> dict[str, Any]:
        """The keys with the largest counts. `beyond`: any other key came at most so often."""
        counters = self._counters
        slots = counters.largest(self._wanted)
        codes = counters.codes[slots].tolist()
        values = self._kept(counters.notes[slots])
        return {
            "rows": counters.rows,
            "null_keys": counters.left_out,
            "kinds": [family(kind) for kind in self._kinds],
            "keys": [as_json(column, kind, codes) for column, kind in zip(values, self._kinds, strict=True)],
            "counts": counters.counts[slots].tolist(),
            "errors": counters.errors[slots].tolist(),
            "beyond": counters.beyond(slots),
        }

    def _clear_away(self) -> None:
        """Keep only the values of keys that still have a counter."""
        counters = self._counters
        slots = counters.slots()
        slots = slots[counters.notes[slots] >= 0]
        self._parts = [self._kept(counters.notes[slots])] if len(slots) else []
        counters.notes[slots] = np.arange(len(slots))
        self._values = len(slots)

    def _kept(self, places: Any) -> list[pa.Array]:
        if not self._parts:
            return [shortened(pa.array([], kind)) for kind in self._kinds]
        wanted = pa.array(places)
        return [pa.concat_arrays(list(column)).take(wanted) for column in zip(*self._parts, strict=True)]
