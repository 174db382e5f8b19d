"""SWEEPJOIN: one direction, nothing unwanted, nothing twice."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from millrace.checks import InPlace
from millrace.core.budget import Budget
from millrace.core.drive import drive, total
from millrace.core.errors import BudgetError, DamagedTableError, ParameterError, StrategyError
from millrace.core.protocols import JoinSpec
from millrace.core.unitcosts import UnitCosts
from millrace.joins.sweepjoin import SweepJoin
from millrace.relations.build import build_table
from millrace.relations.memory import MemoryRelation
from millrace.relations.stored import StoredRelation

NO_GAPS = UnitCosts(seek=0.0)


def relation(rows: int = 100, rows_per_page: int = 1, repeat: int = 1) -> MemoryRelation:
    keys = np.repeat(np.arange(rows), repeat)
    return MemoryRelation(pa.record_batch({"id": keys, "v": np.arange(len(keys)) * 10}), "id", rows_per_page)


def stream(keys: list[int | None]) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(keys, pa.int64())})


def spec(how: str = "inner") -> JoinSpec:
    columns = ("v",) if how in ("inner", "left") else ()
    return JoinSpec(stream([]).schema, (("id", "id"),), how, ("id",), columns)  # type: ignore[arg-type]


def test_only_wanted_pages_are_read_and_each_once_however_many_wait_for_it() -> None:
    table = relation()
    join = SweepJoin(table, spec(), Budget("1m"), costs=NO_GAPS)
    steps = list(drive(join, [stream([70, 3, 70, 40, 3, 3])]))
    assert table.reads == [(3, 1), (40, 1), (70, 1)]
    assert total(steps).matches == 6


def test_a_gap_is_crossed_when_that_costs_less_than_a_seek() -> None:
    table = relation()
    gap = UnitCosts(seek=5 * table.page_bytes * 1e-9, read_byte=1e-9)  # as much as five pages
    list(drive(SweepJoin(table, spec(), Budget("1m"), costs=gap), [stream([10, 16, 23])]))
    assert table.reads == [(10, 7), (23, 1)]


def test_with_every_page_wanted_it_is_one_sequential_scan() -> None:
    table = relation()
    join = SweepJoin(table, spec(), Budget("4m"), buffer_pages=25, costs=NO_GAPS)
    counts = total(drive(join, [stream(list(range(100)))]))
    assert table.reads == [(0, 25), (25, 25), (50, 25), (75, 25)]
    assert counts.pages_read == 100


def test_the_head_goes_on_in_one_direction_and_comes_round() -> None:
    table = relation()
    join = SweepJoin(table, spec(), Budget("1m"), buffer_pages=1, costs=NO_GAPS)
    join.offer(stream([50, 60]))
    join.step()
    join.offer(stream([10, 55, 90]))
    while join.pending:
        join.step()
    assert [first for first, _ in table.reads] == [50, 55, 60, 90, 10]


def test_a_tuple_waits_one_sweep_at_most() -> None:
    table = relation(20)
    join = SweepJoin(table, spec(), Budget("1m"), buffer_pages=1, costs=NO_GAPS)
    rng = np.random.default_rng(0)
    batches = [stream(rng.integers(0, 20, 5).tolist()) for _ in range(200)]
    for number, step in enumerate(drive(join, batches)):
        assert (number - step.entered <= 20).all()


def test_rows_of_one_key_on_several_pages_are_all_joined_with_every_page_read_once() -> None:
    table = relation(10, rows_per_page=3, repeat=7)
    join = SweepJoin(table, spec(), Budget("1m"), buffer_pages=2, costs=NO_GAPS)
    steps = list(drive(join, [stream([4, 4, 9])]))
    assert sum(step.output.num_rows for step in steps) == 21
    pages = [page for first, count in table.reads for page in range(first, first + count)]
    assert len(pages) == len(set(pages))


def test_more_matches_than_a_step_may_put_out_come_in_several_steps_without_reading_again() -> None:
    table = relation(2, rows_per_page=1000, repeat=1000)
    join = SweepJoin(table, spec(), Budget("120k"), buffer_pages=1, costs=NO_GAPS)
    steps = list(drive(join, [stream([1] * 20)]))
    assert sum(step.output.num_rows for step in steps) == 20_000
    assert len(table.reads) == 1
    assert max(step.output.num_rows for step in steps) < 2_000


@pytest.mark.parametrize("how", ["left", "anti"])
def test_unmatched_rows_leave_in_bounded_steps_too(how: str) -> None:
    join = SweepJoin(relation(), spec(how), Budget("120k"))
    capacity = join.capacity
    steps = list(drive(join, [stream([None] * capacity), stream([1000] * capacity)]))
    assert sum(step.output.num_rows for step in steps) == 2 * capacity
    assert max(step.output.num_rows for step in steps) <= 1_000


def test_a_key_that_the_index_knows_to_be_absent_costs_no_read() -> None:
    table = relation()
    counts = total(drive(SweepJoin(table, spec(), Budget("1m")), [stream([-1, 100, 5000, None])]))
    assert table.reads == []
    assert (counts.absent_keys, counts.null_keys) == (3, 1)


def test_an_empty_relation_makes_every_key_absent() -> None:
    table = MemoryRelation(pa.record_batch({"id": pa.array([], pa.int64()), "v": pa.array([], pa.int64())}), "id")
    steps = list(drive(SweepJoin(table, spec("left"), Budget("1m")), [stream([1, None])]))
    assert [row for step in steps for row in step.output.to_pylist()] == [{"id": None, "v": None}, {"id": 1, "v": None}]


def test_a_budget_too_small_says_what_is_enough_and_that_is_enough() -> None:
    with pytest.raises(BudgetError) as refused:
        SweepJoin(relation(), spec(), Budget(100))
    needed = refused.value.needed_bytes
    join = SweepJoin(relation(), spec(), Budget(needed))
    assert total(drive(join, [stream([1, 2, 3] * 50)])).matches == 150
    with pytest.raises(BudgetError):
        SweepJoin(relation(), spec(), Budget(needed - 1))


def test_a_relation_without_an_index_is_refused() -> None:
    table = MemoryRelation(pa.record_batch({"id": [1], "v": [1]}), "id", indexed=False)
    with pytest.raises(StrategyError, match="needs an index"):
        SweepJoin(table, spec(), Budget("1m"))  # type: ignore[arg-type]


def test_parameters_below_one_are_refused() -> None:
    with pytest.raises(ParameterError, match="window_tuples"):
        SweepJoin(relation(), spec(), Budget("1m"), window_tuples=0)


def test_pages_used_in_place_give_the_same_rows_as_pages_read(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(1)
    table = pa.table({"id": np.repeat(np.arange(5_000), 3), "v": rng.integers(0, 1 << 40, 15_000)})
    version = build_table(tmp_path / "t", table, "id", page_bytes=4096, shards=3)
    keys = stream(rng.integers(-100, 6_000, 20_000).tolist())
    rows = []
    for mode in ("mmap", "direct", "buffered"):
        join = SweepJoin(StoredRelation(tmp_path / "t", version, mode), spec("left"), Budget("2m"))
        output = pa.Table.from_batches(step.output for step in drive(join, [keys]))
        rows.append(output.sort_by([("id", "ascending"), ("v", "ascending")]))
    assert rows[0].equals(rows[1])
    assert rows[0].equals(rows[2])
    expected = 3 * sum(0 <= key.as_py() < 5_000 for key in keys.column(0))
    assert len(rows[0]) - rows[0]["v"].null_count == expected


@pytest.mark.parametrize("mode", ["mmap", "direct", "buffered"])
def test_a_damaged_page_is_an_error_and_never_a_missing_row(tmp_path, mode) -> None:  # type: ignore[no-untyped-def]
    table = pa.table({"id": np.arange(5_000), "v": np.arange(5_000)})
    version = build_table(tmp_path / "t", table, "id", page_bytes=4096)
    shard = next((tmp_path / "t" / version.folder).glob("*.pages"))
    data = bytearray(shard.read_bytes())
    data[4096 * 3 + 1500] ^= 1
    shard.write_bytes(data)
    join = SweepJoin(StoredRelation(tmp_path / "t", version, mode), spec("left"), Budget("2m"))
    join.offer(stream(list(range(5_000))))
    with pytest.raises(DamagedTableError, match="page 3 of"):
        _drained(join)


def _drained(join: SweepJoin) -> None:
    while join.pending:
        assert join.step().counts.absent_keys == 0


@pytest.mark.parametrize("hot", [0, 40, 99])
def test_the_head_moves_on_from_a_page_for_which_tuples_come_as_fast_as_they_leave(hot: int) -> None:
    for table in (relation(), InPlace(pa.table({"id": range(100), "v": range(100)}), "id", 1)):
        join = SweepJoin(table, spec(), Budget("100k"), buffer_pages=1)
        crowd, left = stream([hot] * 4096), []
        came = join.offer(crowd)
        assert came > 600, "more than a step compares"
        left = join.step().left.tolist()
        assert join.offer(stream([70])) == 1
        cold, came = came, came + 1
        for _ in range(80):
            came += join.offer(crowd)
            left += join.step().left.tolist()
        assert cold in left


def test_pages_used_in_place_are_checked_also_for_tuples_that_come_between_steps() -> None:
    table = InPlace(pa.table({"id": range(100), "v": range(100)}), "id", 1)
    join = SweepJoin(table, spec(), Budget("100k"))
    left = 0
    assert join.offer(stream([0] * 4096)) > 600
    join.step()
    assert join.offer(stream([70, 80]))
    while join.pending:
        left += join.step().counts.matched
    assert {70, 80} <= table.touched
