"""Giving tuples back: what is particular beside the law."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.catalog import make_join
from millrace.core.budget import Budget
from millrace.core.errors import ParameterError
from millrace.core.host import Host
from millrace.core.protocols import JoinSpec
from millrace.joins.hybridjoin import HybridJoin
from millrace.joins.meshjoin import MeshJoin
from millrace.joins.several import Several
from millrace.joins.stream_order import Ordered
from millrace.relations.memory import MemoryRelation
from millrace.structures.lists import Lists
from millrace.structures.numbers import slots_of

JOINS = ("inlj", "meshjoin", "rmeshjoin", "hybridjoin", "xhybridjoin", "sweepjoin")
SCHEMA = pa.schema([("event", pa.int64()), ("product", pa.int64())])


def _join(name: str, memory: int | str = "1m", *, returnable: bool = True, **parameters: Any) -> Any:
    relation = MemoryRelation(pa.table({"id": np.arange(100), "price": np.arange(100)}), "id", rows_per_page=10)
    spec = JoinSpec(SCHEMA, (("product", "id"),), "inner", ("event",), ("price",), returnable=returnable)
    return make_join(name, relation, spec, Budget(memory), **parameters)


def _batch(keys: list[int | None]) -> pa.RecordBatch:
    return pa.record_batch({"event": pa.array(range(len(keys)), pa.int64()), "product": pa.array(keys, pa.int64())})


@pytest.mark.parametrize("name", JOINS)
def test_rows_come_back_with_their_keys_and_leave_room(name: str) -> None:
    join = _join(name, **({"tuples_per_step": 4} if name == "inlj" else {}))
    assert join.offer(_batch([5, 50, 95])) == 3
    numbers, rows = join.withdraw(np.array([1, 77]))
    assert (numbers.tolist(), rows.to_pydict()) == ([1], {"event": [1], "product": [50]})
    assert join.pending == 2
    step = join.step()
    assert (step.counts.deferred, step.counts.tuples_in) == (1, 3)


@pytest.mark.parametrize("name", JOINS)
def test_a_join_that_keeps_no_keys_says_what_to_do(name: str) -> None:
    with pytest.raises(ParameterError, match="returnable=True"):
        _join(name, returnable=False).withdraw(np.array([0]))


@pytest.mark.parametrize("name", JOINS)
def test_null_keys_are_about_to_leave_and_stay(name: str) -> None:
    join = _join(name)
    join.offer(_batch([None]))
    assert len(join.withdraw(np.array([0])).numbers) == 0
    assert join.step().counts.null_keys == 1


@pytest.mark.parametrize("name", ["meshjoin", "rmeshjoin"])
def test_a_tuple_that_met_a_row_stays(name: str) -> None:
    join = _join(name, buffer_pages=1)
    join.offer(_batch([5, 95]))
    assert join.step().output["event"].to_pylist() == [0]
    assert join.withdraw(np.array([0, 1])).numbers.tolist() == [1]
    assert join.pending == 1


def test_partitions_that_nobody_waits_for_are_not_read() -> None:
    join = _join("hybridjoin", buffer_pages=1)
    join.offer(_batch([5, 55, 6, 95]))
    assert join.step().output["event"].to_pylist() == [0, 2]
    assert join.withdraw(np.array([1])).numbers.tolist() == [1]
    step = join.step()
    assert (step.output["event"].to_pylist(), step.counts.pages_read, join.pending) == ([3], 1, 0)


def test_a_holder_may_number_tuples_and_offer_them_again_with_their_numbers() -> None:
    join = _join("sweepjoin")
    join.offer_numbered(_batch([5, 6]), np.array([40, 41]), 7)
    back = join.withdraw(np.array([41]))
    assert join.offer_numbered(back.rows, back.numbers, 8) == 1
    assert sorted(join.step().sequence.tolist()) == [40, 41]


def test_the_host_hands_tuples_back_and_its_ledger_has_them_as_deferred() -> None:
    host = Host(_join("meshjoin"))
    host.offer(_batch([5, 6, 7]))
    assert len(host.withdraw(np.array([0, 2])).numbers) == 2
    host.step()
    assert (host.ledger.rows_in, host.ledger.matched, host.ledger.deferred) == (3, 1, 2)


def test_joins_in_stream_order_and_chains_refuse() -> None:
    for join in (Ordered(_join("hybridjoin"), 1000), Several([_join("hybridjoin")])):
        with pytest.raises(ParameterError, match="can't be given back"):
            join.withdraw(np.array([0]))


def test_the_queue_can_be_looked_up_at_another_place_than_its_end() -> None:
    join = _join("hybridjoin", buffer_pages=1)
    assert isinstance(join, HybridJoin)
    join.lookup_position = 1.0
    join.offer(_batch([5, 55, 95]))
    assert [join.step().output["event"].to_pylist() for _ in range(3)] == [[2], [1], [0]]


def test_chunks_that_are_empty_are_forgotten() -> None:
    join = _join("meshjoin", buffer_pages=1, tuples_per_step=2)
    assert isinstance(join, MeshJoin)
    for number in range(6):
        join.offer_numbered(_batch([99, 99]), np.array([2 * number, 2 * number + 1]), number)
        join.step()
    assert len(join.withdraw(np.arange(2, 11)).numbers) == 9
    assert [number for _ in range(10) for number in join.step().left.tolist()] == [0, 1, 11]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.sets(st.integers(0, 59)), st.integers(0, 2**32 - 1))
def test_lists_keep_their_order_when_slots_are_replaced(keys: list[int], gone: set[int], seed: int) -> None:
    lists = Lists("list", heads=4, capacity=200, budget=Budget("64k"))
    lists.add(np.array(keys), np.arange(len(keys)))
    random = np.random.default_rng(seed)
    stays, instead = np.ones(200, np.int32), np.full(200, -1, np.int32)
    for slot in gone:
        stays[slot], instead[slot] = 0, random.choice([-1, 100 + slot])
    wanted = {
        head: [now for slot in range(len(keys)) if keys[slot] == head
               for now in [slot if stays[slot] else int(instead[slot])] if now >= 0]
        for head in set(keys)
    }  # fmt: skip
    emptied = lists.replace(np.array(sorted(wanted)), stays, instead)
    assert emptied.tolist() == [head for head in sorted(wanted) if not wanted[head]]
    for head, slots in wanted.items():
        if slots:
            assert lists.oldest(head) == slots[0]
        assert sorted(lists.take(head, head).tolist()) == sorted(slots)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-1, 500), max_size=80, unique=True), st.lists(st.integers(-5, 600), max_size=80))
def test_slots_are_found_by_numbers(sequence: list[int], numbers: list[int]) -> None:
    found = slots_of(np.array(sequence, np.int64), np.array(numbers, np.int64))
    assert found.tolist() == [slot for slot, number in enumerate(sequence) if number >= 0 and number in numbers]
