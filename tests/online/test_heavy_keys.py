"""Heavy keys are watched: moments are those of the rows that a partition was joined with; intervals know of rows to come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.online.tables import records

import millrace as mr
from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.online.joins.invocation import Expanding
from millrace.online.joins.prjoin import PRJoin
from millrace.online.pair_functions import Products
from millrace.online.protocol import A, B, run
from millrace.online.sampling.heavy_keys import MOST_KEYS, HeavyKeys, heaviest, in_turn, most_keys
from millrace.online.statistics.tails import widened
from millrace.online.statistics.totals import KeyMoments, Sums
from millrace.online.storage.inputs import ArrayInput
from millrace.online.storage.spill import FileSpill

SUM = Products(left=((), ()), right=((), (1,)))  # 1 and b.value


def _skewed(rows: int = 3000, keys: int = 400, seed: int = 1) -> tuple[Int64Array, Int64Array]:
    random = np.random.default_rng(seed)
    weights = np.arange(1, keys + 1) ** -1.0
    drawn = random.choice(keys, rows, p=weights / weights.sum())
    return records(random.permutation(keys)), records(drawn, random.integers(1, 9, rows))


def test_keys_that_stand_out_are_found_and_equal_ones_are_not() -> None:
    _, b = _skewed()
    found = heaviest(b, SUM.right)
    assert len(found) <= MOST_KEYS
    assert set(found[:3].tolist()) == {0, 1, 2}
    assert len(heaviest(records(np.arange(5000), np.ones(5000)), SUM.right)) == 0
    values = np.ones(5000)
    values[77] = 1000.0  # one key each, one value of weight
    assert heaviest(records(np.arange(5000), values), SUM.right)[0] == 77
    assert len(heaviest(b[:0], SUM.right)) == 0
    assert in_turn([np.array([5, 3, 9]), np.array([3, 4])]).tolist() == [5, 3, 4, 9]
    assert in_turn([]).tolist() == []


@pytest.mark.parametrize("seed", [1, 2])
def test_moments_are_those_of_the_rows_that_a_partition_was_joined_with(seed: int) -> None:
    """In a memory that spills, with partitions given anew."""
    a, b = _skewed(seed=seed)
    budget = Budget(1 << 16)
    heavy = HeavyKeys(heaviest(b, SUM.right), SUM, budget)
    assert len(heavy.codes) >= 16
    inputs = heavy.watched(A, ArrayInput(a)), heavy.watched(B, ArrayInput(b))
    join = PRJoin(*inputs, SUM, budget, FileSpill(), invocation=Expanding(stop=False, first_share=0.1), seed=seed)
    looked = 0
    for progress in run(join):
        if progress.reported:
            pieces = progress.pieces
            heavy.joined(pieces.rows_a, pieces.rows_b, join.partition_of)
            partition = join.partition_of(heavy.codes)
            for key, code in enumerate(heavy.codes.tolist()):
                read_a, read_b = a[: pieces.rows_a[partition[key]]], b[: pieces.rows_b[partition[key]]]
                values = read_b[read_b[:, 0] == code, 1].view(np.float64)
                assert heavy.met[A][key, 0, 0] == (read_a[:, 0] == code).sum()
                assert heavy.met[B][key, 0].tolist() == [len(values), values.sum(), (values**2).sum()]
            looked += 1
    assert looked > 10


def test_with_all_keys_watched_the_sums_are_those_of_all_keys() -> None:
    a, b = _skewed(rows=500, keys=60)
    heavy = HeavyKeys(np.arange(60), SUM, Budget(1 << 20))
    heavy.add(A, a[:25])
    heavy.add(B, b[:200])
    one = np.array([25]), np.array([200])
    heavy.joined(*one, lambda codes: np.zeros(len(codes), np.int64))
    left = KeyMoments.of(a[:25, 0], np.ones((25, 2)), 60)
    right = KeyMoments.of(b[:200, 0], np.stack((np.ones(200), b[:200, 1].view(np.float64)), axis=1), 60)
    some = Sums.zeros(1, 2)
    expected = widened(some, left, right, share_a=np.full(60, 25 / 60), share_b=np.full(60, 0.4))
    stacked = Sums(*(np.asarray(array)[None] for array in (some.t, some.sx, some.sy, some.q, some.pairs)))
    found, largest = heavy.widened(stacked, np.zeros(1, np.int64), np.array([25 / 60]), np.array([0.4]))
    np.testing.assert_allclose(found.sx[0], expected.sx)
    np.testing.assert_allclose(found.sy[0], expected.sy)
    both = (left.rows > 0) & (right.rows > 0)
    x = ((1 - 25 / 60) * right.first[both, 1] ** 2).max() / (25 / 60 * 0.4) ** 2
    assert largest[0, 1, 1] == pytest.approx(x)


def test_rows_of_all_other_keys_are_added_up_and_fill_bins_that_lack_rows() -> None:
    """20 keys of 60 are watched; two of them have a row of A, so that the others, which have ten, tell how many there are."""
    a = records(np.concatenate((np.arange(2), np.arange(20, 30))))
    b = records(np.repeat(np.arange(60), 3), np.full(180, 2.0))
    heavy = HeavyKeys(np.arange(20), SUM, Budget(1 << 20))
    heavy.add(A, a)
    heavy.add(B, b)
    assert heavy.now[A][-1, 0, 0] == 10
    assert heavy.now[B][-1, 0].tolist() == [120, 240.0, 480.0]
    heavy.joined(np.array([12]), np.array([180]), lambda codes: np.zeros(len(codes), np.int64))
    sums = Sums.zeros(1, 2)
    sums = Sums(*(np.asarray(array)[None] for array in (sums.t, sums.sx, sums.sy, sums.q, np.array([36]))))
    p, r = np.array([0.25]), np.array([0.5])
    found, _ = heavy.widened(sums, np.zeros(1, np.int64), p, r)
    # rows of A for a key of B: 2 + 3 of 20 keys and as many others as have 3; of these 30 pairs in 120 rows of B, of all rows
    rows_for_a_key = (30 / (0.25 * 0.5)) / (120 / 0.5)
    mean = (2 + 3) / (20 * 0.25 + 3 / rows_for_a_key)
    assert found.sx[0, 0, 0, 0] + 2 * 3**2 == pytest.approx(mean * 0.25 * 20 * 3**2)


def test_a_heavy_row_that_is_still_to_come_may_be_in_any_group() -> None:
    """Groups by a column of A: no watched key has a row of A yet, and the others say how many rows of each group to expect."""
    functions = Products(left=((),), right=((),), group_a=1, groups_a=2)
    heavy = HeavyKeys(np.arange(4), functions, Budget(1 << 20))
    a: Any = np.stack([np.arange(10, 40), np.arange(30) % 3 % 2], axis=1)  # twice as many rows of group 0
    heavy.add(A, np.ascontiguousarray(a))
    heavy.add(B, records(np.concatenate((np.repeat(np.arange(4), 50), np.arange(10, 70)))))
    heavy.joined(np.array([30]), np.array([260]), lambda codes: np.zeros(len(codes), np.int64))
    none = np.zeros((1, 2, 1, 1))
    sums = Sums(np.zeros((1, 2, 1)), none, none, none, np.array([[20, 10]]))
    found, _ = heavy.widened(sums, np.arange(2), np.array([0.5]), np.array([0.5]))
    # of 60 other rows of B 20 and 10 have met one of A
    assert found.sx[0, :, 0, 0] == pytest.approx(
        [20 / 60 * 4 * 50**2 * 5 / (5 + 20 / 60 * 4), 10 / 60 * 4 * 50**2 * 5 / (5 + 10 / 60 * 4)]
    )


def test_groups_have_moments_of_their_own() -> None:
    random = np.random.default_rng(4)
    functions = Products(left=((),), right=((),), group_b=1, groups_b=3)
    rows: Any = np.stack([random.integers(0, 50, 600), random.integers(0, 3, 600)], axis=1)
    heavy = HeavyKeys(np.arange(50), functions, Budget(1 << 20))
    heavy.add(B, np.ascontiguousarray(rows))
    expected = np.zeros((50, 3))
    np.add.at(expected, (rows[:, 0], rows[:, 1]), 1)
    np.testing.assert_array_equal(heavy.now[B][:-1, :, 0], expected)


def test_little_memory_watches_fewer_keys_or_none() -> None:
    assert most_keys(SUM, 1 << 30) == 2 * MOST_KEYS
    assert most_keys(SUM, 1 << 17) == (1 << 17) // 32 // 80
    assert most_keys(SUM, 1 << 13) == 0


def _one_heavy_key() -> tuple[pa.Table, pa.Table]:
    """A third of the right table refers to one row of the left."""
    random = np.random.default_rng(5)
    keys = random.integers(0, 1000, 6000)
    keys[:2000] = 7
    return pa.table({"k": np.arange(1000)}), pa.table({"k": keys, "v": random.gamma(4, 0.25, 6000), "g": keys % 2})


@pytest.mark.parametrize("group_by", [None, "g"])
def test_an_interval_holds_while_the_row_of_the_heaviest_key_is_still_to_come(group_by: str | None) -> None:
    left, right = _one_heavy_key()
    held = runs = warned = 0
    for seed in range(10):
        options = {"seed": seed, "every": 0, "threads": 1, "memory": "4m", "group_by": group_by}
        with mr.estimate(left, right, on="k", s=mr.sum_("v"), **options) as run:
            report = next(report for report in run if report.share_read > 0.2)
        chosen = right if group_by is None else right.filter(pa.compute.equal(right["g"], 1))
        estimate = report["s"] if group_by is None else report["s", 1]
        held += estimate.covers(float(np.sum(chosen["v"].to_numpy())))
        warned += any("one row brings" in text or "have not met" in text for text in estimate.warnings)
        runs += 1
    assert held >= 0.85 * runs  # without a watch on heavy keys: a sixth
    assert warned >= 0.5 * runs
