"""How a budget is shared out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.joins.examples import joined, relation_of, spec_of, stream_of
from tests.relations.stored_tables import stored

import millrace as mr
from millrace.catalog import ALGORITHMS, Algorithm, check_memory, make_join
from millrace.checks.run import tightest
from millrace.core.budget import Budget
from millrace.core.conditions import Condition
from millrace.core.drive import total
from millrace.core.errors import BudgetError, SchemaError
from millrace.core.protocols import JoinSpec, Relation, SemiStreamJoin
from millrace.joins.emit import OUTPUT_ROWS
from millrace.joins.hybridjoin import HybridJoin
from millrace.joins.inlj import IndexNestedLoopJoin
from millrace.joins.meshjoin import MeshJoin
from millrace.joins.reading import has_index
from millrace.joins.sizing import MIN_OUTPUT_ROWS, Sizing, plan_window, reserve
from millrace.relations.memory import MemoryRelation
from millrace.structures.window import Window

RELATION = relation_of(list(range(1000)), rows_per_page=10)


def built_bytes(memory: int, sizing: Sizing) -> int:
    """What a join with these sizes would hold, checked against the budget by the budget itself."""
    budget = Budget(memory)
    reserve(RELATION, spec_of(), budget, sizing)
    Window(RELATION, spec_of(), budget, sizing.capacity)
    return budget.used_bytes


@pytest.mark.parametrize("memory", [32 << 10, 100_000, 1 << 20, 16 << 20])
@pytest.mark.parametrize("buffer_pages", [None, 1, 7])
def test_the_plan_fits_and_uses_the_budget(memory: int, buffer_pages: int | None) -> None:
    sizing = plan_window(RELATION, spec_of(), Budget(memory), extra_bytes_per_slot=0, buffer_pages=buffer_pages)
    assert 0.99 * memory < built_bytes(memory, sizing) <= memory
    assert buffer_pages in (None, sizing.buffer_pages)


def test_the_output_is_scaled_with_the_budget() -> None:
    rows = [
        plan_window(RELATION, spec_of(), Budget(memory), extra_bytes_per_slot=0).output_rows
        for memory in ("24k", "256k", "4m", "1g")
    ]
    assert rows == sorted(rows)
    assert rows[0] < 2 * MIN_OUTPUT_ROWS
    assert rows[-1] == OUTPUT_ROWS


def test_what_a_join_holds_beside_the_window_is_planned_for() -> None:
    plain = plan_window(RELATION, spec_of(), Budget("1m"), extra_bytes_per_slot=0)
    slots = plan_window(RELATION, spec_of(), Budget("1m"), extra_bytes_per_slot=100)
    fixed = plan_window(RELATION, spec_of(), Budget("1m"), extra_bytes_per_slot=0, fixed_bytes=200_000)
    assert slots.capacity < fixed.capacity < plain.capacity


def test_a_budget_in_use_leaves_less() -> None:
    budget = Budget("64k")
    budget.reserve("something else", 60_000)
    with pytest.raises(BudgetError, match="in use") as error:
        plan_window(RELATION, spec_of(), budget, extra_bytes_per_slot=0)
    more = Budget(error.value.needed_bytes)
    more.reserve("something else", 60_000)
    assert plan_window(RELATION, spec_of(), more, extra_bytes_per_slot=0).capacity == 1


def test_pages_used_in_place_cost_nothing() -> None:
    resident = relation_of(list(range(1000)), rows_per_page=10)
    resident.resident = True
    read = plan_window(RELATION, spec_of(), Budget("64k"), extra_bytes_per_slot=0, buffer_pages=50)
    used = plan_window(resident, spec_of(), Budget("64k"), extra_bytes_per_slot=0, buffer_pages=50)
    assert used.capacity > read.capacity


def test_long_values_make_the_output_of_a_step_shorter() -> None:
    stream = stream_of([])
    spec = JoinSpec(stream.schema, (("key", "id"),), "inner", ("event",), ("text",))
    planned = [
        plan_window(
            MemoryRelation(pa.table({"id": range(100), "text": ["x" * length] * 100}), "id"), spec, Budget("4m"),
            extra_bytes_per_slot=0, buffer_pages=1,
        )
        for length in (1, 2000)
    ]  # fmt: skip
    assert planned[1].output_rows < planned[0].output_rows / 10


def test_a_column_that_does_not_exist_is_named_before_anything_is_planned() -> None:
    spec = JoinSpec(stream_of([]).schema, (("key", "id"),), "inner", ("event",), ("prize",))
    with pytest.raises(SchemaError, match="'prize'"):
        plan_window(RELATION, spec, Budget("1m"), extra_bytes_per_slot=0)


@pytest.mark.parametrize("make", [IndexNestedLoopJoin, MeshJoin, HybridJoin, partial(MeshJoin, tuples_per_step=1)])
@pytest.mark.parametrize("length", [100, 5_000, 200_000])
def test_stream_rows_longer_than_planned_wait_one_by_one_or_say_what_they_need(
    make: Callable[..., SemiStreamJoin], length: int
) -> None:
    stream = pa.record_batch({"key": pa.array([1, 2, 1], pa.int64()), "text": ["x" * length] * 3})
    spec = JoinSpec(stream.schema, (("key", "id"),), "inner", ("text",), ("row",))
    with pytest.raises(BudgetError) as error:
        make(relation_of([1, 1, 3]), spec, Budget(1))
    memory = error.value.needed_bytes
    if length > 1_000:  # the plan has 32 bytes for a text
        with pytest.raises(BudgetError, match="too small for stream rows") as error:
            make(relation_of([1, 1, 3]), spec, Budget(memory)).offer(stream)
        memory = error.value.needed_bytes
    join = make(relation_of([1, 1, 3]), spec, Budget(2 * memory if length == 100 else memory))
    assert total(joined(join, [stream])).matches == 4
    assert join.bytes_used <= 2 * memory


CONDITIONS: list[Condition | None] = [
    None,
    mr.between("product", "id", "high"),
    mr.near("product", "id", 2, on=("other", "row")),
    mr.similar("text", "word", 0.8),
    mr.expr("stream.product < master.high"),
    mr.expr(pc.field("stream.product") < pc.field("master.high")),
]
TABLE = pa.table(
    {"id": range(400), "high": range(5, 405), "row": range(400), "word": [f"word {n}" * (n % 5) for n in range(400)]}
)
EVENTS = pa.schema([("product", pa.int64()), ("other", pa.int64()), ("text", pa.string())])
SERVED = [
    pytest.param(row, condition, id=f"{row.name}-{condition}")
    for row in ALGORITHMS
    for condition in CONDITIONS
    if (condition.kind if condition is not None else "equality") in row.conditions
]


def _relations(folder: Path) -> Iterator[Relation]:
    counts = pa.table({"id": TABLE["id"], "count": [1e6 / (1 + n) for n in range(400)]})
    yield MemoryRelation(TABLE, "id", 16)
    yield MemoryRelation(TABLE, "id", 16, indexed=False)
    yield stored(folder / "mapped", TABLE, mode="mmap")
    yield stored(folder / "buffered", TABLE, mode="buffered")
    yield stored(folder / "frequency", TABLE, mode="buffered", layout="frequency", counts=counts)


def _needed(call: Callable[[Budget], object], memory: int) -> int | None:
    """The memory that an error asks for; None without an error."""
    try:
        call(Budget(memory))
    except BudgetError as small:
        return small.needed_bytes
    return None


@pytest.mark.parametrize(("row", "condition"), SERVED)
def test_a_join_can_be_made_in_just_the_memory_that_its_sizes_fit_into(
    tmp_path: Path, row: Algorithm, condition: Condition | None
) -> None:
    """So a host may ask for sizes alone: the error that it gives beforehand is the one that would come."""
    on = (("product", "id"),) if condition is None else ()
    spec = JoinSpec(EVENTS, on, "left", ("product", "text"), ("high", "word"), condition)
    for relation in _relations(tmp_path):
        if row.needs_index and not has_index(relation):
            continue
        for parameters in ({}, row.parameters(window_tuples=50)):
            make, check = (partial(each, row.name, relation, spec, **parameters) for each in (make_join, check_memory))
            least = tightest(lambda r, s, budget, make=make: make(budget), relation, spec)
            for memory in (least // 2, least - 50, least - 1, least, least + 50, 2 * least, 10 * least):
                assert _needed(make, memory) == _needed(check, memory), (memory, least)
            budget = Budget(least)
            check(budget)
            assert budget.used_bytes == 0
