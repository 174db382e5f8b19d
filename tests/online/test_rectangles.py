"""The two ways to join a rectangle of rows, against sums over matches that were made one by one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tests.online.tables import Collected, all_pairs, records, tables

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.errors import ParameterError
from millrace.online.pair_functions import Functions, Pairs, Products
from millrace.online.statistics.totals import Sums, sums_of_matches
from millrace.online.storage.moments import Monomials
from millrace.online.storage.rectangles import Chunk, join_all, join_parts, make_rectangle

THREE = Products(left=((), (1,), ()), right=((), (1,), (1, 1)))  # 1, u v, v^2


def three_of_pairs(a: Int64Array, b: Int64Array) -> tuple[np.ndarray, None]:
    u, v = a[:, 1].view(np.float64), b[:, 1].view(np.float64)
    return np.stack([np.ones(len(a)), u * v, v * v], axis=1), None


def by_hand(a: Int64Array, b: Int64Array) -> Sums:
    at_a, at_b = np.nonzero(a[:, 0][:, None] == b[:, 0][None, :])
    return sums_of_matches(at_a, at_b, three_of_pairs(a[at_a], b[at_b])[0])


def chunked(a: Int64Array, b: Int64Array, rows: int = 37):  # type: ignore[no-untyped-def]
    def source(side: int) -> Iterator[Chunk]:
        words = (a, b)[side]
        for start in range(0, len(words), rows):
            yield words[start : start + rows], 0

    return source


def assert_same(one: Sums, other: Sums) -> None:
    for name in ("t", "sx", "sy", "q", "pairs"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


@pytest.mark.parametrize("build", [0, 1])
@pytest.mark.parametrize("functions", [THREE, Pairs(three_of_pairs, 3)], ids=["moments", "pairs"])
@pytest.mark.parametrize("room", [1000, 40])
def test_sums_are_those_of_all_matches(functions: Functions, build: int, room: int) -> None:
    random = np.random.default_rng(6)
    a, b = (records(random.integers(-90, 90, rows), random.integers(-9, 9, rows)) for rows in (600, 500))
    rectangle = make_rectangle(functions, (2, 2), room, Budget("16m"))
    assert_same(join_all(rectangle, chunked(a, b), (600, 500), build), by_hand(a, b))


@pytest.mark.parametrize(
    "functions", [THREE, Products(((),), ((1,),)), Pairs(three_of_pairs, 3)], ids=["three", "one", "pairs"]
)
@pytest.mark.parametrize("room", [1000, 40])
def test_parts_of_rows_at_hand_are_joined_one_by_one(functions: Functions, room: int) -> None:
    random = np.random.default_rng(7)
    a, b = (records(random.integers(-90, 90, rows), random.integers(-9, 9, rows)) for rows in (300, 200))
    parts = np.array([[0, 10, 0, 200], [10, 300, 0, 30], [30, 31, 30, 30], [50, 300, 60, 200]])
    rectangle = make_rectangle(functions, (2, 2), room, Budget("16m"))
    found = join_parts(rectangle, (a, b), parts)
    wholes = [
        join_all(rectangle, chunked(a[low:end], b[bottom:top]), (end - low, top - bottom)) for low, end, bottom, top in parts
    ]
    expected = wholes[0] + wholes[1] + wholes[2] + wholes[3]
    assert expected.pairs[0] > 100
    assert_same(found, expected)


@pytest.mark.parametrize("functions", [THREE, Pairs(three_of_pairs, 3)], ids=["moments", "pairs"])
def test_codes_may_have_any_value(functions: Functions) -> None:
    data = tables("extreme codes")
    rectangle = make_rectangle(functions, (2, 2), 100, Budget("16m"))
    assert_same(join_all(rectangle, chunked(data.a, data.b), (len(data.a), len(data.b))), by_hand(data.a, data.b))


def test_a_key_with_more_rows_than_there_is_room_for_is_joined_in_blocks() -> None:
    data = tables("one key", rows=400)
    rectangle = make_rectangle(Pairs(three_of_pairs, 3), (2, 2), 64, Budget("16m"))
    sums = join_all(rectangle, chunked(data.a, data.b), (300, 400))
    exact = by_hand(data.a, data.b)
    for name in ("t", "sx", "q", "pairs"):
        np.testing.assert_allclose(getattr(sums, name), getattr(exact, name), rtol=1e-9)
    assert np.isnan(sums.sy).all()


def test_old_rows_that_met_before_are_not_put_out_again() -> None:
    data = tables("duplicates", rows=400)
    found = Collected()
    rectangle = make_rectangle(found.functions, (2, 2), 30, Budget("16m"))
    old = (250, 120)

    def source(side: int) -> Iterator[Chunk]:
        words = (data.a, data.b)[side]
        for start in range(0, 400, 64):
            part = words[start : start + 64]
            yield part, min(len(part), max(0, old[side] - start))

    join_all(rectangle, source, (400, 400))
    before = all_pairs(type(data)(data.a[:250], data.b[:120]))
    assert sorted(found.pairs) == sorted((all_pairs(data) - before).elements())


def test_words_that_factors_share_are_summed_once() -> None:
    assert Monomials([(), ()]).products == ((),)
    assert Monomials([(), (1,)]).products == ((), (1,), (1, 1))
    assert len(Monomials([(1,), (2,), (2, 1)])) == 9


def test_a_group_that_was_not_declared_is_an_error() -> None:
    functions = Products(((),), ((),), group_a=1, groups_a=2)
    rectangle = make_rectangle(functions, (2, 1), 10, Budget("1m"))
    with pytest.raises(ParameterError, match="outside 0 to 1"):
        rectangle.add(0, np.array([[5, 2]]))
