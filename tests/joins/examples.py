"""Small relations and streams for the tests of single joins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.drive import drive
from millrace.core.ledger import Ledger
from millrace.core.protocols import How, JoinSpec, SemiStreamJoin
from millrace.core.step import Step
from millrace.relations.memory import MemoryRelation

HOWS: tuple[How, ...] = ("inner", "left", "semi", "anti")


def relation_of(keys: Sequence[int], rows_per_page: int = 2, *, indexed: bool = True) -> MemoryRelation:
    """Rows (id, row), where row counts from 0 in the given order."""
    rows = pa.table({"id": pa.array(keys, pa.int64()), "row": pa.array(range(len(keys)), pa.int64())})
    return MemoryRelation(rows, "id", rows_per_page, indexed=indexed)


def stream_of(keys: Sequence[int | None]) -> pa.RecordBatch:
    """Tuples (event, key), where event counts from 0."""
    return pa.record_batch({"event": pa.array(range(len(keys)), pa.int64()), "key": pa.array(keys, pa.int64())})


def spec_of(how: How = "inner") -> JoinSpec:
    columns = ("row",) if how in ("inner", "left") else ()
    return JoinSpec(stream_of([]).schema, (("key", "id"),), how, ("event",), columns)


def rows_of(steps: Iterable[Step]) -> list[tuple[Any, ...]]:
    """All rows put out, sorted; nulls first."""
    rows = [tuple(row.values()) for step in steps for row in step.output.to_pylist()]
    return sorted(rows, key=lambda row: tuple((value is not None, value) for value in row))


def expected(keys: Sequence[int | None], relation_keys: Sequence[int], how: How) -> list[tuple[Any, ...]]:
    """The same rows by nested loops."""
    return put_out([[row for row, other in enumerate(relation_keys) if key is not None and other == key] for key in keys], how)


def put_out(matches: Sequence[Sequence[int]], how: How) -> list[tuple[Any, ...]]:
    """What a join puts out for events 0, 1, ..., if these are the rows that each of them matches."""
    rows: list[tuple[Any, ...]] = []
    for event, found in enumerate(matches):
        if how == "inner" or (how == "left" and found):
            rows += [(event, row) for row in found]
        elif how == "left":
            rows.append((event, None))
        elif (how == "semi") == bool(found):
            rows.append((event,))
    return rows


def joined(join: SemiStreamJoin, batches: Iterable[pa.RecordBatch], steps_per_batch: int | None = 1) -> list[Step]:
    """Run to the end; the ledger is checked after every step."""
    return list(drive(join, batches, ledger=Ledger(), steps_per_batch=steps_per_batch))


def crowded_out(join: SemiStreamJoin, hot: Sequence[int | None], cold: int, steps: int) -> bool:
    """Whether a tuple with key `cold` is still inside after so many steps, while the keys `hot` come as fast as they can."""
    crowd = stream_of([*hot] * (1 + 1024 // len(hot)))
    at = came = 0

    def fill() -> None:
        nonlocal at, came
        while taken := join.offer(crowd.slice(at)):
            at, came = (at + taken) % len(hot), came + taken

    fill()
    while not join.offer(stream_of([cold])):
        join.step()
    number = came
    came += 1
    for _ in range(steps):
        fill()
        if number in join.step().left:
            return False
    return True


def drained(join: SemiStreamJoin) -> list[Step]:
    """Step until nothing waits."""
    steps = []
    while join.pending:
        steps.append(join.step())
    return steps


def cut(batch: pa.RecordBatch, size: int) -> list[pa.RecordBatch]:
    return [batch.slice(at, size) for at in range(0, batch.num_rows, size)]


def cut_at_random(batch: pa.RecordBatch, random: np.random.Generator) -> list[pa.RecordBatch]:
    """Batches of less than 20 rows, some of them empty."""
    batches, at = [], 0
    while at < batch.num_rows:
        batches.append(batch.slice(at, int(random.integers(0, 20))))
        at += batches[-1].num_rows
    return batches
