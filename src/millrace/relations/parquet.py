"""Parquet files as a relation: nothing to build, scanned in place.

A page is a slice of a row group. Pages are decoded in order, a few thousand rows at a time, so a scan needs memory for some
pages and never for a whole row group; going back, or ahead, starts the row group again. There is no index.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.core.errors import DamagedTableError, ParameterError, SchemaError, TableError
from millrace.core.keys import KeyCodec
from millrace.core.step import Int64Array

ROWS_PER_PAGE = 8192


@dataclass(frozen=True)
class ParquetSource:
    """A file as it was when the table was listed; a file that is another one later is an error, never other rows."""

    path: str
    bytes: int
    modified_ns: int


def list_files(folder: str | Path) -> tuple[ParquetSource, ...]:
    """The Parquet files under a folder (or the one file), by name; names that start with _ or . are hidden."""
    root = Path(folder)
    if not root.exists():
        raise TableError(f"there is no Parquet folder at {root}")
    found = [root] if root.is_file() else sorted(root.rglob("*.parquet"))
    paths = [path for path in found if not _hidden(path.relative_to(root))]
    if not paths:
        raise TableError(f"{root} holds no Parquet files (*.parquet)")
    parted = next((path for path in paths if "=" in str(path.relative_to(root).parent)), None)
    if parted is not None:
        raise TableError(
            f"{root} is partitioned ({parted.parent.name}), and the partition columns are not in the files: read it with Spark "
            "and build a MasterTable from it"
        )
    stats = [(path, path.stat()) for path in paths]
    return tuple(ParquetSource(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats)


def _hidden(relative: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in relative.parts)


class ParquetRun:
    """Decoded pages."""

    def __init__(self, relation: ParquetRelation, first: int, count: int, batch: pa.RecordBatch) -> None:
        self.pages = np.arange(first, first + count)
        encoded = relation.codec.encode([batch.column(name) for name in relation.key])
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

    def take(self, rows: Int64Array, columns: Sequence[str]) -> pa.RecordBatch:
        return self._batch.select(list(columns)).take(pa.array(rows))


class ParquetRelation:
    """Files scanned in place. `schema` gives the columns to read and the types they are to have."""

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
        self._groups: list[tuple[int, int, int]] = []  # (file, row group, first page)
        self.rows = self.pages = 0
        for number, source in enumerate(self._files):
            metadata = self._open(source).metadata
            for group in range(metadata.num_row_groups):
                rows = metadata.row_group(group).num_rows
                if rows:
                    self._groups.append((number, group, self.pages))
                    self.pages += -(-rows // rows_per_page)
                    self.rows += rows
        self._starts = [start for _, _, start in self._groups]
        self.page_bytes = self._measure()
        self.reads = self.bytes_read = 0
        self._position = -1
        self._stream: Iterator[pa.RecordBatch] | None = None

    def read(self, first: int, count: int) -> ParquetRun:
        if first < 0 or count < 1 or first + count > self.pages:
            raise ParameterError(f"pages {first} to {first + count - 1} do not exist: the table has {self.pages} pages")
        pages = [self._page(page) for page in range(first, first + count)]
        batch = pages[0] if len(pages) == 1 else pa.concat_batches(pages)
        self.reads += 1
        self.bytes_read += batch.nbytes
        return ParquetRun(self, first, count, batch)

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
        stream: Iterator[pa.RecordBatch] = file.iter_batches(
            self._rows_per_page, row_groups=[group], columns=self.schema.names, use_threads=False
        )
        return stream

    def _open(self, source: ParquetSource) -> pq.ParquetFile:
        path = Path(source.path)
        try:
            stat = path.stat()
            if (stat.st_size, stat.st_mtime_ns) != (source.bytes, source.modified_ns):
                raise self._changed(source)
            return pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
        except FileNotFoundError:
            raise TableError(f"{path} has vanished since the query was planned; start the query again") from None
        except (OSError, pa.ArrowException) as broken:
            raise DamagedTableError(f"{path} can't be read as Parquet ({broken})") from broken

    def _fitted(self, batch: pa.RecordBatch, source: ParquetSource) -> pa.RecordBatch:
        """Columns by name, in the types the query was planned with."""
        columns = []
        for field in self.schema:
            if field.name not in batch.schema.names:
                raise SchemaError(f"{source.path} has no column {field.name!r}: its schema is not that of the other files")
            column = batch.column(field.name)
            columns.append(column if column.type == field.type else column.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _changed(self, source: ParquetSource) -> TableError:
        return TableError(f"{source.path} was replaced since the query was planned; start the query again")

    def _measure(self) -> int:
        """Bytes of a decoded page: of the first page of the files with the most bytes, with half as much again for others."""
        largest = 1
        for number, group, _ in self._groups[:: max(1, len(self._groups) // 4)][:4]:
            batch = self._fitted(next(self._batches(self._files[number], group)), self._files[number])
            largest = max(largest, batch.nbytes * self._rows_per_page // max(1, batch.num_rows))
        return largest * 3 // 2
