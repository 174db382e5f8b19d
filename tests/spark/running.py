"""What the Spark tests share: Spark's own joins to compare with, comparing DataFrames as multisets, and running one through a
real streaming query."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import StreamingQuery

import millrace as mr
from millrace.checks.reference import Comparison
from millrace.checks.reference import same_rows as same_tables
from millrace.core.conditions import Near

HOWS = ("inner", "left", "semi", "anti")
SPARK_HOW = {"inner": "inner", "left": "left", "semi": "left_semi", "anti": "left_anti"}


def same_rows(left: DataFrame | pa.Table, right: DataFrame | pa.Table) -> Comparison:
    """Whether two results are the same multiset of rows: NaN is NaN, 0.0 is not -0.0, 1.0 is the decimal 1.00."""
    return same_tables(_table(left), _table(right))


def _table(rows: DataFrame | pa.Table) -> pa.Table:
    table = rows if isinstance(rows, pa.Table) else rows.toArrow()
    return table.rename_columns([f"{i}:{name}" for i, name in enumerate(table.column_names)])  # names may repeat


def frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """The rows as a DataFrame of one partition, times without a zone kept as such."""
    return spark.createDataFrame(rows, from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)).coalesce(1)


def spark_join(stream: DataFrame, rows: DataFrame | pa.Table, on: Any, how: str = "inner", columns: Any = None) -> DataFrame:
    """Spark's own join, its columns in the order that `enrich` promises. `on` and `columns` are as there."""
    return spark_joins(stream, [mr.Lookup(rows, on, how, columns)], [rows])


def spark_joins(
    stream: DataFrame, lookups: Sequence[mr.Lookup], rows: Sequence[DataFrame | pa.Table], how: str = "inner"
) -> DataFrame:
    """What Spark's own joins, one after the other, make of the look-ups, if their tables hold these rows.

    Both sides get names of their own for the joins, so that none is ambiguous, and those of the result at the end. Arrow rows
    are broadcast: of Spark's joins the fastest for the few rows of a test."""
    mine = {name: f"stream_{place}" for place, name in enumerate(stream.columns)}
    joined = stream.toDF(*[f"stream_{place}" for place in range(len(stream.columns))])
    kept, names = list(joined.columns), list(stream.columns)
    for number, (lookup, one) in enumerate(zip(lookups, rows, strict=True)):
        table = F.broadcast(frame(stream.sparkSession, one)) if isinstance(one, pa.Table) else one
        theirs = {name: f"table_{number}_{place}" for place, name in enumerate(table.columns)}
        condition = _condition(lookup.on, mine, theirs)
        join = lookup.how or how
        joined = joined.join(table.toDF(*theirs.values()), condition, SPARK_HOW[join])
        if join in ("inner", "left"):
            added = _added(lookup, table.columns)
            kept += [theirs[name] for name, _ in added]
            names += [new for _, new in added]
    return joined.select(kept).toDF(*names)


def _condition(on: Any, mine: dict[str, str], theirs: dict[str, str]) -> Column:
    parts = [F.col(mine[left]) == F.col(theirs[right]) for left, right in _equal_keys(on)]
    if isinstance(on, Near):
        parts.append(F.abs(F.col(mine[on.value]) - F.col(theirs[on.other])) <= on.width)
    return reduce(Column.__and__, parts)


def _equal_keys(on: Any) -> list[tuple[str, str]]:
    """(stream column, table column) of each."""
    if isinstance(on, Near):
        return list(on.on)
    if isinstance(on, Mapping):
        return list(on.items())
    each = [on] if isinstance(on, (str, tuple)) else on
    return [(one, one) if isinstance(one, str) else one for one in each]


def _added(lookup: mr.Lookup, columns: list[str]) -> list[tuple[str, str]]:
    """Which columns of the table come into the result, and under which names."""
    if isinstance(lookup.columns, Mapping):
        return list(lookup.columns.items())
    once = [left for left, right in _equal_keys(lookup.on) if left == right]
    chosen = [name for name in columns if name not in once] if lookup.columns is None else lookup.columns
    return [(name, name) for name in chosen]


def every_how(join: Callable[[str], DataFrame], columns: Sequence[str]) -> DataFrame:
    """The rows of all four joins in one DataFrame, so that one job gives them all."""
    parts = []
    for how in HOWS:
        frame = join(how)
        if how in ("semi", "anti"):
            frame = frame.select("*", *[F.lit(None).alias(name) for name in columns])
        parts.append(frame.select(F.lit(how).alias("how"), "*"))
    union = parts[0]
    for part in parts[1:]:
        union = union.unionByName(part)
    return union


@dataclass
class Streamed:
    """What a streaming query wrote, and the finished query."""

    rows: DataFrame
    query: Any
    checkpoint: Path
    batches: int


def write_files(data: pa.Table, folder: Path, files: int) -> Path:
    """The rows in `files` Parquet files, oldest first, so that a query that takes one at a time makes as many batches."""
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-data.num_rows // files) if data.num_rows else 0
    for number in range(files):
        path = folder / f"part-{number:04d}.parquet"
        pq.write_table(data.slice(number * size, size), path)
        stamp = time.time() - 3600 + number
        _stamp(path, stamp)
    return folder


def add_file(data: pa.Table, folder: Path) -> None:
    """One more file beside those of a query that runs, whole from the moment it is there."""
    number = len(list(folder.glob("part-*.parquet")))
    part = write_files(data, folder.with_name(f"{folder.name}-more"), 1) / "part-0000.parquet"
    part.rename(folder / f"part-{number:04d}.parquet")


def _stamp(path: Path, stamp: float) -> None:
    import os

    os.utime(path, (stamp, stamp))


def read_stream(spark: SparkSession, folder: Path, like: DataFrame | None = None, files_per_trigger: int = 1) -> DataFrame:
    schema = (like if like is not None else spark.read.parquet(str(folder))).schema
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", files_per_trigger)
    return reader.parquet(str(folder))


def started_query(frame: DataFrame, folder: Path) -> StreamingQuery:
    """A query into Parquet files that runs until it is stopped."""
    writer = frame.writeStream.format("parquet").option("path", str(folder / "out"))
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def run_query(
    frame: DataFrame, folder: Path, *, sink: str = "parquet", output_mode: str = "append", expect_failure: bool = False
) -> Streamed:
    """Run a streaming DataFrame to the end of what there is, into a sink."""
    folder.mkdir(parents=True, exist_ok=True)
    spark = frame.sparkSession
    checkpoint = folder / "checkpoint"
    writer = frame.writeStream.outputMode(output_mode).option("checkpointLocation", str(checkpoint))
    name = "t" + uuid.uuid4().hex
    if sink == "memory":
        writer = writer.format("memory").queryName(name)
    elif sink == "noop":
        writer = writer.format("noop")
    else:
        writer = writer.format("parquet").option("path", str(folder / "out"))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination(300)
    finally:
        query.stop()
    batches = len(list((checkpoint / "commits").glob("[0-9]*")))
    if sink == "memory":
        rows = spark.table(name)
    elif sink == "noop":
        rows = spark.createDataFrame([], frame.schema)
    else:
        rows = spark.read.schema(frame.schema).parquet(str(folder / "out"))
    return Streamed(rows, query, checkpoint, batches)


def stream_through(
    spark: SparkSession,
    data: pa.Table,
    transform: Callable[[DataFrame], DataFrame],
    folder: Path,
    *,
    files: int = 3,
    sink: str = "parquet",
    output_mode: str = "append",
) -> Streamed:
    """Put rows through `transform` in a real query of several micro-batches."""
    source = write_files(data, folder / "source", files)
    return run_query(transform(read_stream(spark, source)), folder, sink=sink, output_mode=output_mode)


def wait_until(done: Callable[[], Any], *, seconds: float = 120, every: float = 0.02, what: str = "") -> Any:
    """Poll until `done()` is true, and return what it gave."""
    end = time.monotonic() + seconds
    while True:
        answer = done()
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s in vain for {what or done}")
        time.sleep(every)


def multiset(values: Iterable[Any]) -> dict[Any, int]:
    counts: dict[Any, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts
