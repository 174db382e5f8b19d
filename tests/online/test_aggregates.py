"""Aggregates of totals: values as SQL would give, gradients as small changes show."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from millrace.core.errors import ParameterError
from millrace.online.statistics.aggregates import AGGREGATES, aggregate, functions_needed, known, refusal
from millrace.online.statistics.estimators import Totals, exactly, rectangle
from millrace.online.statistics.totals import sums_of_matches

VALUES = [3.0, 8.5, -2.0, 4.25, 4.25, 11.0]


def _totals(values: list[float], pilot: float = 0.0) -> Totals:
    off = np.array(values) - pilot
    rows = np.arange(len(off))
    return exactly(sums_of_matches(rows, rows, np.stack((np.ones_like(off), off, off**2), axis=1)))


@pytest.mark.parametrize("pilot", [0.0, 4.0, 1e5])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("COUNT", len(VALUES)),
        ("SUM", sum(VALUES)),
        ("AVG", statistics.mean(VALUES)),
        ("VAR_POP", statistics.pvariance(VALUES)),
        ("VAR_SAMP", statistics.variance(VALUES)),
        ("STDDEV_POP", statistics.pstdev(VALUES)),
        ("STDDEV_SAMP", statistics.stdev(VALUES)),
    ],
)
def test_exact_totals_give_the_aggregates_of_sql(name: str, expected: float, pilot: float) -> None:
    point = aggregate(name, _totals(VALUES, pilot), pilot)
    assert point.value[0] == pytest.approx(expected, rel=1e-4 if pilot == 1e5 else 1e-12)
    assert point.exact
    assert float(point.variance[0]) == 0.0


def test_a_pilot_near_the_mean_saves_the_digits_of_a_variance() -> None:
    values = [1e9 + value for value in VALUES]
    with_pilot = aggregate("VAR_POP", _totals(values, 1e9), 1e9)
    assert with_pilot.value[0] == pytest.approx(statistics.pvariance(VALUES), rel=1e-9)
    assert aggregate("AVG", _totals(values, 1e9), 1e9).value[0] == pytest.approx(1e9 + statistics.mean(VALUES), rel=1e-15)


@pytest.mark.parametrize("name", AGGREGATES)
def test_gradients_are_what_small_changes_of_the_totals_show(name: str) -> None:
    value, pilot = np.array([[40.0, 130.0, 700.0]]), 2.5
    covariance, pairs = np.zeros((1, 3, 3)), np.array([40])  # with no variance there is no bias to correct
    point = aggregate(name, Totals(value, np.eye(3)[None], pairs), pilot)
    for k in range(3):
        step = np.zeros((1, 3))
        step[0, k] = 1e-5
        high, low = (aggregate(name, Totals(value + sign * step, covariance, pairs), pilot).value[0] for sign in (1, -1))
        assert point.gradient[0, k] == pytest.approx((high - low) / 2e-5, rel=1e-5, abs=1e-8)
    assert point.variance[0] == pytest.approx((point.gradient[0] ** 2).sum())


def test_the_variance_of_a_mean_is_that_of_what_values_are_off_it() -> None:
    random = np.random.default_rng(3)
    a, b = random.integers(0, 30, 200), random.integers(0, 40, 200)
    v = random.gamma(2.0, size=200)
    sums = sums_of_matches(a, b, np.stack((np.ones(200), v), axis=1))
    totals = rectangle(sums, 30, 40, 100, 90)
    mean = aggregate("AVG", totals)
    off = rectangle(sums_of_matches(a, b, v - mean.value[0]), 30, 40, 100, 90)
    assert mean.variance[0] == pytest.approx(off.variance[0, 0] / totals.value[0, 0] ** 2)


@pytest.mark.parametrize(("name", "power"), [("VAR_POP", 2), ("VAR_SAMP", 2), ("STDDEV_POP", 1), ("STDDEV_SAMP", 1)])
def test_spreads_of_small_samples_are_not_too_low_on_average(name: str, power: int) -> None:
    """30 of 2,000 rows, one match each: uncorrected, VAR would be off by a thirtieth and its root by as much."""
    random = np.random.default_rng(5)
    values = random.gamma(4.0, 0.25, 2000)
    whole = float(np.std(values)) ** power
    found, raw = [], []
    for _ in range(2500):
        v = random.permutation(values)[:30]
        rows = np.arange(30)
        totals = rectangle(sums_of_matches(rows, rows, np.stack((np.ones(30), v, v**2), axis=1)), 30, 2000, 2000, 2000)
        found.append(aggregate(name, totals).value[0])
        raw.append(float(np.std(v)) ** power)
    error = float(np.std(found)) / np.sqrt(len(found))
    assert abs(np.mean(found) - whole) < 3 * error
    assert np.mean(raw) < whole - 3 * error


def test_a_correction_is_the_second_order_of_the_expectation() -> None:
    """E of a function of normal totals: by the curvature that small steps show."""
    value = np.array([[400.0, 1300.0, 7000.0]])
    root = np.random.default_rng(6).normal(size=(3, 3)) * np.array([[2.0], [6.0], [40.0]])
    covariance, pairs = (root @ root.T)[None], np.array([400])

    def at(totals: np.ndarray) -> float:
        return float(aggregate("STDDEV_POP", Totals(totals, np.zeros((1, 3, 3)), pairs)).value[0])

    steps = 1e-2 * root.T[:, None, :]  # along the columns of the root the curvatures add up to tr(HS)
    bend = sum((at(value + step) + at(value - step) - 2 * at(value)) / 1e-4 for step in steps)
    corrected = aggregate("STDDEV_POP", Totals(value, covariance, pairs))
    assert corrected.value[0] / at(value) == pytest.approx(1 - bend / 2 / at(value), rel=1e-5)
    assert abs(bend) > 1e-4


def test_a_correction_takes_a_tenth_at_most() -> None:
    totals = Totals(np.array([[40.0, 130.0, 700.0]]), 1e9 * np.eye(3)[None], np.array([40]))
    plain = Totals(totals.value, np.zeros((1, 3, 3)), totals.pairs)
    assert abs(aggregate("VAR_POP", totals).value[0] / aggregate("VAR_POP", plain).value[0] - 1) <= 0.1 + 1e-12
    unknown = Totals(totals.value, np.full((1, 3, 3), np.nan), totals.pairs)
    assert aggregate("VAR_POP", unknown).value[0] == aggregate("VAR_POP", plain).value[0]


def test_matches_of_the_same_rows_are_fewer_independent_values() -> None:
    """Each of 50 rows of B matches 8 rows of A: 400 matches, and 50 values at most."""
    random = np.random.default_rng(7)
    v = random.normal(size=50)
    b, a = np.repeat(np.arange(50), 8), np.tile(np.arange(8), 50)
    values = np.stack((np.ones(400), v[b], v[b] ** 2), axis=1)
    totals = rectangle(sums_of_matches(a, b, values), 8, 50, 16, 1000)
    sample = aggregate("VAR_SAMP", totals).sample
    assert sample is not None
    assert 40 < sample[0] < 60
    assert aggregate("AVG", totals).sample is None


def test_a_group_without_matches_counts_zero_and_has_no_mean() -> None:
    totals = Totals(np.zeros((1, 3)), np.zeros((1, 3, 3)), np.zeros(1, np.int64), exact=True)
    assert float(aggregate("COUNT", totals).value[0]) == 0.0
    assert np.isnan(aggregate("AVG", totals).value[0])
    assert np.isnan(aggregate("STDDEV", totals).value[0])


def test_names_are_those_of_sql() -> None:
    assert known("variance") == "VAR_SAMP"
    assert known("stddev") == "STDDEV_SAMP"
    assert [functions_needed(name) for name in ("count", "sum", "avg", "var_pop")] == [1, 2, 2, 3]


@pytest.mark.parametrize("name", ["MIN", "max", "COUNT DISTINCT", "MEDIAN", ""])
def test_what_cannot_be_estimated_is_refused_with_a_reason(name: str) -> None:
    with pytest.raises(ParameterError):
        known(name)
    assert (refusal(name) is None) == (name in ("MEDIAN", ""))


def test_totals_of_too_few_functions_are_an_error() -> None:
    totals = exactly(sums_of_matches([0], [0], [1.0]))
    with pytest.raises(ParameterError, match="AVG needs totals of 2 functions"):
        aggregate("AVG", totals)
    with pytest.raises(ParameterError, match="pilot"):
        aggregate("COUNT", totals, float("nan"))


def test_what_blocks_add_counts_for_each_aggregate_by_itself() -> None:
    """By chance below 0 in the direction of AVG: it adds nothing there, and no more than it says to COUNT."""
    value, pairs = np.array([[100.0, 100.0]]), np.array([100])
    rows = Totals(value, np.array([[[50.0, 50.0], [50.0, 80.0]]]), pairs)
    below = np.array([[[900.0, 880.0], [880.0, 850.0]]])  # 900 - 2 x 880 + 850 = -10
    above = np.array([[[400.0, 410.0], [410.0, 450.0]]])  # 400 - 2 x 410 + 450 = 30
    blocks = Totals(value, rows.covariance, pairs, added=(below, above))
    assert aggregate("COUNT", blocks).variance[0] == pytest.approx(50 + 900 + 400)
    assert aggregate("AVG", rows).variance[0] == pytest.approx(30 / 100**2)
    assert aggregate("AVG", blocks).variance[0] == pytest.approx((30 + 30) / 100**2)
    nothing_known = Totals(value, rows.covariance, pairs, added=(np.full((1, 2, 2), np.nan),))
    assert np.isnan(aggregate("AVG", nothing_known).variance[0])
