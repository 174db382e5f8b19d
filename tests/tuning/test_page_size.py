"""The rate of a join over sizes of pages."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from tests.cost.simulations import ROW_BYTES, SPEC, Scene

from millrace.core.errors import ParameterError
from millrace.relations.generated import GeneratedRelation
from millrace.relations.memory import MemoryRelation
from millrace.tuning.page_size import PAGE_SIZES, DescribedRelation, best_page, bytes_of_row, tune_page_bytes

SCENE = Scene(rows=1_000_000, memory_bytes=8 << 20, step_seconds=1e-4)


def rates(name: str, scene: Scene = SCENE) -> dict[int, float | None]:
    found = tune_page_bytes(name, scene.relation, SPEC, scene.memory_bytes, scene.stream, costs=scene.costs)
    return {one.page_bytes: one.forecast.tuples_per_second if one.forecast else None for one in found}


@pytest.mark.parametrize("name", ["meshjoin", "hybridjoin", "sweepjoin", "inlj"])
def test_a_size_is_rated_as_a_table_with_such_pages(name: str) -> None:
    for size, rate in rates(name).items():
        made = replace(SCENE, page_bytes=size).forecast(name)
        assert rate == pytest.approx(made.tuples_per_second)


def test_sizes_go_from_four_kib_to_one_mib() -> None:
    assert (PAGE_SIZES[0], PAGE_SIZES[-1], len(PAGE_SIZES)) == (4 << 10, 1 << 20, 9)


def test_where_a_seek_costs_much_one_tuple_still_wants_a_short_page() -> None:
    found = tune_page_bytes("inlj", SCENE.relation, SPEC, SCENE.memory_bytes, SCENE.stream, costs=SCENE.costs)
    assert best_page(found).page_bytes == 4 << 10


def test_a_page_that_holds_no_row_is_refused_and_others_are_rated() -> None:
    wide = GeneratedRelation(1_000, row_bytes=10_000, page_bytes=64 << 10)
    found = tune_page_bytes("hybridjoin", wide, SPEC, 8 << 20, SCENE.stream, costs=SCENE.costs)
    assert found[0].why_not == "a page of 4096 bytes does not hold a row of 10000; give larger pages"
    assert found[2].forecast is not None


def test_a_page_that_does_not_fit_says_what_memory_it_needs() -> None:
    found = tune_page_bytes("meshjoin", SCENE.relation, SPEC, 600_000, SCENE.stream, costs=SCENE.costs)
    assert found[0].forecast is not None
    assert found[-1].why_not.startswith("needs memory=1")
    assert best_page(found).forecast is not None


def test_if_no_page_fits_the_error_says_why() -> None:
    with pytest.raises(ParameterError, match="no size of pages will do: needs memory="):
        best_page(tune_page_bytes("meshjoin", SCENE.relation, SPEC, 1_000, SCENE.stream))


def test_a_described_table_has_the_rows_of_the_real_one() -> None:
    described = DescribedRelation(SCENE.relation, 4 << 10)
    assert (described.rows, described.rows_per_page) == (1_000_000, 4096 // ROW_BYTES)
    assert described.pages == -(-1_000_000 // (4096 // ROW_BYTES))
    assert described.schema == SCENE.relation.schema


def test_an_empty_table_has_no_best_page() -> None:
    empty = MemoryRelation(pa.table({"key": pa.array([], pa.int64())}), "key")
    with pytest.raises(ParameterError, match="the table is empty"):
        bytes_of_row(empty)
