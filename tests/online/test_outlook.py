"""Forecasts: when a run will be done."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.online.statistics.outlook import END_SHARE, END_SHARE_IN_MEMORY, pace, seconds_to_exact


def test_a_slow_start_is_forgotten() -> None:
    """A tenth took as long as all of the rest will."""
    marks = [(9.0 * share / 0.1 if share < 0.1 else 8.0 + 10 * share, share) for share in np.arange(0.01, 1.0, 0.01)]
    seconds, share = 12.0, 0.4
    assert pace(seconds, share, [mark for mark in marks if mark[1] < share]) == pytest.approx(10)
    assert pace(0.9, 0.01, []) == pytest.approx(90)
    for temporary, end in ((0, END_SHARE_IN_MEMORY), (1000, END_SHARE)):
        said = seconds_to_exact(seconds, share, 0.0, None, marks[:39], temporary)
        assert said == pytest.approx(6 + end * 18)


def test_the_end_is_told_by_the_partitions_that_are_done() -> None:
    assert seconds_to_exact(12.0, 1.0, 0.25, 10.0, [], 0) == pytest.approx(6.0)
    assert seconds_to_exact(10.0, 1.0, 0.0, 10.0, [], 1) == pytest.approx(10 * END_SHARE)
    assert seconds_to_exact(1.0, 0.0, 0.0, None, [], 0) is None
