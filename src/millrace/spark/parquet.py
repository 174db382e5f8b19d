"""`ParquetTable`: Parquet files of a lake as master data, scanned in place."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from millrace.core.errors import SchemaError, TableError
from millrace.relations.parquet import ParquetRelation, ParquetSource, list_files
from millrace.spark.planned import PlannedTable
from millrace.spark.schema import arrow_schema, case_sensitive, spelled

# A file's time is that of the last tick of the system's clock, so one that came just after a batch may bear an earlier time:
# a replay of the batch must not see it.
TICK_NS = 10_000_000


class ParquetTable:
    """Nothing to build: every group of stream rows is joined in one scan of the files.

    A micro-batch sees the files that were there 10 ms before its timestamp, so files may be added while a query runs, and a
    batch that is replayed sees what it saw before. Files that were there when `enrich` was called must stay as they are.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(Path(path).absolute())
        list_files(path)  # says what is wrong

    def planned(self, stream: DataFrame, key: tuple[str, ...]) -> PlannedTable:
        """For `enrich`: columns and types as Spark sees them now."""
        files = list_files(self.path)
        schema = arrow_schema(self._columns(stream))
        key = tuple(spelled(name, schema.names, case_sensitive(stream)) for name in key)
        for name in key:
            if name not in schema.names:
                raise SchemaError(f"{self.path} has no column {name!r}; it has {', '.join(schema.names)}")
        opened = partial(_open, path=self.path, known=files, schema=schema, key=key)
        return PlannedTable(Path(self.path).name, self.path, schema, key, None, "meshjoin", opened)

    def _columns(self, stream: DataFrame) -> StructType:
        """As Spark sees them, which asks an executor to read a file."""
        try:
            return stream.sparkSession.read.parquet(self.path).schema
        except (PySparkException, Py4JError) as failed:
            lines = [line.strip() for line in str(failed).splitlines() if "Exception: " in line or line.startswith("[")]
            why = lines[0] if lines else failed
            raise TableError(
                f"Spark can't read {self.path}, though the driver sees files there: {why}; driver and executors must see "
                "them under the same path, in a folder that all of them share, such as an NFS mount"
            ) from failed


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
    before = [source for source in added if source.here_since_ns <= timestamp_us * 1000 - TICK_NS]
    return ParquetRelation((*known, *before), wanted, key)
