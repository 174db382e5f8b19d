"""A command of `millrace bench` from a class of options: every field with a help text is an option of the command.

    @command(app, "joins", JoinOptions)
    def joins(options: JoinOptions, console: Console) -> Outcome: ...

Keyword arguments of the function are further options of the command. `--json` belongs to all commands.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from rich.console import Console, RenderableType

from millrace.bench.interrupts import treat_sigterm_as_interrupt
from millrace.core.errors import MillraceError, interrupted

Outcome = tuple[dict[str, Any], RenderableType]  # the full results, ready for JSON, and what is printed
_JSON = Annotated[Path | None, typer.Option("--json", help="File for the full results.")]
_NUMBERS = {int: "whole numbers such as 200000,1000000", float: "numbers such as 0,0.5,1"}


def command(
    app: typer.Typer, name: str, options: type[Any], *,
    only: Sequence[str] | None = None, instead: Mapping[str, Field[Any]] | None = None,
) -> Callable[[Callable[..., Outcome]], Callable[..., Outcome]]:  # fmt: skip
    """Make a command of a function. `only` some of the options; `instead`: those with another default or help text."""
    kinds = get_type_hints(options)
    shown = [(instead or {}).get(one.name, one) for one in fields(options)]
    chosen = {
        one.name: field
        for one, field in zip(fields(options), shown, strict=True)
        if "help" in field.metadata and (only is None or one.name in only)
    }

    def add(run: Callable[..., Outcome]) -> Callable[..., Outcome]:
        own = list(inspect.signature(run, eval_str=True).parameters.values())[2:]
        parameters = [_parameter(key, kinds[key], field) for key, field in chosen.items()]

        def called(json_file: Path | None, **given: Any) -> None:
            _check_folder(json_file)
            more = {each.name: given.pop(each.name) for each in own}
            values = {key: _parsed(kinds[key], value) for key, value in given.items()}
            _present(lambda console: run(options(**values), console, **more), json_file)

        end = _keyword("json_file", _JSON, None)
        signature = inspect.Signature([*parameters, *own, end])
        called.__signature__ = signature  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
        called.__doc__ = run.__doc__
        app.command(name)(called)
        return run

    return add


def _parameter(name: str, kind: Any, field: Field[Any]) -> inspect.Parameter:
    """The option of a field. A tuple is a text with commas."""
    default: Any = field.default
    if get_origin(kind) is tuple:
        kind, default = str, ",".join(f"{value:g}" if isinstance(value, float) else str(value) for value in default)
    flag = field.metadata["flag"]
    shown = typer.Option(*([flag] if flag is not None else []), help=field.metadata["help"])
    return _keyword(name, Annotated[kind, shown], default)


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _parsed(kind: Any, given: Any) -> Any:
    """The value of a field from that of its option."""
    if get_origin(kind) is not tuple:
        return given
    of = get_args(kind)[0]
    try:
        return tuple(of(part) for part in given.replace(",", " ").split())
    except ValueError as error:
        raise typer.BadParameter(f"{given!r} is not a list of {_NUMBERS[of]}") from error


def _check_folder(file: Path | None) -> None:
    """Before a long run: its results will have a place."""
    try:
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"{file} can't be written: {error.strerror}") from error


def _present(run: Callable[[Console], Outcome], json_file: Path | None) -> None:
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

    print_whole(table, console)
    if json_file is not None:
        write_json(report, json_file)
    if not succeeded(report):
        raise typer.Exit(1)
