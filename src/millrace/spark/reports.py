"""Ledger and I/O counters of every micro-batch, on the driver.

A retried task counts once. Two ways lead here: an accumulator of our own (see `counters`), and, for batch DataFrames with an
`Observation` and under Spark Connect, a column of counts that Spark's `observe` collects.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Observation

from millrace.core.errors import MillraceError
from millrace.core.ledger import Ledger
from millrace.core.step import StepCounts
from millrace.spark.counters import collected

PREFIX = "millrace:"
_COUNTS = set(StepCounts().as_dict())


@dataclass(frozen=True)
class BatchReport:
    """One micro-batch of one `enrich` call (one action, for a batch DataFrame)."""

    name: str
    batch_id: int | None
    groups: int  # groups of rows that tasks joined
    counts: StepCounts
    waiting: int
    disk_reads: int
    disk_bytes: int
    read_seconds: float
    memory_bytes: int  # the most of its budget that a task used
    table_versions: tuple[int, ...]
    reversed_ranges: int = 0  # rows of the table that a task met whose range ends before it begins
    copied_bytes: int = 0  # of shards that executors made local
    remote_shards: int = 0  # the most that a task used where the table is, because there was no room for local copies

    @property
    def rows_in(self) -> int:
        return self.counts.tuples_in

    @property
    def matched(self) -> int:
        return self.counts.matched

    @property
    def unmatched(self) -> int:
        return self.counts.unmatched

    @property
    def ledger(self) -> Ledger:
        """The batch's ledger; making it checks the balance."""
        ledger = Ledger()
        ledger.post(self.counts, self.waiting)
        return ledger


def reports(source: Any) -> list[BatchReport]:
    """The reports of a streaming query (from its recent progress), of one progress, or of an `Observation`."""
    if isinstance(source, observation_classes()):
        return [_report(source._name or PREFIX, None, _observed(source))]
    if hasattr(source, "recentProgress"):
        return [report for progress in source.recentProgress for report in reports(progress)]
    observed = getattr(source, "observedMetrics", None)
    if observed is None:
        raise MillraceError(
            f"reports come from a streaming query, its progress, or an Observation; got {type(source).__name__}"
        )
    texts = {name: _stats(row.asDict()) for name, row in observed.items() if str(name).startswith(PREFIX)}
    texts.update(collected(str(source.runId), source.batchId))
    return [_report(name, source.batchId, calls) for name, calls in texts.items()]


def observation_classes() -> Any:
    """The classes that `Observation(...)` makes: another one under Spark Connect."""
    connect = sys.modules.get("pyspark.sql.connect.observation")
    return Observation if connect is None else (Observation, connect.Observation)


def _observed(observation: Any) -> list[str]:
    seen = observation.get  # waits for the action; under Spark Connect it is empty until there was one
    if "stats" not in seen:
        raise MillraceError("this Observation has seen no action yet: ask for reports behind count(), a write, or the like")
    return list(seen["stats"])


def _stats(metric: dict[str, Any]) -> list[str]:
    """The one column of a metric; Spark Connect gives the values of a streaming query's metrics without their names."""
    return metric["stats"] if "stats" in metric else metric["values"][0]


def _report(name: str, batch_id: int | None, texts: Iterable[str]) -> BatchReport:
    groups = [json.loads(text) for text in texts]
    counts = StepCounts()
    for group in groups:
        counts += StepCounts(**{key: value for key, value in group.items() if key in _COUNTS})
    return BatchReport(
        name=name.removeprefix(PREFIX),
        batch_id=batch_id,
        groups=sum(group["groups"] for group in groups),
        counts=counts,
        waiting=sum(group["waiting"] for group in groups),
        disk_reads=sum(group.get("disk_reads", 0) for group in groups),
        disk_bytes=sum(group.get("disk_bytes", 0) for group in groups),
        read_seconds=sum(group.get("read_seconds", 0.0) for group in groups),
        memory_bytes=max((group["memory_bytes"] for group in groups), default=0),
        table_versions=tuple(sorted({group["table_version"] for group in groups})),
        reversed_ranges=max((group.get("reversed_ranges", 0) for group in groups), default=0),
        copied_bytes=sum(group.get("copied_bytes", 0) for group in groups),
        remote_shards=max((group.get("remote_shards", 0) for group in groups), default=0),
    )
