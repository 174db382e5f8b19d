"""An iteration, term by term, and what a join is expected to do."""

from __future__ import annotations

from dataclasses import fields

import pytest

from millrace.core.errors import ParameterError
from millrace.core.step import StepCounts
from millrace.core.unitcosts import UnitCosts
from millrace.cost.expected import Expected, StreamShape
from millrace.cost.iteration import IterationCost
from millrace.cost.popularity import Popularity

COSTS = UnitCosts(
    seek=1.0, read_byte=0.01, expire=1e-1, take=2e-1, add=3e-1, probe=1e-2, output=2e-2, front=5e-3, request=0.5, page=0.25,
    index_read=2.0, step=4.0,
)  # fmt: skip
ITERATION = IterationCost(
    steps=1, tuples_in=10, reads=2, pages_read=4, bytes_read=400, seeks=1, index_reads=1, probes=40, matches=5, removed=10,
    front_lookups=20,
)  # fmt: skip
READS = 1 * 1.0 + 400 * 0.01 + 2 * 0.5 + 1 * 2.0
WORK = 10 * 0.5 + 40 * 0.01 + 20 * 0.005 + 5 * 0.02 + 10 * 0.1 + 4 * 0.25 + 4.0


def test_every_count_has_its_price() -> None:
    assert ITERATION.read_seconds(COSTS) == pytest.approx(READS)
    assert ITERATION.work_seconds(COSTS) == pytest.approx(WORK)
    assert ITERATION.seconds(COSTS) == pytest.approx(READS + WORK)
    assert ITERATION.rate(COSTS) == pytest.approx(10 / (READS + WORK))


def test_an_iteration_that_costs_nothing_has_no_end_of_tuples() -> None:
    free = UnitCosts(**{field.name: 0.0 for field in fields(UnitCosts)})
    assert ITERATION.rate(free) == float("inf")


def test_without_a_price_of_its_own_a_look_up_in_front_costs_a_probe() -> None:
    as_probe, named = UnitCosts(probe=1e-3), UnitCosts(probe=1e-3, front=1e-3)
    assert ITERATION.work_seconds(as_probe) == ITERATION.work_seconds(named)


def test_iterations_add_up_and_are_counted_for_a_tuple() -> None:
    assert ITERATION.times(2) == ITERATION + ITERATION
    assert ITERATION.times(3).each() == pytest.approx(ITERATION.each())
    assert ITERATION.each()["probes"] == pytest.approx(4.0)


def test_an_iteration_has_the_names_of_what_a_step_counts() -> None:
    """So that prediction and measurement are compared term by term."""
    own = {field.name for field in fields(IterationCost)} - {"steps", "reads"}
    assert own <= set(StepCounts().as_dict())


def test_expected_counts_speak_of_a_rate_and_of_its_inverse() -> None:
    expected = Expected(ITERATION, 100, {"window": 1})
    assert expected.rate(COSTS) * expected.seconds_each(COSTS) == pytest.approx(1.0)


@pytest.mark.parametrize("absent", [-0.1, 1.5, float("nan")])
def test_a_share_of_absent_keys_lies_between_none_and_all(absent: float) -> None:
    with pytest.raises(ParameterError, match="absent must be a share"):
        StreamShape(Popularity.zipf(0, 10), absent=absent)


@pytest.mark.parametrize("sigma", [-1.0, float("nan")])
def test_a_tuple_meets_no_fewer_than_no_rows(sigma: float) -> None:
    with pytest.raises(ParameterError, match="sigma must be 0 rows or more"):
        StreamShape(Popularity.zipf(0, 10), sigma=sigma)


def test_a_stream_of_an_empty_table_has_a_key_and_a_page() -> None:
    demand = StreamShape.zipf(1, 0).demand(0, 0)
    assert (demand.rows, demand.pages) == (1, 1)


def test_what_a_front_stage_leaves_keeps_all_else_that_is_known() -> None:
    shape = StreamShape(Popularity.zipf(1, 100), "sorted", 0.2, 3.0)
    rest = shape.without(10)
    assert (rest.order, rest.absent, rest.sigma, rest.popularity.keys) == ("sorted", 0.2, 3.0, 90)
    assert shape.without(10).popularity is rest.popularity  # found again, with all that was found for it
