"""R-MESHJOIN's equation."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.core.unitcosts import UnitCosts
from millrace.cost.rmeshjoin import rate

COSTS = UnitCosts(seek=0.008, read_byte=1e-8)


def test_the_whole_window_leaves_in_one_lap() -> None:
    lap = 100 / 4 * 0.008 + 100 * 65_536 * 1e-8
    assert rate(9_000, np.array([4]), 100, 65_536, COSTS)[0] == pytest.approx(9_000 / lap)


def test_the_best_buffer_does_not_depend_on_the_size_of_the_table() -> None:
    b = np.arange(1, 300)
    window = (20 << 20) // 100 - b * 65_536 // 100
    small, large = (int(rate(window, b, pages, 65_536, COSTS).argmax()) for pages in (1_000, 100_000))
    assert small == large
    assert 0 < small < len(b) - 1
