"""SSIJ's equations."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.core.unitcosts import UnitCosts
from millrace.cost.iteration import IterationCost
from millrace.cost.pages import PageDemand
from millrace.cost.popularity import Popularity
from millrace.cost.ssij import iteration, rate_alike


def demand(exponent: float) -> PageDemand:
    return PageDemand(Popularity.zipf(exponent, 100_000), 100_000, 1_000)


def phase(h: float, C: int, exponent: float, *, b: int = 8, pending: float = 0.0) -> IterationCost:
    return iteration(h, C, b, demand(exponent), pending=pending, N_R=1_000, v_P=12_000)


def test_a_cache_of_all_pages_reads_nothing() -> None:
    each = phase(5_000, 1_000, 1.0).each()
    assert (each["pages_read"], each["front_hits"]) == (0.0, 1.0)


@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_the_cache_has_the_pages_that_are_wanted_most(exponent: float) -> None:
    assert phase(5_000, 100, exponent).each()["front_hits"] == pytest.approx(demand(exponent).places().hottest(100)[0])


def test_a_join_phase_serves_two_windows_and_reads_each_block_that_is_wanted() -> None:
    found = phase(50_000, 0, 0.0)
    assert found.removed == pytest.approx(100_000 / 1.001)
    assert found.pages_read == pytest.approx(1_000, rel=1e-3)
    assert found.steps == pytest.approx(125, rel=1e-3)


def test_tuples_in_the_input_buffer_do_not_wait_for_blocks() -> None:
    assert phase(5_000, 0, 0.0, pending=2_500).each()["pages_read"] > phase(5_000, 0, 0.0).each()["pages_read"]


def test_a_steeper_stream_reads_less() -> None:
    reads = [phase(5_000, 50, e).each()["pages_read"] for e in (0.0, 0.7, 1.0, 1.3)]
    assert reads == sorted(reads, reverse=True)


def test_blocks_are_read_one_by_one_unless_neighbours_come_together() -> None:
    alone, together = phase(5_000, 0, 0.0, b=1), phase(5_000, 0, 0.0, b=8)
    assert alone.seeks == alone.pages_read
    assert together.seeks < together.pages_read


def test_the_quick_rate_for_blocks_wanted_alike_is_that_of_an_iteration() -> None:
    costs = UnitCosts(seek=0.008, read_byte=1 / 70e6, step=1e-3)
    b = np.array([1, 4, 32])
    quick = rate_alike(np.full(3, 5_000.0), b, R_t=100_000, N_R=1_000, v_P=12_000, costs=costs)
    careful = [phase(5_000, 0, 0.0, b=int(size)).rate(costs) for size in b]
    assert quick == pytest.approx(careful, rel=0.2)  # neighbours that come together are left out
    assert (np.diff(quick) > 0).all()
