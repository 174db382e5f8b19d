"""The command `millrace`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from millrace import __version__
from millrace.cli.session import DEBUG, debugging
from millrace.core.errors import MillraceError, ParameterError, interrupted


class MillraceGroup(TyperGroup):
    """Ends every command and sub-command the same way: one red line for an error, exit code 130 after Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise _stopped() from None
        except Exception as error:
            if interrupted(error):
                raise _stopped() from None
            if debugging() or not isinstance(error, MillraceError):
                raise  # anything else is a defect, and its traceback is of use
            say_error(str(error))
            raise typer.Exit(1) from None


def _stopped() -> typer.Exit:
    Console(stderr=True).print("stopped")
    return typer.Exit(130)


app = typer.Typer(
    name="millrace",
    cls=MillraceGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Join a Spark stream with a table that is too big for memory. Results are exact; each task keeps to a memory budget.",
    epilog="Start with [bold]millrace doctor[/bold], then [bold]millrace demo[/bold].",
)


def _examples(*lines: str) -> str:
    """The end of a help text. An empty line between two lines makes Typer show them as two lines."""
    return "\n\n".join(("Examples:", *(f"[bold]{line}[/bold]" for line in lines)))


def say_error(text: str) -> None:
    """One line on stderr."""
    line = " ".join(text.split())
    Console(stderr=True).print(f"[bold red]error:[/bold red] [red]{escape(line)}[/red]", highlight=False, soft_wrap=True)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"millrace {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", envvar=DEBUG, help="Show Python tracebacks and the log of Spark's JVM.")
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"


@app.command(epilog=_examples("millrace demo", "millrace demo --rows 500000 --sales 200000 --folder demo-data"))
def demo(
    rows: Annotated[int, typer.Option(help="Rows of the product table.")] = 4_000_000,
    sales: Annotated[int, typer.Option(help="Sales in the stream. They come in bursts of about 120,000.")] = 1_000_000,
    memory: Annotated[str, typer.Option(help="Memory that the join may use in each Spark task, such as 16m or 1g.")] = "16m",
    zipf: Annotated[
        float, typer.Option(help="Skew of the sales: 0 sells all products equally often, 1 sells a few far more often.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the generated data: the same seed gives the same data.")] = 1,
    folder: Annotated[
        Path | None, typer.Option(help="Empty folder for the data, which stays. Default: a temporary folder.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary folder at the end.")] = False,
) -> None:
    """See millrace and Spark's own join enrich the same sales with millions of products. About a minute.

    1. Products are written as Parquet and built into a millrace table.

    2. Sales come in bursts. Two streaming queries take each burst in turn:
    one with Spark's own join, one with millrace.

    3. Each query replaces the product id by a surrogate key, adds supplier
    and total, and writes to a folder of its own.

    4. A sale with an unknown or missing product id stays, without a
    surrogate key. Such sales are counted by reason.

    At the end the two results are compared row by row.
    Exit code 1 if the results differ.
    """
    from millrace.cli.demo import DemoOptions, run_demo

    options = DemoOptions(rows=rows, sales=sales, memory=memory, zipf=zipf, seed=seed, folder=folder, keep=keep)
    if not run_demo(options, Console()):
        raise typer.Exit(1)


@app.command(epilog=_examples("millrace doctor", "millrace doctor --folder warehouse --json"))
def doctor(
    folder: Annotated[
        Path, typer.Option(help="Folder where tables will lie. A file of 128 MiB is written there and removed.")
    ] = Path(),
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Check whether millrace works on this machine (Python, Java, Spark, disk, memory), and what to do if not.

    Exit code 1 if a check fails.
    """
    from millrace.cli.doctor import run_doctor

    if not run_doctor(folder, as_json=json_output, console=Console()):
        raise typer.Exit(1)


@app.command(
    epilog=_examples(
        "millrace build lake/products warehouse/products --key product_id",
        "millrace build sales.parquet warehouse/sales --key shop_id,sale_id --page-bytes 32k",
    )
)
def build(
    source: Annotated[Path, typer.Argument(help="Parquet file, or folder of Parquet files.")],
    path: Annotated[Path, typer.Argument(help="Folder of the table. If the folder holds a table, a new version is added.")],
    key: Annotated[str, typer.Option(help="Key column. Separate several columns by commas.")],
    layout: Annotated[
        str,
        typer.Option(
            help="Order of the rows on disk. key: sorted by the key; hash: spread by a hash of the key; frequency: rows that "
            "are wanted most come first; auto: key where the type of the key allows it, otherwise hash."
        ),
    ] = "auto",
    page_bytes: Annotated[str, typer.Option(help="Size of a page, the unit of reading, such as 64k.")] = "64k",
    shards: Annotated[
        int | None, typer.Option(help="Number of files that the rows are spread over.", show_default="at least 8")
    ] = None,
    driver_memory: Annotated[str, typer.Option(help="Memory of the Spark process that builds the table, such as 2g.")] = "2g",
    counts: Annotated[
        Path | None,
        typer.Option(help="For --layout frequency: Parquet with the key columns and a count, how often each key is wanted."),
    ] = None,
) -> None:
    """Build a millrace table from Parquet files, with Spark on this machine."""
    from millrace.cli.tables import build_from_parquet

    names = [name.strip() for name in key.split(",") if name.strip()]
    build_from_parquet(source, path, names, layout, page_bytes, shards, driver_memory, Console(), counts)


@app.command(epilog=_examples("millrace inspect warehouse/products", "millrace inspect warehouse/products --verify"))
def inspect(
    path: Annotated[Path, typer.Argument(help="Folder of a table.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Also read every page of every version and check its checksum.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Show what a millrace table holds: rows, pages, columns, versions. Needs no Spark.

    Exit code 1 if --verify finds damage.
    """
    from millrace.cli.tables import inspect_table

    if not inspect_table(path, verify=verify, as_json=json_output, console=Console()):
        raise typer.Exit(1)


@app.command(
    epilog=_examples(
        "millrace explain sales.parquet warehouse/products --on product_id --arrivals 50000 --zipf 1",
        "millrace explain sales.parquet lake/products --on id=product_id --memory 512m --sample 100000",
    )
)
def explain(
    stream: Annotated[Path, typer.Argument(help="Parquet with rows of the stream. Only its columns count, unless --sample.")],
    table: Annotated[Path, typer.Argument(help="Folder of a table, or Parquet files that are scanned in place.")],
    on: Annotated[str, typer.Option(help="Key column. Separate several by commas; write stream=table where the names differ.")],
    how: Annotated[str, typer.Option(help="Kind of join: inner, left, semi or anti.")] = "inner",
    columns: Annotated[str | None, typer.Option(help="Table columns to add, with commas.", show_default="all of them")] = None,
    memory: Annotated[str, typer.Option(help="Memory of the join in each Spark task, such as 64m or 1g.")] = "256m",
    strategy: Annotated[str, typer.Option(help="auto, or the name of a join such as sweepjoin.")] = "auto",
    read: Annotated[str, typer.Option(help="How pages are read: auto, mmap, direct or buffered.")] = "auto",
    partitions: Annotated[
        int | None, typer.Option(help="Tasks that the stream is shuffled into.", show_default="one per core")
    ] = None,
    arrivals: Annotated[float | None, typer.Option(help="Rows of the stream that arrive in a second.")] = None,
    zipf: Annotated[
        float | None, typer.Option(help="Skew of the stream's keys (Zipf exponent). 0: all keys equally often.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(help="Rows of the stream to look at, to learn how unevenly keys come. Runs a Spark job.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Show what mr.enrich would do on this machine: the join, its memory, its rate, and whether it keeps up.

    Nothing is joined. Exit code 1 if an arrival rate is given and the join does not keep up.
    """
    from millrace.cli.explain import ExplainOptions, run_explain

    options = ExplainOptions(stream, table, on, how, columns, memory, strategy, read, partitions, arrivals, zipf, sample)
    if not run_explain(options, as_json=json_output, console=Console()):
        raise typer.Exit(1)


@app.command(
    epilog=_examples(
        "millrace tune warehouse/products --memory 64m --zipf 1 --arrivals 50000",
        "millrace tune warehouse/products --strategy hybridjoin --device hdd2008 --plot curve.png",
        "millrace tune warehouse/products --calibrate --spark",
    )
)
def tune(
    table: Annotated[
        Path | None,
        typer.Argument(help="Folder of a table, or Parquet files with --key. For --calibrate: a folder on its disk."),
    ] = None,
    memory: Annotated[str, typer.Option(help="Memory of the join in each task, such as 64m or 1g.")] = "256m",
    arrivals: Annotated[float | None, typer.Option(help="Rows of the stream that arrive in a second, for one task.")] = None,
    zipf: Annotated[
        float | None,
        typer.Option(help="Skew of the stream's keys (Zipf exponent). 0: all keys equally often.", show_default="0"),
    ] = None,
    strategy: Annotated[
        list[str] | None, typer.Option(help="Only this join, such as sweepjoin. May be given several times.")
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Table columns to add, with commas.", show_default="all of them")] = None,
    key: Annotated[str | None, typer.Option(help="Key column of Parquet files. Separate several columns by commas.")] = None,
    device: Annotated[
        str, typer.Option(help="disk: the table's own, as calibrated; or a simulated one: hdd2008, ssd or object-store.")
    ] = "disk",
    read: Annotated[str, typer.Option(help="How pages are read from the disk: direct, buffered or mmap.")] = "direct",
    plot: Annotated[
        Path | None, typer.Option(help="Picture of the rate over each size, such as curve.png or curve.svg.")
    ] = None,
    page_bytes: Annotated[
        bool, typer.Option("--page-bytes", help="Also rate sizes of pages, from 4 KiB to 1 MiB, for the fastest join.")
    ] = False,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure this machine and the disk of the table, and keep what was found.")
    ] = False,
    spark: Annotated[bool, typer.Option("--spark", help="With --calibrate: measure Spark's own part, too.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Find the best settings of every join for a table: sizes, rate, memory, and whether it keeps up. Needs no Spark.

    Nothing is joined. Exit code 1 if an arrival rate is given and no join keeps up.
    """
    if calibrate:
        from millrace.cli.calibrate import run_calibrate

        run_calibrate(table, spark=spark, as_json=json_output, console=Console())
        return
    if spark:
        raise ParameterError("--spark measures Spark's own part of a calibration: give --calibrate with it")
    if table is None:
        raise ParameterError("name a table to tune for, such as warehouse/products; without one there is only --calibrate")
    from millrace.cli.tune import TuneOptions, run_tune

    options = TuneOptions(table, memory, arrivals, zipf, tuple(strategy or ()), columns, key, device, read, page_bytes)
    if not run_tune(options, plot=plot, as_json=json_output, console=Console()):
        raise typer.Exit(1)


@app.command(epilog=_examples("millrace laws", "millrace laws --algorithm sweepjoin --how left --law exact --law ledger"))
def laws(
    algorithm: Annotated[
        list[str] | None, typer.Option(help="Check only this join, such as sweepjoin. May be given several times.")
    ] = None,
    condition: Annotated[
        list[str] | None,
        typer.Option(help="Check only this condition: equality, between, near, similar or expr. May be given several times."),
    ] = None,
    law: Annotated[
        list[str] | None, typer.Option(help="Check only this law, such as exact. May be given several times.")
    ] = None,
    how: Annotated[
        list[str] | None,
        typer.Option(help="Check only this kind of join: inner, left, semi or anti. May be given several times."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(help="Processes that check at the same time.", show_default="one per core")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Check that every join keeps its promises (exact rows, bounded memory, ...). Needs no Spark.

    Each promise is a law. Each law is tried for each join, condition and kind of join.
    Exit code 1 if a law is broken.
    """
    from millrace.cli.laws import run_laws

    chosen = algorithm or [], condition or [], law or [], how or []
    if not run_laws(*chosen, processes=_cores() if processes is None else processes, as_json=json_output, console=Console()):
        raise typer.Exit(1)


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _mount_bench() -> None:
    """Add `bench` if its packages are installed; otherwise add a command that says what is missing."""
    try:
        from millrace.bench.app import bench_app
    except ModuleNotFoundError as missing:
        name = missing.name

        @app.command("bench", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
        def bench() -> None:
            """Measure millrace side by side with other ways to join (not installed)."""
            raise MillraceError(
                f"the benchmarks need {name}, which is not installed: pip install 'millrace-spark[spark,bench]'"
            )
    else:
        app.add_typer(bench_app, name="bench")


_mount_bench()


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except KeyboardInterrupt:  # outside a command, for instance while Python was importing
        sys.exit(130)


if __name__ == "__main__":
    main()
