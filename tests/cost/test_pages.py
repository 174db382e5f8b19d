"""How often the pages of a relation are wanted."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.cost.pages import Order, PageDemand, Places
from millrace.cost.popularity import Popularity, harmonic

ORDERS: tuple[Order, ...] = ("scattered", "sorted")


def demand(exponent: float = 1.0, rows: int = 10_000, pages: int = 100, order: Order = "scattered") -> PageDemand:
    return PageDemand(Popularity.zipf(exponent, rows), rows, pages, order)


def whole(places: Places) -> float:
    return float(np.sum(places.each * places.count))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 1.3])
@pytest.mark.parametrize("pages_each", [1, 7])
@pytest.mark.parametrize("pages", [1, 100, 5_000, 2_000_000])
def test_places_share_the_whole_stream(order: Order, exponent: float, pages_each: int, pages: int) -> None:
    places = demand(exponent, rows=4_000_000, pages=pages, order=order).places(pages_each)
    assert whole(places) == pytest.approx(1.0)
    assert places.total == pytest.approx(-(-pages // pages_each), rel=1e-3)


def test_sorted_pages_have_the_shares_of_their_ranks() -> None:
    by_page = demand(order="sorted").by_page
    assert by_page[0] == pytest.approx(harmonic(100, 1) / harmonic(10_000, 1), rel=1e-6)
    assert by_page[9] == pytest.approx((harmonic(1_000, 1) - harmonic(900, 1)) / harmonic(10_000, 1), rel=1e-6)


def test_scattered_pages_have_the_mass_of_the_keys_that_lie_on_them() -> None:
    by_page = demand(1.0).by_page
    hottest = 1 / harmonic(10_000, 1)
    assert float(by_page.sum()) == pytest.approx(1.0)
    assert hottest < by_page.max() < hottest + 0.02  # the hottest key and 99 ordinary ones
    assert by_page.min() > 0


def test_scattered_pages_are_always_the_same() -> None:
    assert demand(1.0).by_page.tolist() == PageDemand(Popularity.zipf(1.0, 10_000), 10_000, 100).by_page.tolist()


def test_a_stream_may_have_more_keys_than_the_table_has_rows() -> None:
    assert float(PageDemand(Popularity.zipf(1.0, 5_000), 1_000, 20).by_page.sum()) == pytest.approx(1.0)


def test_keys_wanted_alike_make_pages_wanted_alike() -> None:
    for order in ORDERS:
        assert demand(0.0, order=order).by_page == pytest.approx(np.full(100, 0.01))


@pytest.mark.parametrize("order", ORDERS)
def test_pinned_pages_answer_their_share(order: Order) -> None:
    pages = demand(order=order)
    assert pages.pinned_share(0) == 0.0
    assert pages.pinned_share(100) == pytest.approx(1.0)
    assert pages.pinned_share(10) == pytest.approx(float(pages.by_page[:10].sum()), rel=1e-3)


def test_pinned_pages_of_a_sorted_table_answer_a_ratio_of_harmonic_sums() -> None:
    assert demand(order="sorted").pinned_share(10) == pytest.approx(harmonic(1_000, 1) / harmonic(10_000, 1), rel=1e-6)


def test_the_places_behind_pinned_pages_share_what_is_left() -> None:
    pages = demand(order="sorted")
    behind = pages.places(pinned=10)
    assert behind.total == 90
    assert whole(behind) == pytest.approx(1.0)
    assert behind.each.max() == pytest.approx(pages.by_page[10] / (1 - pages.pinned_share(10)), rel=1e-3)


def test_with_very_many_pages_hot_keys_have_pages_of_their_own() -> None:
    found = demand(1.0, rows=4_000_000, pages=2_000_000).places()
    assert found.each.max() == pytest.approx(1 / harmonic(4_000_000, 1), rel=1e-3)


@pytest.mark.parametrize("order", ORDERS)
def test_classes_of_very_many_pages_want_as_much_as_pages_one_by_one(order: Order) -> None:
    """On both sides of the number of pages from which on they are no longer placed one by one."""
    few, many = (demand(1.0, rows=4_000_000, pages=pages, order=order).places() for pages in (1_048_000, 1_049_000))
    for tuples in (1_000, 100_000, 3_000_000):
        assert many.distinct(tuples) == pytest.approx(few.distinct(tuples), rel=0.02)


def test_distinct_places_are_those_of_the_birthday_problem() -> None:
    even = Places(np.array([0.01]), np.array([100.0]))
    assert even.distinct(100) == pytest.approx(100 * (1 - np.exp(-1)))
    assert even.distinct(0) == 0.0
    assert even.distinct(1e9) == pytest.approx(100)


@pytest.mark.parametrize("places", [1.0, 40.0, 99.0])
def test_so_many_tuples_want_so_many_places(places: float) -> None:
    found = demand().places()
    assert found.distinct(found.tuples_for(places)) == pytest.approx(places)


def test_the_hottest_places_are_taken_away_with_their_share() -> None:
    share, rest = Places(np.array([0.05, 0.15, 0.2]), np.array([4.0, 2.0, 2.5])).hottest(3.5)
    assert share == pytest.approx(2.5 * 0.2 + 0.15)
    assert whole(rest) == pytest.approx(1.0)
    assert rest.total == 5.0
    assert demand().places().hottest(100)[0] == 1.0


def test_a_pool_has_the_pages_that_were_wanted_last() -> None:
    """Pages wanted alike: F of N pages answer F/N of the stream. Skew: more, but less than the F hottest would."""
    even, skewed = demand(0.0), demand(1.0)
    assert even.behind_pool(25)[0] == pytest.approx(0.25, rel=1e-6)
    share, rest = skewed.behind_pool(25)
    assert 0.25 < share < skewed.places().hottest(25)[0]
    assert whole(rest) == pytest.approx(1.0)


def test_a_pool_of_all_pages_answers_everything() -> None:
    assert demand().behind_pool(100)[0] == 1.0


def test_what_a_pool_leaves_is_gathered_by_partitions() -> None:
    _, rest = demand(1.0).behind_pool(25, pages_each=10)
    assert rest.total == 10
    assert whole(rest) == pytest.approx(1.0)


def test_a_pool_answers_what_one_does_that_is_played_through() -> None:
    """Least recently used first out, on the pages of a drawn stream."""
    pages = demand(1.0)
    drawn = np.random.default_rng(1).choice(100, 60_000, p=pages.by_page)
    pool: dict[int, None] = {}
    hits = 0
    for number, page in enumerate(drawn.tolist()):
        hits += page in pool and number >= 10_000
        pool.pop(page, None)
        pool[page] = None
        if len(pool) > 25:
            del pool[next(iter(pool))]
    assert pages.behind_pool(25)[0] == pytest.approx(hits / 50_000, rel=0.02)
