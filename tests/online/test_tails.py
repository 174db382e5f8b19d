"""Widened sums of squares: the same where heavy keys are known on both sides, and far steadier where they are a coin toss."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.core.errors import ParameterError
from millrace.online.coverage.populations import foreign_key, many_to_many
from millrace.online.statistics.estimators import Totals, rectangle
from millrace.online.statistics.tails import ROWS_PER_BIN, Rest, by_partition, heavy_key_note, widened
from millrace.online.statistics.totals import KeyMoments, Sums, sums_of_keys


def _part(side: KeyMoments, at: np.ndarray | slice) -> KeyMoments:
    return KeyMoments(side.rows[at], side.first[at], side.second[at])


def test_one_bin_of_keys_shares_its_rows_evenly_among_met_and_unmet() -> None:
    left = KeyMoments.of([0, 1], [1.0, 1.0], 4)
    right = KeyMoments.of([0, 0, 2, 2, 2], np.ones(5), 4)
    narrow = sums_of_keys(left, right)
    wide = widened(narrow, left, right)
    assert float(narrow.sx[0, 0, 0]) == 4.0
    assert float(wide.sx[0, 0, 0]) == 1 / 2 * (4 + 9)  # one of B's two keys has a row in A
    assert float(wide.sy[0, 0, 0]) == 2 / 2 * (1 + 1)
    assert float(wide.t[0, 0]) == float(narrow.t[0, 0])
    assert float(wide.q[0, 0, 0]) == float(narrow.q[0, 0, 0])


def test_keys_with_many_rows_on_both_sides_keep_their_own_sums() -> None:
    keys = np.repeat(np.arange(6), 2 * ROWS_PER_BIN)
    side = KeyMoments.of(keys, np.random.default_rng(1).normal(size=(len(keys), 2)), 6)
    narrow = sums_of_keys(side, side)
    wide = widened(narrow, side, side)
    np.testing.assert_allclose(wide.sx, narrow.sx)
    np.testing.assert_allclose(wide.sy, narrow.sy)


def test_heavy_keys_are_not_averaged_with_cold_ones() -> None:
    """Ten heavy keys of B have one row of A each, ninety light ones have none: the mean over all would be a tenth of it."""
    left = KeyMoments.of(np.arange(10), np.ones(10), 100)
    right = KeyMoments.of(np.concatenate((np.repeat(np.arange(10), 20), np.arange(10, 100))), np.ones(290), 100)
    narrow = sums_of_keys(left, right)
    wide = widened(narrow, left, right)
    assert float(narrow.sx[0, 0, 0]) == 10 * 20**2
    assert float(wide.sx[0, 0, 0]) == pytest.approx(10 * 20**2, rel=0.1)


def test_moments_of_the_hottest_keys_alone_replace_only_what_they_brought() -> None:
    population = foreign_key(0.8, keys=200, rows=2000).first_functions(2)
    left, right = population.joined(slice(0, 120), slice(0, 700))
    heavy = np.argsort(-right.rows)[:20]
    narrow = sums_of_keys(left, right)
    wide = widened(narrow, _part(left, heavy), _part(right, heavy))
    light = np.setdiff1d(np.arange(population.keys), heavy)
    rest = sums_of_keys(_part(left, light), _part(right, light))
    alone = widened(Sums.zeros(1, 2), _part(left, heavy), _part(right, heavy))
    inside = sums_of_keys(_part(left, heavy), _part(right, heavy))
    np.testing.assert_allclose(wide.sx - rest.sx, alone.sx + inside.sx)


def test_partitions_widened_together_add_up_to_the_whole() -> None:
    population = foreign_key(0.8, keys=200, rows=2000).first_functions(2)
    left, right = population.joined(slice(0, 120), slice(0, 700))
    part = np.arange(population.keys) % 4
    whole = widened(sums_of_keys(left, right), left, right)
    parts = by_partition(widened(sums_of_keys(left, right, part, 4), left, right, part))
    for name in ("t", "sx", "sy", "q"):
        np.testing.assert_allclose(getattr(parts, name).sum(axis=0), getattr(whole, name), rtol=1e-10, err_msg=name)


def test_groups_in_pools_of_their_own_are_widened_alone() -> None:
    """Groups of B: a key of A is in a cell of each group."""
    random = np.random.default_rng(12)
    keys_a, keys_b, group = random.integers(0, 20, 30), random.integers(0, 20, 80), random.integers(0, 2, 80)
    left = KeyMoments.of(np.concatenate((keys_a, 20 + keys_a)), np.ones(60), 40)
    right = KeyMoments.of(20 * group + keys_b, random.normal(size=80), 40)
    of = np.repeat([0, 1], 20)
    both = widened(sums_of_keys(left, right, of, 2), left, right, of, pool=of)
    for g in (0, 1):
        at = slice(20 * g, 20 * g + 20)
        one, other = _part(left, at), _part(right, at)
        alone = widened(sums_of_keys(one, other), one, other)
        np.testing.assert_allclose(both.sx[g], alone.sx[0])
        np.testing.assert_allclose(both.sy[g], alone.sy[0])


def test_equal_shares_of_rows_read_change_nothing() -> None:
    population = foreign_key(0.8, keys=200, rows=2000).first_functions(2)
    left, right = population.joined(slice(0, 100), slice(0, 600))
    narrow = sums_of_keys(left, right)
    shares = np.full(population.keys, 0.3)
    plain, shared = widened(narrow, left, right), widened(narrow, left, right, share_a=shares, share_b=shares)
    np.testing.assert_allclose(plain.sx, shared.sx, rtol=1e-10)
    np.testing.assert_allclose(plain.sy, shared.sy, rtol=1e-10)


def test_with_a_heavy_key_the_wide_variance_is_steadier_and_about_right() -> None:
    population = foreign_key(0.9, keys=500, rows=5000).first_functions(1)
    random = np.random.default_rng(11)
    n, m = 100, 1000
    values, narrow, wide = [], [], []
    for _ in range(500):
        left, right = population.joined(random.permutation(population.of_a)[:n], random.permutation(population.of_b)[:m])
        sums = sums_of_keys(left, right)
        totals = rectangle(sums, n, m, population.of_a, population.of_b)
        values.append(totals.value[0, 0])
        narrow.append(totals.covariance[0, 0, 0])
        steady = rectangle(widened(sums, left, right), n, m, population.of_a, population.of_b)
        assert steady.value[0, 0] == totals.value[0, 0]
        wide.append(steady.covariance[0, 0, 0])
    assert np.std(wide) < 0.6 * np.std(narrow)
    assert 0.8 < np.mean(wide) / np.var(values) < 1.6


def test_heavy_keys_of_both_sides_lose_nothing() -> None:
    population = many_to_many(0.9, keys=300, rows=3000).first_functions(1)
    left, right = population.joined(slice(0, 600), slice(0, 600))
    sums = sums_of_keys(left, right)
    wide = widened(sums, left, right)
    assert float(wide.sx[0, 0, 0] / sums.sx[0, 0, 0]) == pytest.approx(1.0, abs=0.03)


def test_a_heavy_key_without_a_partner_is_told_of() -> None:
    left = KeyMoments.of(np.arange(50), np.ones(50), 101)
    right = KeyMoments.of(np.concatenate((np.arange(100), np.full(60, 100))), np.ones(160), 101)
    sums = sums_of_keys(left, right)
    narrow, wide = (rectangle(each, 100, 160, 200, 320) for each in (sums, widened(sums, left, right)))
    note = heavy_key_note(narrow, wide)
    assert note is not None
    assert "frequent" in note
    assert heavy_key_note(narrow, narrow) is None


def test_other_keys_fill_a_bin_that_lacks_rows() -> None:
    left = KeyMoments.of([0, 1], [1.0, 1.0], 4)
    right = KeyMoments.of([0, 0, 2, 2, 2], np.ones(5), 4)
    narrow = sums_of_keys(left, right)
    rest = Rest(np.array([0.4]), np.array([[[2.0]]]))  # rows of A for a key, and what one brings
    wide = widened(narrow, left, right, rest_a=rest)
    missing = ROWS_PER_BIN - 1  # one of B's two keys has a row in A
    assert float(wide.sx[0, 0, 0]) == pytest.approx((1 + missing * 2.0) / (2 + missing / 0.4) * (4 + 9))
    assert float(wide.sy[0, 0, 0]) == float(widened(narrow, left, right).sy[0, 0, 0])


@pytest.mark.parametrize("unknown", [(0.0, 1.0), (np.nan, 1.0), (np.inf, 1.0), (1.0, np.nan)])
def test_of_other_keys_that_are_not_known_nothing_is_taken(unknown: tuple[float, float]) -> None:
    left, right = KeyMoments.of([0, 1], [1.0, 1.0], 4), KeyMoments.of([0, 0, 2, 2, 2], np.ones(5), 4)
    narrow = sums_of_keys(left, right)
    rest = Rest(np.array([unknown[0]]), np.array([[[unknown[1]]]]))
    np.testing.assert_array_equal(widened(narrow, left, right, rest_a=rest).sx, widened(narrow, left, right).sx)


def test_full_bins_need_no_other_keys() -> None:
    keys = np.repeat(np.arange(6), 2 * ROWS_PER_BIN)
    side = KeyMoments.of(keys, np.ones(len(keys)), 6)
    narrow = sums_of_keys(side, side)
    rest = Rest(np.array([1.0]), np.array([[[100.0]]]))
    np.testing.assert_allclose(widened(narrow, side, side, rest_a=rest, rest_b=rest).sx, narrow.sx)


def test_no_variance_gives_no_note() -> None:
    unknown = Totals(np.ones((1, 1)), np.full((1, 1, 1), np.nan), np.array([1]))
    assert heavy_key_note(unknown, unknown) is None


@pytest.mark.parametrize("shares", [np.ones(3), np.full(2, -0.1), np.full(2, 1.5)])
def test_shares_that_cannot_be_are_an_error(shares: np.ndarray) -> None:
    side = KeyMoments.of([0, 1], [1.0, 1.0], 2)
    with pytest.raises(ParameterError):
        widened(sums_of_keys(side, side), side, side, share_a=shares)
