"""Pages of a stored relation that lie in memory, and how rows are found and taken there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.arrays import Int32Array, Int64Array
from millrace.core.rowbytes import fitting, sizes_of
from millrace.relations import search
from millrace.relations.page_columns import PageColumns
from millrace.relations.page_index import PageIndex

_NESTED_COPIES = 3  # of nested values that are put together: those of each page, all of them, and all in order


class StoredRun:
    """Pages of a `StoredRelation`, each at an address in memory. A run checks nothing: whoever makes one has."""

    def __init__(self, index: PageIndex, columns: PageColumns, pages: Int64Array, addresses: Int64Array, keep: Any) -> None:
        self.pages = pages
        self._index = index
        self._columns = columns
        self._keep = keep  # what the addresses point into
        sizes = index.rows if len(pages) == len(index) else index.rows[pages]
        bases = np.zeros(len(pages) + 1, np.int64)
        np.cumsum(sizes, out=bases[1:])
        self.places = addresses, pages, sizes, bases
        self._addresses, self._bases = addresses, bases
        self.rows = int(bases[-1])
        self._dense = len(pages) > 0 and int(pages[-1] - pages[0]) == len(pages) - 1
        starts = np.arange(0, max(1, self.rows), index.rows_per_page)
        self._guess = (np.searchsorted(bases, starts, "right") - 1).astype(np.int32)

    @property
    def codes(self) -> Int64Array:
        codes = np.empty(self.rows, np.int64)
        search.copy_codes(self.places, self._index.arrays, codes.ctypes.data)
        return codes

    def match(self, codes: Int64Array, pages: Int64Array) -> tuple[Int64Array, Int64Array]:
        at = pages - self.pages[0] if self._dense else np.searchsorted(self.pages, pages)
        first = np.empty(len(codes), np.int64)
        count = np.empty(len(codes), np.int64)
        search.find_codes(codes, at, self.places, self._index.arrays, first, count)
        return first, count

    def take(self, rows: Int64Array, columns: Sequence[str], limit_bytes: int | None = None) -> pa.RecordBatch:
        arrays, known = self._index.arrays, self._columns
        place = np.empty(len(rows), np.int32)
        inside = np.empty(len(rows), np.int32)
        search.resolve_rows(rows, self._guess, self._index.rows_per_page, self._bases, place, inside)
        packed, others = known.split(columns)
        count = len(rows) if limit_bytes is None else self.nested_fitting(others, place, inside, limit_bytes)
        found: dict[str, pa.Array] = {}
        if packed:
            addresses = np.empty(count, np.int64)
            search.find_records(place[:count], inside[:count], self.places, arrays, addresses)
            found, count = known.unpacker(packed).unpack(addresses, limit_bytes, all_found=True)
        place, inside = place[:count], inside[:count]
        for name in others:
            if name == known.code_column:
                found[name] = pa.array(self.codes_at(place, inside)).view(known.schema.field(name).type)
            else:
                found[name] = self.nested(name, place, inside)
        schema = pa.schema([known.schema.field(name) for name in columns])
        return pa.RecordBatch.from_arrays([found[name] for name in columns], schema=schema)

    def codes_at(self, place: npt.NDArray[Any], inside: npt.NDArray[Any]) -> Int64Array:
        """The codes of rows `inside` of run pages `place`."""
        codes = np.empty(len(place), np.int64)
        search.take_codes(place, inside, self.places, self._index.arrays, codes)
        return codes

    def nested(self, name: str, place: Int32Array, inside: Int32Array) -> pa.Array:
        """Values of rows `inside` of run pages `place`, null where that is -1.

        Lists, structs and maps have no kernel: their pages are decoded, each once.
        """
        parts = [pa.nulls(1, self._columns.layout.page_schema.field(name).type)]
        values = np.zeros(len(place), np.int64)  # where they are in the parts; the null stands first
        count = 1
        for column, rows, wanted in self._decoded(name, place, inside):
            parts.append(column.take(pa.array(rows)))
            values[wanted] = np.arange(count, count + len(rows))
            count += len(rows)
        return pa.concat_arrays(parts).take(pa.array(values))

    def nested_fitting(self, names: Iterable[str], place: Int32Array, inside: Int32Array, limit_bytes: int) -> int:
        """How many of these rows, from the first on, have nested values that take no more than `limit_bytes` while they are
        put together; one at least."""
        sizes = np.zeros(len(place), np.int64)
        for name in names:
            if name in self._columns.layout.nested:
                for column, rows, wanted in self._decoded(name, place, inside):
                    sizes[wanted] += sizes_of([column], len(column))[rows]
        return max(1, fitting(_NESTED_COPIES * sizes, limit_bytes)) if sizes.any() else len(place)

    def _decoded(self, name: str, place: Int32Array, inside: Int32Array) -> Iterator[tuple[pa.Array, Int32Array, Int64Array]]:
        """A nested column of each page that rows lie on, which of its values they are, and which of the rows."""
        order = np.argsort(place, kind="stable")
        order = order[np.searchsorted(place[order], 0) :]
        pages, starts = np.unique(place[order], return_index=True)
        for page, wanted in zip(pages.tolist(), np.split(order, starts[1:]), strict=False):
            size = int(self._index.sizes[self.pages[page]])
            message = pa.foreign_buffer(int(self._addresses[page]), size, self._keep)
            column = pa.ipc.read_record_batch(message, self._columns.layout.page_schema).column(name)
            yield column, inside[wanted], wanted
