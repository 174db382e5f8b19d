"""The best settings of a join, and the least memory that keeps up."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from tests.cost.simulations import SPEC, Scene

from millrace.catalog import ALGORITHMS, check_memory, make_join
from millrace.core.budget import Budget
from millrace.core.errors import BudgetError, ParameterError, RateError
from millrace.cost.expected import StreamShape
from millrace.tuning.tuners import CLOSE, KNOBS, Tuned, floor, least_memory_for, tune

SCENE = Scene(step_seconds=1e-4)
EVEN = replace(SCENE, zipf=0.0)
SORTED = replace(SCENE, order="sorted")
BIG = Scene(rows=10_000_000, page_bytes=64 << 10, memory_bytes=64 << 20, step_seconds=1e-4)
NAMES = [row.name for row in ALGORITHMS]


def tuned(name: str, scene: Scene = SCENE) -> Tuned:
    return tune(name, scene.relation, SPEC, scene.memory_bytes, scene.stream, costs=scene.costs)


def test_every_join_of_the_catalogue_has_its_parameters() -> None:
    assert list(KNOBS) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scene", [SCENE, SORTED, BIG], ids=["small", "sorted", "big"])
def test_a_join_can_be_made_with_its_tuned_settings_and_is_no_worse_for_them(name: str, scene: Scene) -> None:
    found = tuned(name, scene)
    check_memory(name, scene.relation, SPEC, Budget(scene.memory_bytes), **found.parameters)
    again = scene.forecast(name, **found.parameters)
    assert again.tuples_per_second == pytest.approx(found.best.tuples_per_second)
    assert found.best.tuples_per_second >= found.own.tuples_per_second
    assert found.own_is_best == (found.chosen is found.own) == (found.shortfall <= CLOSE)


@pytest.mark.parametrize(
    "name", ["meshjoin", "rmeshjoin", "hybridjoin", "xhybridjoin", "sweepjoin", "cmeshjoin", "chybridjoin"]
)
@pytest.mark.parametrize("order", ["scattered", "sorted"])
def test_joins_that_tune_themselves_are_within_a_fiftieth_of_the_best(name: str, order: Any) -> None:
    assert tuned(name, replace(BIG, order=order)).own_is_best


@pytest.mark.parametrize("share", [0.1, 0.5, 0.75])
def test_a_share_that_was_named_is_expected_as_it_will_be_divided(share: float) -> None:
    given = {"cache_share": share, "buffer_pages": 20}
    try:
        join: Any = make_join("chybridjoin", SCENE.relation, SPEC, Budget(SCENE.memory_bytes), **given)
    except BudgetError:
        assert share == 0.75
        with pytest.raises(BudgetError):
            SCENE.forecast("chybridjoin", **given)
    else:
        expected = SCENE.forecast("chybridjoin", **given).expected
        assert (expected.settings["cache_share"], expected.window_tuples) == (pytest.approx(join.cache_share), join.capacity)


@pytest.mark.parametrize("name", ["xhybridjoin", "chybridjoin", "partitionjoin"])
def test_the_best_setting_is_the_top_of_its_curves(name: str) -> None:
    found = tuned(name, SORTED)
    assert set(found.curves) == {knob.name for knob in KNOBS[name]}
    for parameter, curve in found.curves.items():
        top = max(point.tuples_per_second for point in curve)
        assert top == pytest.approx(found.best.tuples_per_second, rel=1e-3), parameter
        assert [point.value for point in curve] == sorted({point.value for point in curve})


GRIDS: list[tuple[str, Scene, dict[str, tuple[Any, ...]], int]] = [
    ("meshjoin", SCENE, {"buffer_pages": (1, 4, 16)}, 5_000),
    ("rmeshjoin", SCENE, {"buffer_pages": (1, 4, 16)}, 5_000),
    ("hybridjoin", SCENE, {"buffer_pages": (5, 12, 20, 30)}, 10_000),
    ("hybridjoin", SORTED, {"buffer_pages": (5, 12, 20, 30)}, 10_000),
    ("xhybridjoin", EVEN, {"buffer_pages": (10, 20), "pinned_pages": (0, 10)}, 10_000),
    ("xhybridjoin", SORTED, {"buffer_pages": (8, 16), "pinned_pages": (4, 12, 24)}, 10_000),
    ("sweepjoin", SCENE, {"buffer_pages": (1, 4, 20)}, 5_000),
    ("inlj", SCENE, {"pool_bytes": (None, "rest"), "tuples_per_step": (1, 64)}, 500),
    ("chybridjoin", SCENE, {"buffer_pages": (16,), "cache_share": (0.05, 0.15, 0.3)}, 20_000),
    ("ssij", SCENE, {"buffer_pages": (2,), "cache_share": (0.0, 0.1, 0.5)}, 20_000),
    ("partitionjoin", SCENE, {"buffer_pages": (8, 26), "cache_share": (0.0, 0.25)}, 10_000),
]
MORE: list[tuple[str, Scene, dict[str, tuple[Any, ...]], int]] = [
    ("meshjoin", SCENE, {"buffer_pages": (1, 2, 3, 4, 6, 8, 12, 16, 24)}, 20_000),
    ("hybridjoin", SCENE, {"buffer_pages": (1, 4, 8, 12, 16, 20, 24, 30, 40)}, 50_000),
    ("xhybridjoin", SORTED, {"buffer_pages": (4, 8, 12, 16, 20), "pinned_pages": (0, 4, 8, 12, 16, 24)}, 50_000),
    ("sweepjoin", SCENE, {"buffer_pages": (1, 2, 4, 8, 16, 30)}, 20_000),
    ("chybridjoin", SCENE, {"buffer_pages": (12, 20), "cache_share": (0.05, 0.1, 0.15, 0.2, 0.3)}, 50_000),
    ("csweepjoin", SCENE, {"buffer_pages": (2, 6), "cache_share": (0.05, 0.15, 0.2, 0.3)}, 50_000),
    ("cmeshjoin", SCENE, {"buffer_pages": (4,), "cache_share": (0.05, 0.15, 0.25)}, 50_000),
    ("ssij", SCENE, {"buffer_pages": (1, 2, 4), "cache_share": (0.0, 0.05, 0.1, 0.25, 0.5)}, 50_000),
    ("partitionjoin", SCENE, {"buffer_pages": (4, 8, 16, 26), "cache_share": (0.0, 0.1, 0.25)}, 50_000),
]


@pytest.mark.parametrize(
    ("name", "scene", "grid", "tuples"),
    [*GRIDS, *(pytest.param(*one, marks=pytest.mark.slow) for one in MORE)],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_tuned_join_is_within_a_twentieth_of_the_best_that_was_measured(
    name: str, scene: Scene, grid: dict[str, tuple[Any, ...]], tuples: int
) -> None:
    settings = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    measured = {}
    for given in settings:
        try:
            measured[str(given)] = scene.measure(name, tuples=tuples, **given).tuples_per_second
        except BudgetError:
            continue
    assert len(measured) > 1
    own = scene.measure(name, tuples=tuples, **tuned(name, scene).chosen_parameters).tuples_per_second
    assert own >= 0.95 * max(measured.values()), (own, measured)


@pytest.mark.parametrize("name", NAMES)
def test_the_floor_is_the_least_memory_that_the_join_can_be_made_in(name: str) -> None:
    least = floor(name, SCENE.relation, SPEC)
    check_memory(name, SCENE.relation, SPEC, Budget(least))
    with pytest.raises(BudgetError):
        check_memory(name, SCENE.relation, SPEC, Budget(least - 1))


@pytest.mark.parametrize("name", ["meshjoin", "hybridjoin", "xhybridjoin", "sweepjoin", "csweepjoin", "partitionjoin"])
def test_the_least_memory_keeps_up_and_a_little_less_does_not(name: str) -> None:
    wanted = 0.5 * SORTED.forecast(name).tuples_per_second
    found = least_memory_for(name, SORTED.relation, SPEC, wanted, SORTED.stream, costs=SORTED.costs)
    assert found.memory_bytes < SORTED.memory_bytes
    assert found.forecast.tuples_per_second >= wanted
    assert replace(SORTED, memory_bytes=found.memory_bytes).forecast(name).tuples_per_second >= wanted
    less = replace(SORTED, memory_bytes=int(0.9 * found.memory_bytes))
    try:
        assert less.forecast(name).tuples_per_second < wanted
    except BudgetError:
        assert less.memory_bytes < floor(name, SORTED.relation, SPEC)


def test_a_rate_that_the_least_memory_gives_needs_no_more() -> None:
    found = least_memory_for("meshjoin", SCENE.relation, SPEC, 1.0, SCENE.stream, costs=SCENE.costs)
    assert found.memory_bytes == floor("meshjoin", SCENE.relation, SPEC)


def test_a_rate_out_of_reach_is_an_error_that_names_what_can_be_had() -> None:
    with pytest.raises(RateError, match="meshjoin can't take 1,000,000,000 rows a second, whatever its memory") as error:
        least_memory_for("meshjoin", SCENE.relation, SPEC, 1e9, SCENE.stream, costs=SCENE.costs)
    best = replace(SCENE, memory_bytes=error.value.memory_bytes).forecast("meshjoin").tuples_per_second
    assert best == pytest.approx(error.value.tuples_per_second, rel=CLOSE)
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


def test_a_limit_on_memory_bounds_the_search() -> None:
    with pytest.raises(RateError) as error:
        least_memory_for(
            "hybridjoin", BIG.relation, SPEC, 1e5, BIG.stream, costs=BIG.costs, most_bytes=20 << 20
        )  # fmt: skip
    assert error.value.memory_bytes <= 20 << 20


@pytest.mark.parametrize("wrong", [-1, 0, float("nan"), float("inf"), True, "fast"])
def test_arrivals_that_are_no_rate_are_an_error(wrong: Any) -> None:
    with pytest.raises(ParameterError, match="arrivals must be a number of rows a second, above 0"):
        least_memory_for("meshjoin", SCENE.relation, SPEC, wrong, SCENE.stream)


@pytest.mark.parametrize("name", NAMES)
def test_a_budget_below_the_floor_is_an_error_that_names_the_least(name: str) -> None:
    scene = replace(SCENE, page_bytes=4 << 10)
    least = floor(name, scene.relation, SPEC)
    with pytest.raises(BudgetError) as error:
        tune(name, scene.relation, SPEC, least - 1_000, scene.stream)
    assert error.value.needed_bytes == pytest.approx(least, rel=0.05)


def test_a_page_larger_than_the_budget_is_an_error_that_speaks_of_pages() -> None:
    scene = replace(SCENE, page_bytes=1 << 20)
    with pytest.raises(BudgetError, match=r"is less than one page of the table, 1\.0 MiB; give memory=") as error:
        tune("meshjoin", scene.relation, SPEC, 100_000, scene.stream)
    tune("meshjoin", scene.relation, SPEC, error.value.needed_bytes, scene.stream)


def test_an_exponent_that_is_no_number_is_an_error() -> None:
    with pytest.raises(ParameterError, match="zipf_exponent must be a number"):
        tune("meshjoin", SCENE.relation, SPEC, 1 << 20, StreamShape.zipf(float("nan"), 10))
