"""`millrace laws`: the matrix, in one process or several."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from millrace.catalog import algorithm
from millrace.checks import matrix
from millrace.checks.laws import Law
from millrace.checks.matrix import check_cells, columns
from millrace.checks.run import Make
from millrace.cli.laws import run_laws
from millrace.core.errors import ParameterError
from millrace.core.protocols import How

LAWS = ("duplicates", "wrong_keys")


def _run(*, processes: int, hows: tuple[str, ...] = ("inner", "left")) -> tuple[bool, str]:
    out = io.StringIO()
    kept = run_laws(
        ["inlj", "meshjoin"], ["equality"], LAWS, hows, processes=processes, as_json=False, console=Console(file=out, width=100)
    )
    return kept, out.getvalue()


def test_cells_are_the_same_in_one_process_and_in_two() -> None:
    wanted = columns([algorithm("inlj"), algorithm("meshjoin")], ["equality", "between"])
    alone = list(check_cells(wanted, LAWS, ("left", "anti")))
    assert [cell.column for cell in alone] == [column for column in wanted for _ in range(4)]
    assert {cell.problem for cell in alone} == {""}
    assert list(check_cells(wanted, LAWS, ("left", "anti"), processes=2)) == alone


def test_the_matrix_names_what_holds_and_what_an_algorithm_does_not_serve() -> None:
    kept, text = _run(processes=2)
    assert kept
    assert "8 cells, 0 broken" in text
    assert text.count("│ il ") == 4
    assert "does not serve between, near, similar, expr" in " ".join(text.split())


def test_a_broken_law_is_told_with_its_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def duplicates(make: Make, how: How) -> None:
        assert how != "left", "one row too many"

    monkeypatch.setattr(matrix, "LAWS", [Law("duplicates", duplicates, "Breaks."), *matrix.LAWS])
    kept, text = _run(processes=1)
    assert not kept
    assert "8 cells, 2 broken" in text
    assert "meshjoin, equality, duplicates, left: AssertionError: one row too many" in text


def test_fewer_than_one_process_is_refused() -> None:
    with pytest.raises(ParameterError, match="processes is 0"):
        _run(processes=0)
