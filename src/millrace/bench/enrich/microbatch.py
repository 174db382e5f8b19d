"""One streaming query over generated files, timed micro-batch by micro-batch.

The clock is Spark's own: `durationMs.addBatch` of the query's progress, which is the run of the micro-batch from source
to sink. Finding new files and writing the offset log are left out, as they are the same for everyone;
`triggerExecution`, which has them in, is kept beside it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import StreamingQuery

from millrace.bench.data import FILES_PER_BATCH, StreamFiles
from millrace.core.errors import MillraceError

CLOCK = "durationMs.addBatch"
POLL_SECONDS = 0.5

Transform = Callable[[DataFrame], DataFrame]
OnBatch = Callable[[int], None]


class BenchError(MillraceError):
    """A contender did something that makes its times worthless."""


@dataclass(frozen=True)
class BatchTimes:
    """Seconds and rows of every micro-batch of one query; the first `cold_batches` of them are cold."""

    cold_batches: int
    seconds: tuple[float, ...]
    trigger_seconds: tuple[float, ...]
    rows_out: tuple[int, ...]

    @property
    def cold(self) -> tuple[float, ...]:
        return self.seconds[: self.cold_batches]

    @property
    def warm(self) -> tuple[float, ...]:
        return self.seconds[self.cold_batches :]

    @property
    def warm_trigger(self) -> tuple[float, ...]:
        return self.trigger_seconds[self.cold_batches :]

    @property
    def median(self) -> float:
        return median(self.warm)


def run_query(
    spark: SparkSession, transform: Transform, files: StreamFiles, cold_batches: int, scratch: Path, tick: OnBatch,
    ended: Callable[[StreamingQuery], None] = lambda _: None,
) -> BatchTimes:  # fmt: skip
    """Stream the files through `transform` into a sink that drops rows. `tick` hears how many batches are done; `ended` gets
    the query once all are."""
    enriched = transform(read_stream(spark, files))
    with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=scratch) as checkpoint:
        writer = enriched.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        try:
            while not query.awaitTermination(POLL_SECONDS):
                latest = query.lastProgress
                tick(latest.batchId + 1 if latest is not None else 0)
            progress = [entry for entry in query.recentProgress if entry.numInputRows]
            ended(query)
        finally:
            query.stop()
    return _times(progress, files, cold_batches)


def read_stream(spark: SparkSession, files: StreamFiles) -> DataFrame:
    reader = spark.readStream.schema(from_arrow_schema(files.schema))
    return reader.option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(str(files.folder))


def checksum(spark: SparkSession, transform: Transform, files: StreamFiles, columns: tuple[str, ...]) -> str:
    """Row count and order-free checksum of the first micro-batch, run through `transform` as a batch."""
    first = spark.read.schema(from_arrow_schema(files.schema)).parquet(*files.batch_files(0))
    hashed = F.xxhash64("key", "quantity", "event_time", *columns).cast("decimal(38,0)")
    row = transform(first).agg(F.count(F.lit(1)), F.sum(hashed)).head()
    return f"{row[0]}:{row[1]}" if row is not None else ""


def _times(progress: list[Any], files: StreamFiles, cold_batches: int) -> BatchTimes:
    if len(progress) != files.batches or any(entry.numInputRows != files.batch_rows for entry in progress):
        sizes = [entry.numInputRows for entry in progress]
        raise BenchError(f"expected {files.batches} micro-batches of {files.batch_rows} rows, Spark made {sizes}.")
    return BatchTimes(
        cold_batches,
        seconds=tuple(entry.durationMs["addBatch"] / 1000 for entry in progress),
        trigger_seconds=tuple(entry.durationMs["triggerExecution"] / 1000 for entry in progress),
        rows_out=tuple(entry.sink.numOutputRows for entry in progress),
    )
