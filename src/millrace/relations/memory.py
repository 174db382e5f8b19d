"""A relation held in memory that counts page reads: what tests and examples join with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.errors import ParameterError, SchemaError
from millrace.core.keys import KeyCodec
from millrace.core.protocols import PageRuns
from millrace.core.rowbytes import within
from millrace.relations.frequency import KeyEntries, frequency_order, key_entries


class MemoryRun:
    """Pages of a `MemoryRelation`."""

    def __init__(self, relation: MemoryRelation, pages: Int64Array) -> None:
        self.pages = pages
        self._batch = relation.batch
        self._starts = pages * relation.rows_per_page
        ends = np.minimum(self._starts + relation.rows_per_page, relation.rows)
        sizes = ends - self._starts
        self._bases = np.concatenate(([0], np.cumsum(sizes)))
        self.rows = int(self._bases[-1])
        self._positions = np.arange(self.rows) + np.repeat(self._starts - self._bases[:-1], sizes)
        self._codes = relation.codes[self._positions]

    @property
    def codes(self) -> Int64Array:
        return self._codes

    def match(self, codes: Int64Array, pages: Int64Array) -> tuple[Int64Array, Int64Array]:
        first = np.zeros(len(codes), np.int64)
        counts = np.zeros(len(codes), np.int64)
        for i, at in enumerate(np.searchsorted(self.pages, pages)):
            base, end = self._bases[at], self._bases[at + 1]
            page = self._codes[base:end]
            first[i] = base + np.searchsorted(page, codes[i], "left")
            counts[i] = base + np.searchsorted(page, codes[i], "right") - first[i]
        return first, counts

    def take(self, rows: Int64Array, columns: Sequence[str], limit_bytes: int | None = None) -> pa.RecordBatch:
        return within(self._batch.select(list(columns)).take(pa.array(self._positions[rows])), limit_bytes)


class MemoryFrames:
    """Pages of a `MemoryRelation` that stay: it has them all, so only the reads are noted."""

    def __init__(self, relation: MemoryRelation) -> None:
        self._relation = relation

    def load(self, pages: Int64Array, frames: Int64Array, *, each: bool = False) -> None:
        starts = np.arange(len(pages)) if each else np.flatnonzero(np.diff(pages, prepend=-2) != 1)
        counts = np.diff(starts, append=len(pages))
        self._relation.reads.extend(zip(pages[starts].tolist(), counts.tolist(), strict=True))

    def run(self, pages: Int64Array, frames: Int64Array) -> MemoryRun:
        return MemoryRun(self._relation, pages)


class MemoryRelation:
    """Rows of a batch as pages of `rows_per_page`, sorted by key code unless `indexed` is false.

    With `counts`, one number for each row of the batch, keys with high counts come first, and rows are sorted by code only
    inside their pages. `reads` lists every read as (first page, pages): what the tests of I/O look at.
    """

    resident = False

    def __init__(
        self,
        batch: pa.RecordBatch | pa.Table,
        key: str | Sequence[str],
        rows_per_page: int = 8,
        *,
        indexed: bool = True,
        codec: KeyCodec | None = None,
        counts: Sequence[float] | None = None,
    ) -> None:
        if rows_per_page < 1:
            raise ParameterError(f"rows_per_page must be at least 1; got {rows_per_page}")
        self.key = (key,) if isinstance(key, str) else tuple(key)
        for name in self.key:
            if name not in batch.schema.names:
                raise SchemaError(f"the table has no column {name!r}; it has {', '.join(batch.schema.names)}")
        if isinstance(batch, pa.Table):
            batch = pa.RecordBatch.from_arrays([column.combine_chunks() for column in batch.columns], schema=batch.schema)
        self.indexed = indexed
        self.codec = codec or KeyCodec(tuple(batch.schema.field(name).type for name in self.key))
        encoded = self.codec.encode([batch.column(name) for name in self.key])
        order = np.flatnonzero(encoded.valid)
        if counts is not None:
            order = order[frequency_order(encoded.codes[order], np.asarray(counts, np.float64)[order])]
            order = order[np.lexsort((encoded.codes[order], np.arange(len(order)) // rows_per_page))]
        elif indexed:
            order = order[np.argsort(encoded.codes[order], kind="stable")]
        self.batch = batch.take(pa.array(order))
        self.codes = encoded.codes[order]
        self.schema = batch.schema
        self.rows = len(order)
        self.rows_per_page = rows_per_page
        self.pages = -(-self.rows // rows_per_page)
        self.page_bytes = max(1, rows_per_page * (max(1, self.batch.nbytes) // max(1, self.rows) + 8))
        self.unique = len(np.unique(self.codes)) == self.rows
        self._firsts = self.codes[0::rows_per_page]
        self._lasts = np.append(self.codes[rows_per_page - 1 :: rows_per_page], self.codes[-1:])[: self.pages]
        self._entries = key_entries(self.codes, np.arange(self.rows) // rows_per_page) if counts is not None else None
        self.reads: list[tuple[int, int]] = []

    def append(self, batch: pa.RecordBatch) -> None:
        """More rows, at the end: what an index-free relation that others write to looks like to a join."""
        if self.indexed:
            raise ParameterError("rows can be appended only to a relation without an index: its rows are in no order")
        encoded = self.codec.encode([batch.column(name) for name in self.key])
        valid = np.flatnonzero(encoded.valid)
        self.batch = pa.concat_batches([self.batch, batch.take(pa.array(valid))])
        self.codes = np.concatenate((self.codes, encoded.codes[valid]))
        self.rows = len(self.codes)
        self.pages = -(-self.rows // self.rows_per_page)
        self.unique = len(np.unique(self.codes)) == self.rows

    def locate(self, codes: Int64Array) -> PageRuns:
        if self._entries is not None:
            return _look_up(self._entries, codes)
        first = np.searchsorted(self._lasts, codes, "left")
        return PageRuns(first, np.searchsorted(self._firsts, codes, "right") - 1)

    def read(self, first: int, count: int) -> MemoryRun:
        if first < 0 or count < 1 or first + count > self.pages:
            raise ParameterError(f"pages {first} to {first + count - 1} do not exist: the relation has {self.pages} pages")
        self.reads.append((first, count))
        return MemoryRun(self, np.arange(first, first + count))

    def read_many(self, firsts: Int64Array, counts: Int64Array) -> MemoryRun:
        runs = [np.arange(first, first + count) for first, count in zip(firsts, counts, strict=True)]
        self.reads.extend((int(first), int(count)) for first, count in zip(firsts, counts, strict=True))
        return MemoryRun(self, np.concatenate(runs))

    def frames(self, count: int) -> MemoryFrames:
        return MemoryFrames(self)


def _look_up(entries: KeyEntries, codes: Int64Array) -> PageRuns:
    first, last = np.zeros(len(codes), np.int64), np.full(len(codes), -1)
    if len(entries.codes):
        place = np.minimum(np.searchsorted(entries.codes, codes), len(entries.codes) - 1)
        there = entries.codes[place] == codes
        first[there], last[there] = entries.firsts[place[there]], entries.lasts[place[there]]
    return PageRuns(first, last)
