"""Rows in stream order, whatever the join."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.joins.examples import HOWS, cut, drained, expected, joined, relation_of, spec_of, stream_of

from millrace.catalog import ALGORITHMS, make_join
from millrace.core.budget import Budget
from millrace.core.drive import total
from millrace.core.errors import BudgetError
from millrace.core.protocols import How
from millrace.joins.stream_order import Ordered


@pytest.mark.parametrize("name", [row.name for row in ALGORITHMS])
@given(
    keys=st.lists(st.none() | st.integers(0, 9), max_size=40),
    relation=st.lists(st.integers(0, 9), max_size=20),
    how=st.sampled_from(HOWS),
    size=st.integers(1, 9),
    steps=st.none() | st.integers(0, 3),
)
def test_rows_come_in_stream_order_and_none_is_lost(
    name: str, keys: list[int | None], relation: list[int], how: How, size: int, steps: int | None
) -> None:
    relation = sorted(relation)
    join = Ordered(make_join(name, relation_of(relation), spec_of(how), Budget("64k")), held_bytes=1 << 20)
    done = joined(join, cut(stream_of(keys), size), steps)
    rows = [tuple(row.values()) for step in done for row in step.output.to_pylist()]
    numbers = [number for step in done for number in step.sequence.tolist()]
    assert numbers == sorted(numbers)
    assert [row[0] for row in rows] == numbers
    assert sorted(rows, key=str) == sorted(expected(keys, relation, how), key=str)
    assert total(done).tuples_in == total(done).removed == len(keys)


def test_rows_go_out_as_soon_as_nobody_before_them_is_inside() -> None:
    relation = relation_of([1, 2, 3, 4], rows_per_page=1)
    join = Ordered(make_join("hybridjoin", relation, spec_of(), Budget("64k"), buffer_pages=1), held_bytes=1 << 20)
    join.offer(stream_of([1, 2, 2, 1]))
    assert [step.sequence.tolist() for step in drained(join)] == [[0], [1, 2, 3]]


def test_nothing_more_is_taken_while_much_is_held() -> None:
    relation = relation_of([2] * 50 + [1], rows_per_page=1, indexed=False)
    join = Ordered(make_join("meshjoin", relation, spec_of(), Budget("64k"), buffer_pages=1), held_bytes=2000)
    assert join.offer(stream_of([1, 2])) == 2
    while join.bytes_used - join._join.bytes_used < 1100:
        join.step()
    assert join.offer(stream_of([2])) == 0
    drained(join)
    assert join.offer(stream_of([2])) == 1


def test_more_rows_than_may_be_held_is_an_error_that_says_what_is_needed() -> None:
    relation = relation_of([2] * 400 + [1], rows_per_page=10, indexed=False)
    join = Ordered(make_join("meshjoin", relation, spec_of(), Budget("64k"), buffer_pages=1), held_bytes=1000)
    join.offer(stream_of([1, 2]))
    with pytest.raises(BudgetError, match=r"rows that wait for their turn take .* give memory="):
        drained(join)
