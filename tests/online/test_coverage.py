"""Intervals hold what they promise: where there are 200 matches and light tails, within three standard errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from millrace.core.errors import ParameterError
from millrace.online.coverage.coverage import Coverage, measure
from millrace.online.coverage.populations import Population, foreign_key, many_to_many, one_to_one_lognormal
from millrace.online.statistics.estimators import staggered_blocks
from millrace.online.statistics.intervals import IntervalRule

LIGHT = {
    "one-to-one": lambda: one_to_one_lognormal(2000),
    "foreign-key": lambda: foreign_key(0.0, keys=500, rows=2000),
    "many-to-many": lambda: many_to_many(keys=150, rows=1500),
}
CASES = [
    ("rectangle", (0.25, 0.5, 0.8)),
    ("staggered", (0.3, 0.5, 0.8)),
    ("finishing", (0.1, 0.5, 0.8)),
    ("region", (0.5, 1.0)),
]


def _assert_as_promised(result: Coverage) -> None:
    least = 200 if result.aggregate in ("SUM", "COUNT", "AVG") else 600  # squares need more matches: with 200, .966 hold
    assert any(row.matches >= least for row in result.rows)
    for row in result.rows:
        if row.matches >= least:
            assert abs(row.coverage - 0.95) <= result.three_errors, row
            assert abs(row.bias) <= 3 * row.bias_error + 1e-12, row
            # the sample variance of so many normal values is off by sqrt(2/reshuffles) of itself
            assert abs(row.variance_ratio - 1) <= 0.05 + 3 * math.sqrt(2 / result.reshuffles), row


@pytest.mark.parametrize(
    ("population", "case"), [("one-to-one", 0), ("foreign-key", 1), ("many-to-many", 2), ("foreign-key", 3)]
)
def test_intervals_of_sums_cover_as_promised(population: str, case: int) -> None:
    scheme, shares = CASES[case]
    _assert_as_promised(measure(LIGHT[population](), scheme, shares=shares, reshuffles=200, seed=5))


@pytest.mark.slow
@pytest.mark.parametrize("population", list(LIGHT))
@pytest.mark.parametrize("case", range(len(CASES)))
def test_over_thousands_of_reshuffles_intervals_cover_as_promised(population: str, case: int) -> None:
    scheme, shares = CASES[case]
    _assert_as_promised(measure(LIGHT[population](), scheme, shares=shares, reshuffles=2000, seed=6))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["COUNT", "AVG", "STDDEV_SAMP"])
@pytest.mark.parametrize("population", ["foreign-key", "many-to-many"])
def test_over_thousands_of_reshuffles_other_aggregates_cover_as_promised(population: str, name: str) -> None:
    _assert_as_promised(measure(LIGHT[population](), "staggered", name=name, shares=(0.4, 0.7), reshuffles=2000, seed=6))


def test_intervals_for_all_looks_hold_together_in_most_runs() -> None:
    shares = tuple(np.geomspace(0.1, 0.9, 10))
    population = many_to_many(keys=100, rows=1000)
    each = measure(population, shares=shares, reshuffles=200, seed=7)
    # V goes as (1-p)/p: from 9 to 1/9
    always = measure(population, shares=shares, reshuffles=200, seed=7, rule=IntervalRule(interval="always", span=math.log(81)))
    assert each.together < 0.9
    assert always.together > 0.92


def test_heavy_keys_on_one_side_are_covered_better_with_the_wide_variance() -> None:
    population = foreign_key(0.8, keys=500, rows=2500)
    plain = measure(population, reshuffles=300, shares=(0.2, 0.4), wide=False, seed=8)
    wide = measure(population, reshuffles=300, shares=(0.2, 0.4), wide=True, seed=8)
    for before, after in zip(plain.rows, wide.rows, strict=True):
        assert after.coverage > before.coverage
        assert after.coverage > 0.93


def test_heavy_keys_read_first_narrow_the_interval() -> None:
    population = foreign_key(0.8, keys=500, rows=2500)
    plain = measure(population, reshuffles=200, shares=(0.1, 0.2), seed=9)
    first = measure(population, "stratum", reshuffles=200, shares=(0.1, 0.2), seed=9)
    for before, after in zip(plain.rows, first.rows, strict=True):
        assert after.half_width < 0.8 * before.half_width
        assert abs(after.bias) < 4 * after.bias_error


def test_blocks_on_both_sides_in_random_order_have_the_variance_of_blocks() -> None:
    """Staggered partitions, blocks of neighbours that resemble each other: rows would see a fraction of the variance."""
    random = np.random.default_rng(10)
    blocks, partitions = 40, 4
    f = random.gamma(1.0, 1.0, (blocks, blocks, partitions))
    f *= random.gamma(2.0, 0.5, (blocks, 1, 1)) * random.gamma(2.0, 0.5, (1, blocks, 1))  # a block is high in all partitions
    n = m = np.array([10, 14, 18, 22])
    values, variances = [], []
    for _ in range(800):
        order_a, order_b = random.permutation(blocks), random.permutation(blocks)
        joined = np.zeros_like(f)
        for i in range(partitions):
            at = np.ix_(order_a[: n[i]], order_b[: m[i]])
            joined[..., i][at] = f[..., i][at]
        x, y = joined.sum(axis=1)[..., None], joined.sum(axis=0)[..., None]
        totals = staggered_blocks(x, y, joined.reshape(-1, partitions, 1), np.array([100]), n, m, blocks, blocks)
        values.append(totals.value[0, 0])
        variances.append(totals.covariance[0, 0, 0])
    assert np.mean(values) == pytest.approx(f.sum(), abs=3.5 * np.std(values) / math.sqrt(800))
    assert np.mean(variances) / np.var(values) == pytest.approx(1.0, abs=0.2)


def test_the_same_seed_gives_the_same_table() -> None:
    population = many_to_many(keys=50, rows=500)
    one, other = (measure(population, reshuffles=20, shares=(0.2, 0.5), seed=1) for _ in range(2))
    assert one == other
    assert one.table().count("\n") == 3


@pytest.mark.parametrize(
    "wrong",
    [
        lambda p: measure(p, "spiral"),
        lambda p: measure(p, reshuffles=1),
        lambda p: measure(p, shares=()),
        lambda p: measure(p, shares=(0.0,)),
        lambda p: measure(p, name="MIN"),
        lambda p: Population("x", p.keys_a[:3], p.keys_b, p.u, p.v),
        lambda p: Population("x", p.keys_a - 10, p.keys_b, p.u, p.v),
    ],
)
def test_what_cannot_be_measured_is_an_error(wrong) -> None:  # type: ignore[no-untyped-def]
    population = many_to_many(keys=20, rows=50)
    with pytest.raises(ParameterError):
        wrong(population)
