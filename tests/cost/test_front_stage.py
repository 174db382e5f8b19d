"""What a front stage can earn."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.cost.front_stage import answered_share, gain, harmonic


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.2])
def test_the_integral_goes_on_where_the_sum_ends(exponent: float) -> None:
    whole = float(np.sum(np.arange(1, 3_000_001, dtype=np.float64) ** -exponent))
    assert harmonic(3_000_000, exponent) == pytest.approx(whole, rel=1e-9)


def test_all_keys_answer_everything_and_even_keys_answer_their_part() -> None:
    assert answered_share(2_000, 1_000, 1) == 1
    assert answered_share(250, 1_000, 0) == pytest.approx(0.25)


def test_a_front_stage_earns_its_share_where_it_answers_more_than_its_share() -> None:
    assert gain(0.15, 0.15) == pytest.approx(1)
    assert gain(0.15, 0.10) < 1 < gain(0.15, 0.20)
