"""`millrace bench enrich-growth`: the same batch size against ever larger tables, all in the page cache.

A stream-static join reads the whole table in every micro-batch, so its time grows with the table; a look-up of the rows
that are wanted should hardly notice. Repeats go over all sizes and contenders in turn: what disturbs the machine for a while
then disturbs everyone.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from millrace.bench.data import ROW_BYTES, StreamFiles, master_files, stream_files
from millrace.bench.enrich.contenders import IdentityMap, Workload, contenders
from millrace.bench.enrich.measure import Folders, Progress, folders, measure
from millrace.bench.enrich.microbatch import CLOCK
from millrace.bench.enrich.results import FLOOR, OK, Result, checksums_agree, compared, merged, rows_agree
from millrace.bench.enrich.session import describe_machine, spark_session
from millrace.bench.options import COLD_BATCHES, EnrichOptions, GrowthOptions


def run_growth(options: GrowthOptions, progress: Progress | None = None) -> dict[str, Any]:
    """Run the benchmark; the returned values are plain, ready for JSON."""
    progress = progress or Progress()
    found: dict[int, list[Result]] = {rows: [] for rows in options.rows}
    with (
        folders(options.data, options.rebuild) as where,
        spark_session(options.driver_memory, where.scratch) as spark,
    ):
        about = describe_machine(spark, options.driver_memory)
        works = [_workload(spark, options.at(rows), where, progress) for rows in options.rows]
        progress.say("warming the JVM up")
        measure(IdentityMap(FLOOR), *works[0], where.scratch, Progress())
        for work, streams in works * options.repeats:
            progress.say(f"a table of {work.options.rows:,} rows")
            for contender in contenders(work.options):
                found[work.options.rows] += measure(contender, work, streams, where.scratch, progress)
    by_rows = {rows: merged(results) for rows, results in found.items()}
    return {
        "benchmark": "enrich-growth",
        "clock": CLOCK,
        "cold_batches_dropped": COLD_BATCHES,
        "seed": options.seed,
        "options": options.to_json(),
        **about,
        "data": {"row_bytes": ROW_BYTES},
        "rows_agree": all(rows_agree(results) for results in by_rows.values()),
        "checksums_agree": all(checksums_agree(results) for results in by_rows.values()),
        "results": [{"rows": rows, **plain} for rows, results in by_rows.items() for plain in compared(results)],
        "growth": growth(by_rows),
    }


def _workload(
    spark: SparkSession, chosen: EnrichOptions, where: Folders, progress: Progress
) -> tuple[Workload, list[StreamFiles]]:
    streams = [stream_files(chosen, size, where.data, progress.say) for size in chosen.batch_rows]
    return Workload(spark, chosen, master_files(chosen, where.data, progress.say), where.data, progress.say), streams


def growth(by_rows: dict[int, list[Result]]) -> dict[str, dict[str, float]]:
    """For every contender, its median at each table size divided by that at the first."""
    first = next(iter(by_rows.values()))
    base = {result.contender: result.median_seconds for result in first if result.status == OK}
    ratios: dict[str, dict[str, float]] = {}
    for rows, results in by_rows.items():
        for result in results:
            start, now = base.get(result.contender), result.median_seconds
            if start and now is not None:
                ratios.setdefault(result.contender, {})[str(rows)] = round(now / start, 3)
    return ratios
