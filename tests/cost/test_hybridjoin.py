"""HYBRIDJOIN's equations, the paper's and ours."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.core.unitcosts import UnitCosts
from millrace.cost.hybridjoin import FITTED, drained, fetched, iteration, paper_tuples, rate_alike, served, served_alike
from millrace.cost.pages import Order, PageDemand, Places
from millrace.cost.popularity import Popularity

DISK = UnitCosts(seek=0.008, read_byte=1 / 70e6)
TABLE = {"R_t": 100_000, "N_R": 1_000, "v_P": 12_000}


def demand(exponent: float, order: Order = "scattered") -> PageDemand:
    return PageDemand(Popularity.zipf(exponent, 100_000), 100_000, 1_000, order)


def test_the_papers_equation_has_its_fitted_constant() -> None:
    assert FITTED == 1.36
    assert paper_tuples(50_000, 800, 100_000) == pytest.approx(1.36 * 50_000 * 800 / 100_000)


def test_on_keys_wanted_alike_a_read_serves_nearly_twice_the_windows_part() -> None:
    """Where the paper fitted 1.36, to another stream."""
    w = served(100_000, Places(np.array([1 / 125]), np.array([125.0])))
    assert w / (100_000 / 125) == pytest.approx(2.0, rel=0.02)


def test_the_fitted_constant_is_one_of_many_for_the_stream_that_it_was_fitted_to() -> None:
    """Zipf 1 on a table sorted by frequency: the longer a partition, the less a read serves of the window."""
    window = 50_000
    ratios = [served(window, demand(1.0, "sorted").places(k)) / (window * k / 1_000) for k in (4, 8, 40)]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] > 1.5 > FITTED > ratios[-1] > 1.2


def test_one_waiting_tuple_is_served_by_its_read() -> None:
    assert served(1, demand(1.0).places(8)) == 1.0
    assert served(0.5, demand(1.0).places(8)) == 1.0


def test_one_partition_serves_the_whole_window_but_what_came_too_late() -> None:
    assert served(1_000, Places(np.ones(1), np.ones(1))) == pytest.approx(1_000, rel=1e-3)


def test_a_read_never_serves_more_than_the_window() -> None:
    for window in (2.0, 10.0, 1e3, 1e6):
        assert 1.0 <= served(window, demand(1.2, "sorted").places(8)) <= window


@pytest.mark.parametrize("window", [2, 50, 5_000, 500_000])
@pytest.mark.parametrize("n", [1, 3, 125, 10_000])
def test_the_closed_form_for_keys_wanted_alike_is_the_general_one(window: int, n: int) -> None:
    general = served(window, Places(np.array([1 / n]), np.array([float(n)])))
    assert float(served_alike(window, n)) == pytest.approx(general, rel=1e-3)


def test_slots_that_are_filled_late_serve_nobody() -> None:
    places = demand(0.0).places(8)
    assert served(10_000, places, refilled_late=3.0) < served(10_000, places)
    assert float(served_alike(10_000, 125, 3.0)) == pytest.approx(served(10_000, places, refilled_late=3.0), rel=1e-3)


def test_the_rate_is_tuples_by_the_time_of_a_read() -> None:
    w = float(served_alike(10_000, 125))
    read = 0.008 + 8 * 12_000 / 70e6 + 800 * DISK.probe
    each = DISK.take + DISK.add + DISK.output + DISK.expire
    assert rate_alike(10_000, np.array([8]), **TABLE, costs=DISK)[0] == pytest.approx(w / (read + w * each))


def test_the_best_buffer_is_neither_the_smallest_nor_the_largest() -> None:
    k = np.arange(1, 160)
    found = rate_alike(np.maximum(1.0, (2_000_000 - k * 12_000) / 100), k, **TABLE, costs=DISK)
    assert 0 < int(found.argmax()) < len(k) - 1


def test_a_read_of_the_last_partition_is_shorter_on_average() -> None:
    assert fetched(10, 3, 4, R_t=100, N_R=10, v_P=1_000).pages_read == pytest.approx(10 / 3)
    assert fetched(10, 1, 40, R_t=100, N_R=10, v_P=1_000).pages_read == 10


def test_a_read_goes_on_where_the_last_one_ended_if_that_is_the_next_partition() -> None:
    assert fetched(10, 5, 2, R_t=100, N_R=10, v_P=1_000).seeks == pytest.approx(0.8)
    assert fetched(10, 1, 10, R_t=100, N_R=10, v_P=1_000).seeks == 1.0  # back to the beginning


def test_a_steeper_stream_on_a_sorted_table_wants_fewer_partitions() -> None:
    reads = [drained(1_000, 2_000, 8, demand(e, "sorted"), **TABLE).reads for e in (0.0, 0.7, 1.0, 1.3)]
    assert reads == sorted(reads, reverse=True)
    assert reads[0] == pytest.approx(125 * (1 - np.exp(-1_000 / 125)))


def test_one_tuple_and_then_no_more_is_one_read() -> None:
    found = drained(1, 2_000, 8, demand(0.0), **TABLE)
    assert found.reads == pytest.approx(1.0, rel=0.01)
    assert found.removed == pytest.approx(1.0)


def test_tuples_beyond_the_window_are_read_for_at_the_pace_of_the_long_run() -> None:
    few, many = (drained(n, 2_000, 8, demand(0.0), **TABLE).reads for n in (2_000, 12_000))
    assert many - few == pytest.approx(10_000 / iteration(2_000, 8, demand(0.0), **TABLE).removed)
