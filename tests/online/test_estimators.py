"""Each formula against brute force: all samples of tiny tables, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations

import numpy as np
import pytest

from millrace.core.errors import ParameterError
from millrace.online.statistics.estimators import (
    Totals,
    exactly,
    finishing,
    rectangle,
    region,
    sample_of_parts,
    shares,
    smaller_of_two,
    staggered,
    staggered_blocks,
)
from millrace.online.statistics.totals import Sums, stacked, sums_of_matches

RANDOM = np.random.default_rng(20)


def _table(n: int, m: int, functions: int = 2) -> np.ndarray:
    """f of all pairs, (N, M, K): some zero, as where a pair does not join."""
    f = RANDOM.normal(1.0, 1.0, (n, m, functions))
    f[RANDOM.random((n, m)) < 0.4] = 0.0
    return f


def _sums(f: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> Sums:
    """Of all pairs of some rows and columns; every pair counts as joined."""
    a, b = (array.ravel() for array in np.meshgrid(rows, columns, indexing="ij"))
    return sums_of_matches(a, b, f[a, b])


def _moments(seen: list[Totals]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean of T^, covariance of T^, mean of V^, over equally likely samples."""
    values = np.stack([totals.value[0] for totals in seen])
    off = values - values.mean(axis=0)
    return values.mean(axis=0), off.T @ off / len(seen), np.mean([totals.covariance[0] for totals in seen], axis=0)


def _samples(size: int, count: int) -> Iterator[np.ndarray]:
    return (np.array(chosen) for chosen in combinations(range(size), count))


@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 2), (4, 3), (5, 2), (2, 4)])
def test_over_all_samples_the_rectangle_is_unbiased_in_total_and_variance(n: int, m: int) -> None:
    f = _table(5, 4)
    seen = [rectangle(_sums(f, rows, columns), n, m, 5, 4) for rows in _samples(5, n) for columns in _samples(4, m)]
    mean, covariance, estimated = _moments(seen)
    np.testing.assert_allclose(mean, f.sum(axis=(0, 1)), rtol=1e-10)
    np.testing.assert_allclose(estimated, covariance, rtol=1e-9, atol=1e-9)


def test_a_rectangle_of_everything_is_exact() -> None:
    f = _table(4, 3)
    totals = rectangle(_sums(f, np.arange(4), np.arange(3)), 4, 3, 4, 3)
    assert totals.exact
    np.testing.assert_array_equal(totals.covariance, 0.0)
    np.testing.assert_allclose(totals.value[0], f.sum(axis=(0, 1)), rtol=1e-14)


def test_one_row_of_several_gives_a_total_and_no_variance() -> None:
    f = _table(4, 3)
    totals = rectangle(_sums(f, np.array([1]), np.arange(2)), 1, 2, 4, 3)
    assert np.isfinite(totals.value).all()
    assert np.isnan(totals.variance).all()


def test_one_row_of_one_leaves_the_variance_of_the_other_side() -> None:
    f = _table(1, 6)
    seen = [rectangle(_sums(f, np.array([0]), columns), 1, 3, 1, 6) for columns in _samples(6, 3)]
    mean, covariance, estimated = _moments(seen)
    np.testing.assert_allclose(mean, f.sum(axis=(0, 1)), rtol=1e-10)
    np.testing.assert_allclose(estimated, covariance, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("of_a", "of_b"), [(0, 5), (5, 0), (0, 0)])
def test_an_empty_input_has_the_answer_zero(of_a: int, of_b: int) -> None:
    totals = rectangle(Sums.zeros(1, 1), 0, 0, of_a, of_b)
    assert float(totals.value[0, 0]) == 0.0
    assert float(totals.covariance[0, 0, 0]) == 0.0


def _orders(size: int) -> list[np.ndarray]:
    return [np.array(order) for order in permutations(range(size))]


@pytest.mark.parametrize(
    "pieces",
    [
        [(0, 2, 0, 2), (2, 2, 2, 2)],  # SMS: runs along the diagonal
        [(0, 2, 0, 2), (2, 2, 0, 2), (2, 2, 2, 2)],  # DBO: each run of A meets two of B
        [(0, 2, 0, 3), (2, 2, 3, 1)],  # runs of unequal size; the second is too narrow to show a variance
    ],
)
def test_over_all_orders_any_covered_region_is_unbiased(pieces: list[tuple[int, int, int, int]]) -> None:
    f = _table(4, 4, 1)
    sizes = np.array(pieces)
    cover = shares(*sizes.T)
    seen = []
    for order_a in _orders(4):
        for order_b in _orders(4):
            parts = [_sums(f, order_a[a : a + n], order_b[b : b + m]) for a, n, b, m in pieces]
            seen.append(region(stacked(parts), sizes[:, 1], sizes[:, 3], cover, 4, 4))
    mean, covariance, estimated = _moments(seen)
    np.testing.assert_allclose(mean, f.sum(axis=(0, 1)), rtol=1e-9)
    np.testing.assert_allclose(estimated, covariance, rtol=1e-8)


def test_a_region_of_one_rectangle_is_that_rectangle() -> None:
    f = _table(6, 5)
    sums = _sums(f, np.arange(3), np.arange(4))
    one = rectangle(sums, 3, 4, 6, 5)
    same = region(stacked([sums]), np.array([3]), np.array([4]), shares(*np.array([[0], [3], [0], [4]])), 6, 5)
    np.testing.assert_allclose(same.value, one.value)
    np.testing.assert_allclose(same.covariance, one.covariance)


def test_a_rectangle_in_two_pieces_has_the_variance_of_its_shape() -> None:
    """Shares do not depend on how a region is cut."""
    whole = shares(*np.array([[0], [6], [0], [4]]))
    cut = shares(*np.array([[0, 2], [2, 4], [0, 0], [4, 4]]))
    assert whole.area == cut.area == 24
    assert cut.rows == pytest.approx(whole.rows)
    assert cut.columns == pytest.approx(whole.columns)


def test_shares_are_those_of_a_matrix_of_covered_cells() -> None:
    pieces = np.array([(0, 3, 0, 2), (3, 2, 0, 4), (1, 2, 2, 1)])
    covered = np.zeros((6, 5))
    for a, n, b, m in pieces:
        covered[a : a + n, b : b + m] += 1
    cover = shares(*pieces.T)
    assert cover.area == covered.sum()
    assert cover.rows == pytest.approx(((covered.sum(axis=1) / covered.sum()) ** 2).sum())
    assert cover.columns == pytest.approx(((covered.sum(axis=0) / covered.sum()) ** 2).sum())


def test_what_a_merge_has_finished_is_added_as_it_is() -> None:
    f = _table(6, 6, 1)
    done = _sums(f, np.arange(6), np.arange(2))  # columns 0 and 1 stand for the keys that the merge has passed
    rest = f.copy()
    rest[:, :2] = 0.0
    parts = stacked([_sums(rest, np.arange(i, i + 3), np.arange(i, i + 3)) for i in (0, 3)])
    sizes = np.array([3, 3])
    cover = shares(np.array([0, 3]), sizes, np.array([0, 3]), sizes)
    alone = region(parts, sizes, sizes, cover, 6, 6)
    both = region(parts, sizes, sizes, cover, 6, 6, exact=done)
    np.testing.assert_allclose(both.value, alone.value + done.t)
    np.testing.assert_allclose(both.covariance, alone.covariance)


def _by_partition(f: np.ndarray, part: np.ndarray, rows: list[np.ndarray], columns: list[np.ndarray]) -> Sums:
    """Rows and columns of each partition; part[a, b] says where a pair belongs."""
    parts = []
    for i, (chosen_a, chosen_b) in enumerate(zip(rows, columns, strict=True)):
        parts.append(_sums(np.where((part == i)[:, :, None], f, 0.0), chosen_a, chosen_b))
    return stacked(parts)


def test_over_all_orders_staggered_partitions_have_an_unbiased_total() -> None:
    keys_a, keys_b = np.array([0, 1, 2, 3]), np.array([0, 1, 2, 2])
    f = np.where(keys_a[:, None] == keys_b[None, :], RANDOM.normal(2.0, 1.0, (4, 4)), 0.0)[:, :, None]
    part = np.broadcast_to((keys_a % 2)[:, None], (4, 4))
    n, m = np.array([2, 3]), np.array([3, 2])
    seen = []
    for order_a in _orders(4):
        for order_b in _orders(4):
            sums = _by_partition(f, part, [order_a[:2], order_a[:3]], [order_b[:3], order_b[:2]])
            seen.append(staggered(sums, n, m, 4, 4).value[0, 0])
    assert np.mean(seen) == pytest.approx(f.sum(), rel=1e-10)


def test_partitions_joined_at_the_same_time_are_one_rectangle() -> None:
    keys = np.arange(6)
    f = np.where(keys[:, None] == keys[None, :], 2.0, 0.0)[:, :, None]
    part = np.broadcast_to((keys % 2)[:, None], (6, 6))
    rows, columns = np.arange(4), np.arange(3, 6)
    sums = _by_partition(f, part, [rows, rows], [columns, columns])
    one = staggered(sums, np.array([4, 4]), np.array([3, 3]), 6, 6)
    other = rectangle(_sums(f, rows, columns), 4, 3, 6, 6)
    np.testing.assert_allclose(one.value, other.value)
    np.testing.assert_allclose(one.covariance, other.covariance)


def test_staggered_partitions_that_were_read_to_the_end_are_exact() -> None:
    sums = stacked([sums_of_matches([0], [0], [3.0]), sums_of_matches([1, 2], [1, 2], [4.0, 5.0])])
    totals = staggered(sums, np.array([9, 9]), np.array([7, 7]), 9, 7)
    assert totals.exact
    assert float(totals.value[0, 0]) == 12.0
    assert float(totals.covariance[0, 0, 0]) == 0.0


def test_a_partition_never_joined_leaves_no_estimate() -> None:
    totals = staggered(stacked([Sums.zeros(), Sums.zeros()]), np.array([0, 4]), np.array([3, 4]), 9, 9)
    assert np.isnan(totals.value).all()


def test_the_smaller_of_two_weights_is_summed_as_the_double_sum_says() -> None:
    each, weights = RANDOM.normal(size=(7, 3, 2)), RANDOM.random(7)
    expected = np.einsum("ij,igk,jgl->gkl", np.minimum.outer(weights, weights), each, each)
    np.testing.assert_allclose(smaller_of_two(each, weights), expected, rtol=1e-10)


def test_blocks_of_one_row_give_the_staggered_variance_of_rows() -> None:
    keys = np.arange(12)
    f = np.where((keys[:, None] % 6) == (keys[None, :] % 6), RANDOM.normal(2.0, 1.0, (12, 12)), 0.0)
    part = keys % 3
    n, m = np.array([6, 8, 10]), np.array([5, 7, 11])
    per_pair = np.zeros((12, 12, 3))
    for i in range(3):
        per_pair[: n[i], : m[i], i] = np.where((part == i)[:, None], f, 0.0)[: n[i], : m[i]]
    sums = _by_partition(
        f[:, :, None], np.broadcast_to(part[:, None], (12, 12)), [np.arange(k) for k in n], [np.arange(k) for k in m]
    )
    rows = staggered(sums, n, m, 12, 12)
    x, y = per_pair.sum(axis=1)[..., None], per_pair.sum(axis=0)[..., None]
    blocks = staggered_blocks(x, y, per_pair.reshape(-1, 3, 1), np.array([5]), n, m, 12, 12)
    np.testing.assert_allclose(blocks.value, rows.value)
    np.testing.assert_allclose(blocks.covariance, rows.covariance, rtol=1e-9)


def test_given_the_sizes_of_partitions_the_third_phase_adds_independent_rectangles() -> None:
    f = [_table(4, 3, 1), _table(3, 4, 1), _table(3, 3, 1)]
    sizes = [(2, 2), (2, 3), (3, 3)]
    own, total = np.array(sizes), np.array([array.shape[:2] for array in f])
    seen = []
    for rows_0 in _samples(4, 2):
        for columns_0 in _samples(3, 2):
            for rows_1 in _samples(3, 2):
                for columns_1 in _samples(4, 3):
                    parts = [
                        _sums(f[0], rows_0, columns_0),
                        _sums(f[1], rows_1, columns_1),
                        _sums(f[2], np.arange(3), np.arange(3)),
                    ]
                    seen.append(finishing(stacked(parts), own[:, 0], own[:, 1], total[:, 0], total[:, 1]))
    mean, covariance, estimated = _moments(seen)
    np.testing.assert_allclose(mean, sum(array.sum(axis=(0, 1)) for array in f), rtol=1e-9)
    np.testing.assert_allclose(estimated, covariance, rtol=1e-8)
    assert not seen[0].exact


def test_the_third_phase_ends_exact_with_empty_partitions_among_them() -> None:
    sums = stacked([sums_of_matches([0, 1], [0, 1], [1.0, 2.0]), Sums.zeros()])
    totals = finishing(sums, np.array([2, 0]), np.array([2, 0]), np.array([2, 0]), np.array([2, 4]))
    assert totals.exact
    assert float(totals.value[0, 0]) == 3.0
    assert float(totals.covariance[0, 0, 0]) == 0.0


def test_over_all_choices_the_join_phase_of_grace_is_unbiased() -> None:
    partitions = [sums_of_matches([0], [0], [value]) for value in (1.0, 5.0, 2.0, 2.0, 9.0, 4.0)]
    seen = [sample_of_parts(stacked([partitions[i] for i in chosen]), 6) for chosen in combinations(range(6), 3)]
    mean, covariance, estimated = _moments(seen)
    np.testing.assert_allclose(mean, [23.0])
    np.testing.assert_allclose(estimated, covariance)
    assert seen[0].degrees == 2.0
    assert sample_of_parts(stacked(partitions), 6).exact


def test_exact_parts_add_nothing_to_a_variance() -> None:
    f = _table(5, 5, 1)
    part = rectangle(_sums(f, np.arange(3), np.arange(3)), 3, 3, 5, 5)
    both = part + exactly(sums_of_matches([0], [0], [2.0]))
    np.testing.assert_allclose(both.covariance, part.covariance)
    assert not both.exact


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: rectangle(Sums.zeros(), 6, 1, 5, 5),
        lambda: rectangle(Sums.zeros(), -1, 1, 5, 5),
        lambda: staggered(stacked([Sums.zeros()]), np.array([1, 2]), np.array([1]), 5, 5),
        lambda: staggered(stacked([Sums.zeros()] * 2), np.array([1, 9]), np.array([1, 1]), 5, 5),
        lambda: finishing(stacked([Sums.zeros()]), *(np.array([k]) for k in (3, 1, 2, 2))),
        lambda: sample_of_parts(stacked([Sums.zeros()] * 3), 2),
        lambda: shares(np.array([0]), np.array([-1]), np.array([0]), np.array([1])),
        lambda: region(stacked([Sums.zeros()]), np.array([1, 2]), np.array([1]), shares(*np.ones((4, 1), np.int64)), 5, 5),
    ],
)
def test_counts_that_cannot_be_are_an_error(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ParameterError):
        wrong()
