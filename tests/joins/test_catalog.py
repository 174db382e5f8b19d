"""The table of what exists."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from tests.joins.examples import expected, joined, relation_of, rows_of, spec_of, stream_of

import millrace
from millrace.catalog import ALGORITHMS, Algorithm, algorithm, make_join
from millrace.core.budget import Budget
from millrace.core.errors import ParameterError, StrategyError

ROOT = Path(__file__).parents[2]
KEYS, TUPLES = [3, 1, 2, 2], [2, 9, None, 3]
each = pytest.mark.parametrize("row", ALGORITHMS, ids=lambda row: row.name)


def test_the_joins_that_exist() -> None:
    assert [row.name for row in ALGORITHMS] == [
        "inlj", "meshjoin", "rmeshjoin", "hybridjoin", "xhybridjoin", "sweepjoin", "cinlj", "cmeshjoin", "chybridjoin",
        "csweepjoin", "ssij", "partitionjoin",
    ]  # fmt: skip


@each
def test_an_algorithm_has_its_module_its_tests_and_its_page(row: Algorithm) -> None:
    module = importlib.import_module(f"millrace.joins.{row.name}")
    assert getattr(module, getattr(row.join, "__name__")) is row.join  # noqa: B009
    assert (ROOT / "tests" / "joins" / f"test_{row.name}.py").exists()
    assert (ROOT / "docs" / "algorithms" / f"{row.name}.md").exists()


@each
def test_an_algorithm_has_its_equations_and_their_tests(row: Algorithm) -> None:
    """Joins with a front stage share one module, which goes on top of the equations of their back stage."""
    stem = "front_stage" if row.cached else row.name
    assert callable(importlib.import_module(f"millrace.cost.{stem}").iteration)
    assert (ROOT / "tests" / "cost" / f"test_{stem}.py").exists()


def test_every_join_of_the_package_is_listed() -> None:
    folder = Path(str(millrace.__file__)).parent / "joins"
    shared = {
        "__init__", "blocks", "cache_share", "cached", "door", "emit", "fetch", "found_matches", "front_learning",
        "front_stage", "hot_file", "hot_rows", "reading", "recent_keys", "scan", "several", "sizing", "stream_order",
    }  # fmt: skip
    assert {file.stem for file in folder.glob("*.py")} - shared == {row.name for row in ALGORITHMS}


@each
def test_a_join_is_made_by_its_name(row: Algorithm) -> None:
    join = make_join(row.name, relation_of(KEYS), spec_of("left"), Budget("64k"))
    assert rows_of(joined(join, [stream_of(TUPLES)])) == expected(TUPLES, KEYS, "left")


@each
def test_a_table_without_index_is_served_or_refused_with_what_would_serve_it(row: Algorithm) -> None:
    relation = relation_of(KEYS, indexed=False)
    if row.needs_index:
        with pytest.raises(StrategyError, match="has none: use meshjoin, rmeshjoin, cmeshjoin, or build a master table"):
            make_join(row.name, relation, spec_of(), Budget("64k"))
    else:
        join = make_join(row.name, relation, spec_of(), Budget("64k"))
        assert rows_of(joined(join, [stream_of(TUPLES)])) == expected(TUPLES, KEYS, "inner")


def test_parameters_reach_the_join() -> None:
    with pytest.raises(ParameterError, match="buffer_pages must be at least 1; got 0"):
        make_join("hybridjoin", relation_of(KEYS), spec_of(), Budget("64k"), buffer_pages=0)


def test_an_unknown_strategy_is_an_error_that_lists_what_exists() -> None:
    with pytest.raises(
        StrategyError,
        match="'mashjoin'; choose one of inlj, meshjoin, rmeshjoin, hybridjoin, xhybridjoin, sweepjoin, cinlj, cmeshjoin",
    ):
        algorithm("mashjoin")
