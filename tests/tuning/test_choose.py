"""Which join `strategy="auto"` takes in process."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.cost.simulations import SPEC, Scene
from tests.joins.examples import expected, joined, relation_of, rows_of, spec_of, stream_of

import millrace as mr
from millrace.catalog import ALGORITHMS
from millrace.core.budget import Budget
from millrace.core.errors import BudgetError, ParameterError, StrategyError
from millrace.core.protocols import JoinSpec
from millrace.core.unitcosts import UnitCosts
from millrace.cost.expected import StreamShape
from millrace.joins.csweepjoin import CSweepJoin
from millrace.tuning.choose import Choice, choose, forecast, make_best_join, own_parameters

SCENE = Scene(step_seconds=1e-4)
EVEN = replace(SCENE, zipf=0.0)


def chosen(scene: Scene, **given: object) -> Choice:
    costs_of = {"costs_of": lambda _: scene.costs}
    return choose(scene.relation, SPEC, scene.memory_bytes, scene.stream, **{**costs_of, **given})  # type: ignore[arg-type]


def test_all_joins_are_ranked_the_fastest_first() -> None:
    found = chosen(SCENE)
    rates = [one.tuples_per_second for one in found.ranking]
    assert rates == sorted(rates, reverse=True)
    assert {one.strategy for one in found.ranking} == {row.name for row in ALGORITHMS}
    assert found.strategy == found.best.strategy == found.ranking[0].strategy


def test_a_skewed_stream_gets_a_front_stage_and_an_even_one_does_not() -> None:
    assert chosen(SCENE).strategy == "csweepjoin"
    assert chosen(EVEN).strategy == "sweepjoin"


def test_the_best_three_of_a_virtual_disk_come_out_in_the_order_that_was_foretold() -> None:
    ranking = [one for one in chosen(EVEN).ranking if one.strategy in ("sweepjoin", "rmeshjoin", "hybridjoin", "ssij")]
    measured = [EVEN.measure(one.strategy, tuples=5_000).tuples_per_second for one in ranking]
    assert measured == sorted(measured, reverse=True)


def test_without_an_index_only_scans_are_ranked_and_the_others_say_why() -> None:
    scan = relation_of(list(range(100)), indexed=False)
    found = choose(scan, spec_of(), 1 << 20, StreamShape.zipf(0, 100))
    assert {one.strategy for one in found.ranking} == {"meshjoin", "rmeshjoin", "cmeshjoin"}
    assert dict(found.refused)["hybridjoin"] == "needs an index on the key, and the table has none"


def test_a_condition_is_served_by_joins_that_scan() -> None:
    spec = JoinSpec(spec_of().stream_schema, (), "inner", ("event",), ("row",), mr.near("key", "id", 2))
    found = choose(relation_of(list(range(100))), spec, 1 << 20, StreamShape.zipf(0, 100))
    assert {one.strategy for one in found.ranking} == {"meshjoin", "rmeshjoin"}
    assert "does not serve 'near'" in dict(found.refused)["sweepjoin"]


def test_joins_that_do_not_fit_say_what_they_need() -> None:
    found = chosen(replace(SCENE, memory_bytes=60_000))
    reasons = dict(found.refused)
    assert found.ranking
    assert all(reason.startswith("needs memory=") for reason in reasons.values())
    assert "ssij" in reasons or len(found.ranking) == len(ALGORITHMS)


def test_a_budget_too_small_for_every_join_names_the_least_that_will_do() -> None:
    with pytest.raises(BudgetError, match="too small for every join; give memory=") as error:
        chosen(replace(SCENE, memory_bytes=1_000))
    assert chosen(replace(SCENE, memory_bytes=error.value.needed_bytes)).ranking


def test_only_the_named_joins_are_weighed() -> None:
    found = chosen(SCENE, strategies=["meshjoin", "hybridjoin"])
    assert {one.strategy for one in found.ranking} == {"meshjoin", "hybridjoin"}


def test_a_host_weighs_the_joins_that_it_can_run() -> None:
    names = {one.strategy for one in chosen(SCENE, host="spark", rows=10_000).ranking}
    assert names == {row.name for row in ALGORITHMS if "spark" in row.hosts}


def test_names_must_be_given_and_known() -> None:
    with pytest.raises(ParameterError, match="name at least one strategy"):
        chosen(SCENE, strategies=[])
    with pytest.raises(StrategyError, match="'mashjoin'"):
        chosen(SCENE, strategies=["mashjoin"])


def test_no_named_join_can_serve() -> None:
    scan = relation_of(list(range(100)), indexed=False)
    with pytest.raises(StrategyError, match="no join can serve this: needs an index"):
        choose(scan, spec_of(), 1 << 20, StreamShape.zipf(0, 100), strategies=["hybridjoin"])


def test_a_forecast_counts_pages_for_a_thousand_tuples() -> None:
    found = EVEN.forecast("inlj")
    assert found.pages_per_1000_tuples == pytest.approx(1_000)


def test_pinned_pages_are_chosen_for_the_stream_that_comes() -> None:
    sorted_, scattered = replace(SCENE, order="sorted"), SCENE
    assert sorted_.forecast("xhybridjoin").expected.settings["pinned_pages"] > 0
    assert scattered.forecast("xhybridjoin").expected.settings["pinned_pages"] == 0
    assert own_parameters("xhybridjoin", sorted_.stream, UnitCosts())["zipf_exponent"] == 1.0
    assert own_parameters("xhybridjoin", None, None) == {}


def test_what_is_forecast_for_a_join_is_made_with_the_same_sizes() -> None:
    for name in ("meshjoin", "hybridjoin", "xhybridjoin", "sweepjoin"):
        expected_of = forecast(
            name, SCENE.relation, SPEC, SCENE.memory_bytes, SCENE.stream, costs_of=lambda _: SCENE.costs
        ).expected
        join = make_best_join(
            name, SCENE.relation, SPEC, Budget(SCENE.memory_bytes), SCENE.stream, costs_of=lambda _: SCENE.costs
        )
        assert getattr(join, "buffer_pages", getattr(join, "_buffer_pages", None)) == expected_of.settings["buffer_pages"]
        assert join.capacity == expected_of.window_tuples  # type: ignore[attr-defined]


def test_auto_makes_the_join_that_is_ranked_first() -> None:
    join = make_best_join(
        "auto", SCENE.relation, SPEC, Budget(SCENE.memory_bytes), SCENE.stream, costs_of=lambda _: SCENE.costs
    )
    assert isinstance(join, CSweepJoin)


@pytest.mark.parametrize("strategy", ["auto", "meshjoin", "xhybridjoin"])
def test_the_rows_are_right_whichever_join_is_made(strategy: str) -> None:
    keys, tuples = [3, 1, 2, 2], [2, 9, None, 3]
    join = make_best_join(strategy, relation_of(keys), spec_of("left"), Budget("64k"))
    assert rows_of(joined(join, [stream_of(tuples)])) == expected(tuples, keys, "left")
