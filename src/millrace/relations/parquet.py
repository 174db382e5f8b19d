"""Parquet files as a relation: nothing to build, scanned in place.

A page is a slice of a row group. Pages are decoded in order, a few thousand rows at a time, so a scan needs memory for some
pages and never for a whole row group; going back, or ahead, starts the row group again. There is no index, but the statistics
that most writers leave in the files say between which keys a row group lies (`zones`), and a scan skips those nobody waits for.

Folders may be partitioned as Hive and Spark do it (`day=2024-05-01/part-0.parquet`): the column is in the names only.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.core.errors import DamagedTableError, ParameterError, SchemaError, TableError
from millrace.core.keys import Codes, KeyCodec
from millrace.core.protocols import Zones
from millrace.core.rowbytes import fitting, has_fixed_width, sizes_of
from millrace.core.step import Int64Array

ROWS_PER_PAGE = 8192
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True)
class ParquetSource:
    """A file as it was when the table was listed; a file that is another one later is an error, never other rows."""

    path: str
    bytes: int
    modified_ns: int
    here_since_ns: int  # when it came under this name
    partition: tuple[tuple[str, str | None], ...] = ()  # columns that are in its path


def list_files(folder: str | Path) -> tuple[ParquetSource, ...]:
    """The Parquet files under a folder (or the one file), by name; names that start with _ or . are hidden."""
    return tuple(_source(path, stat, Path(folder)) for path, stat in _found(folder))


def _found(folder: str | Path) -> list[tuple[Path, Any]]:
    root = Path(folder)
    if not root.exists():
        raise TableError(f"there is no Parquet folder at {root}")
    found = [root] if root.is_file() else sorted(root.rglob("*.parquet"))
    paths = [path for path in found if not _hidden(path.relative_to(root))]
    if not paths:
        raise TableError(f"{root} holds no Parquet files (*.parquet)")
    return [(path, path.stat()) for path in paths]


def _source(path: Path, stat: Any, root: Path) -> ParquetSource:
    parts = path.relative_to(root).parts[:-1]
    named = [part.split("=", 1) for part in parts if "=" in part]
    values = tuple((unquote(name), None if value == _NULL_PARTITION else unquote(value)) for name, value in named)
    return ParquetSource(str(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, values)


def _hidden(relative: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in relative.parts)


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
    condition needs no key."""

    resident = False

    def __init__(
        self,
        files: Sequence[ParquetSource],
        schema: pa.Schema,
        key: str | Sequence[str],
        *,
        rows_per_page: int = ROWS_PER_PAGE,
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
        self._opened: tuple[ParquetSource, pq.ParquetFile] | None = None  # the last file
        self._groups: list[tuple[int, int, int]] = []  # (file, row group, first page)
        self.rows = self.pages = 0
        longest = 0  # rows of a row group
        for number, source in enumerate(self._files):
            metadata = self._open(source).metadata
            for group in range(metadata.num_row_groups):
                rows = metadata.row_group(group).num_rows
                if rows:
                    self._groups.append((number, group, self.pages))
                    self.pages += -(-rows // rows_per_page)
                    self.rows += rows
                    longest = max(longest, rows)
        self._starts = [start for _, _, start in self._groups]
        self.page_bytes = self._measure(min(longest, rows_per_page))
        self.reads = self.bytes_read = 0
        self._position = -1
        self._stream: Iterator[pa.RecordBatch] | None = None

    def encode(self, batch: pa.RecordBatch) -> Codes:
        """Codes of rows; where there is no key, all are 0 and every row is part of the relation."""
        if self.key:
            return self.codec.encode([batch.column(name) for name in self.key])
        return Codes(np.zeros(batch.num_rows, np.int64), *np.array([[True], [False]]).repeat(batch.num_rows, 1))

    def read(self, first: int, count: int) -> ParquetRun:
        if first < 0 or count < 1 or first + count > self.pages:
            raise ParameterError(f"pages {first} to {first + count - 1} do not exist: the table has {self.pages} pages")
        pages = [self._page(page) for page in range(first, first + count)]
        batch = pages[0] if len(pages) == 1 else pa.concat_batches(pages)
        self.reads += 1
        self.bytes_read += batch.nbytes
        return ParquetRun(self, first, count, batch)

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
        kind = self.schema.field(name).type
        parted = dict(source.partition)
        if name in parted:
            value = _partition_value(source, self.schema.field(name), parted[name])
            least = most = value
        else:
            metadata = self._open(source).metadata.row_group(group)
            columns = [metadata.column(i) for i in range(metadata.num_columns)]
            statistics = next((column.statistics for column in columns if column.path_in_schema == name), None)
            if statistics is None or not statistics.has_min_max:
                return _LEAST, _MOST
            try:
                least, most = (pa.scalar(value).cast(kind) for value in (statistics.min, statistics.max))
            except pa.ArrowException:
                return _LEAST, _MOST  # a type whose statistics we do not understand: never skipped
        if not least.is_valid:
            return _MOST, _LEAST  # null keys only
        codes = self.codec.encode([pa.array([least.as_py(), most.as_py()], kind)]).codes
        return int(codes[0]), int(codes[1])

    def take_io_counts(self) -> dict[str, float]:
        """What was read since the last call."""
        counts: dict[str, float] = {"disk_reads": self.reads, "disk_bytes": self.bytes_read}
        self.reads = self.bytes_read = 0
        return counts

    def _page(self, page: int) -> pa.RecordBatch:
        number = bisect.bisect_right(self._starts, page) - 1
        file, group, start = self._groups[number]
        if self._stream is None or self._position != page or page == start:
            self._stream = self._batches(self._files[file], group)
            for _ in range(page - start):
                next(self._stream)
        try:
            batch = next(self._stream)
        except StopIteration:
            raise self._changed(self._files[file]) from None
        except (OSError, pa.ArrowException) as broken:
            self._stream = None
            raise DamagedTableError(f"{self._files[file].path}: row group {group} can't be read ({broken})") from broken
        self._position = page + 1
        return self._fitted(batch, self._files[file])

    def _batches(self, source: ParquetSource, group: int) -> Iterator[pa.RecordBatch]:
        file = self._open(source)
        parted = {name for name, _ in source.partition}
        columns = [name for name in self.schema.names if name not in parted] or file.schema_arrow.names[:1]
        stream: Iterator[pa.RecordBatch] = file.iter_batches(
            self._rows_per_page, row_groups=[group], columns=columns, use_threads=False
        )
        return stream

    def _open(self, source: ParquetSource) -> pq.ParquetFile:
        path = Path(source.path)
        try:
            stat = path.stat()
            if (stat.st_size, stat.st_mtime_ns) != (source.bytes, source.modified_ns):
                raise self._changed(source)
            if self._opened is None or self._opened[0] != source:
                self._opened = (source, pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20))
            return self._opened[1]
        except FileNotFoundError:
            raise TableError(f"{path} has vanished since the query was planned; start the query again") from None
        except (OSError, pa.ArrowException) as broken:
            raise DamagedTableError(f"{path} can't be read as Parquet ({broken})") from broken

    def _fitted(self, batch: pa.RecordBatch, source: ParquetSource) -> pa.RecordBatch:
        """Columns by name, in the types the query was planned with."""
        columns = []
        parted = dict(source.partition)
        for field in self.schema:
            if field.name in parted:
                columns.append(pa.repeat(_partition_value(source, field, parted[field.name]), batch.num_rows))
                continue
            if field.name not in batch.schema.names:
                raise SchemaError(f"{source.path} has no column {field.name!r}: its schema is not that of the other files")
            column = batch.column(field.name)
            columns.append(column if column.type == field.type else column.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _changed(self, source: ParquetSource) -> TableError:
        return TableError(f"{source.path} was replaced since the query was planned; start the query again")

    def _measure(self, rows: int) -> int:
        """Bytes of a decoded page of so many rows: of the first pages of some row groups, and half as much again."""
        largest = 1
        for number, group, _ in self._groups[:: max(1, len(self._groups) // 4)][:4]:
            batch = self._fitted(next(self._batches(self._files[number], group)), self._files[number])
            largest = max(largest, batch.nbytes * rows // max(1, batch.num_rows))
        return largest * 3 // 2


def _partition_value(source: ParquetSource, field: pa.Field, text: str | None) -> pa.Scalar:
    """What a folder name says, in the type that the query was planned with."""
    if text is None:
        return pa.scalar(None, field.type)
    try:
        return pa.scalar(text).cast(field.type)
    except pa.ArrowException as wrong:
        raise SchemaError(f"{source.path}: {field.name}={text} in its path is no {field.type} ({wrong})") from wrong
