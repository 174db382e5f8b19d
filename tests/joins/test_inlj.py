"""Index nested loop join: what only it promises."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.joins.examples import HOWS, cut, expected, joined, relation_of, rows_of, spec_of, stream_of
from tests.relations.stored_tables import stored

from millrace.core.budget import Budget
from millrace.core.drive import total
from millrace.core.errors import BudgetError, ParameterError, StrategyError
from millrace.core.protocols import How, JoinSpec
from millrace.joins.inlj import IndexNestedLoopJoin
from millrace.relations.build import build_table
from millrace.relations.stored import StoredRelation

RELATION = [0, 2, 2, 2, 2, 2, 4, 6, 8, 8]
STREAM = [2, None, 8, 3, 2, 99, 6, -1]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("tuples_per_step", [1, 3, 100])
def test_it_joins_exactly(how: How, tuples_per_step: int) -> None:
    join = IndexNestedLoopJoin(relation_of(RELATION), spec_of(how), Budget("64k"), tuples_per_step=tuples_per_step)
    assert rows_of(joined(join, cut(stream_of(STREAM), 3))) == expected(STREAM, RELATION, how)
    assert join.pending == 0


def test_a_step_takes_one_tuple() -> None:
    join = IndexNestedLoopJoin(relation_of(RELATION), spec_of(), Budget("64k"))
    assert join.offer(stream_of([4, 6])) == 1
    assert join.offer(stream_of([4, 6])) == 0
    step = join.step()
    assert (step.counts.tuples_in, step.counts.index_reads, step.counts.pages_read, step.counts.removed) == (1, 0, 1, 1)


def test_nothing_is_shared_between_the_tuples_of_a_step() -> None:
    relation = relation_of(RELATION)
    join = IndexNestedLoopJoin(relation, spec_of(), Budget("64k"), tuples_per_step=8)
    counts = total(joined(join, [stream_of([4, 4, 4])]))
    assert relation.reads == [(3, 1)] * 3
    assert (counts.pages_read, counts.seeks, counts.probes) == (3, 3, 3)


def test_all_pages_of_a_key_are_read_one_after_the_other() -> None:
    relation = relation_of(RELATION)
    counts = total(joined(IndexNestedLoopJoin(relation, spec_of(), Budget("64k")), [stream_of([2])]))
    assert relation.reads == [(0, 1), (1, 1), (2, 1)]
    assert (counts.matches, counts.seeks) == (5, 1)


def test_a_key_between_two_pages_costs_no_read() -> None:
    relation = relation_of([0, 1, 5, 6])
    counts = total(joined(IndexNestedLoopJoin(relation, spec_of(), Budget("64k")), [stream_of([3, 99, -4])]))
    assert relation.reads == []
    assert counts.absent_keys == 3


def test_a_key_missing_inside_a_page_costs_one_read() -> None:
    relation = relation_of([0, 4, 5, 6])
    counts = total(joined(IndexNestedLoopJoin(relation, spec_of(), Budget("64k")), [stream_of([3])]))
    assert relation.reads == [(0, 1)]
    assert counts.absent_keys == 1


@pytest.mark.parametrize("how", HOWS)
def test_a_key_with_more_rows_than_a_step_puts_out_goes_on_without_reading_again(how: How) -> None:
    keys = [1] * 1000
    relation = relation_of(keys, rows_per_page=400)
    with pytest.raises(BudgetError) as error:
        IndexNestedLoopJoin(relation, spec_of(how), Budget(1), tuples_per_step=2)
    join = IndexNestedLoopJoin(relation, spec_of(how), Budget(error.value.needed_bytes), tuples_per_step=2)
    steps = joined(join, [stream_of([1, 1])])
    assert rows_of(steps) == expected([1, 1], keys, how)
    assert relation.reads == [(0, 1), (1, 1), (2, 1)] * 2
    if how in ("inner", "left"):
        assert max(step.output.num_rows for step in steps) == 256


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("tuples_per_step", [1, 3, None])
def test_pages_used_in_place_are_counted_as_if_each_were_read(tmp_path: Path, how: How, tuples_per_step: int | None) -> None:
    keys = [key for key in range(0, 400, 2) for _ in range(1 + 90 * (key % 50 == 0))]
    stream = [0, 0, None, 7, 100, 398, 398, 2, 50, -3, 999, 50, *range(300)]
    table = pa.table({"id": keys, "name": [f"{n}" * 9 for n in range(len(keys))]})
    version = build_table(tmp_path, table, "id", page_bytes=4096)
    counts, rows = [], []
    for mode in ("mmap", "buffered"):
        relation = StoredRelation(tmp_path, version, mode)  # type: ignore[arg-type]
        assert relation.resident == (mode == "mmap")
        assert relation.pages > 10
        columns = ("name",) if how in ("inner", "left") else ()
        spec = JoinSpec(stream_of([1]).schema, (("key", "id"),), how, ("key",), columns)
        steps = joined(
            IndexNestedLoopJoin(relation, spec, Budget("1m"), tuples_per_step=tuples_per_step), cut(stream_of(stream), 50)
        )
        counts.append(total(steps))
        rows.append(sorted(rows_of(steps), key=str))
    assert counts[0] == counts[1]
    assert rows[0] == rows[1]
    assert counts[0].matches == sum(keys.count(key) for key in stream if key is not None)


def test_without_a_pool_a_step_reads_for_several_tuples_and_each_read_is_its_own(tmp_path: Path) -> None:
    relation = stored(tmp_path, pa.table({"id": range(3000), "row": range(3000)}), mode="direct")
    join = IndexNestedLoopJoin(relation, spec_of(), Budget("256k"), tuples_per_step=None)
    tuples = [5, 5, 2999, 5, 2998, 1500, 5]
    steps = joined(join, [stream_of(tuples)])
    assert rows_of(steps) == expected(tuples, list(range(3000)), "inner")
    assert total(steps).pages_read == relation.take_io_counts()["disk_reads"] == len(tuples)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("tuples_per_step", [1, 3, 100])
@pytest.mark.parametrize("frames", [1, 2, 3, 50])
def test_with_a_pool_it_joins_exactly(how: How, tuples_per_step: int, frames: int) -> None:
    relation = relation_of(RELATION)
    pool_bytes = 4 * relation.pages + frames * (12 + relation.page_bytes)
    join = IndexNestedLoopJoin(relation, spec_of(how), Budget("64k"), tuples_per_step=tuples_per_step, pool_bytes=pool_bytes)
    assert join.pool_pages == min(frames, relation.pages)
    assert rows_of(joined(join, cut(stream_of(STREAM * 3), 5))) == expected(STREAM * 3, RELATION, how)
    assert join.pending == 0


def test_pages_in_the_pool_are_not_read_and_the_oldest_makes_room() -> None:
    relation = relation_of([0, 1, 2, 3, 4, 5, 6, 7])  # pages of two
    pool_bytes = 4 * relation.pages + 2 * (12 + relation.page_bytes)
    join = IndexNestedLoopJoin(relation, spec_of(), Budget("64k"), pool_bytes=pool_bytes)
    assert total(joined(join, [stream_of([0, 2, 1, 4, 0, 2])])).pages_read == 4
    assert relation.reads == [(0, 1), (1, 1), (2, 1), (1, 1)]


def test_neighbours_that_a_step_misses_come_in_one_read() -> None:
    relation = relation_of(list(range(20)))
    join = IndexNestedLoopJoin(relation, spec_of(), Budget("64k"), tuples_per_step=10, pool_bytes=8_000)
    counts = total(joined(join, [stream_of([7, 0, 8, 6, 9, 19, 0])]))
    assert relation.reads == [(0, 1), (3, 2), (9, 1)]
    assert (counts.pages_read, counts.seeks) == (4, 3)


def test_the_rest_of_the_budget_goes_to_the_pool_if_there_is_any() -> None:
    relation = relation_of(list(range(4000)))
    with pytest.raises(BudgetError) as error:
        IndexNestedLoopJoin(relation, spec_of(), Budget(1), tuples_per_step=4, pool_bytes="rest")
    needed = error.value.needed_bytes
    none = IndexNestedLoopJoin(relation, spec_of(), Budget(needed), tuples_per_step=4, pool_bytes="rest")
    some = IndexNestedLoopJoin(relation, spec_of(), Budget(needed + 60_000), tuples_per_step=4, pool_bytes="rest")
    assert none.pool_pages == 0
    assert 100 < some.pool_pages < relation.pages
    assert needed + 55_000 < some.bytes_used <= needed + 60_000


def test_the_budget_that_a_pool_asks_for_is_enough_and_no_more() -> None:
    relation = relation_of(list(range(400)))
    with pytest.raises(BudgetError) as error:
        IndexNestedLoopJoin(relation, spec_of(), Budget("1k"), tuples_per_step=50, pool_bytes=5_000)
    needed = error.value.needed_bytes
    join = IndexNestedLoopJoin(relation, spec_of(), Budget(needed), tuples_per_step=50, pool_bytes=5_000)
    assert join.bytes_used <= needed
    assert rows_of(joined(join, [stream_of(STREAM)])) == expected(STREAM, list(range(400)), "inner")
    with pytest.raises(BudgetError):
        IndexNestedLoopJoin(relation, spec_of(), Budget(needed - 1), tuples_per_step=50, pool_bytes=5_000)


@pytest.mark.parametrize("mode", ["direct", "buffered", "mmap"])
def test_a_stored_table_is_served_through_the_pool(tmp_path: Path, mode: str) -> None:
    keys = [key for key in range(0, 4000, 2) for _ in range(1 + 90 * (key % 500 == 0))]
    relation = stored(tmp_path, pa.table({"id": keys, "row": range(len(keys))}), mode=mode, shards=2)  # type: ignore[arg-type]
    join = IndexNestedLoopJoin(relation, spec_of(), Budget("200k"), tuples_per_step=None, pool_bytes=40_000)
    assert join.pool_pages == (0 if mode == "mmap" else 9)
    tuples = [(37 * n * n) % 4100 for n in range(800)]
    steps = joined(join, cut(stream_of(tuples), 100))
    assert rows_of(steps) == expected(tuples, keys, "inner")
    if mode != "mmap":
        assert total(steps).pages_read < len(tuples)
        assert total(steps).pages_read * 4096 == relation.take_io_counts()["disk_bytes"]


def test_the_budget_it_asks_for_is_enough_and_no_more() -> None:
    relation = relation_of(RELATION)
    with pytest.raises(BudgetError, match="give memory=") as error:
        IndexNestedLoopJoin(relation, spec_of(), Budget("1k"), tuples_per_step=50)
    needed = error.value.needed_bytes
    join = IndexNestedLoopJoin(relation, spec_of(), Budget(needed), tuples_per_step=50)
    assert join.bytes_used <= needed
    assert rows_of(joined(join, [stream_of(STREAM)])) == expected(STREAM, RELATION, "inner")
    with pytest.raises(BudgetError):
        IndexNestedLoopJoin(relation, spec_of(), Budget(needed - 1), tuples_per_step=50)


def test_parameters_are_checked() -> None:
    with pytest.raises(ParameterError, match="tuples_per_step must be at least 1; got 0"):
        IndexNestedLoopJoin(relation_of(RELATION), spec_of(), Budget("64k"), tuples_per_step=0)
    for pool_bytes in (1, -5):
        with pytest.raises(ParameterError, match=f"pool_bytes must be at least .* or 0 for no pool; got {pool_bytes}"):
            IndexNestedLoopJoin(relation_of(RELATION), spec_of(), Budget("64k"), pool_bytes=pool_bytes)
    with pytest.raises(StrategyError, match="needs an index"):
        IndexNestedLoopJoin(relation_of(RELATION, indexed=False), spec_of(), Budget("64k"))
