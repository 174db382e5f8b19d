"""SWEEPJOIN's equations."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.core.unitcosts import UnitCosts
from millrace.cost.pages import Order, PageDemand, Places
from millrace.cost.popularity import Popularity
from millrace.cost.sweepjoin import drained, iteration, rate_alike, reads_of, sweep_tuples

TABLE = {"N_R": 1_000, "v_P": 12_000}


def demand(exponent: float, order: Order = "scattered") -> PageDemand:
    return PageDemand(Popularity.zipf(exponent, 100_000), 100_000, 1_000, order)


def test_a_sweep_takes_nearly_two_windows_of_tuples() -> None:
    """A tuple waits for half a sweep. What one page serves leaves at once, and its slots stay empty until then."""
    assert sweep_tuples(5_000, Places(np.array([0.001]), np.array([1_000.0]))) == pytest.approx(10_000 / 1.001)
    assert sweep_tuples(5_000, Places(np.ones(1), np.ones(1))) == 5_000


def test_with_every_page_wanted_a_sweep_is_one_sequential_pass() -> None:
    found = iteration(50_000, 8, demand(0.0), gap_pages=46, **TABLE)
    assert found.pages_read == pytest.approx(1_000)
    assert found.seeks == pytest.approx(1.0, abs=0.01)
    assert found.removed == pytest.approx(2 * 50_000 / (1 + 8 / 1_000), rel=1e-3)


def test_with_few_pages_wanted_and_no_gap_worth_reading_each_is_a_seek() -> None:
    found = iteration(20, 8, demand(0.0), gap_pages=0, **TABLE)
    wanted = 1_000 * (1 - np.exp(-found.removed / 1_000))
    assert found.pages_read == pytest.approx(wanted, rel=1e-3)
    assert found.seeks > 0.9 * found.pages_read


def test_a_gap_is_read_through_where_a_seek_costs_more() -> None:
    places = demand(0.0).places()
    alone, joined = (reads_of(demand(0.0), places.distinct(500) / 1_000, 500, gap) for gap in (0, 3))
    u = 1 - np.exp(-0.5)
    assert alone[1] == pytest.approx(1_000 * u)
    assert alone[2] == pytest.approx(1_000 * u * (1 - u))
    assert joined[2] == pytest.approx(1_000 * u * (1 - u) ** 4)
    through = sum(k * u * (1 - u) ** k for k in range(4))
    assert joined[1] == pytest.approx(1_000 * u * (1 + through))


def test_no_tuples_want_no_pages() -> None:
    wanted, pages, seeks = reads_of(demand(0.0), 0.0, 0.0, 5)
    assert (wanted, pages, seeks) == (0.0, 0.0, 0.0)


def test_a_page_wanted_by_more_tuples_than_a_step_compares_takes_more_steps() -> None:
    one = iteration(5_000, 8, demand(1.2, "sorted"), gap_pages=46, **TABLE)
    more = iteration(5_000, 8, demand(1.2, "sorted"), gap_pages=46, **TABLE, limit=100)
    assert more.steps > one.steps
    assert more.removed > one.removed


@pytest.mark.parametrize("window", [100.0, 10_000.0])
@pytest.mark.parametrize("b", [1, 8, 200])
def test_the_quick_rate_for_pages_wanted_alike_is_that_of_an_iteration(window: float, b: int) -> None:
    costs = UnitCosts(seek=0.008, read_byte=1 / 70e6, step=1e-5, request=1e-4)
    quick = rate_alike(window, np.array([b]), gap_pages=46, limit=np.inf, R_t=100_000, costs=costs, **TABLE)[0]
    careful = iteration(window, b, demand(0.0), gap_pages=46, **TABLE).rate(costs)
    assert quick == pytest.approx(careful, rel=0.05)


def test_the_best_buffer_is_neither_the_smallest_nor_the_largest() -> None:
    b = np.arange(1, 160)
    window = np.maximum(1.0, (2_000_000 - b * 12_000) / 100)
    costs = UnitCosts(seek=0.008, read_byte=1 / 70e6, step=1e-4, request=1e-3)
    found = rate_alike(window, b, gap_pages=46, limit=np.inf, R_t=100_000, costs=costs, **TABLE)
    assert 0 < int(found.argmax()) < len(b) - 1


def test_a_stream_that_ends_is_one_sweep_if_the_window_has_room() -> None:
    found = drained(500, 5_000, 8, demand(0.0), gap_pages=0, **TABLE)
    assert found.removed == 500
    assert found.pages_read == pytest.approx(demand(0.0).places().distinct(500))


def test_a_stream_that_ends_goes_on_at_the_pace_of_the_long_run_where_the_window_is_too_small() -> None:
    few, many = (drained(n, 5_000, 8, demand(0.0), gap_pages=46, **TABLE) for n in (5_000, 45_000))
    sweep = iteration(5_000, 8, demand(0.0), gap_pages=46, **TABLE)
    assert many.removed == pytest.approx(45_000)
    assert many.bytes_read - few.bytes_read == pytest.approx(40_000 * sweep.each()["bytes_read"])
