"""Tables to estimate from: Parquet, Arrow, DuckDB. Each is read in an order that is as random as it can be made cheaply.

pa.Table                        rows in random order
Parquet, small                  read, then as a table
Parquet                         row groups in random order, rows shuffled inside: blocks, not rows
RecordBatchReader, DuckDB       copied to a temporary Parquet file first: how many rows there are must be known
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.core.errors import DamagedTableError, ParameterError, SchemaError, SpillError, TableError
from millrace.relations.parquet import list_files
from millrace.streams.permutation import Permutation

_READ_BYTES = 1 << 20  # of a column, at a time
_STAGED_ROWS = 1 << 17
_SMALL_PERMUTATION = 1 << 20


class Source(Protocol):
    """A table that can be read more than once."""

    rows: int
    schema: pa.Schema
    random: bool  # rows come in random order; otherwise blocks of about `block_rows` do
    block_rows: int
    held_bytes: int  # of our memory

    def batches(self, columns: Sequence[str], rows: int, seed: int) -> Iterator[pa.RecordBatch]:
        """All rows, in batches of at most so many; the order depends on the seed."""
        ...

    def sample(self, columns: Sequence[str], blocks: int, rows: int, seed: int) -> list[pa.RecordBatch]:
        """At most so many rows of each of so many blocks. Of a table in random order, any rows will do."""
        ...

    def null_free(self, column: str) -> bool: ...

    def row_bytes(self, columns: Sequence[str]) -> int:
        """About what a row takes in memory."""
        ...

    def close(self) -> None: ...


class TableSource:
    """A table in memory, row by row in random order. `held_bytes`: what it takes, if it is not the user's own."""

    random = True

    def __init__(self, table: pa.Table, held_bytes: int = 0) -> None:
        self._table, self.held_bytes = table, held_bytes
        self.rows, self.schema = table.num_rows, table.schema
        self.block_rows = 1

    def batches(self, columns: Sequence[str], rows: int, seed: int) -> Iterator[pa.RecordBatch]:
        table = self._table.select(list(columns))
        places = _permutation(self.rows, seed)
        for first in range(0, self.rows, rows):
            yield _batch(table.take(pa.array(places(first, min(self.rows, first + rows)))))

    def sample(self, columns: Sequence[str], blocks: int, rows: int, seed: int) -> list[pa.RecordBatch]:
        return [
            batch
            for batch, _ in zip(
                self.batches(columns, max(1, min(rows, self.rows // blocks)), seed), range(blocks), strict=False
            )
        ]

    def null_free(self, column: str) -> bool:
        return bool(self._table.column(column).null_count == 0)

    def row_bytes(self, columns: Sequence[str]) -> int:
        return -(-self._table.select(list(columns)).nbytes // max(1, self.rows))

    def close(self) -> None:
        pass


def _permutation(rows: int, seed: int) -> Any:
    """Places of rows from first to last in a random order; without a table of them where there are many."""
    if rows <= _SMALL_PERMUTATION:
        order = np.random.default_rng(seed).permutation(rows)
        return lambda first, last: order[first:last]
    scattered = Permutation(rows, seed)
    return lambda first, last: scattered.apply(np.arange(first, last, dtype=np.int64))


def _batch(table: pa.Table) -> pa.RecordBatch:
    found = table.combine_chunks().to_batches()
    return found[0] if found else pa.RecordBatch.from_arrays([pa.array([], f.type) for f in table.schema], schema=table.schema)


class ParquetSource:
    """Files, row group by row group."""

    random = False
    held_bytes = 0

    def __init__(self, folder: str | Path) -> None:
        self.folder = folder
        self._files = [_open(source.path) for source in list_files(folder)]
        self.schema = self._files[0].schema_arrow
        self._groups: list[tuple[int, int]] = []
        for number, file in enumerate(self._files):
            for group in range(file.metadata.num_row_groups):
                if file.metadata.row_group(group).num_rows:
                    self._groups.append((number, group))
        self.rows = sum(file.metadata.num_rows for file in self._files)
        self.block_rows = max(1, -(-self.rows // max(1, len(self._groups))))

    def check(self, columns: Sequence[str]) -> None:
        """All files have these columns, with one type."""
        for file in self._files[1:]:
            for name in columns:
                found = file.schema_arrow.get_field_index(name)
                if found < 0 or file.schema_arrow.field(found).type != self.schema.field(name).type:
                    kind = "no such column" if found < 0 else str(file.schema_arrow.field(found).type)
                    raise SchemaError(
                        f"the files of {self.folder} differ: column {name!r} is {self.schema.field(name).type} in one and "
                        f"{kind} in another; rewrite them with one schema"
                    )

    def batches(self, columns: Sequence[str], rows: int, seed: int) -> Iterator[pa.RecordBatch]:
        for place in np.random.default_rng(seed).permutation(len(self._groups)):
            yield from self._read(int(place), columns, rows)

    def sample(self, columns: Sequence[str], blocks: int, rows: int, seed: int) -> list[pa.RecordBatch]:
        order = np.random.default_rng(seed).permutation(len(self._groups))[:blocks]
        return [batch for place in order for batch in self._first(int(place), columns, rows)]

    def _first(self, place: int, columns: Sequence[str], rows: int) -> list[pa.RecordBatch]:
        found = self._read(place, columns, rows)
        try:
            return [next(found)]
        except StopIteration:
            return []
        finally:
            found.close()

    def _read(self, place: int, columns: Sequence[str], rows: int) -> Any:
        number, group = self._groups[place]
        try:
            yield from self._files[number].iter_batches(rows, row_groups=[group], columns=list(columns), use_threads=False)
        except (pa.ArrowException, OSError) as damaged:
            raise DamagedTableError(f"row group {group} of a file in {self.folder} can't be read: {damaged}") from damaged

    def read(self, columns: Sequence[str]) -> pa.Table:
        parts = [batch for place in range(len(self._groups)) for batch in self._read(place, columns, self.block_rows)]
        return pa.Table.from_batches(parts, pa.schema([self.schema.field(name) for name in columns]))

    def null_free(self, column: str) -> bool:
        return all(self._nulls(number, group, column) == 0 for number, group in self._groups)

    def _nulls(self, number: int, group: int, column: str) -> int | None:
        found = self._chunk(number, group, column)
        if found is None or found.statistics is None or not found.statistics.has_null_count:
            return None
        return int(found.statistics.null_count)

    def _chunk(self, number: int, group: int, column: str) -> Any:
        metadata = self._files[number].metadata.row_group(group)
        chunks = (metadata.column(i) for i in range(metadata.num_columns))
        return next((chunk for chunk in chunks if chunk.path_in_schema == column), None)

    def row_bytes(self, columns: Sequence[str]) -> int:
        """Fixed-width columns by their type, others as one row group has them."""
        total = 0
        for name in columns:
            kind = self.schema.field(name).type
            if pa.types.is_primitive(kind) and not pa.types.is_boolean(kind):
                total += -(-kind.bit_width // 8)
                continue
            chunk = self._chunk(*self._groups[0], name) if self._groups else None
            total += 16 if chunk is None else 8 + 2 * chunk.total_uncompressed_size // max(1, chunk.num_values)
        return max(1, total)

    def close(self) -> None:
        for file in self._files:
            file.close()


def _open(path: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as wrong:
        raise TableError(f"{path} can't be read as a Parquet file: {str(wrong).splitlines()[0]}") from None


class StagedSource(ParquetSource):
    """Rows that can be read once only, copied to a temporary file that goes with `close`."""

    def __init__(self, reader: pa.RecordBatchReader, folder: str | Path | None) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="millrace-", dir=folder, ignore_cleanup_errors=True)
        try:
            path = Path(self._temporary.name) / "rows.parquet"
            _stage(reader, path)
            super().__init__(path)
        except BaseException:
            self._temporary.cleanup()
            raise

    def close(self) -> None:
        super().close()
        self._temporary.cleanup()


def _stage(reader: pa.RecordBatchReader, path: Path) -> None:
    try:
        with pq.ParquetWriter(path, reader.schema, compression="lz4") as writer:
            held: list[pa.RecordBatch] = []
            for batch in reader:
                held.append(batch)
                if sum(part.num_rows for part in held) >= _STAGED_ROWS:
                    writer.write_table(pa.Table.from_batches(held), row_group_size=_STAGED_ROWS)
                    held = []
            if held:
                writer.write_table(pa.Table.from_batches(held), row_group_size=_STAGED_ROWS)
    except OSError as refused:
        raise SpillError(
            f"rows can't be copied to {path.parent.parent}: {refused}; name another folder with spill="
        ) from refused


def open_source(given: Any, which: str, folder: str | Path | None) -> Source:
    """What a user gave for one side."""
    if isinstance(given, (str, Path)):
        return ParquetSource(given)
    if isinstance(given, pa.Table):
        return TableSource(given)
    if isinstance(given, pa.RecordBatch):
        return TableSource(pa.Table.from_batches([given]))
    if isinstance(given, pa.RecordBatchReader):
        return StagedSource(given, folder)
    module = type(given).__module__.split(".")[0]
    if module in ("duckdb", "_duckdb"):
        return StagedSource(_duckdb_reader(given), folder)
    if module == "pyspark":
        raise ParameterError(
            f"the {which} input is a Spark DataFrame, and estimates on Spark are not there yet; write it as Parquet and "
            "give the folder"
        )
    raise ParameterError(
        f"the {which} input must be a Parquet folder or file, a pyarrow Table or RecordBatchReader, or a DuckDB relation; "
        f"got {type(given).__name__}"
    )


def _duckdb_reader(relation: Any) -> pa.RecordBatchReader:
    found = (
        relation.to_arrow_reader(_STAGED_ROWS)
        if hasattr(relation, "to_arrow_reader")
        else relation.fetch_record_batch(_STAGED_ROWS)
    )
    return found if isinstance(found, pa.RecordBatchReader) else pa.RecordBatchReader.from_stream(found)


def loaded(source: Source, columns: Sequence[str], most_bytes: int) -> Source:
    """The source itself, or its columns in memory if they take no more than so many bytes."""
    if isinstance(source, ParquetSource):
        source.check(columns)
    if isinstance(source, ParquetSource) and source.rows * source.row_bytes(columns) <= most_bytes:
        table = source.read(columns)
        source.close()
        return TableSource(table, table.nbytes)
    return source
