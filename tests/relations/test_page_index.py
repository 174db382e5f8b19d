"""The page index by itself: where pages lie, how reads are cut, and where codes are."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.core.arrays import Int64Array
from millrace.relations.page_index import PageIndex, Span

SHARDS = [0, 0, 0, 1, 3, 3]  # shard 2 has no page
OFFSETS = [0, 4096, 12288, 0, 0, 8192]
SIZES = [100, 5000, 4096, 1, 8192, 4097]
FIRSTS, LASTS = [-5, 10, 30, 30, 50, 70], [9, 30, 30, 42, 60, 90]


def _index(*, sorted_codes: bool = True, pages: int = len(SHARDS)) -> PageIndex:
    def column(values: list[int], kind: type[np.generic] = np.int64) -> Int64Array:
        return np.array(values[:pages], kind)

    return PageIndex.of(
        {
            "shard": column(SHARDS, np.int32), "offset": column(OFFSETS), "bytes": column(SIZES, np.int32),
            "rows": column([7, 7, 3, 7, 7, 2], np.int32), "first": column(FIRSTS), "last": column(LASTS),
            "checksum": column([0] * 6), "codes": column([16] * 6, np.int32), "starts": column([32] * 6, np.int32),
            "data": column([64] * 6, np.int32), "nulls": column([0, 4, 0, 1, 4, 0]),
        },
        7, sorted_codes=sorted_codes,
    )  # fmt: skip


def test_a_page_has_a_number_in_its_own_file() -> None:
    index = _index()
    assert [index.inside(page) for page in range(len(index))] == [0, 1, 2, 0, 0, 1]


def test_a_shard_knows_its_pages_and_one_without_any_has_none() -> None:
    index = _index()
    assert [list(range(6))[index.pages_of(shard)] for shard in range(5)] == [[0, 1, 2], [3], [], [4, 5], []]
    assert index.shards_of(np.array([5, 0, 4, 1])) == [0, 3]


def test_a_page_ends_where_the_next_may_begin() -> None:
    index = _index()
    assert [index.end(page) for page in range(6)] == [4096, 12288, 16384, 4096, 8192, 16384]
    assert [index.padded_bytes(page) for page in range(6)] == [4096, 8192, 4096, 4096, 8192, 8192]


def test_reads_are_cut_where_a_shard_ends() -> None:
    assert _index().spans(np.array([1, 5]), np.array([3, 1])) == [
        Span(shard=0, begin=4096, end=16384, first=1, pages=2),
        Span(shard=1, begin=0, end=4096, first=3, pages=1),
        Span(shard=3, begin=8192, end=16384, first=5, pages=1),
    ]


def test_neighbours_lie_in_one_file_one_behind_the_other() -> None:
    index, pages = _index(), np.array([0, 1, 3, 4, 5])
    assert [places.tolist() for places in index.neighbours(pages)] == [[0, 2, 3], [1, 2, 4]]
    assert list(index.ranges(pages)) == [(0, 0, 12288), (1, 0, 4096), (3, 0, 16384)]


def test_a_code_is_located_on_every_page_that_may_hold_it_and_on_none_between_pages() -> None:
    codes = np.array([-6, -5, 9, 30, 45, 60, 90, 91])
    runs = _index().locate(codes)
    held = [list(range(first, last + 1)) for first, last in zip(runs.first.tolist(), runs.last.tolist(), strict=True)]
    assert held == [[], [0], [0], [1, 2, 3], [], [4], [5], []]


def test_the_first_page_of_a_code_is_marked_as_used_and_that_of_an_invalid_one_is_not() -> None:
    pages, used = _index().first_pages(np.array([30, 45, 90, 55]), np.array([True, True, True, False]))
    assert pages.tolist() == [1, -1, 5, -1]
    assert np.flatnonzero(used).tolist() == [1, 5]


def test_the_preceding_page_is_the_last_that_begins_by_a_code() -> None:
    pages, used = _index().preceding_pages(np.array([-6, 30, 45, 91, 55]), np.array([True, True, True, True, False]))
    assert pages.tolist() == [-1, 3, 3, 5, -1]
    assert np.flatnonzero(used).tolist() == [3, 5]


def test_columns_have_a_null_if_they_have_one_on_any_page() -> None:
    assert _index().null_flags == 5
    assert _index(pages=1).null_flags == 0


def test_pages_in_no_order_of_codes_have_no_guide() -> None:
    assert len(_index(sorted_codes=False).guide) == 1
    assert len(_index().guide) > 1


def test_an_index_of_no_pages_locates_nothing() -> None:
    index = _index(pages=0)
    runs = index.locate(np.array([0, 1]))
    assert len(index) == 0
    assert (runs.last < runs.first).all()


def test_nothing_of_an_index_can_be_put_in_anew() -> None:
    with pytest.raises(AttributeError, match="cannot assign"):
        _index().rows_per_page = 3  # type: ignore[misc]
