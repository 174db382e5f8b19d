"""Two ways to the same sums: from matches made one by one, and from moments per key."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.errors import ParameterError
from millrace.online.statistics.totals import KeyMoments, Sums, stacked, sums_of_keys, sums_of_matches

KEYS = 6
sides = st.lists(st.tuples(st.integers(0, KEYS - 1), st.integers(-4, 4), st.integers(0, 2)), max_size=12)


def _columns(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = np.array(rows, np.int64).reshape(-1, 3)
    return table[:, 0], np.stack((np.ones(len(table)), table[:, 1]), axis=1), table[:, 2]


def _matches(keys_a: np.ndarray, keys_b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.nonzero(keys_a[:, None] == keys_b[None, :])


def _assert_same(one: Sums, other: Sums) -> None:
    for name in ("t", "sx", "sy", "q", "pairs"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-12, atol=1e-9, err_msg=name)


def test_sums_are_what_their_definitions_say() -> None:
    f = np.array([[0.0, 2.0, 3.0], [1.0, 0.0, -4.0]])
    a, b = np.nonzero(f)
    sums = sums_of_matches(a, b, f[a, b])
    assert float(sums.t[0, 0]) == f.sum()
    assert float(sums.sx[0, 0, 0]) == (f.sum(axis=1) ** 2).sum()
    assert float(sums.sy[0, 0, 0]) == (f.sum(axis=0) ** 2).sum()
    assert float(sums.q[0, 0, 0]) == (f**2).sum()
    assert int(sums.pairs[0]) == 4


@given(sides, sides)
@settings(max_examples=150, deadline=None)
def test_moments_per_key_give_the_sums_of_the_matches(
    rows_a: list[tuple[int, int, int]], rows_b: list[tuple[int, int, int]]
) -> None:
    keys_a, u, _ = _columns(rows_a)
    keys_b, v, _ = _columns(rows_b)
    a, b = _matches(keys_a, keys_b)
    made = sums_of_matches(a, b, u[a] * v[b])
    _assert_same(made, sums_of_keys(KeyMoments.of(keys_a, u, KEYS), KeyMoments.of(keys_b, v, KEYS)))


@given(sides, sides)
@settings(max_examples=100, deadline=None)
def test_groups_of_one_side_are_cells_of_key_and_group(
    rows_a: list[tuple[int, int, int]], rows_b: list[tuple[int, int, int]]
) -> None:
    keys_a, u, group = _columns(rows_a)
    keys_b, v, _ = _columns(rows_b)
    a, b = _matches(keys_a, keys_b)
    made = sums_of_matches(a, b, u[a] * v[b], group[a], 3)
    right = KeyMoments.of(keys_b, v, KEYS)
    again = np.tile(np.arange(KEYS), 3)
    repeated = KeyMoments(right.rows[again], right.first[again], right.second[again])
    left = KeyMoments.of(group * KEYS + keys_a, u, 3 * KEYS)
    _assert_same(made, sums_of_keys(left, repeated, np.repeat(np.arange(3), KEYS), 3))


@given(sides, sides, st.integers(0, KEYS))
@settings(max_examples=100, deadline=None)
def test_sums_of_keys_that_do_not_overlap_add_up(
    rows_a: list[tuple[int, int, int]], rows_b: list[tuple[int, int, int]], border: int
) -> None:
    keys_a, u, _ = _columns(rows_a)
    keys_b, v, _ = _columns(rows_b)
    a, b = _matches(keys_a, keys_b)
    low = keys_a[a] < border
    parts = [sums_of_matches(a[chosen], b[chosen], (u[a] * v[b])[chosen]) for chosen in (low, ~low)]
    whole = sums_of_matches(a, b, u[a] * v[b])
    _assert_same(whole, parts[0] + parts[1])
    in_place = Sums.zeros(1, 2)
    for part in parts:
        in_place += part
    _assert_same(whole, in_place)


def test_stacked_sums_have_the_rectangles_in_front() -> None:
    one = sums_of_matches([0], [0], [2.0])
    both = stacked([one, one + one])
    assert both.t.shape == (2, 1, 1)
    assert both.t[:, 0, 0].tolist() == [2.0, 4.0]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Sums.zeros(0, 1),
        lambda: Sums.zeros(1, 2) + Sums.zeros(2, 1),
        lambda: sums_of_matches([0, 1], [0], [1.0]),
        lambda: sums_of_matches([0], [0], [1.0], [3], 2),
        lambda: KeyMoments.of([7], [1.0], 3),
        lambda: KeyMoments.of([0, 1], [1.0], 3),
        lambda: sums_of_keys(KeyMoments.of([0], [1.0], 3), KeyMoments.of([0], [1.0], 4)),
        lambda: stacked([]),
    ],
)
def test_what_does_not_fit_together_is_an_error(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ParameterError):
        wrong()
