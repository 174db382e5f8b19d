"""Parquet files as a relation: nothing to build, scanned in place.

A page is a slice of a row group, of at most 8,192 rows and about a megabyte, as the footers say how long rows are. Pages are
decoded in order, so a scan needs memory for some pages and never for a whole row group; a read that finds longer rows than it
has room for ends early. Going back, or ahead, starts the row group again. There is no index, but the statistics
that most writers leave in the files say between which keys a row group lies (`zones`), and a scan skips those nobody waits for.

Folders may be partitioned as Hive and Spark do it (`day=2024-05-01/part-0.parquet`): the column is in the names only.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.core.arrays import Int64Array
from millrace.core.errors import DamagedTableError, ParameterError, SchemaError, TableError
from millrace.core.keys import Codes, KeyCodec
from millrace.core.protocols import Zones
from millrace.core.rowbytes import fitting, has_fixed_width, sizes_of
from millrace.relations.parquet_columns import AS_WRITTEN, FileColumns, Reading
from millrace.relations.parquet_files import ParquetSource
from millrace.relations.partition_values import partition_value

ROWS_PER_PAGE = 8192  # at most; fewer where rows are long
PAGE_BYTES = 1 << 20
_COLUMN_BYTES = 1 << 20  # of a page, or a dictionary, in a file: what most writers make of them
_LEAST_BUFFER, _MOST_BUFFER, _BUFFERS = 1 << 16, 1 << 18, 1 << 21
_SAMPLE_ROWS = 256
_SAMPLES = 8  # row groups that are looked into
_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class ParquetRun:
    """Decoded pages."""

    def __init__(self, relation: ParquetRelation, first: int, count: int, batch: pa.RecordBatch) -> None:
        self.pages = np.arange(first, first + count)
        encoded = relation.encode(batch)
        if encoded.nulls.any():  # a null key never matches: such rows are not part of the relation
            kept = np.flatnonzero(~encoded.nulls)
            batch = batch.take(pa.array(kept))
            self._codes = encoded.codes[kept]
        else:
            self._codes = encoded.codes
        self._batch = batch
        self.rows = batch.num_rows

    @property
    def codes(self) -> Int64Array:
        return self._codes

    def match(self, codes: Int64Array, pages: Int64Array) -> tuple[Int64Array, Int64Array]:
        raise SchemaError("Parquet pages are not sorted by key: nothing can be looked up in them")

    def take(self, rows: Int64Array, columns: Sequence[str], limit_bytes: int | None = None) -> pa.RecordBatch:
        batch = self._batch.select(list(columns))
        if limit_bytes is not None and not all(has_fixed_width(kind) for kind in batch.schema.types):
            sizes = sizes_of(batch.columns, batch.num_rows)[rows]
            rows = rows[: max(1, fitting(sizes, limit_bytes))]
        return batch.take(pa.array(rows))


class ParquetRelation:
    """Files scanned in place. `schema` gives the columns to read and the types they are to have. A relation that is joined by a
    condition needs no key. `pinned`: the list of files was written down by an earlier run."""

    resident = False

    def __init__(
        self,
        files: Sequence[ParquetSource],
        schema: pa.Schema,
        key: str | Sequence[str],
        *,
        rows_per_page: int = ROWS_PER_PAGE,
        reading: Reading = AS_WRITTEN,
        pinned: bool = False,
    ) -> None:
        if rows_per_page < 1:
            raise ParameterError(f"rows_per_page must be at least 1; got {rows_per_page}")
        self.key = (key,) if isinstance(key, str) else tuple(key)
        for name in self.key:
            if name not in schema.names:
                raise SchemaError(f"the table has no column {name!r} to use as key; it has {', '.join(schema.names)}")
        self.schema = schema
        self.codec = KeyCodec(tuple(schema.field(name).type for name in self.key))
        self._files = tuple(files)
        self._rows_per_page = rows_per_page
        self._reading = reading
        self._buffer_bytes = max(_LEAST_BUFFER, min(_MOST_BUFFER, _BUFFERS // max(1, len(schema))))  # for each column
        self._pinned = pinned
        self._opened: tuple[ParquetSource, pq.ParquetFile, FileColumns] | None = None  # the last file
        self._groups: list[tuple[int, int, int]] = []  # (file, row group, first page)
        self._page_rows: list[int] = []  # of each row group
        self._stored_bytes: list[float] = []  # of a row of each row group, in the file: the columns that are read
        self._position = -1
        self._stream: Iterator[pa.RecordBatch] | None = None
        self._ahead: pa.RecordBatch | None = None  # the page at `_position`, if it was decoded and had no room
        self._divide()
        self._starts = [start for _, _, start in self._groups]
        self.longest_page_rows = max(self._page_rows, default=1)
        self.reads = 0
        self.bytes_read = self.read_seconds = 0.0

    def encode(self, batch: pa.RecordBatch) -> Codes:
        """Codes of rows; where there is no key, all are 0 and every row is part of the relation."""
        if self.key:
            return self.codec.encode([batch.column(name) for name in self.key])
        return Codes(np.zeros(batch.num_rows, np.int64), *np.array([[True], [False]]).repeat(batch.num_rows, 1))

    def read(self, first: int, count: int) -> ParquetRun:
        if first < 0 or count < 1 or first + count > self.pages:
            raise ParameterError(f"pages {first} to {first + count - 1} do not exist: the table has {self.pages} pages")
        pages: list[pa.RecordBatch] = []
        left = count * self.page_bytes
        before = time.perf_counter()
        for page in range(first, first + count):
            decoded = self._page(page)
            left -= decoded.nbytes
            if left < 0 and pages:
                self._position, self._ahead = page, decoded
                break
            pages.append(decoded)
        batch = pages[0] if len(pages) == 1 else pa.concat_batches(pages)
        self.reads += 1
        self.read_seconds += time.perf_counter() - before
        return ParquetRun(self, first, len(pages), batch)

    @cached_property
    def zones(self) -> Zones | None:
        """Between which key codes each row group lies, where the code of a key sorts like the key and the files say so."""
        if not self.codec.ordered:
            return None
        bounds = [self._bounds(self._files[file], group) for file, group, _ in self._groups]
        if all(bound == (_LEAST, _MOST) for bound in bounds):
            return None
        ends = np.array([*self._starts[1:], self.pages], np.int64)
        of_page = np.repeat(np.arange(len(self._groups)), ends - np.array(self._starts, np.int64))
        return Zones(of_page, np.array([low for low, _ in bounds], np.int64), np.array([high for _, high in bounds], np.int64))

    def _bounds(self, source: ParquetSource, group: int) -> tuple[int, int]:
        (name,) = self.key
        field = self.schema.field(name)
        parted = dict(source.partition)
        if name in parted:
            value = partition_value(source.path, field, parted[name], self._reading.zone)
            if not value.is_valid:
                return _MOST, _LEAST  # null keys only
            bounds = (value, value)
        else:
            self._open(source)
            found = self._columns.bounds(group, field)
            if found is None:
                return _LEAST, _MOST  # never skipped
            bounds = found
        codes = self.codec.encode([pa.array([bound.as_py() for bound in bounds], field.type)]).codes
        return int(codes[0]), int(codes[1])

    def take_io_counts(self) -> dict[str, float]:
        """What was read since the last call: bytes of the files, and the time that reading and decoding took."""
        counts = {"disk_reads": self.reads, "disk_bytes": round(self.bytes_read), "read_seconds": self.read_seconds}
        self.reads, self.bytes_read, self.read_seconds = 0, 0.0, 0.0
        return counts

    def _page(self, page: int) -> pa.RecordBatch:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and self._position == page:
            self._position = page + 1
            return ahead
        number = bisect.bisect_right(self._starts, page) - 1
        file, group, start = self._groups[number]
        if self._stream is None or self._position != page or ahead is not None or page == start:
            self._stream = self._batches(self._files[file], group, self._page_rows[number])
            for _ in range(page - start):
                next(self._stream)
            self.bytes_read += (page - start) * self._page_rows[number] * self._stored_bytes[number]
        try:
            batch = next(self._stream)
        except StopIteration:
            raise self._changed(self._files[file]) from None
        except (OSError, pa.ArrowException) as broken:
            self._stream = None
            raise DamagedTableError(f"{self._files[file].path}: row group {group} can't be read ({broken})") from broken
        self._position = page + 1
        self.bytes_read += batch.num_rows * self._stored_bytes[number]
        return self._fitted(batch, self._files[file])

    def _batches(self, source: ParquetSource, group: int, rows: int) -> Iterator[pa.RecordBatch]:
        file = self._open(source)
        columns = self._names_in(source)
        stream: Iterator[pa.RecordBatch] = file.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False)
        return stream

    @property
    def _columns(self) -> FileColumns:
        """Those of the file that was opened last."""
        assert self._opened is not None
        return self._opened[2]

    def _open(self, source: ParquetSource) -> pq.ParquetFile:
        path = Path(source.path)
        try:
            stat = path.stat()
            if (stat.st_size, stat.st_mtime_ns) != (source.bytes, source.modified_ns):
                raise self._changed(source)
            if self._opened is None or self._opened[0] != source:
                file = pq.ParquetFile(path, pre_buffer=False, buffer_size=self._buffer_bytes, coerce_int96_timestamp_unit="us")
                self._opened = (source, file, FileColumns(file, source.path, self._reading))
            return self._opened[1]
        except FileNotFoundError:
            raise TableError(f"{path} has vanished since {self._advice}") from None
        except (OSError, pa.ArrowException) as broken:
            raise DamagedTableError(f"{path} can't be read as Parquet ({broken})") from broken

    def _fitted(self, batch: pa.RecordBatch, source: ParquetSource) -> pa.RecordBatch:
        """Columns by name, in the types the query was planned with."""
        self._open(source)  # another file may have been opened meanwhile
        parted = dict(source.partition)
        columns = []
        for field in self.schema:
            if field.name in parted:
                value = partition_value(source.path, field, parted[field.name], self._reading.zone)
                columns.append(pa.repeat(value, batch.num_rows))
            else:
                columns.append(self._columns.column(batch, field))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _changed(self, source: ParquetSource) -> TableError:
        return TableError(f"{source.path} was replaced since {self._advice}")

    @property
    def _advice(self) -> str:
        if self._pinned:
            return "this batch was first run; put it back as it was, or start the query with a new checkpoint"
        return "the query was planned; start the query again"

    def _divide(self) -> None:
        """Cut row groups into pages, and say how many bytes a page has at most, as far as footers and samples tell."""
        sizes: list[tuple[int, int]] = []  # rows and bytes of each row group
        in_file: list[int] = []  # bytes of each row group as they are stored
        self.reader_bytes = 0  # what reading takes beside decoded pages
        for number, source in enumerate(self._files):
            metadata = self._open(source).metadata
            leaves = self._columns.leaves(self._names_in(source))
            for group in range(metadata.num_row_groups):
                about = metadata.row_group(group)
                if about.num_rows:
                    chunks = [about.column(leaf) for leaf in leaves]
                    self._groups.append((number, group, 0))
                    sizes.append((about.num_rows, sum(chunk.total_uncompressed_size for chunk in chunks)))
                    in_file.append(sum(chunk.total_compressed_size for chunk in chunks))
                    self.reader_bytes = max(self.reader_bytes, sum(map(self._chunk_bytes, chunks)))
        sampled = self._sampled(sizes)
        usual = float(np.median([*sampled.values()])) if sampled else 1.0
        self.rows = self.pages = 0
        self.page_bytes = 1
        for number, (rows, encoded_bytes) in enumerate(sizes):
            each = max(1.0, encoded_bytes / rows, sampled.get(number, usual))
            most = int(max(1, min(self._rows_per_page, rows, PAGE_BYTES // each)))
            self._page_rows.append(most)
            self._stored_bytes.append(in_file[number] / rows)
            self._groups[number] = (*self._groups[number][:2], self.pages)
            self.pages += -(-rows // most)
            self.rows += rows
            self.page_bytes = max(self.page_bytes, int(1.5 * each * most))

    def _names_in(self, source: ParquetSource) -> list[str]:
        """Columns that are read of the file that was opened last: those that are not in its path."""
        parted = {name for name, _ in source.partition}
        return self._columns.names([name for name in self.schema.names if name not in parted])

    def _chunk_bytes(self, chunk: Any) -> int:
        """What reading a column of a row group holds: bytes of the file, a page of it, and its dictionary."""
        held = min(chunk.total_compressed_size, self._buffer_bytes)
        return int(held + 2 * min(chunk.total_uncompressed_size, _COLUMN_BYTES))

    def _sampled(self, sizes: Sequence[tuple[int, int]]) -> dict[int, float]:
        """Bytes of a row in some row groups, when it is decoded: dictionaries and runs make files shorter than their rows."""
        found = {}
        for number in range(0, len(sizes), max(1, len(sizes) // _SAMPLES)):
            file, group, _ = self._groups[number]
            rows = min(sizes[number][0], _SAMPLE_ROWS)
            batch = self._fitted(next(self._batches(self._files[file], group, rows)), self._files[file])
            found[number] = batch.nbytes / batch.num_rows
        return found
