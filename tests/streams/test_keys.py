"""Which keys a stream carries. Statistical bounds hold for the fixed seeds with room to spare."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.errors import ParameterError
from millrace.streams import KeyDistribution, TemporalLocalityKeys, UniformKeys, ZipfKeys
from millrace.streams.zipf import harmonic

EXPONENTS = [0.0, 0.5, 1.0, 1.5, 2.0]

GENERATORS: dict[str, Callable[[int], KeyDistribution]] = {
    "zipf": lambda seed: ZipfKeys(5000, 1.0, seed=seed),
    "flat zipf": lambda seed: ZipfKeys(5000, 0.0, seed=seed),
    "steep zipf": lambda seed: ZipfKeys(5000, 2.5, seed=seed),
    "paper": lambda seed: ZipfKeys(5000, 1.0, method="paper", seed=seed),
    "scattered": lambda seed: ZipfKeys(5000, 1.0, scatter=True, seed=seed),
    "uniform": lambda seed: UniformKeys(5000, seed=seed),
    "temporal locality": lambda seed: TemporalLocalityKeys(5000, intervals=7, tuples_per_interval=9000, seed=seed),
}


def chi_square_excess(keys: npt.NDArray[np.int64], shares: npt.NDArray[np.float64]) -> float:
    """Standard deviations by which chi-square exceeds its mean; `shares[i]` is of key i + 1; rare keys are pooled."""
    counts = np.bincount(keys, minlength=len(shares) + 1)[1:]
    assert len(counts) == len(shares)
    expected = shares * len(keys)
    common = expected >= 5
    counts = np.append(counts[common], counts[~common].sum())
    expected = np.append(expected[common], expected[~common].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    freedom = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("domain", [2, 10, 1000, 20_000])
def test_exact_zipf_has_the_frequencies_of_the_formula(domain: int, exponent: float) -> None:
    weights = np.arange(1, domain + 1, dtype=np.float64) ** -exponent
    drawn = ZipfKeys(domain, exponent, seed=11).draw(500_000)
    assert abs(chi_square_excess(drawn, weights / weights.sum())) < 4


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_a_domain_of_a_hundred_million_needs_no_table_and_keeps_its_far_ranks_in_proportion(exponent: float) -> None:
    keys = ZipfKeys(100_000_000, exponent, seed=12)
    drawn = keys.draw(500_000)
    borders = np.array([10, 1000, 10_000, 1_000_000, 20_000_000, 100_000_000])
    expected = np.diff(keys.mass(borders), prepend=0.0) * len(drawn)
    counts = np.diff(np.searchsorted(np.sort(drawn), borders, side="right"), prepend=0)
    assert counts.sum() == len(drawn)
    assert np.all(np.abs(counts - expected) <= 4.5 * np.sqrt(expected) + 3)


def test_the_frequencies_are_told_apart_from_those_of_a_slightly_different_exponent() -> None:
    weights = np.arange(1, 1001, dtype=np.float64) ** -1.02
    drawn = ZipfKeys(1000, 1.0, seed=11).draw(500_000)
    assert chi_square_excess(drawn, weights / weights.sum()) > 4


@pytest.mark.parametrize("exponent", [1 - 1e-9, 1 + 1e-9, 30.0, 700.0])
def test_exponents_near_one_and_far_above_it_stay_exact(exponent: float) -> None:
    weights = np.arange(1, 101, dtype=np.float64) ** -exponent
    drawn = ZipfKeys(100, exponent, seed=13).draw(200_000)
    share_of_one = 1 / weights.sum()
    assert abs((drawn == 1).mean() - share_of_one) < 0.005
    assert drawn.min() == 1


def test_the_paper_method_gives_rank_k_in_proportion_to_the_logarithm_of_k_plus_one_over_k() -> None:
    domain = 1000
    k = np.arange(1, domain, dtype=np.float64)
    shares = np.append(np.log((k + 1) / k) / math.log(domain), 0.0)
    drawn = ZipfKeys(domain, 1.0, method="paper", seed=14).draw(500_000)
    assert abs(chi_square_excess(drawn, shares)) < 4


def test_the_paper_method_differs_visibly_from_exact_zipf() -> None:
    weights = 1.0 / np.arange(1, 1001)
    drawn = ZipfKeys(1000, 1.0, method="paper", seed=14).draw(500_000)
    assert chi_square_excess(drawn, weights / weights.sum()) > 100


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_the_paper_method_never_gives_the_last_key(exponent: float) -> None:
    keys = ZipfKeys(4, exponent, method="paper", seed=15)
    assert set(keys.draw(200_000).tolist()) == {1, 2, 3}
    assert keys.probability(4) == 0.0
    assert keys.mass(3) == pytest.approx(1.0)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 0.999, 1.0, 1.5, 2.0, 6.0, 50.0])
def test_harmonic_numbers_agree_with_the_plain_sum(exponent: float) -> None:
    sums = np.cumsum(np.arange(1, 100_001, dtype=np.float64) ** -exponent)
    ranks = np.array([1, 2, 63, 64, 65, 66, 100, 5000, 100_000])
    assert harmonic(ranks, exponent) == pytest.approx(sums[ranks - 1], rel=1e-12)
    assert harmonic(0, exponent) == 0.0


@pytest.mark.parametrize("method", ["exact", "paper"])
@pytest.mark.parametrize("exponent", EXPONENTS)
def test_mass_is_the_sum_of_the_probabilities(method: Any, exponent: float) -> None:
    keys = ZipfKeys(3000, exponent, method=method)
    probabilities = keys.probability(np.arange(1, 3001))
    assert keys.mass(np.arange(1, 3001)) == pytest.approx(np.cumsum(probabilities), rel=1e-11)
    assert keys.mass(0) == 0.0
    assert keys.mass(3000) == pytest.approx(1.0, rel=1e-12)


def test_the_mass_of_a_fifth_of_a_big_zipf_domain_is_near_the_eighty_twenty_rule() -> None:
    share = ZipfKeys(100_000_000, 1.0).mass(20_000_000)
    assert isinstance(share, float)
    assert share == pytest.approx(1 - math.log(5) / (math.log(1e8) + 0.5772156649), abs=1e-6)


def test_without_scatter_the_hot_keys_are_neighbours_and_with_it_they_lie_apart() -> None:
    rows_per_page = 100
    hot = np.arange(1, 101)
    together = ZipfKeys(1_000_000, 1.0, seed=16)
    apart = ZipfKeys(1_000_000, 1.0, scatter=True, seed=16)
    assert len(np.unique((together.keys_of(hot) - 1) // rows_per_page)) == 1
    assert len(np.unique((apart.keys_of(hot) - 1) // rows_per_page)) > 95


@pytest.mark.parametrize("domain", [1, 2, 3, 97, 4096, 10_007])
def test_scatter_gives_every_rank_a_key_of_its_own(domain: int) -> None:
    keys = ZipfKeys(domain, 1.0, scatter=True, seed=17)
    ranks = np.arange(1, domain + 1)
    scattered = keys.keys_of(ranks)
    assert np.array_equal(np.sort(scattered), ranks)
    assert np.array_equal(keys.ranks_of(scattered), ranks)


def test_scatter_changes_where_keys_are_but_not_how_often_they_come() -> None:
    plain = ZipfKeys(5000, 1.0, seed=18)
    scattered = ZipfKeys(5000, 1.0, scatter=True, seed=18)
    assert np.array_equal(scattered.ranks_of(scattered.draw(40_000)), plain.draw(40_000))


def test_uniform_keys_are_uniform() -> None:
    assert abs(chi_square_excess(UniformKeys(1000, seed=19).draw(500_000), np.full(1000, 0.001))) < 4


def test_each_interval_of_the_stream_stays_in_its_interval_of_the_domain() -> None:
    keys = TemporalLocalityKeys(domain=1003, intervals=25, tuples_per_interval=2000, seed=20)
    first_keys, last_keys = zip(*(keys.bounds(interval) for interval in range(25)), strict=True)
    assert first_keys[0] == 1
    assert last_keys[-1] == 1003
    assert [first - 1 for first in first_keys[1:]] == list(last_keys[:-1])
    for first, last in zip(first_keys, last_keys, strict=True):
        drawn = keys.draw(2000)
        assert first <= drawn.min()
        assert drawn.max() <= last


def test_inside_an_interval_the_keys_follow_zipf() -> None:
    keys = TemporalLocalityKeys(domain=2000, intervals=2, tuples_per_interval=200_000, exponent=1.0, seed=21)
    weights = 1.0 / np.arange(1, 1001)
    for below in (0, 1000):
        assert abs(chi_square_excess(keys.draw(200_000) - below, weights / weights.sum())) < 4


def test_after_the_last_interval_the_first_comes_again_with_new_draws() -> None:
    keys = TemporalLocalityKeys(domain=1000, intervals=2, tuples_per_interval=500, seed=22)
    first, _, again = keys.draw(500), keys.draw(500), keys.draw(500)
    assert again.max() <= 500
    assert not np.array_equal(first, again)


@pytest.mark.parametrize("name", GENERATORS)
@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(0, 40_000), max_size=5))
def test_how_draws_are_cut_does_not_change_the_keys(name: str, cuts: list[int]) -> None:
    whole, pieces = GENERATORS[name](23), GENERATORS[name](23)
    expected = whole.draw(sum(cuts))
    assert expected.dtype == np.int64
    assert np.array_equal(np.concatenate([np.empty(0, np.int64), *(pieces.draw(cut) for cut in cuts)]), expected)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_hundred_and_then_fifty_are_a_hundred_and_fifty(name: str) -> None:
    whole, pieces = GENERATORS[name](24), GENERATORS[name](24)
    assert np.array_equal(np.concatenate([pieces.draw(100), pieces.draw(50)]), whole.draw(150))


@pytest.mark.parametrize("name", GENERATORS)
def test_the_same_seed_gives_the_same_keys_and_another_seed_others(name: str) -> None:
    assert np.array_equal(GENERATORS[name](25).draw(1000), GENERATORS[name](25).draw(1000))
    assert not np.array_equal(GENERATORS[name](25).draw(1000), GENERATORS[name](26).draw(1000))


def test_replace_starts_the_same_stream_again() -> None:
    keys = ZipfKeys(1000, 1.0, seed=27)
    first = keys.draw(500)
    assert not np.array_equal(keys.draw(500), first)
    assert np.array_equal(dataclasses.replace(keys).draw(500), first)


def test_parameters_are_compared_and_positions_are_not() -> None:
    keys = ZipfKeys(1000, 1.0, seed=28)
    keys.draw(3)
    assert keys == ZipfKeys(1000, 1.0, seed=28)
    assert keys != ZipfKeys(1000, 1.1, seed=28)
    assert repr(keys) == "ZipfKeys(domain=1000, exponent=1.0, method='exact', scatter=False, seed=28)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ZipfKeys(0), "domain must be from 1 to"),
        (lambda: ZipfKeys(1 << 60), "domain must be from 1 to"),
        (lambda: ZipfKeys(10.5), "domain must be a whole number; got 10.5"),  # type: ignore[arg-type]
        (lambda: ZipfKeys(True), "domain must be a whole number; got True"),
        (lambda: ZipfKeys(1, method="paper"), "domain must be from 2 to"),
        (lambda: ZipfKeys(10, -0.5), "exponent must be at least 0; got -0.5"),
        (lambda: ZipfKeys(10, math.nan), "exponent must be a finite number; got nan"),
        (lambda: ZipfKeys(10, "1"), "exponent must be a finite number; got '1'"),  # type: ignore[arg-type]
        (lambda: ZipfKeys(10, method="fast"), "method must be one of exact, paper; got 'fast'"),  # type: ignore[arg-type]
        (lambda: ZipfKeys(10, scatter="yes"), "scatter must be True or False; got 'yes'"),  # type: ignore[arg-type]
        (lambda: ZipfKeys(10, seed=-1), "seed must be at least 0; got -1"),
        (lambda: ZipfKeys(10).draw(-1), "n must be at least 0; got -1"),
        (lambda: ZipfKeys(10).mass(11), "ranks must be whole numbers from 0 to 10; got 11"),
        (lambda: ZipfKeys(10).probability(0), "rank must be whole numbers from 1 to 10; got 0"),
        (lambda: UniformKeys(0), "domain must be from 1 to"),
        (lambda: TemporalLocalityKeys(10, intervals=11), "intervals must be from 1 to 10; got 11"),
        (lambda: TemporalLocalityKeys(100, tuples_per_interval=0), "tuples_per_interval must be at least 1; got 0"),
    ],
)
def test_a_bad_parameter_is_an_error_that_names_it(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ParameterError) as raised:
        make()
    assert message in str(raised.value)
