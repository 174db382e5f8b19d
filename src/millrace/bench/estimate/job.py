"""One contender of `millrace bench estimate`, in a process of its own: it is given a job as JSON and prints its result."""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from typing import Any

import pyarrow as pa

from millrace.bench.estimate.shapes import SHAPES, VALUE
from millrace.bench.memory import status_bytes
from millrace.front.estimate import estimate
from millrace.online.question.aggregations import sum_
from millrace.online.run.reports import Report

TARGET = 0.01


def run_duckdb(job: dict[str, Any]) -> dict[str, Any]:
    import duckdb

    config = {
        "memory_limit": f"{job['memory_bytes']}B", "threads": job["threads"], "temp_directory": job["scratch"],
        "preserve_insertion_order": False,
    }  # fmt: skip
    connection = duckdb.connect(config=config)
    connection.execute("SELECT sum(a.x * b.x) FROM range(9) a(x) JOIN range(9) b(x) ON a.x = b.x").fetchall()
    watch = _Watch()
    answer = connection.execute(SHAPES[job["shape"]].sql(job["left"], job["right"])).fetchall()
    return {"exact_seconds": watch.seconds, "answer": sorted(answer), **watch.ended()}


def run_millrace(job: dict[str, Any]) -> dict[str, Any]:
    shape = SHAPES[job["shape"]]
    question: dict[str, Any] = {
        "on": "key", "where": shape.where, "group_by": shape.group_by, "answer": sum_(VALUE), "threads": job["threads"],
    }  # fmt: skip
    tiny = pa.table({"key": [1, 2], "value": [1.0, 2.0], "bucket": [0, 1]})
    estimate(tiny, tiny.select(["key", "value"]), **question).exact()
    truth = dict(job["answer"])
    watch = _Watch()
    seen: list[tuple[float, float, float, float]] = []  # seconds, share read, half-width, true error
    with estimate(
        job["left"], job["right"], **question, memory=job["memory_bytes"], seed=job["seed"], every=0.02, spill=job["scratch"],
    ) as run:  # fmt: skip
        for report in run:
            values = _values(report)
            wrong = max(abs(values.get(group, float("inf")) / value - 1) for group, value in truth.items())
            seen.append((watch.seconds, report.share_read, report.relative_half_width, wrong))
        found = {
            "exact_seconds": watch.seconds,
            "answer": sorted([group, value] for group, value in values.items()),
            **watch.ended(),
            "reports": len(seen),
            "intervals_held": run.held()["answer"].share,
            "order": report.variance_of,
            "temporary_bytes": report.temporary_bytes,
            "budget_peak_bytes": run.budget.peak_bytes,
        }
    return {**milestones(seen, TARGET), **found}


def _values(report: Report) -> dict[Any, float]:
    if report.groups is None:
        return {None: report["answer"].value}
    return {group: report["answer", group].value for group in report.groups}


def milestones(seen: list[tuple[float, float, float, float]], target: float) -> dict[str, Any]:
    """When the first report came; when half-width and true error were at most `target` for the first time, and from when on."""
    good = [half <= target and wrong <= target for _, _, half, wrong in seen]
    bad = [number for number, fine in enumerate(good) if not fine]
    first, settled = good.index(True), bad[-1] + 1 if bad else 0
    narrow = next(number for number, (_, _, half, _) in enumerate(seen) if half <= target)
    return {
        "first_seconds": seen[0][0],
        "narrow_seconds": seen[narrow][0],
        "within_seconds": seen[first][0],
        "settled_seconds": seen[settled][0],
        "within_share_read": seen[first][1],
        "within_half_width": seen[first][2],
        "within_error": seen[first][3],
        "left_again": settled > first,
        "worst_error_after": max(wrong for _, _, _, wrong in seen[first:]),
        "history": [[x if math.isfinite(x) else None for x in row] for row in seen[:: max(1, len(seen) // 100)]],
    }


class _Watch:
    """Seconds, processor seconds and own memory from now on."""

    def __init__(self) -> None:
        self._anon = status_bytes(os.getpid(), "RssAnon")
        self._cpu, self._started = _cpu(), time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def ended(self) -> dict[str, Any]:
        return {"cpu_seconds": _cpu() - self._cpu, "idle_anon_bytes": self._anon}


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(run_duckdb(given) if given["contender"] == "duckdb" else run_millrace(given)))
