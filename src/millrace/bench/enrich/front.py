"""`millrace bench enrich-front`: what a warm front stage saves where the table is read past the page cache.

For each size of micro-batches a join runs with and without its front stage, by itself, from fresh workers: cold micro-batches
that do not count, then warm ones. Pages come from the reports of `enrich`. A micro-batch has two tasks, each with half of the
rows.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame
from rich.table import Table

from millrace.bench.data import FILES_PER_BATCH, StreamFiles
from millrace.bench.enrich.contenders import Workload, open_master_table
from millrace.bench.enrich.measure import Progress, folders, prepared
from millrace.bench.enrich.microbatch import CLOCK, checksum, run_query
from millrace.bench.enrich.results import OK, Result
from millrace.bench.enrich.session import collect_garbage, fresh_workers
from millrace.bench.options import EnrichOptions


def run_front(options: EnrichOptions, progress: Progress | None = None) -> dict[str, Any]:
    """Run the benchmark; the returned values are plain, ready for JSON."""
    progress = progress or Progress()
    results = []
    with folders(options.data, options.rebuild) as where, prepared(options, where, progress.say) as ready:
        table = open_master_table(ready.work)
        for files in ready.streams:
            for strategy in options.strategies:
                progress.say(f"{strategy}: {files.batch_rows:,} rows a batch")
                results.append(_measured(ready.work, table, strategy, files, where.scratch))
                progress.finished(Result(strategy, files.batch_rows, seconds=results[-1]["seconds"]))
    return {
        "benchmark": "enrich-front", "clock": CLOCK, "options": options.to_json(), **ready.about,
        "rows_agree": all(result["rows_in"] == result["batch_rows"] for result in results),
        "checksums_agree": all(len(sums) == 1 for sums in _checksums(results).values()),
        "results": results, "cells": cells(results),
    }  # fmt: skip


def _measured(work: Workload, table: Any, strategy: str, files: StreamFiles, scratch: Path) -> dict[str, Any]:
    import millrace as mr

    options = work.options
    enriched = partial(_enriched, options, table, strategy)
    collect_garbage(work.spark)
    with fresh_workers(work.spark, f"{strategy}-{files.batch_rows}-{time.monotonic_ns()}"):
        found: list[Any] = []
        times = run_query(
            work.spark,
            enriched,
            files,
            options.cold_batches,
            scratch,
            lambda _: None,
            lambda query: found.extend(mr.reports(query)),
        )
    reports = found[options.cold_batches :]
    return {
        "status": OK,
        "strategy": strategy,
        "batch_rows": files.batch_rows,
        "task_rows": files.batch_rows // FILES_PER_BATCH,
        "rows_in": min(report.rows_in for report in reports),
        "pages_first_batch": found[0].counts.pages_read,
        "pages": median(report.counts.pages_read for report in reports),
        "disk_bytes": median(report.disk_bytes for report in reports),
        "hit_share": median(report.hit_share or 0.0 for report in reports),
        "cache_bytes": max(report.cache_bytes for report in reports),
        "seconds": times.warm,
        "median_seconds": times.median,
        "checksum": checksum(work.spark, enriched, files, options.columns),
    }


def _enriched(options: EnrichOptions, table: Any, strategy: str, stream: DataFrame) -> DataFrame:
    import millrace as mr

    enriched: DataFrame = mr.enrich(
        stream, table, on="key", how=options.how, columns=list(options.columns), memory=options.memory,
        strategy=strategy, read="direct",
    )  # fmt: skip
    return enriched


def _checksums(results: list[dict[str, Any]]) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for result in results:
        found.setdefault(result["batch_rows"], set()).add(result["checksum"])
    return found


def cells(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each cached join beside its plain form in micro-batches of the same size: pages and seconds of it, as a share."""
    plain = {(result["strategy"], result["batch_rows"]): result for result in results}
    found = []
    for result in results:
        other = plain.get((result["strategy"].removeprefix("c"), result["batch_rows"]))
        if other is not None and other is not result:
            pages, seconds = (result[name] / other[name] if other[name] else None for name in ("pages", "median_seconds"))
            found.append(
                {**{n: result[n] for n in ("strategy", "batch_rows", "task_rows")}, "pages": pages, "seconds": seconds}
            )
    return found


def front_table(report: dict[str, Any]) -> Table:
    options = report["options"]
    table = Table(
        title=f"R = {options['rows']:,} rows, Zipf {options['zipf']:g}, memory {options['memory']} a task, direct reads",
        caption="Medians of warm micro-batches. in front: share of the stream answered there. first: pages of the first "
        "micro-batch, when nothing was known. pages x, seconds x: to the same join without a front stage; less is better.",
    )
    headings = ("rows a task", "strategy", "in front", "pages", "pages x", "first", "read", "seconds", "seconds x")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "strategy" else "right")
    beside = {(cell["strategy"], cell["batch_rows"]): cell for cell in report["cells"]}
    for result in report["results"]:
        cell = beside.get((result["strategy"], result["batch_rows"]), {"pages": None, "seconds": None})
        pages, seconds = ("" if cell[name] is None else f"{cell[name]:.2f}" for name in ("pages", "seconds"))
        table.add_row(
            f"{result['task_rows']:,}", result["strategy"], f"{result['hit_share']:.0%}" if result["hit_share"] else "",
            f"{result['pages']:,.0f}", pages, f"{result['pages_first_batch']:,}", f"{result['disk_bytes'] / 1e6:,.0f} MB",
            f"{result['median_seconds']:.3f}", seconds,
        )  # fmt: skip
    return table
