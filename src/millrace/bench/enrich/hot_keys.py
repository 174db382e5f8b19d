"""`millrace bench enrich-hot-keys`: what counting hot keys costs.

Three streaming queries run the same join: one that counts hot keys, one that does not, and a second one that does not. They get
the same micro-batch in turn, one query at a time, and each round begins with another query. The times of a round are divided
by each other, so what slows the machine down for a while drops out. The second query without hot keys shows the noise: its
ratio would be 1 on a machine that does nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from pyspark.sql import DataFrame
from rich.table import Table

from millrace.bench.data import StreamFiles, warm_page_cache
from millrace.bench.enrich.contenders import Workload, open_master_table
from millrace.bench.enrich.in_turn import QUIET, batch_seconds, run_in_turn
from millrace.bench.enrich.measure import Progress, folders, prepared
from millrace.bench.enrich.microbatch import CLOCK, checksum
from millrace.bench.enrich.results import OK
from millrace.bench.options import EnrichOptions

WANTED = {"plain": 0, "plain-again": 0, "hot-keys": 100}


def run_hot_keys(options: EnrichOptions, progress: Progress | None = None) -> dict[str, Any]:
    """Run the benchmark; the returned values are plain, ready for JSON."""
    progress = progress or Progress()
    with folders(options.data, options.rebuild) as where, prepared(options, where, progress.say, QUIET) as ready:
        table = open_master_table(ready.work)
        warm_page_cache(ready.work.store("millrace"))
        results = [_measured(ready.work, table, files, where.scratch / str(files.batch_rows)) for files in ready.streams]
    return {
        "benchmark": "enrich-hot-keys", "clock": CLOCK, "hot_keys": WANTED["hot-keys"], "options": options.to_json(),
        **ready.about, "rows_agree": all(result["rows_agree"] for result in results),
        "checksums_agree": all(len(set(result["checksums"])) == 1 for result in results), "results": results,
    }  # fmt: skip


def _measured(work: Workload, table: Any, files: StreamFiles, scratch: Path) -> dict[str, Any]:
    """One size of micro-batches: seconds of each query, and their ratios round by round."""
    transforms = {name: partial(_enriched, work.options, table, wanted) for name, wanted in WANTED.items()}

    def said(number: int) -> None:
        work.say(f"{files.batch_rows:,} rows a batch, round {number + 1} of {files.batches}")

    progress = run_in_turn(work.spark, transforms, files, scratch, said=said)
    seconds = {name: batch_seconds(entries, work.options.cold_batches) for name, entries in progress.items()}
    rows_out = {tuple(entry.sink.numOutputRows for entry in entries) for entries in progress.values()}
    return {
        "batch_rows": files.batch_rows,
        "seconds": seconds,
        "median_seconds": {name: median(values) for name, values in seconds.items()},
        "ratios": {name: _ratios(seconds[name], seconds["plain"]) for name in WANTED if name != "plain"},
        "rows_agree": len(rows_out) == 1,
        "checksums": [
            checksum(work.spark, partial(_enriched, work.options, table, wanted), files, work.options.columns)
            for wanted in sorted(set(WANTED.values()))
        ],
        "status": OK,
    }


def _ratios(ones: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Median and quartiles of the ratios of pairs."""
    low, middle, high = quantiles([one / other for one, other in zip(ones, others, strict=True)], n=4)
    return {"low_quartile": round(low, 4), "median": round(middle, 4), "high_quartile": round(high, 4)}


def _enriched(options: EnrichOptions, table: Any, wanted: int, stream: DataFrame) -> DataFrame:
    import millrace as mr

    enriched: DataFrame = mr.enrich(
        stream, table, on="key", how=options.how, columns=list(options.columns), memory=options.memory, hot_keys=wanted
    )
    return enriched


def hot_keys_table(report: dict[str, Any]) -> Table:
    options = report["options"]
    table = Table(
        title=f"R = {options['rows']:,} rows, Zipf {options['zipf']:g}, {options['how']} join, hot_keys={report['hot_keys']}",
        caption="Median seconds of warm micro-batches (durationMs.addBatch); x: median of the ratios of rounds, to plain, with "
        "quartiles. plain-again does the same as plain: its ratio is the noise.",
    )
    for heading in ("batch", "query", "seconds", "x plain", "quartiles"):
        table.add_column(heading, justify="left" if heading == "query" else "right")
    for result in report["results"]:
        for name, seconds in result["median_seconds"].items():
            ratios = result["ratios"].get(name)
            shown = (
                (f"{ratios['median']:.3f}", f"{ratios['low_quartile']:.3f}-{ratios['high_quartile']:.3f}")
                if ratios
                else ("", "")
            )
            table.add_row(f"{result['batch_rows']:,}", name, f"{seconds:.3f}", *shown)
    return table
