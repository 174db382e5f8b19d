"""Heavy hitters: exact for few keys, and never outside of their bounds, in whatever order codes come."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.arrays import Int64Array
from millrace.core.heavy_hitters import HeavyHitters


def _counted(codes: Int64Array, kept: int, batch: int = 1_000) -> HeavyHitters:
    counters = HeavyHitters(kept)
    for start in range(0, len(codes), batch):
        part = codes[start : start + batch]
        counters.add(part, np.ones(len(part), np.bool_))
        started = counters.started()
        assert (part[-1 - counters.notes[started]] == counters.codes[started]).all()
        counters.notes[started] = 0
    return counters


def _check_bounds(counters: HeavyHitters, codes: Int64Array) -> None:
    truth = Counter(codes.tolist())
    assert counters.rows == len(codes)
    assert counters.floor <= len(codes) / (counters.kept + 1)
    slots = counters.slots()
    assert len(slots) < counters.most
    found = counters.codes[slots].tolist()
    assert len(set(found)) == len(found)
    for code, count, error in zip(found, counters.counts[slots].tolist(), counters.errors[slots].tolist(), strict=True):
        assert count - error <= truth[code] <= count
        assert error <= counters.floor
    assert all(truth[code] <= counters.floor for code in truth.keys() - set(found))


def _zipf(rows: int, exponent: float, seed: int = 1) -> Int64Array:
    weights = 1 / np.arange(1, 200_001) ** exponent
    ranks = np.searchsorted(np.cumsum(weights) / weights.sum(), np.random.default_rng(seed).random(rows))
    return np.random.default_rng(7).integers(-(2**63), 2**63 - 1, 200_001)[ranks]


def test_few_codes_are_counted_exactly() -> None:
    codes = np.random.default_rng(3).integers(-9, 10, 50_000)
    counters = _counted(codes, 10)
    slots = counters.largest(100)
    assert counters.floor == 0
    assert not counters.errors[slots].any()
    assert dict(zip(counters.codes[slots].tolist(), counters.counts[slots].tolist(), strict=True)) == Counter(codes.tolist())


def test_rows_that_are_not_valid_are_counted_apart() -> None:
    counters = HeavyHitters(5)
    counters.add(np.zeros(10, np.int64), np.arange(10) < 3)
    assert (counters.rows, counters.left_out) == (3, 7)
    assert counters.counts[counters.slots()].tolist() == [3]


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("kept", [10, 500])
def test_bounds_hold_on_zipf(exponent: float, kept: int) -> None:
    codes = _zipf(60_000, exponent)
    counters = _counted(codes, kept)
    _check_bounds(counters, codes)


def test_the_most_frequent_codes_of_a_skewed_stream_are_found_and_exact() -> None:
    codes = _zipf(200_000, 1.0)
    counters = _counted(codes, 1_000)
    slots = counters.largest(20)
    expected = Counter(codes.tolist()).most_common(20)
    least = dict(zip(counters.codes[slots].tolist(), (counters.counts - counters.errors)[slots].tolist(), strict=True))
    assert all(least[code] >= 0.98 * count for code, count in expected[:10])


def _orders() -> dict[str, Int64Array]:
    heavy, light = np.repeat(np.arange(20), 500), np.arange(1_000, 21_000)
    mixed = np.random.default_rng(5).permutation(np.concatenate([heavy, light]))
    return {
        "heavy first": np.concatenate([heavy, light]),
        "heavy last": np.concatenate([light, heavy]),
        "sorted": np.sort(mixed),
        "in turn": np.tile(np.arange(101), 300),  # one code more than counters that stay
        "pairs": np.repeat(np.random.default_rng(6).permutation(20_000), 2),
        "same low bits": (np.arange(30_000) % 5_000) << 40,
        "mixed": mixed,
    }


@pytest.mark.parametrize("order", _orders())
@pytest.mark.parametrize("batch", [7, 1_000, 10**6])
def test_bounds_hold_in_orders_made_to_mislead(order: str, batch: int) -> None:
    codes = _orders()[order]
    counters = _counted(codes, 100, batch)
    _check_bounds(counters, codes)
    bound = math.floor(len(codes) / 101)
    frequent = {code for code, count in Counter(codes.tolist()).items() if count > bound}
    assert frequent <= set(counters.codes[counters.slots()].tolist())


def test_what_lies_beyond_some_counters_is_bounded() -> None:
    codes = np.repeat(np.arange(8), np.arange(1, 9))
    counters = _counted(codes, 10)
    assert counters.beyond(counters.largest(3)) == 5
    assert counters.beyond(counters.largest(8)) == 0
    many = _counted(np.arange(1_000), 10)
    assert many.beyond(many.largest(100)) == many.floor > 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 6), max_size=400), st.integers(1, 6), st.integers(1, 50))
def test_bounds_hold_for_any_codes(codes: list[int], kept: int, batch: int) -> None:
    arriving = np.array(codes, np.int64)
    _check_bounds(_counted(arriving, kept, batch), arriving)
