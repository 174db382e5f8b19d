"""X-HYBRIDJOIN's equations."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.core.unitcosts import UnitCosts
from millrace.cost.xhybridjoin import STEP_SECONDS, harmonic, rate

DISK = UnitCosts(seek=0.008, read_byte=1 / 70e6, expire=1e-8, take=1e-8, add=1e-8, probe=1e-8, output=1e-8)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.2, 2.0])
@pytest.mark.parametrize("count", [1, 2, 10, 1_000, 100_000])
def test_the_harmonic_sum_is_within_a_tenth(exponent: float, count: int) -> None:
    exact = float((np.arange(1, count + 1) ** -exponent).sum())
    assert harmonic(count, exponent) == pytest.approx(exact, rel=0.1)


def test_the_harmonic_sum_begins_at_zero_and_is_right_at_one() -> None:
    assert float(harmonic(0, 1.0)) == 0.0
    assert float(harmonic(1, 1.0)) == 1.0


def rate_of(pinned: int, exponent: float, buffer_pages: int = 8, window: float = 10_000.0) -> float:
    sizes = {"R_t": 100_000, "N_R": 1_000, "v_P": 12_000}
    found = rate(np.array([window]), np.array([buffer_pages]), np.array([pinned]), **sizes, e=exponent, costs=DISK)
    return float(found[0])


def test_without_pinned_pages_a_read_serves_one_part_in_n_of_the_window() -> None:
    n = 1_000 / 8
    read = 0.008 + 8 * 12_000 / 70e6 + 800 * 1e-8
    w = 10_000 / n
    assert rate_of(0, 1.0) == pytest.approx(w / (STEP_SECONDS + read + w * 5e-8))


def test_pinned_pages_pay_with_skewed_keys_and_hardly_with_uniform_ones() -> None:
    assert rate_of(100, 1.0) > 3 * rate_of(0, 1.0)
    assert rate_of(100, 0.0) < 1.3 * rate_of(0, 0.0)


def test_with_every_page_pinned_nothing_is_read() -> None:
    assert rate_of(1_000, 1.0) == pytest.approx(10_000 / (STEP_SECONDS + 10_000 * 5e-8))
