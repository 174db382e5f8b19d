"""R-MESHJOIN's equation."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.core.unitcosts import UnitCosts
from millrace.cost.rmeshjoin import drained, iteration, rate

COSTS = UnitCosts(seek=0.008, read_byte=1e-8, request=0.002)
TABLE = {"N_R": 100, "R_t": 50_000, "v_P": 65_536}
EACH = COSTS.take + COSTS.add + COSTS.output + COSTS.expire


@pytest.mark.parametrize(("b", "reads"), [(1, 100), (4, 25), (100, 1), (1_000, 1)])
def test_the_whole_window_leaves_in_one_lap(b: int, reads: int) -> None:
    lap = reads * 0.002 + 0.008 + 100 * 65_536 * 1e-8 + 50_000 * COSTS.probe + 9_000 * EACH
    assert rate(9_000, np.array([b]), **TABLE, costs=COSTS)[0] == pytest.approx(9_000 / lap)


def test_the_best_buffer_hardly_depends_on_the_size_of_the_table() -> None:
    """Where neither the one seek of a lap nor the processor count."""
    costs = UnitCosts(seek=0.0, read_byte=1e-8, request=0.002, probe=0, output=0, expire=0, take=0, add=0)
    b = np.arange(1, 300)
    window = (20 << 20) // 100 - b * 65_536 // 100
    small, large = (int(rate(window, b, N_R=pages, R_t=10, v_P=65_536, costs=costs).argmax()) for pages in (20_160, 201_600))
    assert abs(small - large) <= 0.1 * large
    assert 0 < small < len(b) - 1


def test_an_iteration_has_the_rate_of_the_equation() -> None:
    assert iteration(9_000, 4, **TABLE).rate(COSTS) == pytest.approx(rate(9_000, np.array([4]), **TABLE, costs=COSTS)[0])


@pytest.mark.parametrize(("tuples", "laps"), [(1, 1), (9_000, 1), (27_000, 3)])
def test_tuples_that_come_at_once_take_a_lap_for_each_window_of_them(tuples: int, laps: int) -> None:
    found = drained(tuples, 9_000, 4, **TABLE)
    assert (found.removed, found.pages_read) == (tuples, laps * 100)
