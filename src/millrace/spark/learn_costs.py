"""`mr.learn_costs`: Spark's own part, learned from the micro-batches of a query that runs or ran.

    seconds of a micro-batch - task - joins / cores = batch + rows / cores x row

The joins' part is taken off: what they read, as reported, and what their counts cost by calibration. `row` then holds all that
this query does with a row, such as reading it from the source and writing it to the sink.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from millrace.core.calibration import Calibration, load_calibration, save_calibration
from millrace.core.errors import ParameterError
from millrace.core.wording import counted
from millrace.spark.choosing import cores_of
from millrace.spark.reports import BatchReport, reports
from millrace.spark.workers import local_context
from millrace.tuning.calibrate import measured_here
from millrace.tuning.fitting import fit

_COMPILING = 15  # micro-batches at most that are left out, while the JVM compiles
_LEAST = 4  # micro-batches
_DIFFERENT = 2.0  # times as many rows in large micro-batches as in small ones
_LEAST_SHARE = 0.1  # of a micro-batch that is Spark's, whatever the joins are thought to take


@dataclass(frozen=True)
class Batch:
    """One micro-batch: rows of the stream, seconds of all, and seconds of the joins in all tasks together."""

    rows: int
    seconds: float
    join_seconds: float


def learn_costs(query: Any) -> Calibration:
    """Learn what a micro-batch and a row cost in Spark from a streaming query, and keep it for later forecasts.

    The query must have had micro-batches of clearly different sizes: at least two of twice as many rows as two others. Asked
    for while the query runs or afterwards; what Spark still reports counts (the last 100 micro-batches). Without an `enrich`
    in the query, all of its time counts as Spark's.
    """
    if not hasattr(query, "recentProgress"):
        raise ParameterError(f"costs are learned from a streaming query; got {type(query).__name__}")
    session = SparkSession.getActiveSession()
    if session is None:
        raise ParameterError("costs are learned in the program that runs the query: there is no active Spark session here")
    cluster = local_context(session) is None
    known = load_calibration(cluster=cluster)
    found = learned(batches_of(query, known), known, cores_of(session))
    save_calibration(found, cluster=cluster)
    return load_calibration(cluster=cluster)


def learned(batches: Sequence[Batch], known: Calibration, cores: int) -> Calibration:
    """Only Spark's part: with the costs of a micro-batch and of a row as learned, and the others as known."""
    _check_sizes(batches)
    spark = known.spark
    counts = np.array([[1.0, batch.rows / cores] for batch in batches])
    seconds = [
        max(batch.seconds - spark.task - batch.join_seconds / cores, _LEAST_SHARE * batch.seconds) for batch in batches
    ]  # fmt: skip
    fitted = fit(counts, np.array(seconds), np.array([spark.batch, spark.row]))
    batch, row = fitted.costs.tolist()
    spread = {name: value for name, value in known.spread.items() if name.startswith("spark.")}
    spread |= dict(zip(("spark.batch", "spark.row"), fitted.spread.tolist(), strict=True))
    return Calibration(spark=replace(spark, batch=batch, row=row), spread=spread, measured={"spark": measured_here()})


def batches_of(query: Any, known: Calibration) -> list[Batch]:
    """The micro-batches that have rows, without the first ones."""
    progress = [one for one in query.recentProgress if one.numInputRows and "triggerExecution" in (one.durationMs or {})]
    told: dict[int | None, float] = {}
    for report in reports(query):
        told[report.batch_id] = told.get(report.batch_id, 0.0) + _join_seconds(report, known)
    warm = progress[min(_COMPILING, len(progress) // 2) :]
    return [
        Batch(one.numInputRows, one.durationMs["triggerExecution"] / 1000, told.get(one.batchId, 0.0)) for one in warm
    ]  # fmt: skip


def _join_seconds(report: BatchReport, known: Calibration) -> float:
    """What a join took in all tasks of a micro-batch."""
    counts = report.counts
    if report.strategy.endswith("look-up"):
        return report.groups * known.look_up.call + counts.tuples_in * known.look_up.row
    return report.read_seconds + known.costs(report.strategy, None).work(counts)


def _check_sizes(batches: Sequence[Batch]) -> None:
    rows = sorted(batch.rows for batch in batches)
    if len(rows) < _LEAST or rows[-2] < _DIFFERENT * rows[1]:
        sizes = f" of {rows[0]:,} to {rows[-1]:,} rows" if rows else ""
        raise ParameterError(
            f"costs are learned from two or more micro-batches with at least twice as many rows as two others; the query had "
            f"{counted(len(rows), 'micro-batch', 'micro-batches')}{sizes}, not counting the first ones: let more or fewer rows "
            "come at times, or run mr.calibrate(table, spark)"
        )
