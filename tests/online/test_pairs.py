"""The general path: every pair is put out exactly once, whatever the budget, the keys and the way rows arrive."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.online.inputs import StallingInput
from tests.online.tables import ALGORITHMS, Collected, Tables, all_pairs, join_of, records, tables

from millrace.online.pair_functions import Pairs
from millrace.online.protocol import finished
from millrace.online.storage.inputs import ArrayInput

NAMES = tuple(ALGORITHMS)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tables, list[int], list[int], int]:
    keys = draw(st.sampled_from([3, 40, 2000]))
    seed = draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    rows = [draw(st.integers(0, 1500)) for _ in "ab"]
    if keys == 3:
        rows = [min(count, 120) for count in rows]
    a, b = (records(random.integers(0, keys, count), np.arange(count)) for count in rows)
    portions = [random.choice([0, 3, 100], draw(st.integers(0, 12))).tolist() for _ in "ab"]
    return Tables(a, b), portions[0], portions[1], draw(st.sampled_from([1 << 17, 1 << 23]))


@pytest.mark.parametrize("name", NAMES)
@given(case=cases())
@settings(max_examples=12, deadline=None)
def test_each_pair_is_put_out_exactly_once(name: str, case: tuple[Tables, list[int], list[int], int]) -> None:
    data, stalls_a, stalls_b, memory = case
    found = Collected(same=True)
    a, b = (StallingInput(ArrayInput(s), iter(p)) for s, p in ((data.a, stalls_a), (data.b, stalls_b)))
    end = finished(join_of(name, a, b, found.functions, memory=memory))
    assert Counter(found.pairs) == all_pairs(data)
    assert end.pieces.pairs_joined() == len(found.pairs)


@pytest.mark.parametrize("name", NAMES)
def test_each_pair_is_put_out_once_when_most_rows_are_spilled(name: str) -> None:
    data = tables("duplicates", rows=12_000)
    numbered = Tables(records(data.a[:, 0], np.arange(len(data.a))), records(data.b[:, 0] * 17, np.arange(len(data.b))))
    found = Collected()
    join = join_of(name, numbered.a, numbered.b, found.functions, memory=1 << 18)
    end = finished(join)
    assert end.counters.temp_written_bytes >= 0
    assert Counter(found.pairs) == all_pairs(numbered)


@pytest.mark.parametrize("name", NAMES)
def test_codes_that_are_hashes_are_compared_on_the_real_words(name: str) -> None:
    random = np.random.default_rng(5)
    keys = random.integers(0, 50, (2, 2000))
    a, b = (np.stack([side % 7, side, np.arange(2000)], axis=1) for side in keys)  # seven codes for fifty keys

    def count(one: object, other: object) -> tuple[np.ndarray, None]:
        return np.ones((len(one), 1)), None  # type: ignore[arg-type]

    functions = Pairs(count, 1, same_a=(1,), same_b=(1,))
    end = finished(join_of(name, a, b, functions, memory=1 << 18))
    expected = int((np.bincount(keys[0], minlength=50) * np.bincount(keys[1], minlength=50)).sum())
    assert end.pieces.answer()[0, 0] == expected
