"""`ParquetTable`: Parquet files of a lake as master data, scanned in place."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from millrace.core.errors import SchemaError
from millrace.relations.parquet import ParquetRelation, ParquetSource, list_files
from millrace.spark.planned import PlannedTable
from millrace.spark.schema import arrow_schema


class ParquetTable:
    """Nothing to build: every group of stream rows is joined in one scan of the files.

    A micro-batch sees the files that were there at its timestamp, so files may be added while a query runs, and a batch that
    is replayed sees what it saw before. Files that were there when `enrich` was called must stay as they are.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(Path(path).absolute())
        list_files(path)  # says what is wrong

    def planned(self, stream: DataFrame, key: tuple[str, ...]) -> PlannedTable:
        """For `enrich`: columns and types as Spark sees them now."""
        files = list_files(self.path)
        schema = arrow_schema(stream.sparkSession.read.parquet(self.path).schema)
        for name in key:
            if name not in schema.names:
                raise SchemaError(f"{self.path} has no column {name!r}; it has {', '.join(schema.names)}")
        opened = partial(_open, path=self.path, known=files, schema=schema, key=key)
        return PlannedTable(Path(self.path).name, self.path, schema, key, None, "meshjoin", opened)


def _open(
    timestamp_us: int,
    columns: tuple[str, ...],
    path: str,
    known: tuple[ParquetSource, ...],
    schema: pa.Schema,
    key: tuple[str, ...],
) -> ParquetRelation:
    """For a task: the files that were known when the query was planned, and those that came before the batch."""
    wanted = pa.schema([field for field in schema if field.name in key or field.name in columns] or [schema.field(0)])
    names = {source.path for source in known}
    added = [source for source in list_files(path) if source.path not in names]
    before = [source for source in added if source.here_since_ns <= timestamp_us * 1000]
    return ParquetRelation((*known, *before), wanted, key)
