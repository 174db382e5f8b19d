"""All that is promised, in one table: laws x algorithms x conditions x how."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from millrace.catalog import ALGORITHMS, CONDITIONS, Algorithm, ConditionName, make_join
from millrace.checks.conditions import ByCondition
from millrace.checks.laws import LAWS, Law
from millrace.checks.run import Make
from millrace.core.protocols import HOWS, How


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
    """How a law went; `problem` is empty where it holds."""

    column: Column
    law: str
    how: How
    problem: str


def columns(algorithms: Sequence[Algorithm] = ALGORITHMS, conditions: Sequence[ConditionName] = CONDITIONS) -> list[Column]:
    """What there is to check."""
    found = []
    for row in algorithms:
        for condition in conditions:
            if condition in row.conditions:
                found.append(Column(row.name, condition))
                if condition == "expr":
                    found.append(Column(row.name, condition, sql=True))
    return found


def check_cells(
    wanted: Sequence[Column],
    laws: Sequence[Law] = LAWS,
    hows: Sequence[How] = HOWS,
    begin: Callable[[Column, Law], None] | None = None,
) -> Iterator[Cell]:
    """Try every law on every column, for every `how`."""
    for column in wanted:
        make = column.make()
        for law in laws:
            if begin is not None:
                begin(column, law)
            for how in hows:
                try:
                    law.check(make, how)
                    yield Cell(column, law.name, how, "")
                except Exception as problem:
                    yield Cell(column, law.name, how, f"{type(problem).__name__}: {problem}")
