"""`ParquetTable`: Parquet files of a lake as master data, scanned in place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from millrace.core.errors import ParameterError, SchemaError, TableError
from millrace.relations.calendar import Calendars, Mode
from millrace.relations.folder import now_us
from millrace.relations.parquet import ParquetRelation
from millrace.relations.parquet_columns import Reading
from millrace.relations.parquet_files import Listing, ParquetSource, as_spark_reads, check_parquet, list_files, list_folder
from millrace.relations.parquet_times import files_at, refuse_times_ahead
from millrace.relations.paths import local_path
from millrace.spark.pins import FilePins, batch_identity, batch_name, pins_folder
from millrace.spark.planned import PlannedTable
from millrace.spark.schema import arrow_schema, case_sensitive, check_key_types, spelled

_NOT_THERE = ("FILE_NOT_EXIST", "PATH_NOT_FOUND", "FileNotFoundException")  # Spark looks on another host


class ParquetTable:
    """Parquet files as a table: nothing to build, every group of stream rows is joined in one scan of the files.

    Files are those that `spark.read.parquet` reads from the folder, with the same columns and types. A folder is
    refused if Spark would leave out a file silently. Delta, Iceberg and Hudi tables are refused: their files hold deleted rows.

    A batch DataFrame, also inside `foreachBatch`, sees the files that were there when `enrich` was called.

    A streaming query sees these files too, in every micro-batch. It also sees files that were added at least 10 ms before the
    timestamp of the micro-batch, by the clock of the file system, which must agree with the driver's clock. Write a file
    elsewhere and rename it into the folder; do not touch it later (chmod, hard links). A file that is removed or rewritten
    while a query runs is an error that names the file.

    After a restart Spark replays the last micro-batch. The times of a file then decide whether the batch sees it. Where
    times can't tell (written before the batch, renamed or touched after it), the replay is an error that names the file.
    A file that was removed or rewritten between the runs is not noticed.

    `pins="folder"` writes down the files of each micro-batch, for plain streams and inside `foreachBatch`. Every task, retry
    and replay of the batch reads the list. So no clock is needed, and a file that is gone or was rewritten is an error.
    The folder must be visible to driver and executors under the same path. The lists of the last 100 batches are kept.
    """

    def __init__(self, path: str | Path, *, pins: str | Path | None = None) -> None:
        self.path = str(local_path(path).absolute())
        check_parquet(list_files(self.path)[0].path)
        self.pins = None if pins is None else pins_folder(pins, self.path)

    def __repr__(self) -> str:
        return f"ParquetTable({self.path!r})"

    def planned(self, stream: DataFrame, key: tuple[str, ...]) -> PlannedTable:
        """For `enrich`: columns and types as Spark sees them now."""
        found, at_us = list_folder(self.path), now_us()
        check_parquet(found.files[0].path)
        sensitive = case_sensitive(stream)
        columns = self._columns(stream.sparkSession)
        schema = arrow_schema(columns)
        key = tuple(_column(name, schema.names, sensitive, self.path) for name in key)
        check_key_types([columns[name] for name in key])
        files = self._files(stream, found, at_us, tuple(schema.names), sensitive)
        opened = partial(_open, files=files, schema=schema, key=key, reading=_reading(stream.sparkSession, sensitive))
        return PlannedTable(Path(self.path).name, self.path, schema, key, None, "meshjoin", opened)

    def _files(self, stream: DataFrame, found: Listing, at_us: int, names: tuple[str, ...], sensitive: bool) -> _Files:
        known = Listing(as_spark_reads(found.files, self.path, names, sensitive), found.folders)
        files = _Files(self.path, names, sensitive, known, at_us, stream.isStreaming)
        if self.pins is None:
            if stream.isStreaming:
                refuse_times_ahead(known, at_us)
            return files
        if stream.isStreaming:
            return replace(files, pins=FilePins.prepare(self.pins, self.path))
        return self._pinned(stream.sparkSession, files)

    def _pinned(self, spark: SparkSession, files: _Files) -> _Files:
        """Inside `foreachBatch`: the files of the batch's first run."""
        if not hasattr(spark, "_sc"):
            raise ParameterError(
                "under Spark Connect a batch DataFrame does not tell whether it is one of foreachBatch, so pins= can't serve "
                "it; leave pins= out here, or enrich the stream before foreachBatch"
            )
        identity = batch_identity(spark)
        if identity is None:
            return files
        pins = FilePins.prepare(cast(str, self.pins), self.path)
        query, batch = identity
        listed = pins.files(query, batch_name(batch), lambda: files.known.files)
        return replace(files, known=Listing(listed, files.known.folders), pinned=True)

    def _columns(self, spark: SparkSession) -> StructType:
        """The columns as Spark sees them; an executor reads a file for this. Brackets and stars in the path mean themselves."""
        try:
            return spark.read.option("__globPaths__", "false").parquet(f"file://{self.path}").schema
        except (PySparkException, Py4JError) as failed:
            raise TableError(_unread(self.path, str(failed))) from failed


def _unread(path: str, said: str) -> str:
    """What Spark said, in a line, and what to do."""
    lines = [line.strip(" :") for line in said.splitlines() if "Exception: " in line or line.startswith("[")]
    why = lines[0] if lines else said
    if not any(words in said for words in _NOT_THERE):
        return f"Spark can't read {path}: {why}"
    return (
        f"Spark can't read {path}, though the driver sees files there: {why}; driver and executors must see them under the "
        "same path, in a folder that all of them share, such as an NFS mount"
    )


@dataclass(frozen=True)
class _Files:
    """The files of a table: those known when the query was planned, and how a batch finds its own."""

    path: str
    names: tuple[str, ...]
    sensitive: bool
    known: Listing
    known_at_us: int
    streaming: bool
    pins: FilePins | None = None
    pinned: bool = False  # the known files are those of an earlier run

    def of_batch(self, timestamp_us: int) -> tuple[ParquetSource, ...]:
        """The files of a batch: for the driver and batch DataFrames the known files, else those of its pin or its time."""
        task = TaskContext.get()
        if task is None or not self.streaming:
            return self.known.files
        if self.pins is None:
            replayed = self.known_at_us > timestamp_us
            found = self._now(frozenset() if replayed else self.known.folders)
            return files_at(timestamp_us, found, None if replayed else self.known)
        query = task.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise TableError("Spark does not say which query this task belongs to, so pins= can't serve it; leave pins= out")
        return self.pins.files(query, f"{timestamp_us:020d}", self._still_there)

    def _still_there(self) -> tuple[ParquetSource, ...]:
        """The files that are there now. A known file that is missing is an error, so that nobody overlooks it."""
        found = {source.path: source for source in self._now().files}
        for source in self.known.files:
            now = found.get(source.path)
            if now is None or (now.bytes, now.modified_ns) != (source.bytes, source.modified_ns):
                what = "has vanished" if now is None else "was replaced"
                raise TableError(f"{source.path} {what} since the query was planned; start the query again")
        return tuple(found.values())

    def _now(self, folders: frozenset[str] = frozenset()) -> Listing:
        found = list_folder(self.path, folders)
        return Listing(as_spark_reads(found.files, self.path, self.names, self.sensitive), found.folders)


def _open(
    timestamp_us: int, columns: tuple[str, ...], files: _Files, schema: pa.Schema, key: tuple[str, ...], reading: Reading
) -> ParquetRelation:
    """For a task: a relation of the files of its batch."""
    wanted = pa.schema([field for field in schema if field.name in key or field.name in columns] or [schema.field(0)])
    pinned = files.pinned or files.pins is not None
    return ParquetRelation(files.of_batch(timestamp_us), wanted, key, reading=reading, pinned=pinned)


def _column(name: str, names: list[str], sensitive: bool, path: str) -> str:
    """The column that is meant, as Spark would find it."""
    found = spelled(name, names, sensitive)
    if found not in names:
        raise SchemaError(f"{path} has no column {name!r}; it has {', '.join(names)}")
    return found


def _reading(spark: SparkSession, sensitive: bool) -> Reading:
    """How this session reads Parquet."""
    settings = {name: str(spark.conf.get(f"spark.sql.parquet.{name}")) for name in _SETTINGS}
    modes = [cast(Mode, settings[name].upper()) for name in _SETTINGS[:2]]
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    return Reading(zone, sensitive, Calendars(*modes), settings[_SETTINGS[2]].lower() == "true")


_SETTINGS = ("datetimeRebaseModeInRead", "int96RebaseModeInRead", "int96TimestampConversion")
