"""The commands of `millrace bench`. Their options stand in `options`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from millrace.bench.commands import Outcome, command
from millrace.bench.options import (
    COMPILING_BATCHES,
    CoverageOptions,
    EnrichOptions,
    EstimateOptions,
    GrowthOptions,
    JoinOptions,
    OnlineOptions,
    ReadOptions,
    option,
)

bench_app = typer.Typer(no_args_is_help=True, help="Side-by-side measurements, in one run on the same data.")

_CLOSE_CALLS = {
    "batch_rows": option((20_000, 200_000, 1_000_000), "Rows of a micro-batch; several are separated by commas."),
    "cold_batches": option(COMPILING_BATCHES, "Micro-batches before those that count."),
    "warm_batches": option(15, "Micro-batches that count."),
}


@command(bench_app, "enrich", EnrichOptions)
def enrich(options: EnrichOptions, console: Console) -> Outcome:
    """A stream enriched from a large table: floors, Spark's joins, RocksDB, Redis, millrace."""
    from millrace.bench.enrich.enrich import run_enrich
    from millrace.bench.enrich.report import enrich_table, live_progress

    with live_progress(console) as progress:
        report = run_enrich(options, progress)
    return report, enrich_table(report)


@command(bench_app, "enrich-growth", GrowthOptions)
def enrich_growth(
    options: GrowthOptions,
    console: Console,
    *,
    plot: Annotated[Path | None, typer.Option(help="File for a chart, as SVG; drawn if everyone gave the same rows.")] = None,
) -> Outcome:
    """How the time of a micro-batch grows with the table, for Spark's stream-static join and for millrace."""
    from millrace.bench.enrich.chart import growth_chart
    from millrace.bench.enrich.growth import run_growth
    from millrace.bench.enrich.report import growth_table, live_progress, succeeded, write_text

    with live_progress(console) as progress:
        report = run_growth(options, progress)
    if plot is not None and succeeded(report):
        write_text(growth_chart(report), plot)
    return report, growth_table(report)


@command(
    bench_app, "enrich-lookups", EnrichOptions,
    only=(
        "rows", "batch_rows", "wide", "zipf", "cold_batches", "warm_batches", "repeats", "how", "memory", "seed", "data",
    ),
    instead=_CLOSE_CALLS | {
        "rows": option(10_000_000, "Rows of each table, 120 bytes each."),
        "repeats": option(3, "Runs of each, interleaved."),
    },
)  # fmt: skip
def enrich_lookups(options: EnrichOptions, console: Console) -> Outcome:
    """Two tables in one pass, against two calls one behind the other."""
    from millrace.bench.enrich.lookups import run_lookups
    from millrace.bench.enrich.report import live_progress, lookups_table

    with live_progress(console) as progress:
        report = run_lookups(options, progress)
    return report, lookups_table(report)


@command(
    bench_app, "enrich-ranges", EnrichOptions,
    only=("rows", "batch_rows", "cold_batches", "warm_batches", "repeats", "how", "memory", "seed", "data"),
    instead=_CLOSE_CALLS | {
        "rows": option(1_000_000, "Ranges."),
        "repeats": option(3, "Runs of the floor and of millrace on a table; others run once."),
    },
)  # fmt: skip
def enrich_ranges(
    options: EnrichOptions,
    console: Console,
    *,
    nested_rows: Annotated[int, typer.Option(help="Rows of a micro-batch for the nested loop; 0: leave it out.")] = 2_000,
) -> Outcome:
    """The range that an address lies in: millrace's `between`, Spark's binned join, the nested loop."""
    from millrace.bench.enrich.ranges import run_ranges
    from millrace.bench.enrich.report import enrich_table, live_progress

    with live_progress(console) as progress:
        report = run_ranges(replace(options, columns=("category",), zipf=0.0), nested_rows, progress)
    return report, enrich_table(report)


@command(bench_app, "enrich-io", ReadOptions)
def enrich_io(options: ReadOptions, console: Console) -> Outcome:
    """What the read planner reads with direct I/O, against one read per page and one sequential pass."""
    from millrace.bench.enrich.reads import run_reads
    from millrace.bench.enrich.report import live_progress, reads_table

    with live_progress(console) as progress:
        report = run_reads(options, progress)
    return report, reads_table(report)


@command(bench_app, "joins", JoinOptions)
def joins(options: JoinOptions, console: Console) -> Outcome:
    """Every join by itself, in this process: on this disk with direct reads, and on simulated devices. Needs no Spark."""
    from millrace.bench.joins.joins import run_joins
    from millrace.bench.joins.report import joins_progress, joins_table

    with joins_progress(console) as progress:
        report = run_joins(options, progress)
    return report, joins_table(report)


@command(bench_app, "estimate", EstimateOptions)
def estimate(options: EstimateOptions, console: Console) -> Outcome:
    """A join of two large tables: DuckDB's exact answer, and millrace's estimate, early and in the end. Needs no Spark."""
    from millrace.bench.estimate.estimate import estimate_table, run_estimate

    report = run_estimate(options, _saying(console))
    return report, estimate_table(report)


@command(bench_app, "coverage", CoverageOptions)
def coverage(
    options: CoverageOptions,
    console: Console,
    *,
    markdown_file: Annotated[Path | None, typer.Option("--markdown", help="File for the tables of docs/coverage.md.")] = None,
) -> Outcome:
    """How often the intervals of estimates hold, and whether that is what they promise. Needs no Spark."""
    from millrace.bench.estimate.coverage import coverage_table, run_coverage

    report = run_coverage(options, _saying(console))
    if markdown_file is not None:
        markdown_file.write_text(report["markdown"])
    return report, coverage_table(report)


@command(bench_app, "online", OnlineOptions)
def online(options: OnlineOptions, console: Console) -> Outcome:
    """The experiments of the PR-Join paper on virtual devices: every online join, in virtual seconds. Needs no Spark."""
    from millrace.bench.online.online import run_online
    from millrace.bench.online.report import online_tables

    report = run_online(options, _saying(console))
    return report, online_tables(report)


def _saying(console: Console) -> Callable[[str], None]:
    return lambda text: console.print(f"... {text}", highlight=False)


if __name__ == "__main__":
    bench_app()
