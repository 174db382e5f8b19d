"""The commands of `millrace bench`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.table import Table

from millrace.bench.interrupts import interrupted, treat_sigterm_as_interrupt
from millrace.bench.options import (
    COLD_BATCHES,
    COMPILING_BATCHES,
    CONTENDERS,
    HOT_KEYS,
    MASTER_COLUMNS,
    OVERLAPS,
    REAL_DISK,
    STRATEGIES,
    EnrichOptions,
    GrowthOptions,
    JoinOptions,
    ReadOptions,
)
from millrace.core.devices import DEVICES
from millrace.core.errors import MillraceError

bench_app = typer.Typer(no_args_is_help=True, help="Side-by-side measurements, in one run on the same data.")

Batches = Annotated[str, typer.Option(help="Rows of a micro-batch; several are separated by commas.")]
Data = Annotated[Path | None, typer.Option(help="Folder that keeps generated data and built tables for the next run.")]
How = Annotated[str, typer.Option(help="left or inner.")]
Json = Annotated[Path | None, typer.Option("--json", help="File for the full results.")]
Memory = Annotated[str, typer.Option(help="Memory of millrace, and of RocksDB's cache, per worker.")]
Rebuild = Annotated[bool, typer.Option(help="Build millrace's tables again.")]
Seed = Annotated[int, typer.Option(help="Seed of all generated data.")]
Strategies = Annotated[str, typer.Option(help=f"Strategies of millrace, of {', '.join(STRATEGIES)}.")]
ColdBatches = Annotated[int, typer.Option(help="Micro-batches before those that count.")]
WarmBatches = Annotated[int, typer.Option(help="Micro-batches that count.")]
Wide = Annotated[bool, typer.Option(help="20 more columns in the stream.")]
Zipf = Annotated[float, typer.Option(help="Exponent of the stream's keys; 0 is uniform.")]


_ALL_STRATEGIES = ",".join(STRATEGIES)
_ALL_COLUMNS = ",".join(MASTER_COLUMNS)


@bench_app.command("enrich")
def enrich(
    rows: Annotated[int, typer.Option(help="Rows of the master table, 120 bytes each.")] = 10_000_000,
    batch_rows: Batches = "200000,1000000",
    wide: Wide = False,
    zipf: Zipf = 1.0,
    cold_batches: ColdBatches = COLD_BATCHES,
    warm_batches: WarmBatches = 7,
    repeats: Annotated[int, typer.Option(help="Runs of the floors and of millrace-auto, interleaved; others run once.")] = 3,
    contenders: Annotated[str, typer.Option(help=f"Empty for all, or some of {', '.join(CONTENDERS)}.")] = "",
    strategies: Strategies = _ALL_STRATEGIES,
    columns: Annotated[str, typer.Option(help="Master columns that are added.")] = _ALL_COLUMNS,
    how: How = "left",
    memory: Memory = "256m",
    seed: Seed = 1,
    data: Data = None,
    rebuild: Rebuild = False,
    json_file: Json = None,
) -> None:
    """A stream enriched from a large table: floors, Spark's joins, RocksDB, Redis, millrace."""

    def run(console: Console) -> tuple[dict[str, Any], Table]:
        options = EnrichOptions(
            rows=rows,
            batch_rows=_numbers(batch_rows),
            wide=wide,
            zipf=zipf,
            cold_batches=cold_batches,
            warm_batches=warm_batches,
            repeats=repeats,
            contenders=_names(contenders),
            strategies=_names(strategies),
            columns=_names(columns),
            how=how,
            memory=memory,
            seed=seed,
            data=data,
            rebuild=rebuild,
        )
        from millrace.bench.enrich.enrich import run_enrich
        from millrace.bench.enrich.report import enrich_table, live_progress

        with live_progress(console) as progress:
            report = run_enrich(options, progress)
        return report, enrich_table(report)

    _present(run, json_file)


@bench_app.command("enrich-growth")
def enrich_growth(
    rows: Annotated[str, typer.Option(help="Table sizes.")] = "100000,300000,1000000,3000000,10000000",
    batch_rows: Annotated[int, typer.Option(help="Rows of a micro-batch.")] = 200_000,
    warm_batches: WarmBatches = 7,
    repeats: Annotated[int, typer.Option(help="Runs of each at every size, interleaved.")] = 3,
    broadcast_rows: Annotated[int, typer.Option(help="Largest table that is broadcast, too; 0: none.")] = 3_000_000,
    strategies: Strategies = "auto",
    zipf: Zipf = 1.0,
    how: How = "left",
    memory: Memory = "256m",
    seed: Seed = 1,
    data: Data = None,
    rebuild: Rebuild = False,
    plot: Annotated[Path | None, typer.Option(help="File for a chart, as SVG; drawn if everyone gave the same rows.")] = None,
    json_file: Json = None,
) -> None:
    """How the time of a micro-batch grows with the table, for Spark's stream-static join and for millrace."""

    def run(console: Console) -> tuple[dict[str, Any], Table]:
        options = GrowthOptions(
            rows=_numbers(rows),
            batch_rows=batch_rows,
            warm_batches=warm_batches,
            repeats=repeats,
            broadcast_rows=broadcast_rows,
            strategies=_names(strategies),
            zipf=zipf,
            how=how,
            memory=memory,
            seed=seed,
            data=data,
            rebuild=rebuild,
        )
        from millrace.bench.enrich.chart import growth_chart
        from millrace.bench.enrich.growth import run_growth
        from millrace.bench.enrich.report import growth_table, live_progress, succeeded, write_text

        with live_progress(console) as progress:
            report = run_growth(options, progress)
        if plot is not None and succeeded(report):
            write_text(growth_chart(report), plot)
        return report, growth_table(report)

    _present(run, json_file)


@bench_app.command("enrich-lookups")
def enrich_lookups(
    rows: Annotated[int, typer.Option(help="Rows of each table, 120 bytes each.")] = 10_000_000,
    batch_rows: Batches = "20000,200000,1000000",
    wide: Wide = False,
    zipf: Zipf = 1.0,
    cold_batches: ColdBatches = COMPILING_BATCHES,
    warm_batches: WarmBatches = 15,
    repeats: Annotated[int, typer.Option(help="Runs of each, interleaved.")] = 3,
    how: How = "left",
    memory: Memory = "256m",
    seed: Seed = 1,
    data: Data = None,
    json_file: Json = None,
) -> None:
    """Two tables in one pass, against two calls one behind the other."""
    options = {"rows": rows, "wide": wide, "zipf": zipf, "repeats": repeats, "how": how, "memory": memory}
    options |= {"cold_batches": cold_batches, "warm_batches": warm_batches}

    def run(console: Console) -> tuple[dict[str, Any], Table]:
        chosen = EnrichOptions(**options, batch_rows=_numbers(batch_rows), seed=seed, data=data)  # type: ignore[arg-type]
        from millrace.bench.enrich.lookups import run_lookups
        from millrace.bench.enrich.report import live_progress, lookups_table

        with live_progress(console) as progress:
            report = run_lookups(chosen, progress)
        return report, lookups_table(report)

    _present(run, json_file)


@bench_app.command("enrich-ranges")
def enrich_ranges(
    rows: Annotated[int, typer.Option(help="Ranges.")] = 1_000_000,
    batch_rows: Batches = "20000,200000,1000000",
    nested_rows: Annotated[int, typer.Option(help="Rows of a micro-batch for the nested loop; 0: leave it out.")] = 2_000,
    cold_batches: ColdBatches = COMPILING_BATCHES,
    warm_batches: WarmBatches = 15,
    repeats: Annotated[int, typer.Option(help="Runs of the floor and of millrace on a table; others run once.")] = 3,
    how: How = "left",
    memory: Memory = "256m",
    seed: Seed = 1,
    data: Data = None,
    json_file: Json = None,
) -> None:
    """The range that an address lies in: millrace's `between`, Spark's binned join, the nested loop."""
    options = {"rows": rows, "zipf": 0.0, "repeats": repeats, "how": how, "memory": memory}
    options |= {"cold_batches": cold_batches, "warm_batches": warm_batches}

    def run(console: Console) -> tuple[dict[str, Any], Table]:
        chosen = EnrichOptions(**options, batch_rows=_numbers(batch_rows), columns=("category",), seed=seed, data=data)  # type: ignore[arg-type]
        from millrace.bench.enrich.ranges import run_ranges
        from millrace.bench.enrich.report import enrich_table, live_progress

        with live_progress(console) as progress:
            report = run_ranges(chosen, nested_rows, progress)
        return report, enrich_table(report)

    _present(run, json_file)


@bench_app.command("enrich-io")
def enrich_io(
    rows: Annotated[int, typer.Option(help="Rows of the master table, 120 bytes each.")] = 10_000_000,
    batch_rows: Batches = "1000,20000,200000,1000000",
    repeats: Annotated[int, typer.Option(help="Runs of every way to read, interleaved.")] = 7,
    zipf: Zipf = 1.0,
    memory: Memory = "256m",
    seed: Seed = 1,
    data: Data = None,
    rebuild: Rebuild = False,
    json_file: Json = None,
) -> None:
    """What the read planner reads with direct I/O, against one read per page and one sequential pass."""

    def run(console: Console) -> tuple[dict[str, Any], Table]:
        options = ReadOptions(rows, _numbers(batch_rows), repeats, zipf, memory, seed, data, rebuild)
        from millrace.bench.enrich.reads import run_reads
        from millrace.bench.enrich.report import live_progress, reads_table

        with live_progress(console) as progress:
            report = run_reads(options, progress)
        return report, reads_table(report)

    _present(run, json_file)


@bench_app.command("joins")
def joins(
    rows: Annotated[str, typer.Option(help="Rows of the table; several, with commas, make a grid.")] = "2000000",
    row_bytes: Annotated[int, typer.Option(help="Bytes of a row.")] = 120,
    page_bytes: Annotated[int, typer.Option(help="Bytes of a page.")] = 64 << 10,
    memory: Annotated[str, typer.Option(help="Budgets of a join: bytes such as 50m, or a share of the table.")] = "10%",
    zipf: Annotated[str, typer.Option(help="Exponents of the stream's keys; 0 is uniform.")] = "1",
    hot_keys: Annotated[str, typer.Option(help=f"How frequent keys lie in the table: {' or '.join(HOT_KEYS)}.")] = HOT_KEYS[0],
    devices: Annotated[str, typer.Option(help=f"Of {', '.join((REAL_DISK, *DEVICES))}.")] = ",".join(JoinOptions.devices),
    overlap: Annotated[str, typer.Option(help=f"Reads of simulated devices: {' or '.join(OVERLAPS)}.")] = OVERLAPS[0],
    algorithms: Annotated[str, typer.Option(help="Empty for all in the catalog, or some of them.")] = "",
    columns: Annotated[str, typer.Option(help="Table columns that are put out.")] = ",".join(JoinOptions.columns),
    carry: Annotated[bool, typer.Option(help="Keep the stream's own 20 bytes in the join, too.")] = False,
    load: Annotated[float, typer.Option(help="For waiting times: arrivals, as a share of a join's rate.")] = JoinOptions.load,
    tune: Annotated[bool, typer.Option(help="Try disk buffers of several sizes first, and take the best.")] = False,
    repeats: Annotated[int, typer.Option(help="Runs on the disk, interleaved; the median counts.")] = JoinOptions.repeats,
    seconds: Annotated[float, typer.Option(help="On the disk: how long a join is measured.")] = JoinOptions.seconds,
    windows: Annotated[float, typer.Option(help="On simulated devices: for how many windows of tuples.")] = JoinOptions.windows,
    tuples: Annotated[int, typer.Option(help="On simulated devices: tuples at least.")] = JoinOptions.tuples,
    seed: Seed = 1,
    data: Data = None,
    json_file: Json = None,
) -> None:
    """Every join by itself, in this process: on this disk with direct reads, and on simulated devices. Needs no Spark."""

    def run(console: Console) -> tuple[dict[str, Any], Table]:
        options = JoinOptions(
            rows=_numbers(rows),
            row_bytes=row_bytes,
            page_bytes=page_bytes,
            memory=_names(memory),
            zipf=_decimals(zipf),
            hot_keys=hot_keys,
            devices=_names(devices),
            overlap=overlap,
            joins=_names(algorithms),
            columns=_names(columns),
            carry=carry,
            load=load,
            tune=tune,
            repeats=repeats,
            seconds=seconds,
            windows=windows,
            tuples=tuples,
            seed=seed,
            data=data,
        )
        from millrace.bench.joins.joins import run_joins
        from millrace.bench.joins.report import joins_progress, joins_table

        with joins_progress(console) as progress:
            report = run_joins(options, progress)
        return report, joins_table(report)

    _present(run, json_file)


@bench_app.command("estimate")
def estimate(
    rows: Annotated[int, typer.Option(help="Rows of each table, 16 bytes each.")] = 100_000_000,
    memory: Annotated[str, typer.Option(help="Memory of either contender.")] = "500m",
    threads: Annotated[int, typer.Option(help="Threads of either contender.")] = 2,
    row_group_rows: Annotated[int, typer.Option(help="Rows of a row group of the Parquet files.")] = 1 << 20,
    shape: Annotated[str, typer.Option(help="foreign-key, many-to-many, groups, where or sorted.")] = "foreign-key",
    seed: Seed = 1,
    data: Data = None,
    json_file: Json = None,
) -> None:
    """A join of two large tables: DuckDB's exact answer, and millrace's estimate, early and in the end. Needs no Spark."""

    def run(console: Console) -> tuple[dict[str, Any], Table]:
        from millrace.bench.estimate.estimate import EstimateOptions, estimate_table, run_estimate

        options = EstimateOptions(rows, memory, threads, row_group_rows, seed, data, shape)
        report = run_estimate(options, lambda text: console.print(f"... {text}", highlight=False))
        return report, estimate_table(report)

    _present(run, json_file)


@bench_app.command("coverage")
def coverage(
    reshuffles: Annotated[int, typer.Option(help="Reshuffles of each population.")] = 2000,
    engine_reshuffles: Annotated[int | None, typer.Option(help="Of PR-Join itself, if not as many.")] = None,
    populations: Annotated[str, typer.Option(help="Empty for all, or some, separated by commas.")] = "",
    parts: Annotated[str, typer.Option(help="engine: PR-Join itself; model: from accumulators alone.")] = "engine,model",
    seed: Annotated[int, typer.Option(help="Seed of all reshuffles.")] = 17,
    markdown_file: Annotated[Path | None, typer.Option("--markdown", help="File for the tables of docs/coverage.md.")] = None,
    json_file: Json = None,
) -> None:
    """How often the intervals of estimates hold, and whether that is what they promise. Needs no Spark."""

    def run(console: Console) -> tuple[dict[str, Any], Table]:
        from millrace.bench.estimate.coverage import CoverageOptions, coverage_table, run_coverage

        options = CoverageOptions(reshuffles, engine_reshuffles, _names(populations), seed, _names(parts))
        report = run_coverage(options, lambda text: console.print(f"... {text}", highlight=False))
        if markdown_file is not None:
            markdown_file.write_text(report["markdown"])
        return report, coverage_table(report)

    _present(run, json_file)


@bench_app.command("online")
def online(
    rows: Annotated[int, typer.Option(help="Rows of each input that are really joined; each stands for many.")] = 500_000,
    gammas: Annotated[str, typer.Option(help="Values of gamma, for how often temporary data are read.")] = "0.5,1,2,4",
    stream_rows: Annotated[int, typer.Option(help="Rows of each finite stream that are really joined.")] = 1_000_000,
    streams: Annotated[str, typer.Option(help="Kinds of finite streams; empty for none.")] = "slow,fast,unreliable",
    seed: Seed = 1,
    json_file: Json = None,
) -> None:
    """The experiments of the PR-Join paper on virtual devices: every online join, in virtual seconds. Needs no Spark."""

    def run(console: Console) -> tuple[dict[str, Any], RenderableType]:
        from millrace.bench.online.online import OnlineOptions, run_online
        from millrace.bench.online.report import online_tables

        options = OnlineOptions(rows, _decimals(gammas), stream_rows, _names(streams), seed=seed)
        report = run_online(options, lambda text: console.print(f"... {text}", highlight=False))
        return report, online_tables(report)

    _present(run, json_file)


def _present(run: Callable[[Console], tuple[dict[str, Any], RenderableType]], json_file: Path | None) -> None:
    """Run, print, write. Exit code 1 if the times can't be believed, 2 for bad options, 130 after Ctrl-C."""
    console = Console()
    treat_sigterm_as_interrupt()
    try:
        report, table = run(console)
    except (Exception, KeyboardInterrupt) as error:
        if interrupted(error):
            console.print("stopped; queries, servers and temporary folders are gone")
            raise typer.Exit(130) from None
        if not isinstance(error, MillraceError):
            raise
        console.print(f"[red]{error}[/red]")
        raise typer.Exit(2) from None
    from millrace.bench.enrich.report import print_whole, succeeded, write_json

    if json_file is not None:
        write_json(report, json_file)
    print_whole(table, console)
    if not succeeded(report):
        raise typer.Exit(1)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in _names(text))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a list of whole numbers such as 200000,1000000") from error


def _decimals(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in _names(text))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a list of numbers such as 0,0.5,1") from error


if __name__ == "__main__":
    bench_app()
