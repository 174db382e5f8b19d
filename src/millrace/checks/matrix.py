"""All promises in one table: laws x algorithms x conditions x how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from multiprocessing import get_context
from signal import SIG_IGN, SIGINT, signal
from typing import NamedTuple

from millrace.catalog import ALGORITHMS, CONDITIONS, Algorithm, ConditionName, make_join
from millrace.checks.conditions import ByCondition
from millrace.checks.laws import LAWS
from millrace.checks.run import Make
from millrace.core.protocols import HOWS, How

LAW_NAMES = tuple(law.name for law in LAWS)


class Column(NamedTuple):
    """An algorithm and a condition that it serves; an expression may be Arrow's or SQL."""

    algorithm: str
    condition: ConditionName
    sql: bool = False

    @property
    def name(self) -> str:
        return f"{self.condition} (SQL)" if self.sql else self.condition

    def make(self) -> Make:
        join: Make = partial(make_join, self.algorithm)
        return join if self.condition == "equality" else ByCondition(join, self.condition, sql=self.sql)


class Cell(NamedTuple):
    """How a law went; `problem` is empty if the law holds."""

    column: Column
    law: str
    how: How
    problem: str


def columns(algorithms: Sequence[Algorithm] = ALGORITHMS, conditions: Sequence[ConditionName] = CONDITIONS) -> list[Column]:
    """All pairs of algorithm and condition to check."""
    found = []
    for row in algorithms:
        for condition in conditions:
            if condition in row.conditions:
                found.append(Column(row.name, condition))
                if condition == "expr":
                    found.append(Column(row.name, condition, sql=True))
    return found


def check_cells(
    wanted: Sequence[Column], laws: Sequence[str] = LAW_NAMES, hows: Sequence[How] = HOWS, processes: int = 1
) -> Iterator[Cell]:
    """Check every law on every column, for every `how`, in so many processes. Cells come in the order of columns and laws."""
    tasks = [(column, law) for column in wanted for law in laws]
    check = partial(_check, tuple(hows))
    if processes == 1:
        yield from chain.from_iterable(map(check, tasks))
        return
    pool = ProcessPoolExecutor(processes, get_context("spawn"), signal, (SIGINT, SIG_IGN))  # Ctrl-C is for this process
    try:
        yield from chain.from_iterable(pool.map(check, tasks))
    finally:
        pool.shutdown(cancel_futures=True)


def _check(hows: Sequence[How], task: tuple[Column, str]) -> list[Cell]:
    column, name = task
    make, law = column.make(), next(law for law in LAWS if law.name == name)
    cells = []
    for how in hows:
        problem = ""
        try:
            law.check(make, how)
        except Exception as broken:  # whatever it is, the law does not hold, and the others are still to be tried
            problem = f"{type(broken).__name__}: {broken}"
        cells.append(Cell(column, name, how, problem))
    return cells
