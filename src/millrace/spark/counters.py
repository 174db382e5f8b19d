"""How the counts of tasks reach the driver: an accumulator in which every partition of a micro-batch counts once.

A plain accumulator adds up whatever runs, repeated tasks included. This accumulator keeps the counts of a partition under the
name of the partition: a partition that runs again replaces its own counts. It does no work per row. Spark's `observe` calls an
aggregate for each row, which takes about a tenth of a batch.
"""

from __future__ import annotations

import threading
from typing import Any

from pyspark import SparkContext, TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import DataFrame

Key = tuple[str, int, str, int]
"""Run of the streaming query, its batch, the `enrich` call, the partition."""

Counts = dict[Key, str]

_KEPT = 20_000  # counts of partitions, the newest: Spark keeps the progress of 100 batches
_KEPT_TEXT = 64 << 20  # letters of them
_LONG = 2_000  # letters; only hot keys make counts longer
_RUN, _BATCH = "spark.jobGroup.id", "streaming.sql.batchId"

_lock = threading.Lock()
_used: tuple[SparkContext, Accumulator[Counts]] | None = None


class _Newest(AccumulatorParam[Counts]):
    def zero(self, value: Counts) -> Counts:
        return {}

    def addInPlace(self, value1: Counts, value2: Counts) -> Counts:
        for key, text in value2.items():
            value1.pop(key, None)
            value1[key] = text
        letters = sum(map(len, value1.values())) if any(len(text) > _LONG for text in value2.values()) else 0
        while len(value1) > _KEPT or (letters > _KEPT_TEXT and len(value1) > 1):
            letters -= len(value1.pop(next(iter(value1))))
        return value1


class TaskCounters:
    """The way from a task to the driver; travels to the workers."""

    def __init__(self, accumulator: Accumulator[Counts], label: str) -> None:
        self._accumulator = accumulator
        self._label = label

    def send(self, counts: str) -> None:
        """Send the counts of this task. Outside a streaming query nobody can read them."""
        task = TaskContext.get()
        batch = task.getLocalProperty(_BATCH) if task is not None else None
        if task is not None and batch is not None:
            key = (str(task.getLocalProperty(_RUN)), int(batch), self._label, task.partitionId())
            self._accumulator.add({key: counts})


def counters_for(stream: DataFrame, label: str) -> TaskCounters | None:
    """Counters for an `enrich` call; None under Spark Connect, which has no accumulators."""
    global _used
    if not hasattr(stream, "_jdf"):
        return None
    context: Any = stream.sparkSession.sparkContext
    with _lock:
        if _used is None or _used[0] is not context:
            _used = (context, context.accumulator({}, _Newest()))
        return TaskCounters(_used[1], label)


def collected(run: str, batch: int) -> tuple[dict[str, list[str]], set[str]]:
    """What the tasks of a batch have sent: the `enrich` calls and the counts of their partitions. Also returns all calls that
    have sent something in any batch of the run."""
    with _lock:
        everything = dict(_used[1].value) if _used is not None else {}
    calls: dict[str, list[str]] = {}
    of_run = {key: text for key, text in everything.items() if key[0] == run}
    for (_, of_batch, label, _), text in of_run.items():
        if of_batch == batch:
            calls.setdefault(label, []).append(text)
    return calls, {label for _, _, label, _ in of_run}
