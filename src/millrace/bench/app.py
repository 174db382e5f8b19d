"""The commands of `millrace bench`. Their options stand in `options`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from millrace.bench.commands import Outcome, command
from millrace.bench.cost.figures import CostFigureOptions
from millrace.bench.options import (
    COMPILING_BATCHES,
    MEMORY_OF_MILLRACE,
    REAL_DISK,
    CoverageOptions,
    EnrichOptions,
    EstimateOptions,
    FollowOptions,
    GrowthOptions,
    JoinOptions,
    OnlineOptions,
    ReadOptions,
    SheddingOptions,
    option,
)
from millrace.core.devices import DEVICES

bench_app = typer.Typer(
    no_args_is_help=True,
    help="Measure millrace side by side with other ways to join, in one run on the same data.",
    epilog="Example: [bold]millrace bench enrich --rows 1000000 --data bench-data --json enrich.json[/bold]",
)

_CLOSE_CALLS = {
    "memory": option("256m", MEMORY_OF_MILLRACE),
    "batch_rows": option((20_000, 200_000, 1_000_000), "Rows of a micro-batch. Separate several sizes by commas."),
    "cold_batches": option(COMPILING_BATCHES, "Micro-batches at the start that are not measured."),
    "warm_batches": option(15, "Micro-batches that are measured, at least 5."),
}


@command(bench_app, "enrich", EnrichOptions)
def enrich(options: EnrichOptions, console: Console) -> Outcome:
    """Compare the time of a micro-batch: millrace, Spark's own joins, RocksDB and Redis, on one large table."""
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
    plot: Annotated[Path | None, typer.Option(help="SVG file for a chart. Drawn only if all results agree.")] = None,
) -> Outcome:
    """Compare how the time of a micro-batch grows with the table: Spark's stream-static join and millrace."""
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
        "repeats": option(3, "Runs of each contender, taken in turn."),
    },
)  # fmt: skip
def enrich_lookups(options: EnrichOptions, console: Console) -> Outcome:
    """Compare joining two tables in one call of enrich with joining them in two calls."""
    from millrace.bench.enrich.lookups import run_lookups
    from millrace.bench.enrich.report import live_progress, lookups_table

    with live_progress(console) as progress:
        report = run_lookups(options, progress)
    return report, lookups_table(report)


@command(
    bench_app, "enrich-hot-keys", EnrichOptions,
    only=("rows", "batch_rows", "wide", "zipf", "cold_batches", "warm_batches", "how", "memory", "seed", "data"),
    instead=_CLOSE_CALLS | {
        "batch_rows": option((200_000, 1_000_000), "Rows of a micro-batch. Separate several sizes by commas."),
        "warm_batches": option(30, "Rounds that are measured, at least 5."),
    },
)  # fmt: skip
def enrich_hot_keys(options: EnrichOptions, console: Console) -> Outcome:
    """Compare enrich that counts hot keys with enrich that does not, micro-batch by micro-batch."""
    from millrace.bench.enrich.hot_keys import hot_keys_table, run_hot_keys
    from millrace.bench.enrich.report import live_progress

    with live_progress(console) as progress:
        report = run_hot_keys(options, progress)
    return report, hot_keys_table(report)


@command(
    bench_app, "enrich-front", EnrichOptions,
    only=("rows", "batch_rows", "zipf", "cold_batches", "warm_batches", "strategies", "memory", "seed", "data"),
    instead=_CLOSE_CALLS | {
        "batch_rows": option(
            (40_000, 200_000, 400_000, 2_000_000), "Rows of a micro-batch, half for each of two tasks. Several with commas."
        ),
        "cold_batches": option(5, "Micro-batches at the start that are not measured: the front stage learns."),
        "warm_batches": option(5, "Micro-batches that are measured, at least 5."),
        "strategies": option(("sweepjoin", "csweepjoin"), "Joins with and without a front stage, with commas."),
    },
)  # fmt: skip
def enrich_front(options: EnrichOptions, console: Console) -> Outcome:
    """Compare enrich with and without a front stage on Spark, with direct reads: pages read and the time of a micro-batch."""
    from millrace.bench.enrich.front import front_table, run_front
    from millrace.bench.enrich.report import live_progress

    with live_progress(console) as progress:
        report = run_front(options, progress)
    return report, front_table(report)


@command(
    bench_app, "enrich-auto", EnrichOptions,
    only=("rows", "batch_rows", "zipf", "cold_batches", "warm_batches", "how", "seed", "data"),
    instead={
        "batch_rows": option((20_000, 200_000, 1_000_000), "Rows of a micro-batch. Separate several sizes by commas."),
        "cold_batches": option(COMPILING_BATCHES, "Micro-batches at the start that are not measured."),
        "warm_batches": option(9, "Micro-batches that are measured, at least 5."),
    },
)  # fmt: skip
def enrich_auto(options: EnrichOptions, console: Console) -> Outcome:
    """Compare the join that auto takes with the best others, and the time that mr.explain expects with the measured time."""
    from millrace.bench.enrich.auto import auto_table, run_auto
    from millrace.bench.enrich.report import live_progress

    with live_progress(console) as progress:
        report = run_auto(options, progress)
    return report, auto_table(report)


@command(
    bench_app, "enrich-ranges", EnrichOptions,
    only=("rows", "batch_rows", "cold_batches", "warm_batches", "repeats", "how", "memory", "seed", "data"),
    instead=_CLOSE_CALLS | {
        "rows": option(1_000_000, "Ranges in the table."),
        "repeats": option(3, "Runs of millrace on a built table, and of the floor, in turn. Others run once."),
    },
)  # fmt: skip
def enrich_ranges(
    options: EnrichOptions,
    console: Console,
    *,
    nested_rows: Annotated[int, typer.Option(help="Rows of a micro-batch for Spark's nested loop. 0: no nested loop.")] = 2_000,
) -> Outcome:
    """Compare ways to find the range of an IP address: millrace's between, a binned join on Spark, Spark's nested loop."""
    from millrace.bench.enrich.ranges import run_ranges
    from millrace.bench.enrich.report import enrich_table, live_progress

    with live_progress(console) as progress:
        report = run_ranges(replace(options, columns=("category",), zipf=0.0), nested_rows, progress)
    return report, enrich_table(report)


@command(bench_app, "enrich-io", ReadOptions)
def enrich_io(options: ReadOptions, console: Console) -> Outcome:
    """Compare three ways to read pages past the page cache: planned reads, one read per page, one sequential pass."""
    from millrace.bench.enrich.reads import run_reads
    from millrace.bench.enrich.report import live_progress, reads_table

    with live_progress(console) as progress:
        report = run_reads(options, progress)
    return report, reads_table(report)


@command(bench_app, "joins", JoinOptions)
def joins(options: JoinOptions, console: Console) -> Outcome:
    """Compare all join algorithms on this disk and on simulated devices. Needs no Spark."""
    from millrace.bench.joins.joins import run_joins
    from millrace.bench.joins.report import joins_progress, joins_table

    with joins_progress(console) as progress:
        report = run_joins(options, progress)
    return report, joins_table(report)


@command(
    bench_app, "cost", JoinOptions,
    only=(
        "rows", "row_bytes", "page_bytes", "memory", "zipf", "hot_keys", "cache_share", "devices", "joins", "repeats",
        "seconds", "windows", "tuples", "seed", "data",
    ),
    instead={
        "rows": option((1_000_000, 4_000_000, 20_000_000), "Rows of the table. Several sizes, with commas, make a grid."),
        "memory": option(("1%", "3%", "10%"), "Memory of a join, as a share of the table or in bytes. Several with commas."),
        "zipf": option((0.0, 0.5, 1.0, 1.2), "Skew of the stream's keys (Zipf exponents, with commas)."),
        "devices": option(("hdd2008",), f"Some of {', '.join((REAL_DISK, *DEVICES))}; all but disk are simulated."),
    },
)  # fmt: skip
def cost(
    options: JoinOptions,
    console: Console,
    *,
    plot: Annotated[Path | None, typer.Option(help="Picture (.png, .svg, .pdf): expected over measured rates.")] = None,
) -> Outcome:
    """Compare the rate that is expected of every join with the rate that it has. Needs no Spark."""
    from millrace.bench.cost.cost import run_cost
    from millrace.bench.cost.report import check_picture, cost_table, draw_costs
    from millrace.bench.joins.report import joins_progress

    check_picture(plot)
    with joins_progress(console) as progress:
        report = run_cost(options, progress)
    if plot is not None:
        draw_costs(report, plot)
    return report, cost_table(report)


@command(bench_app, "cost-figures", CostFigureOptions)
def cost_figures(
    options: CostFigureOptions,
    console: Console,
    *,
    plot: Annotated[Path | None, typer.Option(help="Folder for a picture of each figure.")] = None,
) -> Outcome:
    """Compute the papers' figures that follow from equations: rates and costs over sizes. Needs no Spark."""
    from millrace.bench.cost.figures import figures_table, run_cost_figures

    report = run_cost_figures(options, plot)
    return report, figures_table(report)


@command(bench_app, "shedding", SheddingOptions)
def shedding(options: SheddingOptions, console: Console) -> Outcome:
    """Compare ways to shed load while tuples arrive faster than a join can serve them. Needs no Spark."""
    from millrace.bench.shedding.report import shedding_progress, shedding_table
    from millrace.bench.shedding.shedding import run_shedding

    with shedding_progress(console) as progress:
        report = run_shedding(options, progress)
    return report, shedding_table(report)


@command(bench_app, "follow", FollowOptions)
def follow(options: FollowOptions, console: Console) -> Outcome:
    """Compare a join whose settings follow the stream with settings that stay, while the skew changes. Needs no Spark."""
    from millrace.bench.follow.follow import run_follow
    from millrace.bench.follow.report import follow_progress, follow_table

    with follow_progress(console) as progress:
        report = run_follow(options, progress)
    return report, follow_table(report)


@command(bench_app, "estimate", EstimateOptions)
def estimate(options: EstimateOptions, console: Console) -> Outcome:
    """Compare the time to an estimate, and to the exact answer, with DuckDB on a join of two large tables. Needs no Spark."""
    from millrace.bench.estimate.estimate import estimate_table, run_estimate

    report = run_estimate(options, _saying(console))
    return report, estimate_table(report)


@command(bench_app, "coverage", CoverageOptions)
def coverage(
    options: CoverageOptions,
    console: Console,
    *,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Markdown file for the tables of docs/coverage.md.")
    ] = None,
) -> Outcome:
    """Check how often the intervals of estimates hold the true answer. Needs no Spark."""
    from millrace.bench.estimate.coverage import coverage_table, run_coverage

    report = run_coverage(options, _saying(console))
    if markdown_file is not None:
        markdown_file.write_text(report["markdown"])
    return report, coverage_table(report)


@command(bench_app, "online", OnlineOptions)
def online(options: OnlineOptions, console: Console) -> Outcome:
    """Repeat the experiments of the PR-Join paper on simulated devices, with every online join. Needs no Spark."""
    from millrace.bench.online.online import run_online
    from millrace.bench.online.report import online_tables

    report = run_online(options, _saying(console))
    return report, online_tables(report)


def _saying(console: Console) -> Callable[[str], None]:
    return lambda text: console.print(f"... {text}", highlight=False)


if __name__ == "__main__":
    bench_app()
