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

    The files are listed when `enrich` is called, and the query joins with exactly those until it is started again.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        list_files(path)  # says what is wrong

    def planned(self, stream: DataFrame, key: tuple[str, ...]) -> PlannedTable:
        """For `enrich`: the files as they are now, with columns and types as Spark sees them."""
        files = list_files(self.path)
        schema = arrow_schema(stream.sparkSession.read.parquet(self.path).schema)
        for name in key:
            if name not in schema.names:
                raise SchemaError(f"{self.path} has no column {name!r}; it has {', '.join(schema.names)}")
        opened = partial(_open, files=files, schema=schema, key=key)
        return PlannedTable(Path(self.path).name, schema, key, None, "meshjoin", opened)


def _open(
    timestamp_us: int, columns: tuple[str, ...], files: tuple[ParquetSource, ...], schema: pa.Schema, key: tuple[str, ...]
) -> ParquetRelation:
    """For a task. The time of the batch does not matter: the files were fixed when the query was planned."""
    wanted = pa.schema([field for field in schema if field.name in key or field.name in columns])
    return ParquetRelation(files, wanted, key)
