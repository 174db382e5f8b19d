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
from millrace.core.errors import MillraceError, interrupted


class MillraceGroup(TyperGroup):
    """Ends every command, those of sub-commands too, the same way: one red line for an error, 130 after Ctrl-C."""

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
    help="Joins fast streams with tables too big for memory, exactly and inside a byte budget, on Spark.",
    epilog="Start with [bold]millrace doctor[/bold] and [bold]millrace demo[/bold].",
)


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
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", envvar=DEBUG, help="Show tracebacks, and what Spark's JVM has to say.")
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"


@app.command()
def demo(
    rows: Annotated[int, typer.Option(help="Products in the table.")] = 4_000_000,
    sales: Annotated[int, typer.Option(help="Sales in the stream, about 120,000 in a burst.")] = 1_000_000,
    memory: Annotated[str, typer.Option(help="Memory budget of one task, such as 16m.")] = "16m",
    zipf: Annotated[float, typer.Option(help="Skew of the products sold; 0: all alike.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of all data.")] = 1,
    folder: Annotated[Path | None, typer.Option(help="Folder for the data, kept. Default: a temporary one.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary folder.")] = False,
) -> None:
    """Join a bursty stream of sales with millions of products, beside Spark's own join. About a minute.

    Product master data is built into a table folder. Two Structured Streaming queries then take the same bursts of sales in
    turn, one with Spark's own join and one with millrace: each replaces the product id by its surrogate key, adds supplier
    and total, and writes to a warehouse folder. Sales with an unknown or missing product id are kept without a surrogate key
    and counted by reason. In the end the two warehouses are compared, row for row; exit code 1 if they differ.
    """
    from millrace.cli.demo import DemoOptions, run_demo

    options = DemoOptions(rows=rows, sales=sales, memory=memory, zipf=zipf, seed=seed, folder=folder, keep=keep)
    if not run_demo(options, Console()):
        raise typer.Exit(1)


@app.command()
def doctor(
    folder: Annotated[Path, typer.Option(help="Where tables will lie; a 128 MiB file is written there for a moment.")] = Path(),
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Check Python, Java, Spark, disk and memory, and say what to do. Exit code 1 if something will not work."""
    from millrace.cli.doctor import run_doctor

    if not run_doctor(folder, as_json=json_output, console=Console()):
        raise typer.Exit(1)


@app.command()
def build(
    source: Annotated[Path, typer.Argument(help="Parquet file or folder.")],
    path: Annotated[Path, typer.Argument(help="Folder of the table; a new version is added if it exists.")],
    key: Annotated[str, typer.Option(help="Key column; several are separated by commas.")],
    layout: Annotated[str, typer.Option(help="auto, key (sorted by the key), hash, or frequency.")] = "auto",
    page_bytes: Annotated[str, typer.Option(help="Size of a page, such as 64k.")] = "64k",
    shards: Annotated[int | None, typer.Option(help="Files the rows are spread over.")] = None,
    driver_memory: Annotated[str, typer.Option(help="Memory of the Spark process.")] = "2g",
    counts: Annotated[Path | None, typer.Option(help="Parquet with key and count, for --layout frequency.")] = None,
) -> None:
    """Build a master table from Parquet, with Spark on this machine."""
    from millrace.cli.tables import build_from_parquet

    names = [name.strip() for name in key.split(",") if name.strip()]
    build_from_parquet(source, path, names, layout, page_bytes, shards, driver_memory, Console(), counts)


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="Folder of a table.")],
    verify: Annotated[bool, typer.Option("--verify", help="Read every page of every version and check its checksum.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what is in a table folder: rows, pages, columns, versions. Needs no Spark."""
    from millrace.cli.tables import inspect_table

    if not inspect_table(path, verify=verify, as_json=json_output, console=Console()):
        raise typer.Exit(1)


@app.command()
def laws(
    algorithm: Annotated[list[str] | None, typer.Option(help="Only this algorithm; may be given several times.")] = None,
    condition: Annotated[list[str] | None, typer.Option(help="Only equality, between, near, similar or expr.")] = None,
    law: Annotated[list[str] | None, typer.Option(help="Only this law.")] = None,
    how: Annotated[list[str] | None, typer.Option(help="Only inner, left, semi or anti.")] = None,
    processes: Annotated[int | None, typer.Option(help="That try laws at the same time.", show_default="one a core")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Try the laws that every join must keep: laws x algorithms x conditions x how. Exit code 1 if one is broken."""
    from millrace.cli.laws import run_laws

    chosen = algorithm or [], condition or [], law or [], how or []
    if not run_laws(*chosen, processes=_cores() if processes is None else processes, as_json=json_output, console=Console()):
        raise typer.Exit(1)


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _mount_bench() -> None:
    """`bench` is there when its parts are; otherwise the command says what is missing."""
    try:
        from millrace.bench.app import bench_app
    except ModuleNotFoundError as missing:
        name = missing.name

        @app.command("bench", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
        def bench() -> None:
            """Side-by-side measurements (not installed)."""
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
