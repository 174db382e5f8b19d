"""What is known of a stream's keys, as a stream that forecasts are made for."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from millrace.core.errors import ParameterError
from millrace.cost.popularity import Popularity
from millrace.tuning.skew import Skew, as_skew


def head_of(exponent: float, keys: int, head: int) -> list[float]:
    return Popularity.zipf(exponent, keys).each[:head].tolist()


@pytest.mark.parametrize("exponent", [0.5, 0.8, 1.0, 1.2])
@pytest.mark.parametrize("keys", [50_000, 5_000_000])
def test_the_tail_of_zipfs_law_is_found_from_its_hundred_hottest_keys(exponent: float, keys: int) -> None:
    found = Skew.counted(head_of(exponent, keys, 100), "counted").stream(keys).popularity
    law = Popularity.zipf(exponent, keys)
    assert found.keys == keys
    for most in (10, 100, 1_000, 20_000):
        assert found.share(most) == pytest.approx(law.share(most), abs=0.02)


def test_one_hot_key_before_others_that_come_alike_leaves_a_flat_tail() -> None:
    found = Skew.counted([0.25, 1e-6], "counted").stream(100_000).popularity
    assert found.share(1) == pytest.approx(0.25)
    assert found.share(50_000) == pytest.approx(0.25 + 0.75 / 2, rel=1e-3)


def test_shares_of_a_stream_add_up_to_one() -> None:
    for skew in (Skew.unknown(), Skew.zipf(0.9), Skew.counted([0.5, 0.4], "counted"), Skew.counted([1.0], "one key")):
        popularity = skew.stream(1_000).popularity
        assert float(np.sum(popularity.each * popularity.count)) == pytest.approx(1.0)


def test_more_keys_counted_than_the_table_has_are_no_tail() -> None:
    assert Skew.counted([0.5, 0.3, 0.2], "counted").stream(2).popularity.keys == 2


def test_hot_keys_of_reports_are_taken_with_their_shares() -> None:
    class Counted(list[SimpleNamespace]):
        rows = 1_000

    skew = as_skew(Counted([SimpleNamespace(share=0.1), SimpleNamespace(share=0.3)]))
    assert skew.shares == (0.3, 0.1)
    assert str(skew) == "2 hot keys of 1,000 rows"


def test_a_number_is_an_exponent_and_nothing_is_wanted_alike() -> None:
    assert as_skew(1).exponent == 1.0
    assert not as_skew(None).known
    assert as_skew(as_skew(0.5)) == Skew.zipf(0.5)


@pytest.mark.parametrize("wrong", ["1.0", [], [0.1, 0.2], True, -1, float("nan"), {"a": 1}])
def test_anything_else_is_an_error(wrong: object) -> None:
    with pytest.raises(ParameterError):
        as_skew(wrong)


def test_shares_above_one_are_an_error() -> None:
    with pytest.raises(ParameterError, match="add up to 1 at most"):
        Skew.counted([0.9, 0.9], "counted")
