"""MESHJOIN: what only it promises."""

from __future__ import annotations

import numpy as np
import pytest
from tests.joins.examples import HOWS, cut, cut_at_random, drained, expected, joined, relation_of, rows_of, spec_of, stream_of

from millrace.core.budget import Budget
from millrace.core.drive import total
from millrace.core.errors import BudgetError, ParameterError
from millrace.core.protocols import How
from millrace.joins.meshjoin import MeshJoin

RELATION = [8, 2, 2, 6, 0, 2, 4, 2, 8, 2]  # 5 pages of 2
STREAM = [2, None, 8, 3, 2, 99, 6, -1]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("buffer_pages", [1, 2, 5, 9])
@pytest.mark.parametrize("tuples_per_step", [1, 3, 100])
def test_it_joins_exactly_and_needs_no_order(how: How, buffer_pages: int, tuples_per_step: int) -> None:
    relation = relation_of(RELATION, indexed=False)
    join = MeshJoin(
        relation, spec_of(how), Budget("80k"), buffer_pages=buffer_pages, tuples_per_step=tuples_per_step
    )  # fmt: skip
    assert rows_of(joined(join, cut(stream_of(STREAM), 3))) == expected(STREAM, RELATION, how)
    assert join.pending == 0


@pytest.mark.parametrize(("buffer_pages", "steps"), [(1, 5), (2, 3), (3, 2), (5, 1)])
def test_a_tuple_leaves_after_one_full_pass_over_the_relation(buffer_pages: int, steps: int) -> None:
    relation = relation_of(RELATION)
    join = MeshJoin(relation, spec_of(), Budget("64k"), buffer_pages=buffer_pages, tuples_per_step=1)
    for arrival in range(8):  # wherever the scan stands when it enters
        relation.reads.clear()
        join.offer(stream_of([99]))
        taken = 0
        while join.pending:
            step = join.step()
            taken += 1
        assert taken == steps, f"tuple {arrival}"
        assert sorted(page for first, count in relation.reads for page in range(first, first + count)) == [
            0,
            1,
            2,
            3,
            4,
        ]
        assert step.counts.absent_keys == 1


def test_the_last_read_of_a_pass_is_shorter_when_pages_do_not_divide() -> None:
    relation = relation_of(RELATION)
    join = MeshJoin(relation, spec_of(), Budget("64k"), buffer_pages=2, tuples_per_step=1)
    counts = total(joined(join, [stream_of([2, 2, 2])]))
    assert relation.reads == [(0, 2), (2, 2), (4, 1), (0, 2), (2, 2)]
    assert counts.seeks == 2  # the start, and the return to the start


def test_one_read_serves_every_waiting_tuple() -> None:
    relation = relation_of(RELATION)
    join = MeshJoin(relation, spec_of(), Budget("64k"), buffer_pages=1, tuples_per_step=10)
    joined(join, [stream_of([2] * 10)])
    assert len(relation.reads) == 5


def test_tuples_with_the_same_key_all_stay() -> None:
    join = MeshJoin(relation_of([1, 2, 3, 4]), spec_of(), Budget("64k"), buffer_pages=1, tuples_per_step=2)
    steps = joined(join, [stream_of([4, 4]), stream_of([4, 1])])
    assert sorted(int(number) for step in steps for number in step.sequence) == [0, 1, 2, 3]
    assert total(steps).matches == 4


def test_a_step_takes_no_more_than_its_tuples() -> None:
    join = MeshJoin(relation_of(RELATION), spec_of(), Budget("64k"), buffer_pages=1, tuples_per_step=3)
    assert join.offer(stream_of([1] * 5)) == 3
    assert join.offer(stream_of([1] * 5)) == 0
    join.step()
    assert join.offer(stream_of([1] * 5)) == 3


def test_a_slow_stream_does_not_wait_for_a_full_step() -> None:
    join = MeshJoin(relation_of(RELATION), spec_of(), Budget("1m"), buffer_pages=1, tuples_per_step=1000)
    join.offer(stream_of([2]))
    assert total([join.step() for _ in range(5)]).matches == 5
    assert join.pending == 0


def test_a_paused_stream_empties_the_window_and_stops_reading() -> None:
    relation = relation_of(RELATION)
    join = MeshJoin(relation, spec_of("left"), Budget("64k"), buffer_pages=2, tuples_per_step=4)
    join.offer(stream_of([2, 99, None]))
    join.step()
    join.offer(stream_of([4]))
    drained(join)
    read = len(relation.reads)
    for _ in range(3):
        assert not any(join.step().counts.as_dict().values())
    assert len(relation.reads) == read == 4


def test_null_keys_alone_cost_no_read() -> None:
    relation = relation_of(RELATION)
    join = MeshJoin(relation, spec_of("left"), Budget("64k"))
    steps = joined(join, [stream_of([None, None])])
    assert rows_of(steps) == [(0, None), (1, None)]
    assert relation.reads == []


def test_a_relation_without_rows_matches_nothing() -> None:
    relation = relation_of([])
    for how in HOWS:
        assert rows_of(joined(MeshJoin(relation, spec_of(how), Budget("64k")), [stream_of([1, None])])) == expected(
            [1, None], [], how
        )


@pytest.mark.parametrize("how", HOWS)
def test_more_matches_than_a_step_puts_out_go_on_without_reading_or_expiring(how: How) -> None:
    keys, tuples = [1] * 100 + [2], [1] * 30 + [3]
    relation = relation_of(keys, rows_per_page=60)
    with pytest.raises(BudgetError) as error:
        MeshJoin(relation, spec_of(how), Budget(1), buffer_pages=1, tuples_per_step=40)
    join = MeshJoin(relation, spec_of(how), Budget(error.value.needed_bytes), buffer_pages=1, tuples_per_step=40)
    join.offer(stream_of(tuples))
    steps = [join.step()]
    join.offer(stream_of([1]))  # comes while the first page is still being joined: must meet both pages from now on
    steps += drained(join)
    counts = total(steps)
    assert relation.reads == [(0, 1), (1, 1), (0, 1)]
    assert len(steps) > 10
    assert (counts.matches, counts.matched, counts.absent_keys) == (31 * 100, 31, 1)
    assert max(step.output.num_rows for step in steps) <= 256
    assert len(rows_of(steps)) == {"inner": 3100, "left": 3101, "semi": 31, "anti": 1}[how]


@pytest.mark.parametrize("parameters", [{}, {"buffer_pages": 3}, {"tuples_per_step": 7}])
@pytest.mark.parametrize("resident", [False, True])
def test_the_budget_it_asks_for_is_enough_and_no_more(parameters: dict[str, int], resident: bool) -> None:
    relation = relation_of(RELATION * 9, rows_per_page=3)
    relation.resident = resident
    with pytest.raises(BudgetError, match="give memory=") as error:
        MeshJoin(relation, spec_of(), Budget("1k"), **parameters)
    needed = error.value.needed_bytes
    assert str(needed) in str(error.value)
    join = MeshJoin(relation, spec_of(), Budget(needed), **parameters)
    assert join.bytes_used <= needed
    assert rows_of(joined(join, [stream_of(STREAM)])) == expected(STREAM, RELATION * 9, "inner")
    with pytest.raises(BudgetError):
        MeshJoin(relation, spec_of(), Budget(needed - 1), **parameters)


def test_more_memory_takes_more_tuples_in_each_step() -> None:
    relation = relation_of(list(range(2000)), rows_per_page=10)
    joins = [MeshJoin(relation, spec_of(), Budget(memory)) for memory in ("32k", "128k", "1m", "16m")]
    served = [join.tuples_per_step / join.buffer_pages for join in joins]
    assert served == sorted(served)
    assert served[0] < served[-1]
    for join, memory in zip(joins, (32, 128, 1024, 16384), strict=True):
        assert 0.8 * memory * 1024 < join.bytes_used <= memory * 1024
        assert join.chunks == -(-relation.pages // join.buffer_pages)


def test_a_very_long_relation_is_planned_for_in_no_time() -> None:
    relation = relation_of([1])
    relation.pages, relation.page_bytes = 10_000_000, 65_536
    join = MeshJoin(relation, spec_of(), Budget("64m"))
    assert 1 < join.buffer_pages < 1024
    assert join.chunks * join.buffer_pages >= relation.pages


def test_parameters_are_checked() -> None:
    for parameters in ({"buffer_pages": 0}, {"tuples_per_step": -1}):
        with pytest.raises(ParameterError, match="must be at least 1"):
            MeshJoin(relation_of(RELATION), spec_of(), Budget("64k"), **parameters)


@pytest.mark.parametrize("seed", range(6))
def test_any_schedule_gives_the_same_rows(seed: int) -> None:
    random = np.random.default_rng(seed)
    keys, tuples = random.integers(0, 30, 70).tolist(), random.integers(0, 40, 200).tolist()
    how: How = HOWS[seed % 4]
    batches = cut_at_random(stream_of(tuples), random)
    b, w = (int(number) for number in random.integers(1, 9, 2))
    join = MeshJoin(relation_of(keys, 4), spec_of(how), Budget("64k"), buffer_pages=b, tuples_per_step=w)
    assert rows_of(joined(join, batches, steps_per_batch=int(random.integers(0, 3)))) == expected(tuples, keys, how)
