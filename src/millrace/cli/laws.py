"""`millrace laws`: checks every promise on this machine and prints the matrix."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from millrace.catalog import ALGORITHMS, CONDITIONS, ConditionName, algorithm
from millrace.checks.matrix import LAW_NAMES, Cell, Column, check_cells, columns
from millrace.core.errors import ParameterError
from millrace.core.protocols import HOWS, How
from millrace.core.wording import counted

_SHORT = {"inner": "i", "left": "l", "semi": "s", "anti": "a"}


def run_laws(
    algorithms: Sequence[str],
    conditions: Sequence[str],
    laws: Sequence[str],
    hows: Sequence[str],
    *,
    processes: int,
    as_json: bool,
    console: Console,
) -> bool:
    """Check the laws and print the matrix; returns whether all laws hold."""
    rows = [algorithm(name) for name in algorithms] or list(ALGORITHMS)
    some: list[ConditionName] = _chosen(conditions, CONDITIONS, "condition")
    wanted = columns(rows, some)
    chosen: list[str] = _chosen(laws, LAW_NAMES, "law")
    if processes < 1:
        raise ParameterError(f"processes is {processes}; give at least 1")
    how: list[How] = _chosen(hows, HOWS, "how")
    cells: list[Cell] = []
    layout = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*layout, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(wanted) * len(chosen) * len(how))
        for cell in check_cells(wanted, chosen, how, processes):
            progress.update(task, advance=1, description=f"{cell.column.algorithm}, {cell.column.name}: {cell.law}")
            cells.append(cell)
    broken = [cell for cell in cells if cell.problem]
    if as_json:
        told = [
            {"algorithm": c.column.algorithm, "condition": c.column.name, "law": c.law, "how": c.how, "problem": c.problem}
            for c in cells
        ]
        console.print_json(json.dumps({"cells": told, "broken": len(broken)}))
    else:
        _print(cells, wanted, chosen, how, console)
        for cell in broken:
            console.print(
                f"[red]{cell.column.algorithm}, {cell.column.name}, {cell.law}, {cell.how}:[/red] {cell.problem}",
                soft_wrap=True,
            )
        console.print(f"{counted(len(cells), 'cell')}, {len(broken)} broken")
    return not broken


def _print(cells: Sequence[Cell], wanted: Sequence[Column], laws: Sequence[str], hows: Sequence[How], console: Console) -> None:
    """A table for each algorithm: laws down, conditions across. A cell shows each `how` for which the law holds."""
    held: dict[tuple[Column, str], str] = defaultdict(str)
    for cell in cells:
        held[cell.column, cell.law] += "[red]x[/red]" if cell.problem else _SHORT[cell.how]
    for name in dict.fromkeys(column.algorithm for column in wanted):
        served = [column for column in wanted if column.algorithm == name]
        not_served = [condition for condition in CONDITIONS if condition not in algorithm(name).conditions]
        table = Table(
            title=name, caption=f"does not serve {', '.join(not_served)}" if not_served else None, title_justify="left"
        )
        table.add_column("law")
        for column in served:
            table.add_column(column.name)
        for law in laws:
            table.add_row(law, *(held[column, law] for column in served))
        console.print(table)
    console.print("  ".join(f"{_SHORT[how]} = {how}" for how in hows) + "  x = broken")


def _chosen(names: Sequence[str], known: Sequence[str], what: str) -> list:  # type: ignore[type-arg]
    for name in names:
        if name not in known:
            raise ParameterError(f"there is no {what} {name!r}; choose from {', '.join(known)}")
    return [name for name in known if not names or name in names]
