"""Tables to estimate from: Parquet, Arrow, DuckDB. Each is read in an order that is as random as it can be made cheaply.

pa.Table                        rows in random order
Parquet, small                  read, then as a table
Parquet                         row groups in random order: blocks, not rows (`row_groups`)
RecordBatchReader, DuckDB       copied to a temporary Parquet file first: how many rows there are must be known
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.core.errors import ParameterError, SpillError
from millrace.online.tables.row_groups import ParquetSource
from millrace.streams.permutation import Permutation

_STAGED_ROWS = 1 << 17
_SMALL_PERMUTATION = 1 << 20


class Source(Protocol):
    """A table that can be read more than once."""

    rows: int
    schema: pa.Schema
    random: bool  # rows come in random order; otherwise blocks of about `block_rows` do
    block_rows: int
    blocks: int
    held_bytes: int  # of our memory

    def batches(self, columns: Sequence[str], rows: int, seed: int) -> Iterator[pa.RecordBatch]:
        """All rows, in batches of at most so many; the order depends on the seed."""
        ...

    def sample(self, columns: Sequence[str], blocks: int, rows: int, seed: int) -> list[pa.RecordBatch]:
        """At most so many rows of each of so many blocks. Of a table in random order, any rows will do."""
        ...

    def sampled_rows(self, blocks: int, seed: int) -> list[int]:
        """How many rows the blocks of such a sample have."""
        ...

    def null_free(self, column: str) -> bool: ...

    def row_bytes(self, columns: Sequence[str]) -> int:
        """About what a row takes in memory."""
        ...

    def close(self) -> None: ...


class TableSource:
    """A table in memory, row by row in random order. `held_bytes`: what it takes, if it is not the user's own."""

    def __init__(self, table: pa.Table, held_bytes: int = 0) -> None:
        self._table, self.held_bytes = table, held_bytes
        self.rows, self.schema = table.num_rows, table.schema
        self.random, self.block_rows, self.blocks = True, 1, table.num_rows

    def batches(self, columns: Sequence[str], rows: int, seed: int) -> Iterator[pa.RecordBatch]:
        table = self._table.select(list(columns))
        places = _permutation(self.rows, seed)
        for first in range(0, self.rows, rows):
            yield _batch(table.take(pa.array(places(first, min(self.rows, first + rows)))))

    def sample(self, columns: Sequence[str], blocks: int, rows: int, seed: int) -> list[pa.RecordBatch]:
        return list(itertools.islice(self.batches(columns, max(1, min(rows, self.rows // blocks)), seed), blocks))

    def sampled_rows(self, blocks: int, seed: int) -> list[int]:
        return [1] * blocks

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
