"""INLJ's equations, with and without a buffer pool."""

from __future__ import annotations

import pytest

from millrace.core.unitcosts import UnitCosts
from millrace.cost.inlj import drained, iteration
from millrace.cost.pages import PageDemand
from millrace.cost.popularity import Popularity

TABLE = {"N_R": 100, "v_P": 4_096}


def demand(exponent: float) -> PageDemand:
    return PageDemand(Popularity.zipf(exponent, 10_000), 10_000, 100)


def test_without_a_pool_each_tuple_is_a_seek_and_a_page() -> None:
    costs = UnitCosts(seek=0.008, read_byte=1 / 70e6)
    each = 0.99 * 0.008 + 4_096 / 70e6 + costs.take + costs.add + costs.probe + costs.output + costs.expire
    assert iteration(1, demand(0.0), pool_pages=0, **TABLE).rate(costs) == pytest.approx(1 / each)
    assert iteration(50, demand(1.0), pool_pages=0, **TABLE).each()["pages_read"] == 1.0


def test_a_pool_answers_its_part_of_keys_wanted_alike() -> None:
    found = iteration(1, demand(0.0), pool_pages=25, **TABLE)
    assert found.pages_read == pytest.approx(0.75, rel=0.01)


def test_a_pool_of_all_pages_reads_nothing() -> None:
    assert iteration(64, demand(1.0), pool_pages=100, **TABLE).pages_read == 0.0


def test_a_larger_pool_and_a_steeper_stream_read_less() -> None:
    by_pool = [iteration(1, demand(1.0), pool_pages=pages, **TABLE).pages_read for pages in (1, 10, 50, 99, 100)]
    by_skew = [iteration(1, demand(e), pool_pages=30, **TABLE).pages_read for e in (0.0, 0.7, 1.0, 1.3)]
    assert by_pool == sorted(by_pool, reverse=True)
    assert by_skew == sorted(by_skew, reverse=True)


def test_tuples_of_one_step_share_pages_that_the_pool_lacks() -> None:
    """At most those that come while the pool is filled anew: their pages must be in the pool together."""
    alone, together, more = (iteration(n, demand(0.0), pool_pages=60, **TABLE).each()["pages_read"] for n in (1, 90, 5_000))
    assert together < 0.7 * alone
    assert more == pytest.approx(together, rel=0.01)


def test_a_page_behind_another_that_the_pool_lacks_is_no_seek() -> None:
    found = iteration(80, demand(0.0), pool_pages=60, **TABLE)
    assert found.seeks == pytest.approx(found.pages_read * (1 - found.pages_read / 100))


def test_keys_on_several_pages_read_them_all() -> None:
    assert iteration(10, demand(0.0), pool_pages=0, sigma=300, pages_each=3.0, **TABLE).pages_read == 30


def test_a_stream_that_ends_fills_the_pool_first() -> None:
    """As many pages as its tuples want, none twice."""
    found = drained(200, 50, demand(0.0), pool_pages=100, **TABLE)
    assert found.pages_read == pytest.approx(demand(0.0).places().distinct(200))
    assert found.removed == pytest.approx(200)


def test_a_stream_that_ends_reads_a_page_for_each_tuple_without_a_pool() -> None:
    assert drained(200, 50, demand(0.0), pool_pages=0, **TABLE).pages_read == pytest.approx(200)


def test_a_small_pool_is_filled_and_then_works_as_in_the_long_run() -> None:
    few, many = (drained(n, 50, demand(0.0), pool_pages=20, **TABLE).pages_read for n in (10_000, 20_000))
    long_run = iteration(50, demand(0.0), pool_pages=20, **TABLE).pages_read
    assert many - few == pytest.approx(10_000 / 50 * long_run, rel=1e-6)
