"""Every algorithm keeps every law, for every condition that it serves and every `how`."""

from __future__ import annotations

import pytest

from millrace.catalog import ALGORITHMS, CONDITIONS
from millrace.checks import LAWS, check_join
from millrace.checks.matrix import Column, columns
from millrace.core.protocols import HOWS, How

COLUMNS = columns()


def _marks(column: Column, how: How) -> list[pytest.MarkDecorator]:
    """Conditions are found by matchers that both scanning joins share, and are tested with them: the fast tests try one."""
    ranges = column.algorithm == "rmeshjoin" and column.condition == "between" and how == "left"
    fast = column.condition == "equality" or ranges
    return [] if fast else [pytest.mark.slow]


CELLS = [
    pytest.param(column, law.name, how, marks=_marks(column, how), id=f"{column.algorithm}-{column.name}-{law.name}-{how}")
    for column in COLUMNS
    for law in LAWS
    for how in HOWS
]


@pytest.mark.parametrize(("column", "law", "how"), CELLS)
def test_the_join_keeps_the_law(column: Column, law: str, how: How) -> None:
    check_join(column.make(), law=law, how=how)


def test_there_are_no_gaps() -> None:
    """Written out, so that whoever adds an algorithm, a condition or a law sees that its cells are there."""
    assert [row.name for row in ALGORITHMS] == [
        "inlj", "meshjoin", "rmeshjoin", "hybridjoin", "xhybridjoin", "sweepjoin", "cinlj", "cmeshjoin", "chybridjoin",
        "csweepjoin", "ssij", "partitionjoin",
    ]  # fmt: skip
    assert CONDITIONS == ("equality", "between", "near", "similar", "expr")
    assert len(LAWS) == 33
    scans = {column for column in COLUMNS if column.algorithm in ("meshjoin", "rmeshjoin")}
    assert len(scans) == 2 * 6  # an expression in Arrow and in SQL
    assert {column for column in COLUMNS if column not in scans} == {
        Column(row.name, "equality") for row in ALGORITHMS if row.name not in ("meshjoin", "rmeshjoin")
    }
    assert len(CELLS) == (12 + 10) * 33 * 4 == 2904
