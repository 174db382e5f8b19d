"""HYBRIDJOIN: what only it promises."""

from __future__ import annotations

import numpy as np
import pytest
from tests.joins.examples import (
    HOWS,
    crowded_out,
    cut,
    cut_at_random,
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
from millrace.core.errors import BudgetError, ParameterError, StrategyError
from millrace.core.protocols import How
from millrace.joins.hybridjoin import HybridJoin

EVEN = [2 * i for i in range(12)]  # unique; pages of 2: 0 2 | 4 6 | 8 10 | 12 14 | 16 18 | 20 22
RUNS = [0, 1, 1, 1, 1, 1, 2, 3, 4, 4, 4, 5]  # pages of 2: 0 1 | 1 1 | 1 1 | 2 3 | 4 4 | 4 5


def tight(buffer_pages: int, tuples: int, keys: list[int], how: How = "inner") -> HybridJoin:
    """A join with room for exactly `tuples`."""
    relation = relation_of(keys)
    with pytest.raises(BudgetError) as error:
        HybridJoin(relation, spec_of(how), Budget(1), buffer_pages=buffer_pages)
    memory = error.value.needed_bytes
    while (join := HybridJoin(relation, spec_of(how), Budget(memory), buffer_pages=buffer_pages)).capacity < tuples:
        memory += 8
    return join


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("buffer_pages", [1, 2, 3, 5, 6, 100])
@pytest.mark.parametrize("keys", [EVEN, RUNS, [1] * 12])
def test_it_joins_exactly(how: How, buffer_pages: int, keys: list[int]) -> None:
    tuples = [4, None, 1, 1, 99, 5, 0, 3, 22, -7, 2, 1, 4]
    join = HybridJoin(relation_of(keys), spec_of(how), Budget("64k"), buffer_pages=buffer_pages)
    assert rows_of(joined(join, cut(stream_of(tuples), 4))) == expected(tuples, keys, how)
    assert join.pending == 0


def test_the_oldest_tuple_picks_the_partition_and_the_read_serves_all() -> None:
    relation = relation_of(EVEN)
    join = HybridJoin(relation, spec_of(), Budget("64k"), buffer_pages=2)
    join.offer(stream_of([10, 0, 8, 22, 14, 2]))
    first = join.step()
    assert relation.reads == [(2, 2)]
    assert sorted(first.sequence.tolist()) == [0, 2, 4]
    assert join.step().sequence.tolist() == [1, 5]
    assert join.step().sequence.tolist() == [3]
    assert relation.reads == [(2, 2), (0, 2), (4, 2)]
    assert join.pending == 0


def test_it_takes_as_many_tuples_as_slots_are_free() -> None:
    join = tight(1, 4, EVEN)
    assert join.offer(stream_of([0, 2, 4, 8, 12])) == 4
    assert join.offer(stream_of([12])) == 0
    join.step()  # page 0 serves two tuples
    assert join.offer(stream_of([12] * 5)) == 2


def test_slots_stay_free_when_fewer_tuples_come_than_would_fit() -> None:
    join = tight(1, 4, EVEN)
    assert join.offer(stream_of([0])) == 1
    join.step()
    assert join.offer(stream_of([0] * 9)) == 4


def test_absent_keys_do_not_spin() -> None:
    relation = relation_of(EVEN)
    join = HybridJoin(relation, spec_of("anti"), Budget("64k"), buffer_pages=1)
    steps = joined(join, [stream_of([3, 99, -1, 1, 1, 5])])
    assert rows_of(steps) == [(event,) for event in range(6)]
    assert total(steps).absent_keys == 6
    assert relation.reads == [(0, 1), (1, 1)]  # 3, 99 and -1 lie between pages: the index knows


def test_absent_keys_inside_a_page_leave_with_the_first_read_of_it() -> None:
    relation = relation_of(EVEN)
    join = HybridJoin(relation, spec_of("left"), Budget("64k"), buffer_pages=2)
    join.offer(stream_of([0, 1, 5, 2]))
    step = join.step()
    assert join.pending == 0
    assert (step.counts.matched, step.counts.absent_keys, step.counts.pages_read) == (2, 2, 2)


def test_a_paused_stream_empties_the_window_and_stops_reading() -> None:
    relation = relation_of(EVEN)
    join = HybridJoin(relation, spec_of(), Budget("64k"), buffer_pages=1)
    joined(join, [stream_of([0, 7, 22]), stream_of([]), stream_of([])])
    read = len(relation.reads)
    for _ in range(3):
        assert not any(join.step().counts.as_dict().values())
    assert len(relation.reads) == read


def test_null_keys_cost_no_read() -> None:
    relation = relation_of(EVEN)
    steps = joined(HybridJoin(relation, spec_of("left"), Budget("64k")), [stream_of([None, None])])
    assert rows_of(steps) == [(0, None), (1, None)]
    assert relation.reads == []
    assert total(steps).null_keys == 2


def test_a_relation_without_rows_matches_nothing() -> None:
    for how in HOWS:
        join = HybridJoin(relation_of([]), spec_of(how), Budget("64k"))
        assert rows_of(joined(join, [stream_of([1, None])])) == expected([1, None], [], how)


def test_a_key_that_crosses_partitions_is_read_in_one_go_if_the_buffer_holds_it() -> None:
    relation = relation_of(RUNS)  # key 4 is on pages 4 and 5; partitions of 5 pages are 0-4 and 5
    join = HybridJoin(relation, spec_of(), Budget("64k"), buffer_pages=5)
    join.offer(stream_of([4, 4]))
    step = join.step()
    assert (step.counts.matches, join.pending) == (6, 0)
    assert relation.reads == [(4, 2)]


def test_a_key_longer_than_the_buffer_is_read_piece_by_piece() -> None:
    relation = relation_of(RUNS)  # key 1 is on pages 0, 1 and 2
    join = HybridJoin(relation, spec_of(), Budget("64k"), buffer_pages=1)
    join.offer(stream_of([1]))
    assert [join.step().counts.matches for _ in range(2)] == [1, 2]
    assert join.pending == 1
    join.offer(stream_of([1]))  # has missed the first pages: must not meet the last one alone
    step = join.step()
    assert (step.counts.matches, step.counts.removed, join.pending) == (2, 1, 1)
    steps = drained(join)
    assert total(steps).matches == 5
    assert relation.reads == [(0, 1), (1, 1), (2, 1)] * 2


def test_a_tuple_whose_rows_are_not_all_at_hand_is_left_alone() -> None:
    relation = relation_of(RUNS)
    join = HybridJoin(relation, spec_of(), Budget("64k"), buffer_pages=1)
    join.offer(stream_of([0, 1]))
    step = join.step()  # page 0 holds key 0 and the first row of key 1
    assert (step.sequence.tolist(), step.counts.removed, step.counts.matches) == ([0], 1, 1)
    assert rows_of(drained(join)) == [(1, row) for row in range(1, 6)]


def test_a_tuple_inside_the_pages_of_a_longer_key_is_served_too() -> None:
    relation = relation_of(RUNS)
    join = HybridJoin(relation, spec_of(), Budget("64k"), buffer_pages=2)
    join.offer(stream_of([1, 0, 3, 2]))  # key 1 is read as pages 0-1 and 2-3; 0, 2 and 3 lie there as well
    steps = [join.step(), join.step()]
    assert rows_of(steps) == expected([1, 0, 3, 2], RUNS, "inner")
    assert join.pending == 0
    assert relation.reads == [(0, 2), (2, 2)]


@pytest.mark.parametrize("how", HOWS)
def test_more_matches_than_a_step_puts_out_go_on_without_reading_or_removing(how: How) -> None:
    keys, tuples = [1] * 100 + [2], [1] * 30 + [3, 0]
    relation = relation_of(keys, rows_per_page=200)
    with pytest.raises(BudgetError) as error:
        HybridJoin(relation, spec_of(how), Budget(1))
    memory = error.value.needed_bytes + 40 * 200
    join = HybridJoin(relation, spec_of(how), Budget(memory), buffer_pages=1)
    join.offer(stream_of(tuples))
    steps = [join.step()]
    assert steps[0].counts.removed == 2  # the absent ones
    join.offer(stream_of([1]))
    steps += drained(join)
    counts = total(steps)
    assert relation.reads == [(0, 1), (0, 1)]
    assert (counts.matches, counts.matched, counts.absent_keys) == (3100, 31, 2)
    assert len(rows_of(steps)) == {"inner": 3100, "left": 3102, "semi": 31, "anti": 2}[how]
    assert max(step.output.num_rows for step in steps) < 1000


@pytest.mark.parametrize("how", HOWS)
def test_tuples_of_a_unique_key_that_are_put_out_in_portions_leave_together(how: How) -> None:
    """The portions before the last are found again by what they have met; tuples of other pages stay."""
    keys, tuples = list(range(0, 80, 2)), [2] * 3000 + [60] + [3] * 5 + [4, 61]
    relation = relation_of(keys, rows_per_page=20)
    join = HybridJoin(relation, spec_of(how), Budget("400k"), buffer_pages=1)
    stream = stream_of(tuples)
    assert join.offer(stream) == len(tuples)
    steps = [join.step()]
    while join.pending > 2:
        assert relation.reads == [(0, 1)]
        steps.append(join.step())
    assert len(steps) > 1 or how == "anti"
    steps += drained(join)
    assert relation.reads == [(0, 1), (1, 1)]
    assert rows_of(steps) == expected(tuples, keys, how)


@pytest.mark.parametrize("buffer_pages", [None, 1, 4, 99])
@pytest.mark.parametrize("resident", [False, True])
def test_the_budget_it_asks_for_is_enough_and_no_more(buffer_pages: int | None, resident: bool) -> None:
    relation = relation_of(RUNS * 9, rows_per_page=3)
    relation.resident = resident
    with pytest.raises(BudgetError, match="give memory=") as error:
        HybridJoin(relation, spec_of(), Budget("1k"), buffer_pages=buffer_pages)
    needed = error.value.needed_bytes
    join = HybridJoin(relation, spec_of(), Budget(needed), buffer_pages=buffer_pages)
    assert join.bytes_used <= needed
    tuples = [4, 1, 99, 4]
    assert rows_of(joined(join, [stream_of(tuples)])) == expected(tuples, RUNS * 9, "inner")
    with pytest.raises(BudgetError):
        HybridJoin(relation, spec_of(), Budget(needed - 1), buffer_pages=buffer_pages)


def test_a_window_of_one_tuple_works() -> None:
    join = tight(1, 1, RUNS)
    assert join.capacity == 1
    tuples = [4, 1, 99, None, 1]
    assert rows_of(joined(join, [stream_of(tuples)])) == expected(tuples, RUNS, "inner")


@pytest.mark.parametrize("seed", range(4))
def test_with_a_full_window_no_page_is_read_again_until_the_window_has_passed(seed: int) -> None:
    """Theorem 1 of the paper, with a stream that always fills the window."""
    random = np.random.default_rng(seed)
    keys = [2 * i for i in range(60)]
    relation = relation_of(keys)
    join = HybridJoin(relation, spec_of(), Budget("24k"), buffer_pages=3)
    stream = stream_of((2 * random.integers(0, 60, 3000)).tolist())
    offered, seen = 0, {}
    while offered < stream.num_rows:
        offered += join.offer(stream.slice(offered))
        if offered == stream.num_rows:
            break
        join.step()
        partition = relation.reads[-1]
        assert offered - seen.get(partition, -stream.num_rows) >= join.capacity
        seen[partition] = offered
    assert len(relation.reads) > join.partitions


@pytest.mark.parametrize("seed", range(4))
def test_there_are_no_more_reads_than_tuples(seed: int) -> None:
    """Theorem 2 of the paper."""
    random = np.random.default_rng(seed)
    relation = relation_of(EVEN)
    tuples = random.integers(-2, 26, 50).tolist()
    joined(HybridJoin(relation, spec_of(), Budget("64k"), buffer_pages=1), cut(stream_of(tuples), 3))
    assert len(relation.reads) <= len(tuples)


def test_parameters_are_checked() -> None:
    with pytest.raises(ParameterError, match="buffer_pages must be at least 1; got 0"):
        HybridJoin(relation_of(EVEN), spec_of(), Budget("64k"), buffer_pages=0)
    with pytest.raises(StrategyError, match="needs an index"):
        HybridJoin(relation_of(EVEN, indexed=False), spec_of(), Budget("64k"))


@pytest.mark.parametrize("seed", range(6))
def test_any_schedule_gives_the_same_rows(seed: int) -> None:
    random = np.random.default_rng(seed)
    keys, tuples = random.integers(0, 15, 70).tolist(), random.integers(0, 20, 200).tolist()
    how: How = HOWS[seed % 4]
    batches = cut_at_random(stream_of(tuples), random)
    join = HybridJoin(relation_of(keys, 3), spec_of(how), Budget("24k"), buffer_pages=int(random.integers(1, 6)))
    assert rows_of(joined(join, batches, steps_per_batch=int(random.integers(0, 3)))) == expected(tuples, keys, how)


@pytest.mark.parametrize("hot", [[0, 1], [1, 0, 0]])
def test_a_key_that_goes_on_behind_its_partition_and_its_neighbours_do_not_keep_the_head_of_the_queue(hot: list[int]) -> None:
    keys = [0, 0, 1, 1, 1, 1, 2, 3, 4, 5, 6, 7]  # pages 0 0 | 1 1 || 1 1 | 2 3 || 4 5 | 6 7
    assert not crowded_out(tight(2, 20, keys), hot, 7, 12)


def test_a_tuple_leaves_after_a_round_of_the_queue() -> None:
    join = tight(1, 30, EVEN)
    assert join.longest_wait == 6 + 1
    assert not crowded_out(join, EVEN[:10], 22, 7)
