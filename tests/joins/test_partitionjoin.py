"""The partition-based join: a partition is read when that is worth it, or somebody has waited long enough."""

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
from millrace.core.errors import BudgetError, ParameterError, StrategyError
from millrace.core.protocols import How
from millrace.joins.partitionjoin import PartitionJoin


def make(relation: Any, how: How = "inner", memory: int | str = "64k", **parameters: Any) -> PartitionJoin:
    return PartitionJoin(relation, spec_of(how), Budget(memory), **{"buffer_pages": 2, **parameters})


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("buffer_pages", [1, 2, 5, 100])
@pytest.mark.parametrize("cache_share", [0, 0.5])
@pytest.mark.parametrize("keys", [EVEN, RUNS, [1] * 12])
def test_it_joins_exactly(how: How, buffer_pages: int, cache_share: float, keys: list[int]) -> None:
    tuples = [4, None, 1, 1, 99, 5, 0, 3, 22, -7, 2, 1, 4]
    join = make(relation_of(keys), how, buffer_pages=buffer_pages, cache_share=cache_share, worth_tuples=3)
    assert rows_of(joined(join, cut(stream_of(tuples), 4))) == expected(tuples, keys, how)
    assert join.pending == 0


def test_a_partition_is_read_when_enough_tuples_wait_for_it_and_serves_all_of_them() -> None:
    relation = relation_of(EVEN)
    join = make(relation, worth_tuples=3, age_limit=100)
    for key in (0, 20, 8, 6):
        join.offer(stream_of([key]))
        assert join.step().counts.removed == 0
    join.offer(stream_of([2]))
    assert join.step().counts.removed == 3
    assert relation.reads == [(0, 2)]


def test_a_tuple_that_nobody_waits_with_is_read_for_at_the_age_limit() -> None:
    relation = relation_of(EVEN)
    join = make(relation, worth_tuples=1000, age_limit=5, cache_share=0)
    join.offer(stream_of([22]))
    steps = []
    for key in [0] * 6:
        steps.append(join.step().left.tolist())
        join.offer(stream_of([key]))
    assert steps == [[], [], [], [], [], [0]]
    assert relation.reads == [(4, 2)]


def test_with_a_full_window_the_partition_with_most_tuples_is_read() -> None:
    relation = relation_of(EVEN)
    with pytest.raises(BudgetError) as error:
        make(relation, memory=1)
    join = make(relation, memory=error.value.needed_bytes + 400, worth_tuples=1000, age_limit=1000, cache_share=0)
    assert 3 <= join.capacity < 20
    assert join.offer(stream_of([0, *[20] * 20])) == join.capacity
    assert join.step().counts.removed == join.capacity - 1
    assert relation.reads == [(4, 2)]


def test_a_pause_of_the_stream_leaves_nobody_waiting() -> None:
    relation = relation_of(EVEN)
    join = make(relation, worth_tuples=1000, age_limit=1000)
    join.offer(stream_of([0, 20, 22]))
    assert join.step().counts.removed == 0
    assert [join.step().counts.removed for _ in range(3)] == [2, 1, 0]
    assert relation.reads == [(4, 2), (0, 2)]


def test_a_tuple_whose_page_is_in_the_cache_is_joined_at_once() -> None:
    relation = relation_of(EVEN)
    join = make(relation, worth_tuples=1)
    joined(join, [stream_of([0, 20])])
    assert relation.reads == [(0, 2), (4, 2)]
    join.offer(stream_of([4, 23, 22, 18, 17]))
    step = join.step()
    assert (step.counts.matched, step.counts.absent_keys, step.counts.front_hits) == (3, 2, 4)
    assert len(relation.reads) == 2


def test_the_cache_keeps_the_pages_that_were_wanted_last() -> None:
    relation = relation_of(EVEN)
    memory = 36_000
    while make(relation, memory=memory, buffer_pages=1, cache_share=0.05).cache_pages < 1:
        memory += 100
    join = make(relation, memory=memory, buffer_pages=1, cache_share=0.05, worth_tuples=1)
    assert join.cache_pages == 1
    for key in (0, 8, 0, 20, 0, 8):
        join.offer(stream_of([key]))
        join.step()
    assert relation.reads == [(0, 1), (2, 1), (5, 1), (2, 1)], "page 0 was wanted between"


def test_of_a_partition_only_the_pages_that_are_not_in_the_cache_are_read() -> None:
    relation = relation_of(EVEN)
    memory = 36_000
    while make(relation, memory=memory, cache_share=0.05).cache_pages < 1:
        memory += 100
    join = make(relation, memory=memory, cache_share=0.05, worth_tuples=1)
    for key in (0, 20, 4):  # pages 0 and 1, 4 and 5; then page 1 again, which nobody had wanted
        join.offer(stream_of([key]))
        join.step()
    assert relation.reads == [(0, 2), (4, 2), (1, 1)]


def test_a_key_that_goes_on_in_the_next_partition_meets_all_its_rows() -> None:
    relation = relation_of(RUNS)
    join = make(relation, worth_tuples=1, cache_share=0)
    tuples = [1, 4, 1]
    join.offer(stream_of(tuples))
    assert rows_of(drained(join)) == expected(tuples, RUNS, "inner")


def test_a_tuple_leaves_in_time_beside_a_crowd() -> None:
    join = make(relation_of(EVEN), memory="40k", age_limit=4)
    assert join.longest_wait == 4 + 3 + 1
    assert not crowded_out(join, EVEN[:8], 22, 8)


def test_after_a_failed_read_nothing_is_lost_and_the_partition_is_read_again() -> None:
    check_failed_reads(make)


def test_pages_in_place_are_used_at_once_and_nothing_is_cached() -> None:
    check_pages_in_place(make, worth_tuples=1000)


@pytest.mark.parametrize("buffer_pages", [None, 1, 4, 99])
@pytest.mark.parametrize("resident", [False, True])
def test_the_budget_it_asks_for_is_enough_and_no_more(buffer_pages: int | None, resident: bool) -> None:
    check_least_budget(make, buffer_pages, resident)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"buffer_pages": 0}, "buffer_pages must be at least 1; got 0"),
        ({"worth_tuples": 0}, "worth_tuples must be at least 1; got 0"),
        ({"age_limit": 0}, "age_limit must be at least 1; got 0"),
        ({"cache_share": -0.1}, "cache_share must be from 0 to 0.9; got -0.1"),
    ],
)
def test_parameters_are_checked(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        make(relation_of(EVEN), **parameters)


def test_a_relation_without_an_index_is_refused() -> None:
    with pytest.raises(StrategyError, match="partitionjoin needs an index"):
        make(relation_of(EVEN, indexed=False))


@pytest.mark.parametrize("seed", range(6))
def test_any_schedule_gives_the_same_rows(seed: int) -> None:
    any_schedule(make, seed, "worth_tuples")
