"""Degrees of freedom of V^: as many as its scatter over reshuffles shows, about."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.core.arrays import FloatArray
from millrace.online.coverage.populations import Population, foreign_key, many_to_many, one_to_one_lognormal
from millrace.online.statistics.aggregates import aggregate
from millrace.online.statistics.estimators import Totals, exactly, finishing, rectangle, staggered
from millrace.online.statistics.tails import by_partition
from millrace.online.statistics.totals import Sums, sums_of_keys

ONE, SUM = np.ones((1, 1)), np.array([[0.0, 1.0]])  # gradients


def _degrees(totals: Totals, gradient: FloatArray = ONE) -> FloatArray:
    assert totals.parts is not None
    return totals.parts.degrees(gradient)


def _sampled(population: Population, share: float, random: np.random.Generator, partitions: int = 1) -> Totals:
    n, m = round(share * population.of_a), round(share * population.of_b)
    rows = random.permutation(population.of_a)[:n], random.permutation(population.of_b)[:m]
    sums = by_partition(sums_of_keys(*population.joined(*rows), np.arange(population.keys) % partitions, partitions))
    return staggered(sums, np.full(partitions, n), np.full(partitions, m), population.of_a, population.of_b)


@pytest.mark.parametrize(
    ("made", "share"),
    [(many_to_many(0.5), 0.05), (many_to_many(0.5), 0.2), (many_to_many(), 0.1), (foreign_key(0.0), 0.2)],
    ids=["zipf early", "zipf later", "many-to-many", "foreign key"],
)
def test_degrees_are_about_those_that_the_scatter_of_v_shows(made: Population, share: float) -> None:
    random = np.random.default_rng(8)
    every = [_sampled(made.first_functions(1), share, random, partitions=32) for _ in range(300)]
    variances = np.array([float(totals.variance[0, 0]) for totals in every])
    shown = 2 * variances.mean() ** 2 / variances.var(ddof=1)
    found = np.median([_degrees(totals)[0] for totals in every])
    assert shown / 2.5 < found < shown * 2.5


def test_pairs_that_share_no_row_count_for_two_each() -> None:
    """V^ is then a number of matches times something: as steady as 2 matches^2/matches."""
    totals = _sampled(one_to_one_lognormal(1000).first_functions(1), 0.5, np.random.default_rng(3))
    np.testing.assert_allclose(_degrees(totals), 2 * totals.pairs)


def test_one_key_that_brings_all_leaves_as_many_degrees_as_it_has_rows() -> None:
    def degrees(rows: int) -> float:
        sums = Sums.zeros(1, 1)
        square = np.full((1, 1, 1), float(rows) ** 3)
        of = Sums(sums.t + rows**2, square, square, square / rows, sums.pairs + rows**2)
        return float(_degrees(rectangle(of, 1000, 1000, 100_000, 100_000))[0])

    assert degrees(8) < 8 < degrees(64) < 64 < degrees(512)


def test_without_a_match_or_a_function_nothing_is_said() -> None:
    totals = rectangle(Sums.zeros(1, 2), 10, 10, 100, 100)
    assert _degrees(totals, SUM).tolist() == [np.inf]
    assert _degrees(totals, np.zeros((1, 2))).tolist() == [np.inf]


def test_a_function_that_is_infinite_does_no_harm_to_others() -> None:
    population = many_to_many(0.5, keys=40, rows=600).first_functions(2)
    sums = sums_of_keys(*population.joined(slice(0, 90), slice(0, 90)))
    odd = Sums(
        sums.t, *(np.where(np.eye(2) > 0, [[np.inf], [1]] * each, each) for each in (sums.sx, sums.sy, sums.q)), sums.pairs
    )
    with np.errstate(all="ignore"):
        one, other = (_degrees(rectangle(each, 90, 90, 600, 600), SUM) for each in (sums, odd))
    np.testing.assert_allclose(other, one)


def test_partitions_that_were_joined_alike_have_the_degrees_of_the_whole() -> None:
    population = foreign_key(0.0, keys=400, rows=4000).first_functions(1)
    moments = population.joined(slice(0, 200), slice(0, 2000))
    part = np.arange(population.keys) % 4
    sums = by_partition(sums_of_keys(*moments, part, 4))
    whole = rectangle(sums_of_keys(*moments), 200, 2000, 400, 4000)
    parts = staggered(sums, np.full(4, 200), np.full(4, 2000), 400, 4000)
    np.testing.assert_allclose(_degrees(parts), _degrees(whole), rtol=0.1)


def test_finished_partitions_take_no_degrees_away() -> None:
    population = many_to_many(0.5, keys=40, rows=600).first_functions(1)
    part = np.arange(population.keys) % 2
    sums = by_partition(sums_of_keys(*population.joined(slice(None), slice(None)), part, 2))
    of_a, of_b = (np.bincount(part[keys], minlength=2) for keys in (population.keys_a, population.keys_b))
    totals = finishing(sums, of_a, of_b, of_a, of_b)
    assert totals.exact
    assert _degrees(totals).tolist() == [np.inf]


def test_an_aggregate_has_the_degrees_of_its_parts_and_an_exact_one_needs_none() -> None:
    population = many_to_many(0.5).first_functions(2)
    totals = _sampled(population, 0.05, np.random.default_rng(4))
    np.testing.assert_allclose(aggregate("SUM", totals).degrees, _degrees(totals, SUM))
    assert np.isinf(aggregate("SUM", exactly(population.answer())).degrees)
    assert (totals + exactly(population.answer())).parts is totals.parts  # what is certain adds no doubt
