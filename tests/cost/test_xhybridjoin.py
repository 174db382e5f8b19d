"""X-HYBRIDJOIN's equations, the paper's and ours."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.core.unitcosts import UnitCosts
from millrace.cost import hybridjoin
from millrace.cost.pages import PageDemand
from millrace.cost.popularity import Popularity
from millrace.cost.xhybridjoin import drained, iteration, mean_tuples, paper_tuples, rate

DISK = UnitCosts(seek=0.008, read_byte=1 / 70e6, expire=1e-8, take=1e-8, add=1e-8, probe=1e-8, output=1e-8)
TABLE = {"R_t": 100_000, "N_R": 1_000, "v_P": 12_000}


def demand(exponent: float) -> PageDemand:
    return PageDemand(Popularity.zipf(exponent, 100_000), 100_000, 1_000, "sorted")


def rate_of(pinned: int, exponent: float, k: int = 8, window: float = 10_000.0, **more: float) -> float:
    sizes = np.array([window]), np.array([k]), np.array([pinned])
    return float(rate(*sizes, demand(exponent), **TABLE, costs=DISK, **more)[0])


def test_the_papers_variance_form_by_hand() -> None:
    p_old, p_new = 1 / 100, 0.7 + 0.3 / 100
    by_hand = 50_000 * p_old * (1 - p_old) / (1 + p_old * (1 - p_old) - p_new * (1 - p_new))
    assert paper_tuples(50_000, 0.7, 100) == pytest.approx(by_hand)
    assert mean_tuples(50_000, 0.7, 100) == pytest.approx(50_000 * p_old / (1 + p_old - p_new))


def test_the_papers_variance_form_is_two_and_a_half_times_too_small_where_pinned_pages_answer_most() -> None:
    assert mean_tuples(50_000, 0.7, 1_000) / paper_tuples(50_000, 0.7, 1_000) == pytest.approx(2.6, abs=0.05)
    assert mean_tuples(50_000, 0.0, 1_000) / paper_tuples(50_000, 0.0, 1_000) == pytest.approx(1.0, abs=0.01)


def test_without_pinned_pages_it_is_hybridjoin() -> None:
    read = 0.008 + 8 * 12_000 / 70e6 + 800 * 1e-8
    w = float(hybridjoin.served_alike(10_000, 1_000 / 8))
    assert rate_of(0, 0.0) == pytest.approx(w / (read + w * 4e-8))
    assert iteration(10_000, 8, 0, demand(1.0), **TABLE) == hybridjoin.iteration(10_000, 8, demand(1.0), **TABLE)


def test_pinned_pages_pay_with_skewed_keys_and_hardly_with_uniform_ones() -> None:
    assert rate_of(100, 1.0) > 2 * rate_of(0, 1.0)
    assert rate_of(100, 0.0) < 1.3 * rate_of(0, 0.0)


def test_with_every_page_pinned_nothing_is_read() -> None:
    found = iteration(10_000, 8, 1_000, demand(1.0), **TABLE)
    assert (found.reads, found.pages_read, found.pinned_matches, found.removed) == (0, 0, 10_000, 10_000)
    assert rate_of(1_000, 1.0) == pytest.approx(found.rate(DISK))


def test_an_iteration_says_how_many_tuples_the_pinned_pages_answer() -> None:
    found = iteration(10_000, 8, 100, demand(1.0), **TABLE)
    assert found.pinned_matches / found.matches == pytest.approx(demand(1.0).pinned_share(100))
    assert found.probes == pytest.approx(800 + found.pinned_matches)


def test_more_pinned_pages_answer_more_of_the_stream() -> None:
    shares = [iteration(10_000, 8, pinned, demand(1.0), **TABLE).each()["pinned_matches"] for pinned in (0, 1, 10, 100, 999)]
    assert shares == sorted(shares)
    assert shares[0] == 0.0


def test_the_best_number_of_pinned_pages_is_neither_none_nor_all() -> None:
    pinned = np.arange(0, 160)[None, :]
    window = np.maximum(1.0, (2_000_000 - (8 + pinned) * 12_000) / 100)
    found = rate(window, np.full((1, 1), 8), pinned, demand(1.0), **TABLE, costs=DISK)
    assert 0 < int(found.argmax()) < 159


def test_a_stream_that_ends_pays_for_the_pinned_pages_once() -> None:
    few, many = (drained(n, 10_000, 8, 100, demand(1.0), **TABLE) for n in (0.001, 5_000))
    assert few.pages_read == pytest.approx(100, rel=1e-3)
    assert few.seeks == pytest.approx(1.0, rel=1e-2)
    assert many.pinned_matches == pytest.approx(5_000 * demand(1.0).pinned_share(100))
    assert many.removed == 5_000


def test_with_every_page_pinned_a_stream_that_ends_reads_the_table_once() -> None:
    found = drained(5_000, 10_000, 8, 1_000, demand(1.0), **TABLE)
    assert (found.pages_read, found.removed, found.pinned_matches) == (1_000, 5_000, 5_000)
