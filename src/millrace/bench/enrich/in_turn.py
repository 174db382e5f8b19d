"""Streaming queries that get the same micro-batches in turn, one query at a time; each round begins with another query.

What slows the machine down for a while then slows all of them, and drops out of the ratios of a round.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import StreamingQuery

from millrace.bench.data import StreamFiles
from millrace.bench.enrich.microbatch import BenchError, Transform

QUIET = {
    "spark.sql.streaming.pollingDelay": "100ms",  # of queries that wait for their turn
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
    "spark.sql.streaming.noDataProgressEventInterval": "3600000",
}
"""Settings of a session in which queries wait for each other."""

_PATIENCE_SECONDS = 120


def run_in_turn(
    spark: SparkSession, transforms: Mapping[str, Transform], files: StreamFiles, scratch: Path, *,
    rounds: int | None = None, said: Callable[[int], None] = lambda _: None,
) -> dict[str, list[Any]]:  # fmt: skip
    """The progress of each query, micro-batch by micro-batch. `rounds`: micro-batches for each; None: all."""
    rounds = files.batches if rounds is None else rounds
    with _started(spark, transforms, files, scratch) as queries:
        names = list(queries)
        for number in range(rounds):
            said(number)
            for place in range(len(names)):
                name = names[(place + number) % len(names)]
                _give(files, number, scratch / name)
                _wait_for(queries[name], number + 1)
        progress = {name: _with_rows(query) for name, query in queries.items()}
    for name, entries in progress.items():
        if [entry.numInputRows for entry in entries] != [files.batch_rows] * rounds:
            raise BenchError(f"expected {rounds} micro-batches of {files.batch_rows} rows; {name} had others.")
    return progress


def batch_seconds(entries: list[Any], cold: int, of: str = "addBatch") -> list[float]:
    """Seconds of the micro-batches behind the first ones. `of`: a part of them, by Spark's name."""
    return [entry.durationMs[of] / 1000 for entry in entries][cold:]


@contextmanager
def _started(
    spark: SparkSession, transforms: Mapping[str, Transform], files: StreamFiles, scratch: Path
) -> Iterator[dict[str, StreamingQuery]]:
    """The queries, each waiting for folders of files under a path of its own."""
    queries = dict[str, StreamingQuery]()
    try:
        for name, transform in transforms.items():
            (scratch / name).mkdir(parents=True)
            reader = spark.readStream.schema(from_arrow_schema(files.schema))
            enriched = transform(reader.parquet(f"{scratch / name}/round-*"))
            writer = enriched.writeStream.format("noop").option("checkpointLocation", str(scratch / f"{name}-checkpoint"))
            queries[name] = writer.start()
        yield queries
    finally:
        for query in queries.values():
            query.stop()


def _give(files: StreamFiles, batch: int, source: Path) -> None:
    """Put the files of a micro-batch before a query, all at once."""
    made = source / f"making-{batch:05d}"
    made.mkdir()
    for path in files.batch_files(batch):
        os.symlink(path, made / Path(path).name)
    made.rename(source / f"round-{batch:05d}")


def _wait_for(query: StreamingQuery, batches: int) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while len(_with_rows(query)) < batches:
        failed = query.exception()
        if failed is not None or time.monotonic() > end:
            raise BenchError(f"a query did not end its micro-batch: {failed or 'it takes too long'}")
        time.sleep(0.05)


def _with_rows(query: StreamingQuery) -> list[Any]:
    return [entry for entry in query.recentProgress if entry.numInputRows]
