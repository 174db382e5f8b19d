"""Forecasts: the variance at another state of reading, from the sums of this one."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.core.errors import ParameterError
from millrace.online.estimators import rectangle
from millrace.online.forecast import Spread, rows_for
from millrace.online.outlook import END_SHARE, END_SHARE_IN_MEMORY, pace, seconds_to_exact
from millrace.online.populations import Population, many_to_many
from millrace.online.sums import Sums, sums_of_keys


def _population() -> Population:
    return many_to_many(keys=200, rows=4000).first_functions(2)


def _sums(rows: int) -> Sums:
    return sums_of_keys(*_population().joined(slice(0, rows), slice(0, rows)))


def test_a_spread_gives_back_the_variance_of_the_rows_it_was_taken_from() -> None:
    """Up to terms of 1/n and 1/m."""
    spread = Spread.of(_sums(1500), 1500, 1500, 4000, 4000)
    expected = rectangle(_sums(1500), 1500, 1500, 4000, 4000).covariance
    np.testing.assert_allclose(spread.covariance(1500, 1500), expected, rtol=0.02)
    assert float(np.abs(spread.covariance(4000, 4000)).max()) < 1e-6


def test_a_forecast_is_near_what_comes() -> None:
    forecast = Spread.of(_sums(1000), 1000, 1000, 4000, 4000).covariance(2500, 2500)[0, 0, 0]
    came = rectangle(_sums(2500), 2500, 2500, 4000, 4000).covariance[0, 0, 0]
    assert forecast == pytest.approx(came, rel=0.4)


def test_the_rows_forecast_for_a_variance_bring_it() -> None:
    spread = Spread.of(_sums(1000), 1000, 1000, 4000, 4000)
    wanted = float(spread.covariance(1000, 1000)[0, 0, 0]) / 4
    n, m = rows_for(spread, [1.0, 0.0], wanted)
    assert 1000 < n < 4000
    assert n == m
    assert float(spread.covariance(n, m)[0, 0, 0]) <= wanted
    assert float(spread.covariance(n - 8, m - 8)[0, 0, 0]) > wanted


@pytest.mark.parametrize(
    "wrong",
    [
        lambda spread: Spread.of(Sums.zeros(), 0, 1, 5, 5),
        lambda spread: spread.covariance(0, 3),
        lambda spread: spread.covariance(5000, 3),
        lambda spread: spread.covariance([1, 2], [1, 2]),
        lambda spread: rows_for(spread, [1.0, 0.0], -1.0),
    ],
)
def test_a_forecast_of_nothing_is_an_error(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ParameterError):
        wrong(Spread.of(_sums(1000), 1000, 1000, 4000, 4000))


def test_a_slow_start_is_forgotten() -> None:
    """A tenth took as long as all of the rest will."""
    marks = [(9.0 * share / 0.1 if share < 0.1 else 8.0 + 10 * share, share) for share in np.arange(0.01, 1.0, 0.01)]
    seconds, share = 12.0, 0.4
    assert pace(seconds, share, [mark for mark in marks if mark[1] < share]) == pytest.approx(10)
    assert pace(0.9, 0.01, []) == pytest.approx(90)
    for temporary, end in ((0, END_SHARE_IN_MEMORY), (1000, END_SHARE)):
        said = seconds_to_exact(seconds, share, 0.0, None, marks[:39], temporary)
        assert said == pytest.approx(6 + end * 18)


def test_the_end_is_told_by_the_partitions_that_are_done() -> None:
    assert seconds_to_exact(12.0, 1.0, 0.25, 10.0, [], 0) == pytest.approx(6.0)
    assert seconds_to_exact(10.0, 1.0, 0.0, 10.0, [], 1) == pytest.approx(10 * END_SHARE)
    assert seconds_to_exact(1.0, 0.0, 0.0, None, [], 0) is None
