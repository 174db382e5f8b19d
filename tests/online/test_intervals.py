"""Intervals: quantiles against known tables, scales, looks, groups, and when there is none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from millrace.core.errors import ParameterError
from millrace.online.statistics.aggregates import Point, aggregate
from millrace.online.statistics.estimators import Totals, rectangle
from millrace.online.statistics.intervals import (
    FEWEST_MATCHES,
    Estimates,
    IntervalRule,
    check_order,
    intervals,
)
from millrace.online.statistics.quantiles import always_quantile, incomplete_beta, normal_quantile, student_quantile
from millrace.online.statistics.totals import sums_of_blocks, sums_of_matches


def _point(
    name: str = "SUM",
    value: float = 100.0,
    variance: float = 4.0,
    pairs: int = 10**8,
    degrees: float = math.inf,
    sample: float | None = None,
) -> Point:
    one = np.ones((1, 1))
    told = None if sample is None else np.array([sample])
    return Point(name, np.array([value]), np.array([variance]), np.array([pairs]), False, degrees, one, told)


def _limits(point: Point, rule: IntervalRule) -> tuple[float, float]:
    made = intervals(point, rule)[0]
    return made.low, made.high


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (7, 2.3646), (30, 2.0423), (1000, 1.9623), (math.inf, 1.95996)],
)
def test_students_quantiles_are_those_of_the_table(degrees: float, expected: float) -> None:
    assert float(student_quantile(normal_quantile(0.95), degrees)) == pytest.approx(expected, abs=2e-4)


def test_students_quantile_has_the_tail_that_was_asked_for() -> None:
    z = normal_quantile(0.99)
    for degrees in (1.5, 4.2, 60.0):
        t = float(student_quantile(z, degrees))
        assert incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t)) == pytest.approx(0.01, rel=1e-5)


@pytest.mark.parametrize(
    ("span", "z"), [(1, 2.42), (2, 2.62), (4, 2.83), (6, 2.97), (8, 3.08), (10, 3.13), (3, 2.725), (99, 3.13)]
)
def test_z_for_all_looks_is_that_of_the_table_and_capped(span: float, z: float) -> None:
    assert always_quantile(0.95, span) == pytest.approx(z)


def test_z_for_all_looks_grows_with_confidence_and_span() -> None:
    spans = np.linspace(0, 10, 11)
    for confidence in (0.8, 0.9, 0.99):
        z = [always_quantile(confidence, span) for span in spans]
        assert z == sorted(z)
        assert z[0] >= normal_quantile(confidence)
    assert always_quantile(0.9, 4.0) < always_quantile(0.95, 4.0) < always_quantile(0.99, 4.0)


def test_a_plain_interval_reaches_z_standard_deviations_to_either_side() -> None:
    low, high = _limits(_point(), IntervalRule())
    assert (low, high) == pytest.approx((100 - 1.959964 * 2, 100 + 1.959964 * 2))


@pytest.mark.parametrize("name", ["VAR_POP", "STDDEV_SAMP"])
def test_an_interval_that_says_nothing_about_a_spread_is_none(name: str) -> None:
    made = intervals(_point(name, variance=100.0**2, pairs=200, sample=100.0), IntervalRule())[0]
    assert not math.isfinite(made.high)
    assert made.warnings
    assert math.isfinite(_limits(_point(name, variance=50.0**2, pairs=200, sample=100.0), IntervalRule())[1])
    assert math.isfinite(_limits(_point("SUM", variance=100.0**2, pairs=200), IntervalRule())[1])


def test_few_matches_reach_further_and_furthest_for_squares() -> None:
    plain = IntervalRule(scale="plain")
    reach = {name: _limits(_point(name, pairs=9), plain)[1] - 100 for name in ("COUNT", "SUM", "AVG")}
    assert reach["COUNT"] == pytest.approx(2 * normal_quantile(0.95))
    assert reach["SUM"] == reach["AVG"] == pytest.approx(2 * float(student_quantile(normal_quantile(0.95), 8)))
    for pairs, sample, degrees in ((141, 35.0, 5), (15, 35.0, 2), (15, math.nan, 2), (141, 0.0, 0.1)):
        squares = intervals(_point("VAR_SAMP", variance=1e-30, pairs=pairs, sample=sample), plain)[0]
        expected = 1e-15 * float(student_quantile(normal_quantile(0.95), degrees))
        assert squares.high - 100 == pytest.approx(expected, abs=3e-14)
    few = _limits(_point("SUM", pairs=9, degrees=3.0), plain)[1] - 100
    assert few == pytest.approx(2 * float(student_quantile(normal_quantile(0.95), 3)))


def test_variances_get_intervals_on_the_scale_of_logarithms() -> None:
    low, high = _limits(_point("STDDEV_SAMP", value=10.0), IntervalRule())
    assert low * high == pytest.approx(100.0)
    assert high == pytest.approx(10 * math.exp(normal_quantile(0.95) * 2 / 10))


def test_an_interval_for_all_looks_is_wider_by_the_same_z_from_the_start() -> None:
    each, always = (_limits(_point(), IntervalRule(interval=kind, span=4.0)) for kind in ("each", "always"))
    assert (always[1] - 100) / (each[1] - 100) == pytest.approx(2.83 / normal_quantile(0.95))


def test_counts_and_positive_sums_are_on_a_log_scale_and_stay_above_zero() -> None:
    wide = 60.0**2
    low, high = _limits(_point("SUM", variance=wide), IntervalRule(positive=True))
    assert 0 < low < 100 < high
    assert low * high == pytest.approx(100.0**2)
    assert _limits(_point("SUM", variance=wide), IntervalRule())[0] < 0


def test_a_count_is_at_least_what_has_matched() -> None:
    assert _limits(_point("COUNT", variance=80.0**2, pairs=40), IntervalRule())[0] == 40.0


def test_all_groups_together_take_a_level_of_one_over_their_number() -> None:
    rule = IntervalRule(together=True)
    assert rule.z(20) == pytest.approx(normal_quantile(1 - 0.05 / 20))
    assert rule.z(1) == pytest.approx(normal_quantile(0.95))
    assert IntervalRule().z(20) == pytest.approx(normal_quantile(0.95))


def test_few_degrees_of_freedom_widen_an_interval() -> None:
    low, high = _limits(_point(degrees=3.0), IntervalRule())
    assert (high - low) / 4 == pytest.approx(3.1824, abs=1e-3)


def test_below_five_matches_there_is_no_interval() -> None:
    few = intervals(_point(pairs=FEWEST_MATCHES - 1), IntervalRule())[0]
    assert few.half_width == math.inf
    assert few.relative_half_width == math.inf
    assert any("too few" in warning for warning in few.warnings)
    assert not intervals(_point(pairs=FEWEST_MATCHES), IntervalRule())[0].warnings


@pytest.mark.parametrize("variance", [math.nan, 0.0])
def test_without_a_variance_there_is_no_interval(variance: float) -> None:
    none = intervals(_point(variance=variance), IntervalRule())[0]
    assert none.low == -math.inf
    assert none.high == math.inf
    assert none.warnings


def test_an_exact_value_is_its_own_interval() -> None:
    totals = rectangle(sums_of_matches([0, 1], [0, 1], [1.0, 1.0]), 2, 2, 2, 2)
    made = intervals(aggregate("COUNT", totals), IntervalRule())[0]
    assert made.exact
    assert (made.value, made.low, made.high, made.half_width, made.relative_half_width) == (2.0, 2.0, 2.0, 0.0, 0.0)
    assert made.warnings == ()


def test_one_row_that_brings_much_of_the_variance_is_warned_of() -> None:
    heavy = intervals(_point(), IntervalRule(), largest=np.array([2.4]))[0]
    assert "60%" in heavy.warnings[0]
    assert intervals(_point(), IntervalRule(), largest=np.array([0.1]))[0].warnings == ()


def test_groups_come_as_arrays_and_one_by_one() -> None:
    totals = Totals(np.array([[10.0], [2.0]]), np.ones((2, 1, 1)), np.array([10, 2]))
    made = intervals(aggregate("COUNT", totals), IntervalRule())
    assert isinstance(made, Estimates)
    assert len(made) == 2
    assert [estimate.value for estimate in made] == [10.0, 2.0]
    assert made[0].warnings == ()
    assert made[1].warnings


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: IntervalRule(confidence=1.0),
        lambda: IntervalRule(confidence=95),  # type: ignore[arg-type]
        lambda: IntervalRule(interval="sometimes"),  # type: ignore[arg-type]
        lambda: IntervalRule(scale="linear"),  # type: ignore[arg-type]
        lambda: IntervalRule(span=-1.0),
        lambda: student_quantile(1.96, 0.0),
        lambda: always_quantile(0.95, float("nan")),
    ],
)
def test_a_rule_that_makes_no_sense_is_an_error(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ParameterError):
        wrong()


def _levels(keys_a: np.ndarray, keys_b: np.ndarray, n: int, block: int) -> tuple[Totals, Totals]:
    a, b = np.nonzero(keys_a[:n, None] == keys_b[None, :n])
    values = np.ones(len(a))
    rows = rectangle(sums_of_matches(a, b, values), n, n, len(keys_a), len(keys_b))
    blocks = sums_of_blocks(a // block, b // block, values)
    return rows, rectangle(blocks, n // block, n // block, len(keys_a) // block, len(keys_b) // block)


def test_rows_in_random_order_pass_the_order_check_and_sorted_blocks_do_not() -> None:
    random = np.random.default_rng(8)
    keys = np.repeat(np.arange(250), 8)
    shuffled = _levels(random.permutation(keys), random.permutation(keys), 800, 20)
    assert check_order(*shuffled, 40).use == "rows"
    sorted_blocks = [np.sort(keys).reshape(-1, 20)[random.permutation(100)].ravel() for _ in range(2)]
    check = check_order(*_levels(*sorted_blocks, 800, 20), 40)
    assert check.use == "blocks"
    assert check.ratio > 2
    assert check.message is not None
    assert "order" in check.message


def test_too_few_blocks_cannot_tell_the_order() -> None:
    rows = Totals(np.ones((1, 1)), np.ones((1, 1, 1)), np.array([9]))
    check = check_order(rows, rows, 3)
    assert check.use == "blocks"
    assert check.message is not None
