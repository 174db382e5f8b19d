"""What Spark takes beside the join: micro-batches of real streaming queries, in the shapes that `enrich` uses, and no join.

    seconds = batch + waves x (task + rows of a task x (row + bytes found x found_byte))     keys travel
    seconds = batch + waves x (task + rows of a task x whole_row)                            whole rows travel

Micro-batches differ in rows, in tasks, and in how much comes back. The first ones of a query are left out: the JVM still
compiles. Rows come from Parquet files; on a cluster, which may share no folder, Spark makes them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DoubleType, StringType, StructField, StructType

from millrace.core.calibration import SparkCosts
from millrace.core.errors import MillraceError
from millrace.spark.batch_time import batch_time, zero
from millrace.spark.choosing import cores_of
from millrace.tuning.fitting import fit

TERMS = ("batch", "task", "row", "found_byte", "whole_row")
_NARROW = 9  # bytes that come back for a row: a flag and a number
_TEXT = "a text of forty letters or so, as tables have"
_WIDE = _NARROW + len(_TEXT)
_POLL_SECONDS = 0.1
_LONGEST_SECONDS = 300.0
_OUTLIER = 2.0  # times the median: something else was at work
_STREAM = "key long, quantity double, event_time timestamp"


@dataclass(frozen=True)
class BatchEffort:
    """Rows of micro-batches for each core, and how many micro-batches are left out and kept."""

    small_rows: int = 1_000
    large_rows: int = 100_000
    compiling: int = 30  # left out of the first query of all
    warming: int = 8  # left out of the first query of a shape
    settling: int = 4  # left out of later ones
    kept: int = 6
    rounds: int = 2  # times that all shapes come: what else goes on in the machine then touches all of them


@dataclass(frozen=True)
class Shape:
    """One kind of micro-batch. `made`: Spark makes the rows, they are not read."""

    rows: int
    tasks: int
    wide: bool = False
    whole: bool = False
    made: bool = False
    left_out: int = 4


@dataclass(frozen=True)
class Timed:
    """One micro-batch."""

    shape: Shape
    seconds: float


def calibrate_batches(
    spark: SparkSession, *, files: bool, say: Callable[[str], None] = lambda _: None, effort: BatchEffort | None = None
) -> tuple[SparkCosts, dict[str, float]]:
    """Run the queries, and fit. `files`: workers are on this machine, so rows are read from files here."""
    effort = effort or BatchEffort()
    cores = cores_of(spark)
    seen: list[Timed] = []
    with tempfile.TemporaryDirectory(prefix="millrace-calibration-", ignore_cleanup_errors=True) as scratch:
        shapes = _shapes(effort, cores, files)
        later = [replace(shape, left_out=effort.settling) for shape in shapes]
        shapes += later * (effort.rounds - 1)
        for number, shape in enumerate(shapes):
            say(f"measuring Spark's own part, query {number + 1} of {len(shapes)}")
            seen += run_shape(spark, shape, effort.kept, Path(scratch) / str(number))
    return fit_batches(seen, cores)


def _shapes(effort: BatchEffort, cores: int, files: bool) -> list[Shape]:
    small, large = effort.small_rows * cores, effort.large_rows * cores
    read = [
        Shape(large, cores, left_out=effort.compiling),
        Shape(small, cores, left_out=effort.warming),
        Shape(large, cores, wide=True, left_out=effort.warming),
        Shape(large // 2, cores, whole=True, left_out=effort.warming),
    ]
    made = [Shape(small, tasks, made=True, left_out=effort.warming) for tasks in (cores, 4 * cores)]
    if files:
        return [*read, *made]
    return [*(Shape(one.rows, one.tasks, one.wide, one.whole, True, one.left_out) for one in read), made[1]]


def fit_batches(seen: list[Timed], cores: int) -> tuple[SparkCosts, dict[str, float]]:
    """Costs, and their spread. A micro-batch of made rows has a constant part of its own, which does not count where others
    were read."""
    read = any(not one.shape.made for one in seen)
    kept = [one for one in seen if one.seconds <= _OUTLIER * _median(seen, one.shape)]
    counts = np.array([_counts(one.shape, cores, apart=read) for one in kept])
    default = SparkCosts()
    guess = np.array([*(getattr(default, name) for name in TERMS), default.batch])
    found = fit(counts, np.array([one.seconds for one in kept]), guess)
    costs = SparkCosts(**dict(zip(TERMS, found.costs.tolist()[: len(TERMS)], strict=True)))
    return costs, dict(zip(TERMS, found.spread.tolist()[: len(TERMS)], strict=True))


def _median(seen: list[Timed], shape: Shape) -> float:
    return float(np.median([one.seconds for one in seen if one.shape == shape]))


def _counts(shape: Shape, cores: int, *, apart: bool) -> list[float]:
    waves = -(-shape.tasks // cores)
    rows = waves * shape.rows / shape.tasks
    by_key = 0.0 if shape.whole else rows
    found = by_key * (_WIDE if shape.wide else _NARROW) + (rows * _NARROW if shape.whole else 0.0)
    batch = (0.0, 1.0) if shape.made and apart else (1.0, 0.0)
    return [batch[0], float(waves), by_key, found, rows if shape.whole else 0.0, batch[1]]


def run_shape(spark: SparkSession, shape: Shape, kept: int, folder: Path) -> list[Timed]:
    """Some micro-batches of one query, without the first ones."""
    wanted = shape.left_out + kept
    folder.mkdir(parents=True)
    stream = _made(spark, shape) if shape.made else _read(spark, shape, wanted, folder / "stream")
    joined = _by_row(stream) if shape.whole else _by_key(stream, shape.wide)
    writer = joined.writeStream.format("noop")
    if not shape.made:
        writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    with _reporting(spark, wanted):
        query = writer.start()
        try:
            waited = 0.0
            while len(done := [one for one in query.recentProgress if one.numInputRows]) < wanted:
                if query.awaitTermination(_POLL_SECONDS):
                    done = [one for one in query.recentProgress if one.numInputRows]
                    break
                waited += _POLL_SECONDS
                if waited > _LONGEST_SECONDS:
                    break
        finally:
            query.stop()
    if len(done) < wanted:
        raise MillraceError(
            f"of {wanted} micro-batches {len(done)} came in {waited:.0f} s: measure again while the session is idle"
        )
    return [Timed(shape, one.durationMs["triggerExecution"] / 1000) for one in done[shape.left_out : wanted]]


@contextmanager
def _reporting(spark: SparkSession, batches: int) -> Iterator[None]:
    """The session keeps reports of so many micro-batches."""
    name = "spark.sql.streaming.numRecentProgressUpdates"
    before = spark.conf.get(name, None)
    spark.conf.set(name, str(max(100, 2 * batches)))
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)


def _read(spark: SparkSession, shape: Shape, batches: int, folder: Path) -> DataFrame:
    """Files of equal size, one for each task of each micro-batch."""
    folder.mkdir()
    rows = max(1, shape.rows // shape.tasks)
    keys = np.random.default_rng(0).integers(1, 1 << 40, rows)
    times = pa.array(np.arange(rows) * 1_000, pa.timestamp("us", "UTC"))
    first = folder / "part-0.parquet"
    pq.write_table(pa.table({"key": keys, "quantity": keys % 100 / 4, "event_time": times}), first)
    for number in range(1, batches * shape.tasks):
        other = folder / f"part-{number}.parquet"
        try:
            os.link(first, other)
        except OSError:
            shutil.copyfile(first, other)
    reader = spark.readStream.schema(_STREAM).option("maxFilesPerTrigger", shape.tasks)
    return reader.parquet(str(folder))


def _made(spark: SparkSession, shape: Shape) -> DataFrame:
    """As many rows in every micro-batch, from nowhere."""
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", shape.rows)
    frame = reader.option("numPartitions", shape.tasks).load()
    return frame.select(
        F.col("value").alias("key"), F.col("value").cast("double").alias("quantity"), F.col("timestamp").alias("event_time")
    )


def _by_key(stream: DataFrame, wide: bool) -> DataFrame:
    """Keys go to the workers and values come back, as in `dataframe._by_key`."""
    fields = [StructField("c0", BooleanType()), StructField("c1", DoubleType())]
    if wide:
        fields.append(StructField("c2", StringType()))
    found = F.arrow_udf(_Answers(wide).keys_in, StructType(fields)).asNondeterministic()
    joined = stream.withColumn("zero", zero()).withColumn("found", found(F.col("key"), batch_time(F.col("zero"))))
    places = [F.col(f"found.{field.name}") for field in fields[1:]]
    return joined.where(F.col("found.c0")).select(*stream.columns, *places)


def _by_row(stream: DataFrame) -> DataFrame:
    """Whole rows go to the workers and come back with one value more, as in `dataframe._by_row`."""
    schema = StructType([*stream.schema.fields, StructField("c1", DoubleType())])
    return stream.select("*", batch_time(zero())).mapInArrow(_rows_in, schema)


@dataclass(frozen=True)
class _Answers:
    """Every key matches, and no key is looked up."""

    wide: bool

    def keys_in(self, batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        for keys, _ in batches:
            rows = len(keys)
            columns = [pa.repeat(True, rows), pa.array(np.zeros(rows))]
            if self.wide:
                columns.append(pa.repeat(_TEXT, rows))
            yield pa.StructArray.from_arrays(columns, [f"c{place}" for place in range(len(columns))])


def _rows_in(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = [*batch.columns[:-1], pa.array(np.zeros(batch.num_rows))]
        yield pa.RecordBatch.from_arrays(columns, [*batch.schema.names[:-1], "c1"])
