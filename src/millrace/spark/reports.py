"""Ledger and I/O counters of every micro-batch, on the driver.

A retried task counts once. Counts come here in two ways: by an accumulator of our own (see `counters`), or by a column of
counts that Spark's `observe` collects (batch DataFrames with an `Observation`, and Spark Connect).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql import Observation

from millrace.core.budget import format_bytes
from millrace.core.errors import MillraceError, ParameterError
from millrace.core.ledger import Ledger
from millrace.core.step import StepCounts
from millrace.core.wording import counted, format_seconds
from millrace.spark.counters import collected
from millrace.spark.labels import PREFIX, label_of, observation_name, shown_names

_COUNTS = set(StepCounts().as_dict())


@dataclass(frozen=True, repr=False)
class BatchReport:
    """One micro-batch of one `enrich` call (for a batch DataFrame: one action). `print` shows the report in one line."""

    name: str
    batch_id: int | None
    counts: StepCounts
    waiting: int
    table_versions: tuple[int, ...]  # none for a table that has no versions
    disk_reads: int
    disk_bytes: int
    read_seconds: float
    memory_bytes: int  # the most of its budget that a task used
    seconds: float | None = None  # time of the whole micro-batch, with everything in its query; None: not known
    reversed_ranges: int = 0  # ranges of the table that end before they begin, as a task met them
    copied_bytes: int = 0  # of shards that executors made local
    remote_shards: int = 0  # shards read where the table lies, because there was no room for local copies: the most of a task
    groups: int = 0  # groups of rows that tasks joined
    strategy: str = ""  # the join, or how keys were looked up
    read: tuple[str, ...] = ()  # how tasks read the table; nothing for a table that is read in one way only
    group_rows: tuple[int, int] | None = None  # the smallest and the largest group that was joined; None: rows as they came
    front: tuple[str, ...] = ()  # front stage of a cached join: used, or bypassed because pages are used in place
    cache_bytes: int = 0  # the most that the front stage of a task has for hot rows
    plan_changes: int = 0  # tasks whose machine could not follow the plan: the table could not be mapped, for example

    def __str__(self) -> str:
        batch = "" if self.batch_id is None else f"batch {self.batch_id:,} of "
        took = [] if self.seconds is None else [f"{format_seconds(self.seconds)} in all"]
        rows = f"{counted(self.rows_in, 'row')} in, {self.matched:,} matched, {self.unmatched:,} unmatched{self._why}"
        return ", ".join(
            [f"{batch}{self.name}: {rows}", *self._left, *self._version, *self._front, *self._changes, self._reads, *took]
        )

    def __repr__(self) -> str:
        return f"<BatchReport {self}>"

    @property
    def _why(self) -> str:
        counts = self.counts
        reasons = [
            (counts.absent_keys, "with no such key in the table"),
            (counts.null_keys, "without a key"),
            (counts.condition_false, "for which the condition does not hold"),
        ]
        told = ", ".join(f"{count:,} {reason}" for count, reason in reasons if count)
        return f" ({told})" if told else ""

    @property
    def _left(self) -> list[str]:
        return [f"{count:,} {what}" for count, what in ((self.waiting, "waiting"), (self.counts.deferred, "deferred")) if count]

    @property
    def _version(self) -> list[str]:
        if not self.table_versions:
            return []
        numbers = ", ".join(map(str, self.table_versions))
        return [f"table {'version' if len(self.table_versions) == 1 else 'versions'} {numbers}"]

    @property
    def hit_share(self) -> float | None:
        """The share of look-ups that the front stage answered; None where there is no front stage, or it was bypassed."""
        counts = self.counts
        return counts.front_hits / counts.front_lookups if counts.front_lookups else None

    @property
    def _front(self) -> list[str]:
        if self.hit_share is not None:
            return [f"{self.hit_share:.0%} answered in front from {format_bytes(self.cache_bytes)}"]
        why = ": pages are used in place" if "mmap" in self.read else ""
        return [f"front stage bypassed{why}"] if "bypassed" in self.front else []

    @property
    def _changes(self) -> list[str]:
        return [f"the plan changed in {counted(self.plan_changes, 'task')}"] if self.plan_changes else []

    @property
    def _reads(self) -> str:
        if not self.disk_reads:
            return "nothing read from disk"
        return f"{counted(self.disk_reads, 'read')} of {format_bytes(self.disk_bytes)} in {format_seconds(self.read_seconds)}"

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


class SentCounts(NamedTuple):
    """What tasks told of one call in one micro-batch."""

    name: str
    batch_id: int | None
    texts: list[str]
    seconds: float | None = None


def reports(source: Any) -> list[BatchReport]:
    """The reports of a streaming query (from its recent progress), of one progress, or of an `Observation`."""
    return [_report(*sent) for sent in sent_counts(source)]


def sent_counts(source: Any) -> list[SentCounts]:
    """What the reports are made of."""
    if isinstance(source, observation_classes()):
        return [SentCounts(observation_name(source), None, _observed(source))]
    if hasattr(source, "recentProgress"):
        return [sent for progress in source.recentProgress for sent in sent_counts(progress)]
    observed = getattr(source, "observedMetrics", None)
    if observed is None:
        raise ParameterError(
            f"reports come from a streaming query, its progress, or an Observation; got {type(source).__name__}"
        )
    if "addBatch" not in (source.durationMs or {}):
        return []  # a query that waits tells of the batch to come, again and again
    texts: dict[str, list[str]] = {}
    for name, row in observed.items():
        if str(name).startswith(PREFIX):
            texts.setdefault(label_of(str(name)), []).extend(_stats(row.asDict()))
    sent, of_run = collected(str(source.runId), source.batchId)
    for label, more in sent.items():
        texts.setdefault(label, []).extend(more)
    seconds, names = _seconds(source), shown_names(texts, of_run)
    return [SentCounts(name, source.batchId, texts[label], seconds) for label, name in names.items()]


def _seconds(progress: Any) -> float | None:
    """Seconds of the micro-batch, as Spark reports them."""
    took = (progress.durationMs or {}).get("triggerExecution")
    return None if took is None else took / 1000


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


def _report(name: str, batch_id: int | None, texts: Iterable[str], seconds: float | None = None) -> BatchReport:
    groups = [json.loads(text) for text in texts]
    counts = StepCounts()
    for group in groups:
        counts += StepCounts(**{key: value for key, value in group.items() if key in _COUNTS})
    return BatchReport(
        name=name,
        batch_id=batch_id,
        counts=counts,
        waiting=sum(group["waiting"] for group in groups),
        disk_reads=sum(group.get("disk_reads", 0) for group in groups),
        disk_bytes=sum(group.get("disk_bytes", 0) for group in groups),
        read_seconds=sum(group.get("read_seconds", 0.0) for group in groups),
        memory_bytes=max((group["memory_bytes"] for group in groups), default=0),
        table_versions=tuple(sorted({group["table_version"] for group in groups} - {None})),
        seconds=seconds,
        reversed_ranges=max((group.get("reversed_ranges", 0) for group in groups), default=0),
        copied_bytes=sum(group.get("copied_bytes", 0) for group in groups),
        remote_shards=max((group.get("remote_shards", 0) for group in groups), default=0),
        groups=sum(group["groups"] for group in groups),
        strategy=", ".join(sorted({_way(group) for group in groups})),
        read=tuple(sorted({group["read"] for group in groups} - {None})),
        group_rows=_bounds([group["group_rows"] for group in groups if group["group_rows"]]),
        front=tuple(sorted({group["front"] for group in groups if group.get("front")})),
        cache_bytes=max((group.get("cache_bytes", 0) for group in groups), default=0),
        plan_changes=sum(group["plan_changes"] for group in groups),
    )


def _way(group: dict[str, Any]) -> str:
    """What a task did: the name of the join, or that keys were looked up."""
    return str(group["strategy"] if group["access"] == "join" else group["access"])


def _bounds(pairs: list[list[int]]) -> tuple[int, int] | None:
    return (min(least for least, _ in pairs), max(most for _, most in pairs)) if pairs else None
