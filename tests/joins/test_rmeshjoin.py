"""R-MESHJOIN: what only it promises, and what changes while it runs."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.joins.examples import HOWS, cut, drained, expected, joined, relation_of, rows_of, spec_of, stream_of

from millrace.core.budget import Budget
from millrace.core.drive import total
from millrace.core.errors import BudgetError, ParameterError
from millrace.core.ledger import Ledger
from millrace.core.protocols import How
from millrace.core.step import Step
from millrace.core.unitcosts import UnitCosts
from millrace.joins.meshjoin import MeshJoin
from millrace.joins.rmeshjoin import RMeshJoin

RELATION = [8, 2, 2, 6, 0, 2, 4, 2, 8, 2]  # 5 pages of 2
STREAM = [2, None, 8, 3, 2, 99, 6, -1]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("buffer_pages", [1, 2, 5, 9, None])
def test_it_joins_exactly_and_needs_no_order(how: How, buffer_pages: int | None) -> None:
    join = RMeshJoin(relation_of(RELATION, indexed=False), spec_of(how), Budget("64k"), buffer_pages=buffer_pages)
    assert rows_of(joined(join, cut(stream_of(STREAM), 3))) == expected(STREAM, RELATION, how)
    assert join.pending == 0


def test_a_read_is_cut_where_a_chunk_leaves() -> None:
    relation = relation_of(RELATION)
    join = RMeshJoin(relation, spec_of(), Budget("64k"), buffer_pages=1)
    join.offer(stream_of([2]))
    join.step()
    join.offer(stream_of([2]))
    join.resize(buffer_pages=3)
    steps = drained(join)
    assert relation.reads == [(0, 1), (1, 3), (4, 1), (0, 1)]
    assert [step.counts.removed for step in steps] == [0, 1, 1]


def test_a_free_slot_is_filled_at_the_next_read() -> None:
    relation = relation_of(RELATION)
    needed = 3 * len(RELATION)
    join = RMeshJoin(relation, spec_of(), Budget("64k"), buffer_pages=1)
    mesh = MeshJoin(relation, spec_of(), Budget("64k"), buffer_pages=1)
    assert mesh.offer(stream_of([2] * needed)) <= mesh.tuples_per_step
    assert join.offer(stream_of([2] * needed)) == needed


def test_the_window_is_no_smaller_than_that_of_meshjoin() -> None:
    relation = relation_of(list(range(997)), rows_per_page=10)
    for memory in ("64k", "100k", "1m"):
        for buffer_pages in (1, 7, 40):
            mesh = MeshJoin(relation, spec_of(), Budget(memory), buffer_pages=buffer_pages)
            join = RMeshJoin(relation, spec_of(), Budget(memory), buffer_pages=buffer_pages)
            assert join.capacity >= mesh.capacity - 60  # its chunks take a few bytes more


def test_the_dearer_a_read_the_larger_the_buffer() -> None:
    relation = relation_of(list(range(5000)), rows_per_page=10)
    joins = [RMeshJoin(relation, spec_of(), Budget("200k"), costs=UnitCosts(request=each)) for each in (0.0, 1e-2)]
    pages = [join.buffer_pages for join in joins]
    assert pages == sorted(set(pages))
    assert joins[0].capacity > joins[1].capacity


def test_a_tuple_waits_one_pass_and_an_idle_join_reads_nothing() -> None:
    relation = relation_of(RELATION)
    join = RMeshJoin(relation, spec_of("left"), Budget("64k"), buffer_pages=2)
    join.offer(stream_of([99]))
    assert len(drained(join)) == 3
    for _ in range(3):
        assert not any(join.step().counts.as_dict().values())
    assert len(relation.reads) == 3


def test_when_there_are_more_chunks_than_places_tuples_wait_outside() -> None:
    relation = relation_of(list(range(200)), rows_per_page=1)
    join = RMeshJoin(relation, spec_of("left"), Budget("64k"), buffer_pages=100, tuples_per_step=1)
    join.resize(buffer_pages=1)
    steps: list[Step] = []
    keys = [number % 250 for number in range(500)]
    stream, taken, refused = stream_of(keys), 0, 0
    while taken < len(keys):
        got = join.offer(stream.slice(taken))
        taken, refused = taken + got, refused + (got == 0)
        steps.append(join.step())
    assert refused > 100
    steps += drained(join)
    assert rows_of(steps) == expected(keys, list(range(200)), "left")


def test_a_larger_buffer_must_fit_into_the_budget() -> None:
    relation, budget = relation_of(RELATION * 50), Budget("64k")
    join = RMeshJoin(relation, spec_of(), budget, buffer_pages=1)
    with pytest.raises(BudgetError, match="disk buffer needs"):
        join.resize(buffer_pages=10**6)
    assert join.buffer_pages == 1
    used, free = join.bytes_used, budget.free_bytes
    with pytest.raises(BudgetError, match="page codes needs"):  # the buffer alone would fit
        join.resize(buffer_pages=1 + free // relation.page_bytes)
    assert (join.buffer_pages, join.bytes_used) == (1, used)
    with pytest.raises(ParameterError, match="buffer_pages must be at least 1; got 0"):
        join.resize(buffer_pages=0)
    with pytest.raises(ParameterError, match="tuples_per_step must be at least 1; got 0"):
        RMeshJoin(relation, spec_of(), Budget("64k"), tuples_per_step=0)


@pytest.mark.parametrize("parameters", [{}, {"buffer_pages": 3}])
@pytest.mark.parametrize("resident", [False, True])
def test_the_budget_it_asks_for_is_enough_and_no_more(parameters: dict[str, int], resident: bool) -> None:
    relation = relation_of(RELATION * 9, rows_per_page=3)
    relation.resident = resident
    with pytest.raises(BudgetError, match="give memory=") as error:
        RMeshJoin(relation, spec_of(), Budget("1k"), **parameters)
    needed = error.value.needed_bytes
    join = RMeshJoin(relation, spec_of(), Budget(needed), **parameters)
    assert join.bytes_used <= needed
    assert rows_of(joined(join, [stream_of(STREAM)])) == expected(STREAM, RELATION * 9, "inner")
    with pytest.raises(BudgetError):
        RMeshJoin(relation, spec_of(), Budget(needed - 1), **parameters)


CHANGES = st.tuples(st.integers(0, 4), st.none() | st.integers(1, 9), st.none() | st.integers(1, 5), st.integers(0, 7))


@given(
    changes=st.lists(CHANGES, max_size=25),
    start=st.integers(1, 9),
    rows_per_page=st.integers(1, 4),
    keys=st.lists(st.integers(0, 6), max_size=30),
    how=st.sampled_from(HOWS),
)
def test_it_stays_exact_while_b_and_w_change_and_the_relation_grows(
    changes: list[tuple[int, int | None, int | None, int]], start: int, rows_per_page: int, keys: list[int], how: How
) -> None:
    """Each change: tuples offered, a new b, a new w, rows appended. Keys of appended rows are new, so that what a tuple must
    find is known: all rows that were there, and any number of those that came while it waited."""
    relation = relation_of(keys, rows_per_page, indexed=False)
    budget = Budget("64k")
    budget.reserve("for larger buffers", 8192)
    join = RMeshJoin(relation, spec_of(how), budget, buffer_pages=start)
    budget.release("for larger buffers")
    ledger, steps = Ledger(), []
    offered: list[tuple[int, int]] = []  # key, rows of R when it entered

    def step() -> None:
        one = join.step()
        ledger.post(one.counts, join.pending)
        steps.append(one)

    for number, (tuples, b, w, more) in enumerate(changes):
        if b is not None or w is not None:
            join.resize(buffer_pages=b, tuples_per_step=w)
        wanted = [(number + place) % 8 for place in range(tuples)]
        taken = join.offer(stream_of(wanted))
        offered += [(key, relation.rows) for key in wanted[:taken]]
        step()
        if more:
            ids, rows = pa.array([(number + place) % 8 for place in range(more)]), range(relation.rows, relation.rows + more)
            relation.append(pa.record_batch({"id": ids, "row": pa.array(rows, pa.int64())}))
    while join.pending:
        step()
    ledger_rows = sum(1 for _ in offered)
    assert ledger.rows_in == ledger_rows
    met: dict[int, list[int]] = {number: [] for number in range(len(offered))}
    for one in steps:
        for number, row in zip(one.sequence.tolist(), one.output.to_pylist(), strict=True):
            met[number].append(row.get("row"))
    ids = relation.codes.tolist()
    for number, (key, known) in enumerate(offered):
        must = {row for row in range(known) if ids[row] == key}
        may = {row for row, other in enumerate(ids) if other == key}
        if how in ("semi", "anti"):
            assert len(met[number]) <= 1
            found = bool(met[number]) == (how == "semi")
            assert bool(must) <= found <= bool(may)
        else:
            assert len(met[number]) == len(set(met[number]))
            if how == "left" and met[number] == [None]:
                met[number] = []
            assert must <= set(met[number]) <= may


def test_counts_are_those_of_meshjoin_when_nothing_changes() -> None:
    relation = relation_of(RELATION)
    stream = [stream_of([key]) for key in (2, 4, 6, 8, 0, 3, 3)]
    mesh = total(joined(MeshJoin(relation, spec_of(), Budget("64k"), buffer_pages=2, tuples_per_step=1), stream))
    ours = total(joined(RMeshJoin(relation, spec_of(), Budget("64k"), buffer_pages=2, tuples_per_step=1), stream))
    assert ours == mesh


def test_a_join_told_to_take_fewer_tuples_than_it_has_just_taken_takes_no_more_until_it_has_read() -> None:
    join = RMeshJoin(relation_of(RELATION), spec_of("left"), Budget("64k"), buffer_pages=1)
    assert join.offer(stream_of([1, 2, 3])) == 3
    join.resize(tuples_per_step=2)
    assert join.offer(stream_of([4])) == 0
    join.step()
    assert join.offer(stream_of([4, 5, 6])) == 2
