"""SSIJ: gathers, joins online what is in memory, and reads the rest in phases."""

from __future__ import annotations

from typing import Any

import pytest
from tests.joins.block_joins import EVEN, RUNS, any_schedule, check_failed_reads, check_least_budget, check_pages_in_place
from tests.joins.examples import (
    HOWS,
    crowded_out,
    cut,
    drained,
    expected,
    joined,
    relation_of,
    rows_of,
    spec_of,
    stream_of,
)

from millrace.core.budget import Budget
from millrace.core.drive import total
from millrace.core.errors import ParameterError, StrategyError
from millrace.core.protocols import How
from millrace.joins.ssij import SemiStreamedIndexJoin


def make(relation: Any, how: How = "inner", memory: int | str = "64k", **parameters: Any) -> SemiStreamedIndexJoin:
    return SemiStreamedIndexJoin(relation, spec_of(how), Budget(memory), **{"buffer_pages": 1, **parameters})


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("buffer_pages", [1, 2, 5, 100])
@pytest.mark.parametrize("cache_share", [0, 0.5])
@pytest.mark.parametrize("keys", [EVEN, RUNS, [1] * 12])
def test_it_joins_exactly(how: How, buffer_pages: int, cache_share: float, keys: list[int]) -> None:
    tuples = [4, None, 1, 1, 99, 5, 0, 3, 22, -7, 2, 1, 4]
    join = make(relation_of(keys), how, buffer_pages=buffer_pages, cache_share=cache_share, pending_tuples=3, waiting_tuples=5)
    assert rows_of(joined(join, cut(stream_of(tuples), 4))) == expected(tuples, keys, how)
    assert join.pending == 0


def test_tuples_are_gathered_until_the_input_buffer_has_enough() -> None:
    relation = relation_of(EVEN)
    join = make(relation, pending_tuples=3, waiting_tuples=1)
    for key in (0, 4):
        join.offer(stream_of([key]))
        assert join.step().counts.front_lookups == 0
    join.offer(stream_of([8]))
    step = join.step()
    assert (step.counts.front_lookups, step.counts.front_hits, step.counts.pages_read) == (3, 0, 1)


def test_tuples_are_not_read_for_until_the_stream_buffer_has_enough() -> None:
    relation = relation_of(EVEN)
    join = make(relation, pending_tuples=1, waiting_tuples=4)
    for key in (0, 4, 8):
        join.offer(stream_of([key]))
        join.step()
    assert relation.reads == []
    join.offer(stream_of([0]))
    assert sorted(join.step().sequence.tolist()) == [0, 3], "two tuples wait for page 0, more than for others"
    assert relation.reads == [(0, 1)]


def test_a_pause_of_the_stream_begins_a_join_phase() -> None:
    relation = relation_of(EVEN)
    join = make(relation, pending_tuples=50, waiting_tuples=50)
    join.offer(stream_of([0, 4]))
    assert join.step().counts.removed == 0
    assert join.step().counts.removed == 1
    assert join.step().counts.removed == 1
    assert relation.reads == [(0, 1), (1, 1)]


def test_the_join_phase_reads_the_blocks_that_serve_most_tuples_first() -> None:
    relation = relation_of(EVEN)
    join = make(relation, pending_tuples=6, waiting_tuples=6)
    join.offer(stream_of([0, 20, 22, 8, 10, 20]))
    drained(join)
    assert relation.reads == [(5, 1), (2, 1), (0, 1)]


def test_blocks_of_one_step_are_read_in_the_order_of_the_disk() -> None:
    relation = relation_of(EVEN)
    join = make(relation, buffer_pages=3)
    join.offer(stream_of([20, 20, 4, 0, 0, 0]))
    drained(join)
    assert relation.reads == [(0, 2), (5, 1)]


def test_a_tuple_whose_block_is_in_memory_is_joined_without_a_read() -> None:
    relation = relation_of(EVEN)
    join = make(relation, pending_tuples=1, waiting_tuples=1)
    joined(join, [stream_of([0, 8, 20])])
    read = list(relation.reads)
    join.offer(stream_of([2, 10, 22, 21]))
    step = join.step()
    assert (step.counts.matched, step.counts.absent_keys, step.counts.front_hits) == (3, 1, 4)
    assert relation.reads == read


def one_block_beside_the_buffer() -> int:
    """Memory in which one block stays in the cache, and one is read."""
    memory = 36_000
    while make(relation_of(EVEN), memory=memory, cache_share=0.05).cache_pages < 1:
        memory += 100
    return memory


def test_the_block_of_least_utility_makes_room() -> None:
    relation = relation_of(EVEN)
    parameters = {"cache_share": 0.05, "pending_tuples": 1, "waiting_tuples": 1, "fading": 1.0}
    join = make(relation, memory=one_block_beside_the_buffer(), **parameters)
    assert join.cache_pages == 1
    for keys in ([0, 0, 0], [8], [20], [0]):
        join.offer(stream_of(keys))
        join.step()
    assert relation.reads == [(0, 1), (2, 1), (5, 1)], "page 0 stayed, page 2 made room"


def test_utility_fades() -> None:
    relation = relation_of(EVEN)
    parameters = {"cache_share": 0.05, "pending_tuples": 1, "waiting_tuples": 1, "fading": 0.1}
    join = make(relation, memory=one_block_beside_the_buffer(), **parameters)
    for keys in ([0] * 4, [8], [8], [8], [20], [0]):
        join.offer(stream_of(keys))
        join.step()
    assert relation.reads == [(0, 1), (2, 1), (5, 1), (0, 1)], "what page 0 had served was forgotten"


def test_a_tuple_alone_among_keys_in_memory_leaves_after_the_age_limit() -> None:
    join = make(relation_of(EVEN), pending_tuples=1, waiting_tuples=1000, age_limit=5)
    joined(join, [stream_of([0])])
    join.offer(stream_of([0, 22]))
    left = []
    for _ in range(7):
        left += join.step().left.tolist()
        join.offer(stream_of([0]))
    assert 2 in left


def test_a_tuple_leaves_in_time_beside_a_crowd() -> None:
    join = make(relation_of(EVEN), memory="40k", age_limit=4)
    assert join.longest_wait == 4 + 1 + (2 * 6 + 4 + 1)
    assert not crowded_out(join, EVEN[:10], 22, 60)


def test_after_a_failed_read_nothing_is_lost_and_the_phase_goes_on() -> None:
    check_failed_reads(make)


def test_pages_in_place_are_used_at_once_and_nothing_is_cached() -> None:
    check_pages_in_place(make, pending_tuples=1)


@pytest.mark.parametrize("buffer_pages", [None, 1, 4, 99])
@pytest.mark.parametrize("resident", [False, True])
def test_the_budget_it_asks_for_is_enough_and_no_more(buffer_pages: int | None, resident: bool) -> None:
    check_least_budget(make, buffer_pages, resident)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"buffer_pages": 0}, "buffer_pages must be at least 1; got 0"),
        ({"pending_tuples": 0}, "pending_tuples must be at least 1; got 0"),
        ({"waiting_tuples": -1}, "waiting_tuples must be at least 1; got -1"),
        ({"age_limit": 0}, "age_limit must be at least 1; got 0"),
        ({"cache_share": 1}, "cache_share must be from 0 to 0.9; got 1"),
        ({"fading": 1.5}, "fading must be from 0 to 1; got 1.5"),
    ],
)
def test_parameters_are_checked(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        make(relation_of(EVEN), **parameters)


def test_a_relation_without_an_index_is_refused() -> None:
    with pytest.raises(StrategyError, match="ssij needs an index"):
        make(relation_of(EVEN, indexed=False))


@pytest.mark.parametrize("seed", range(6))
def test_any_schedule_gives_the_same_rows(seed: int) -> None:
    counts = total(any_schedule(make, seed, "pending_tuples", "waiting_tuples"))
    assert counts.front_hits <= counts.front_lookups <= 200
