"""The equations of SSIJ and of the partition-based join: pages that stay, and tuples that wait by block."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.cost import partitionjoin, ssij
from millrace.cost.pages import Order, PageDemand, Places
from millrace.cost.popularity import Popularity

TABLE = {"N_R": 1_000, "v_P": 12_000}


def demand(exponent: float, order: Order = "scattered") -> PageDemand:
    return PageDemand(Popularity.zipf(exponent, 100_000), 100_000, 1_000, order)


def partitioned(h: float, C: int, k: int, exponent: float, **more: float) -> dict[str, float]:
    given = {"age_limit": 2_000.0, "R_t": 100_000, **more}
    return partitionjoin.iteration(h, C, k, demand(exponent), **given, **TABLE).each()


def phased(h: float, C: int, b: int, exponent: float, **more: float) -> dict[str, float]:
    return ssij.iteration(h, C, b, demand(exponent), **{"pending": 0.0, **more}, **TABLE).each()


def test_a_cache_of_all_pages_reads_nothing() -> None:
    for each in (partitioned(5_000, 1_000, 8, 1.0), phased(5_000, 1_000, 8, 1.0)):
        assert each["pages_read"] == 0.0
        assert each["front_hits"] == 1.0


def test_a_cache_answers_its_share() -> None:
    """The pages that were used last, and those that are wanted most."""
    assert partitioned(5_000, 100, 8, 0.0)["front_hits"] == pytest.approx(0.1, rel=0.01)
    assert phased(5_000, 100, 8, 0.0)["front_hits"] == pytest.approx(0.1, rel=0.01)
    assert phased(5_000, 100, 8, 1.0)["front_hits"] == pytest.approx(demand(1.0).places().hottest(100)[0])


def test_a_steeper_stream_reads_less() -> None:
    for found in (partitioned, phased):
        reads = [found(5_000, 50, 8, e)["pages_read"] for e in (0.0, 0.7, 1.0, 1.3)]
        assert reads == sorted(reads, reverse=True)


def test_a_join_phase_serves_two_windows_and_reads_each_block_that_is_wanted() -> None:
    found = ssij.iteration(50_000, 0, 8, demand(0.0), pending=0, **TABLE)
    assert found.removed == pytest.approx(100_000 / 1.001)
    assert found.pages_read == pytest.approx(1_000, rel=1e-3)
    assert found.steps == pytest.approx(125, rel=1e-3)


def test_tuples_in_the_input_buffer_do_not_wait_for_blocks() -> None:
    assert phased(5_000, 0, 8, 0.0, pending=2_500)["pages_read"] > phased(5_000, 0, 8, 0.0)["pages_read"]


def test_the_fullest_partition_serves_twice_its_part_of_the_window() -> None:
    even = Places(np.array([1 / 125]), np.array([125.0]))
    assert partitionjoin.served(50_000, even, 1e9) / (50_000 / 125) == pytest.approx(2.0, rel=0.02)


def test_without_an_age_limit_every_partition_waits_for_the_same_number_of_tuples() -> None:
    skewed = demand(1.0, "sorted").places(8)
    assert partitionjoin.served(50_000, skewed, 1e12) == pytest.approx(2 * 50_000 / (skewed.total + 1), rel=1e-3)


def test_a_read_serves_at_least_its_own_tuple_and_at_most_the_window() -> None:
    for window in (1.0, 2.0, 100.0, 1e6):
        assert 1.0 <= partitionjoin.served(window, demand(1.0).places(8), 250.0) <= max(1.0, window)
