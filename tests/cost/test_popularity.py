"""How often the keys of a stream come."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.core.errors import ParameterError
from millrace.cost.popularity import Popularity, harmonic


def total(popularity: Popularity) -> float:
    return float(np.sum(popularity.each * popularity.count))


@pytest.mark.parametrize(("count", "exponent", "sum_"), [(1, 1.0, 1.0), (4, 1.0, 25 / 12), (3, 2.0, 49 / 36), (7, 0.0, 7.0)])
def test_the_harmonic_sum_is_what_it_is_by_hand(count: int, exponent: float, sum_: float) -> None:
    assert harmonic(count, exponent) == pytest.approx(sum_)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.2])
def test_the_integral_goes_on_where_the_sum_ends(exponent: float) -> None:
    whole = float(np.sum(np.arange(1, 3_000_001, dtype=np.float64) ** -exponent))
    assert harmonic(3_000_000, exponent) == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.2])
@pytest.mark.parametrize("keys", [1, 5, 70_000, 3_000_000])
def test_the_classes_of_zipfs_law_hold_every_key_and_the_whole_stream(exponent: float, keys: int) -> None:
    law = Popularity.zipf(exponent, keys)
    assert law.keys == keys
    assert total(law) == pytest.approx(1.0)


@pytest.mark.parametrize("keys", [10, 1_000, 100_000, 1_000_000])
@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.2])
def test_the_share_of_the_first_keys_is_a_ratio_of_harmonic_sums(exponent: float, keys: int) -> None:
    found = Popularity.zipf(exponent, 2_000_000).share(keys)
    assert found == pytest.approx(harmonic(keys, exponent) / harmonic(2_000_000, exponent), rel=2e-4)


def test_a_share_of_no_keys_is_nothing_and_of_all_keys_everything() -> None:
    law = Popularity.zipf(1, 1_000)
    assert law.share(0) == 0.0
    assert law.share(1_000) == law.share(5_000) == pytest.approx(1.0)


def test_exponent_zero_is_one_class_of_keys_that_come_alike() -> None:
    even = Popularity.zipf(0, 1_000)
    assert even.each.tolist() == [0.001]
    assert even.count.tolist() == [1_000]


def test_counted_shares_are_sorted_and_the_rest_comes_alike() -> None:
    counted = Popularity.counted(np.array([0.1, 0.3]), 8)
    assert counted.each.tolist() == pytest.approx([0.3, 0.1, 0.1])
    assert counted.count.tolist() == [1, 1, 6]


def test_counted_shares_of_all_keys_are_made_to_add_up() -> None:
    assert Popularity.counted(np.array([0.2, 0.2]), 2).each.tolist() == [0.5, 0.5]


def test_without_its_hottest_keys_a_stream_has_the_others_in_the_same_proportion() -> None:
    law, rest = Popularity.zipf(1, 10), Popularity.zipf(1, 10).without(4)
    assert rest.keys == 6
    assert total(rest) == pytest.approx(1.0)
    assert rest.each[0] / rest.each[5] == pytest.approx(law.each[4] / law.each[9])


def test_keys_leave_a_class_one_by_one() -> None:
    assert Popularity.zipf(0, 100).without(30).count.tolist() == [70]


def test_without_any_key_the_stream_is_the_same_and_without_all_one_key_stands_for_nothing() -> None:
    law = Popularity.zipf(1, 10)
    assert law.without(0) is law
    assert law.without(10).keys == 1


@pytest.mark.parametrize("exponent", [0.6, 1.0, 1.3])
def test_an_exponent_is_found_again_from_counted_shares(exponent: float) -> None:
    law = Popularity.zipf(exponent, 10_000)
    assert law.estimated_exponent() == exponent
    assert Popularity.counted(law.each[:500], 10_000).estimated_exponent() == pytest.approx(exponent, rel=0.01)


def test_few_counted_keys_tell_no_exponent() -> None:
    assert Popularity.counted(np.array([0.5, 0.2]), 1_000).estimated_exponent() == 0.0


@pytest.mark.parametrize("wrong", [-0.1, float("nan"), float("inf"), True, "1"])
def test_an_exponent_that_is_none_is_an_error(wrong: float) -> None:
    with pytest.raises(ParameterError, match="zipf_exponent must be a number"):
        Popularity.zipf(wrong, 10)


def test_a_stream_has_at_least_one_key() -> None:
    with pytest.raises(ParameterError, match="at least one key; got 0"):
        Popularity.zipf(1, 0)
