"""The equations of the partition-based join."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.cost.iteration import IterationCost
from millrace.cost.pages import PageDemand, Places
from millrace.cost.partitionjoin import iteration, served, without_the_last_read
from millrace.cost.popularity import Popularity

NO_LIMIT = 1e12


def demand(exponent: float) -> PageDemand:
    return PageDemand(Popularity.zipf(exponent, 100_000), 100_000, 1_000, "sorted")


def read(h: float, C: int, exponent: float, *, age_limit: float = 250.0, output_rows: float = np.inf) -> IterationCost:
    limits = {"age_limit": age_limit, "output_rows": output_rows}
    return iteration(h, C, 8, demand(exponent), R_t=100_000, N_R=1_000, v_P=12_000, **limits)


def test_a_cache_of_all_pages_reads_nothing() -> None:
    each = read(5_000, 1_000, 1.0).each()
    assert (each["pages_read"], each["front_hits"]) == (0.0, 1.0)


def test_the_cache_answers_its_share_and_the_partition_that_was_read_last_another() -> None:
    even, skewed = (read(5_000, 100, e).each()["front_hits"] for e in (0.0, 1.0))
    assert even == pytest.approx(0.1 + 0.9 * 8 / 1_000, rel=0.01)
    assert 0.1 < skewed < demand(1.0).places().hottest(108)[0]


def test_the_partition_at_hand_is_one_of_all_where_they_are_wanted_alike() -> None:
    even = Places(np.array([1 / 125]), np.array([125.0]))
    share, rest = without_the_last_read(even)
    assert share == pytest.approx(1 / 125)
    assert rest.each == pytest.approx(even.each)


def test_a_partition_that_all_want_is_at_hand_every_other_time() -> None:
    """Its tuples wait only while another one is at hand. By hand, for shares 0.9 and 0.1: r = 0.5 and 0.5 would need c = 1/0.9
    and c = 1/0.1; in between r_1 = 3/4 and r_2 = 1/4 with c = 10/3."""
    share, rest = without_the_last_read(Places(np.array([0.9, 0.1]), np.ones(2)))
    assert share == pytest.approx(0.9 * 0.75 + 0.1 * 0.25)
    assert rest.each == pytest.approx(np.array([0.9 * 0.25, 0.1 * 0.75]) / 0.3)
    assert without_the_last_read(Places(np.ones(1), np.ones(1)))[0] == 1.0


def test_a_read_is_of_one_partition_and_serves_what_waits_for_it() -> None:
    found = read(5_000, 0, 0.0)
    assert (found.reads, found.pages_read, found.bytes_read) == (1.0, 8.0, 8 * 12_000)
    assert found.removed == pytest.approx(served(5_000, demand(0.0).places(8), 250.0) / (1 - 1 / 125))


def test_the_fullest_partition_serves_twice_its_part_of_the_window() -> None:
    even = Places(np.array([1 / 125]), np.array([125.0]))
    assert served(50_000, even, NO_LIMIT) / (50_000 / 125) == pytest.approx(2.0, rel=0.02)


def test_without_an_age_limit_every_partition_waits_for_the_same_number_of_tuples() -> None:
    skewed = demand(1.0).places(8)
    assert served(50_000, skewed, NO_LIMIT) == pytest.approx(2 * 50_000 / (skewed.total + 1), rel=1e-3)


def test_a_read_serves_at_least_its_own_tuple_and_at_most_the_window() -> None:
    for window in (1.0, 2.0, 100.0, 1e6):
        assert 1.0 <= served(window, demand(1.0).places(8), 250.0) <= max(1.0, window)


def test_a_steeper_stream_reads_less() -> None:
    reads = [read(5_000, 50, e).each()["pages_read"] for e in (0.0, 0.7, 1.0, 1.3)]
    assert reads == sorted(reads, reverse=True)


def test_more_matches_than_a_step_puts_out_are_more_steps() -> None:
    one, many = read(50_000, 0, 0.0), read(50_000, 0, 0.0, output_rows=100)
    assert many.steps == pytest.approx(one.removed / 100)
