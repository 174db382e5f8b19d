"""Counts of a step, and their sums."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from millrace.core.drive import total
from millrace.core.step import StepCounts


def test_counts_add_up_field_by_field() -> None:
    one = StepCounts(**{field.name: number for number, field in enumerate(fields(StepCounts))})
    both = one + one
    assert both.as_dict() == {field.name: 2 * number for number, field in enumerate(fields(StepCounts))}
    assert one + StepCounts() == one


def test_unmatched_is_the_sum_of_its_reasons() -> None:
    assert StepCounts(absent_keys=1, null_keys=2, condition_false=4).unmatched == 7


def test_counts_can_not_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        StepCounts().matches = 1  # type: ignore[misc]


def test_the_total_of_no_steps_is_nothing() -> None:
    assert total([]) == StepCounts()
