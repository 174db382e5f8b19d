"""What is found out before a join starts: once, and from then on only the room changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import FrozenInstanceError, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.core.errors import BudgetError
from millrace.online.question.query import Query, Question
from millrace.online.question.recorder import Recorder
from millrace.online.question.sides import NeedsRoom
from millrace.online.run import prepare as preparing
from millrace.online.run.attempt import Attempt
from millrace.online.run.memory import divide_all, too_small
from millrace.online.run.options import Options
from millrace.online.run.prepare import Prepared, prepare
from millrace.online.statistics.intervals import IntervalRule
from millrace.online.tables.sources import TableSource

ROWS = 20_000
CLOSE = 1.06


def _tables(late_groups: int = 1, hot: float = 0.0) -> tuple[pa.Table, pa.Table]:
    """`late_groups`: of which a sample shows one or few. `hot`: the share of rows with one key."""
    random = np.random.default_rng(7)
    group = np.zeros(ROWS, np.int64)
    group[random.permutation(ROWS)[:late_groups]] = np.arange(late_groups)
    keys = np.where(random.random(ROWS) < hot, 7, random.integers(0, ROWS, ROWS))
    left = pa.table({"k": random.permutation(ROWS), "x": random.gamma(2.0, size=ROWS), "g": group})
    return left, pa.table({"k": keys, "y": random.gamma(2.0, size=ROWS), "z": random.integers(0, 9, ROWS)})


def _prepared(
    tables: tuple[pa.Table, pa.Table], *, memory: int = 1 << 22, group_by: Any = None, where: Any = None, threads: int = 1
) -> Prepared:
    sources = (TableSource(tables[0]), TableSource(tables[1]))
    question = Question(sources, "k", {"s": mr.sum_("x * y")}, group_by, where)
    return prepare(question, sources, Options(memory, 3, IntervalRule(), "auto", 0.01, 0.0, threads, None, None))


@contextmanager
def _queries(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Query]]:
    """Those that are built meanwhile."""
    built: list[Query] = []

    class Counted(Query):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            built.append(self)

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "Query", Counted)
        yield built


def test_a_query_is_built_once_for_each_room(monkeypatch: pytest.MonkeyPatch) -> None:
    with _queries(monkeypatch) as built:
        mr.estimate(*_tables(hot=0.3), on="k", s=mr.sum_("x * y"), memory="4m").exact()
    assert len(built) == 1
    with _queries(monkeypatch) as built:
        mr.estimate(*_tables(late_groups=200), on="k", s=mr.sum_("x * y"), group_by="g", memory="1500k").exact()
    rooms = [query.room.groups[0] for query in built]
    assert len(rooms) >= 2
    assert rooms == sorted(set(rooms))


def test_what_is_prepared_does_not_change_when_a_join_runs() -> None:
    prepared = _prepared(_tables(hot=0.3), group_by="z")
    assert len(prepared.heavy_codes)
    with pytest.raises(FrozenInstanceError):
        prepared.room = None  # type: ignore[misc, assignment]
    before = [repr(side) for side in prepared.query.sides]
    answers = []
    for _ in range(2):  # the same object serves a second join
        attempt = Attempt(prepared)
        while not (progress := attempt.step()).done:
            pass
        answers.append(progress.pieces.answer())
        attempt.close()
    np.testing.assert_array_equal(*answers)
    assert [repr(side) for side in prepared.query.sides] == before


def test_more_room_leaves_all_else_as_it_was() -> None:
    prepared = _prepared(_tables(late_groups=50), group_by="g")
    more = prepared.with_more(NeedsRoom(0, groups=500), (prepared.room.groups[0], 1))
    assert more.room.groups[0] >= 1000
    assert prepared.room.groups[0] < 500
    for each in fields(Prepared):
        assert (getattr(more, each.name) is getattr(prepared, each.name)) == (each.name != "query")
    assert more.with_more(NeedsRoom(1, text_bytes=100), (1, 1)).room.text_bytes == 200
    odd = more.with_more(NeedsRoom(0, odd=True), (1, 1))
    assert odd.query.general
    assert not more.query.general


def test_two_recorders_of_a_side_number_groups_by_themselves() -> None:
    side = _prepared(_tables(), group_by="z").query.sides[1]
    one, other = Recorder(side), Recorder(side)
    batch = pa.record_batch({"k": [1, 2], "y": [1.0, 2.0], "z": [5, 6]})
    assert one.numbered(batch)[0][:, -1].tolist() == [0, 1]
    assert one.numbered(batch.take(pa.array([1, 0])))[0][:, -1].tolist() == [1, 0]
    assert other.numbered(batch.take(pa.array([1, 0])))[0][:, -1].tolist() == [0, 1]
    assert (one.groups, other.groups) == ([(5,), (6,)], [(6,), (5,)])


def test_only_the_recorders_of_a_join_refuse_values_that_are_not_finite() -> None:
    left, right = _tables()
    right = right.set_column(1, "y", pa.array([None, *right["y"].to_pylist()[1:]]))
    side = _prepared((left, right)).query.sides[0]
    batch = pa.record_batch({"k": [1], "x": [float("inf")]})
    assert len(Recorder(side).numbered(batch)[0]) == 1
    with pytest.raises(NeedsRoom, match="odd values: True"):
        Recorder(side, finite=True).numbered(batch)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("question", [{}, {"group_by": "z"}, {"where": "x < y"}], ids=["plain", "groups", "pairs"])
def test_a_run_takes_what_was_set_aside_name_by_name(question: dict[str, Any], threads: int) -> None:
    prepared = _prepared(_tables(hot=0.3), threads=threads, **question)
    attempt = Attempt(prepared)
    attempt.close()
    assert attempt.budget.holdings() == divide_all(prepared, prepared.options.memory_bytes).holdings()


@pytest.mark.parametrize("question", [{}, {"group_by": "z"}, {"where": "x < y"}], ids=["plain", "groups", "pairs"])
def test_the_memory_that_would_do_is_near_the_least(question: dict[str, Any]) -> None:
    tables = _tables(hot=0.3)
    with pytest.raises(BudgetError, match="too small for this estimate") as small:
        Attempt(_prepared(tables, memory=4000, **question))
    needed = small.value.needed_bytes
    assert too_small(_prepared(tables, memory=4000, **question)).needed_bytes == needed
    Attempt(_prepared(tables, memory=needed, **question)).close()
    with pytest.raises(BudgetError):
        Attempt(_prepared(tables, memory=int(needed / CLOSE), **question))
