"""What a front stage can earn."""

from __future__ import annotations

import pytest

from millrace.cost.front_stage import answered_share, drained, gain, iteration
from millrace.cost.iteration import IterationCost

BACK = IterationCost(
    steps=1, tuples_in=100, reads=1, pages_read=4, bytes_read=4_000, seeks=1, probes=50, matches=100, removed=100
)


def test_all_keys_answer_everything_and_even_keys_answer_their_part() -> None:
    assert answered_share(2_000, 1_000, 1) == pytest.approx(1)
    assert answered_share(250, 1_000, 0) == pytest.approx(0.25)
    assert answered_share(1, 4, 1) == pytest.approx(12 / 25)


def test_a_front_stage_earns_its_share_where_it_answers_more_than_its_share() -> None:
    assert gain(0.15, 0.15) == pytest.approx(1)
    assert gain(0.15, 0.10) < 1 < gain(0.15, 0.20)


def test_tuples_answered_in_front_come_on_top_of_what_the_back_stage_serves() -> None:
    both = iteration(BACK, 0.75)
    assert both.removed == pytest.approx(400)
    assert (both.front_hits, both.front_lookups) == (pytest.approx(300), pytest.approx(400))
    assert (both.pages_read, both.seeks, both.probes) == (BACK.pages_read, BACK.seeks, BACK.probes)
    assert both.matches == pytest.approx(400)


def test_a_front_stage_that_answers_nothing_still_looks_every_tuple_up() -> None:
    both = iteration(BACK, 0.0)
    assert (both.removed, both.front_hits, both.front_lookups) == (100, 0, 100)


def test_a_front_stage_that_answers_everything_has_a_rate_all_the_same() -> None:
    assert iteration(BACK, 1.0).removed < float("inf")


def test_the_output_of_the_front_stage_takes_steps_of_its_own() -> None:
    assert iteration(BACK, 0.75, output_rows=30).steps == pytest.approx(11)


def test_tuples_that_come_at_once_are_answered_by_one_stage_or_the_other() -> None:
    both = drained(BACK, 400, 0.75, sigma=2.0)
    assert (both.removed, both.matches, both.front_hits, both.pages_read) == (400, 800, 300, BACK.pages_read)
