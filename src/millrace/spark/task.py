"""What runs inside a task: the join is offered the task's rows, stepped until it is empty, and its rows put in order.

    key batches -> [ group ] -> offer, step, step ... -> rows in page order -> rows in stream order -> struct batches

Two hosts share it. `keys_in` gets key columns and gives one struct per row (iterator `arrow_udf`): the stream's own columns
stay in the JVM. `rows_in` gets whole rows and gives joined rows (`mapInArrow`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from millrace.catalog import make_join
from millrace.core.budget import Budget
from millrace.core.errors import SchemaError, TableVersionError
from millrace.core.ledger import Ledger
from millrace.core.protocols import How, JoinSpec, Relation, SemiStreamJoin
from millrace.core.step import Int64Array
from millrace.structures.window import row_bytes

EMIT_ROWS = 32_768
_COPIES = 2.5  # what a row of the output takes while it is put in stream order: both orders, and a slice under way
_REORDER_SHARE = 2  # half of the budget for that
_MAX_GROUP_ROWS = 1 << 20

Shape = Literal["flag", "row", "rows"]


@dataclass(frozen=True)
class EnrichTask:
    """All that a task needs to know; travels to the workers with the function."""

    open_table: Callable[[int], Relation]  # timestamp in microseconds -> relation
    on: tuple[tuple[str, str], ...]
    key_types: tuple[pa.DataType, ...]
    how: How
    columns: tuple[str, ...]
    column_types: tuple[pa.DataType, ...]
    shape: Shape
    memory_bytes: int
    strategy: str
    parameters: dict[str, Any] = field(default_factory=dict)

    def spec(self) -> JoinSpec:
        schema = pa.schema([pa.field(name, kind) for (name, _), kind in zip(self.on, self.key_types, strict=True)])
        how: How = "inner" if self.columns_out else "semi"
        return JoinSpec(schema, self.on, how, (), self.columns)

    @property
    def columns_out(self) -> bool:
        return self.shape != "flag"

    def check(self, relation: Relation) -> None:
        """The version that this batch sees still is what the query was planned for."""
        for name, kind in zip(self.columns, self.column_types, strict=True):
            if name not in relation.schema.names or relation.schema.field(name).type != kind:
                raise SchemaError(
                    f"the table's column {name!r} is not {kind} any more in the version of this batch; start the query again"
                )
        if self.shape == "row" and not getattr(relation, "unique", False):
            raise TableVersionError(
                "the table had unique keys when this query was planned and has duplicates in the version of this batch; "
                "start the query again"
            )

    def keys_in(self, batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        """The iterator `arrow_udf`: (key columns ..., timestamp of the batch) in, one struct per row out."""
        group: list[tuple[pa.Array, ...]] = []
        rows = 0
        host: GroupHost | None = None
        for columns in batches:
            if len(columns[0]) == 0:
                continue
            if host is None:
                host = GroupHost(self, columns[-1][0].value)
            group.append(columns[:-1])
            rows += len(columns[0])
            while rows >= host.group_rows:
                head, group, rows = _cut(group, host.group_rows)
                yield from host.run(head)
        if host is not None:
            if rows:
                yield from host.run(group)
            host.close()


class GroupHost:
    """Runs groups of rows through one join, in one task."""

    def __init__(self, task: EnrichTask, timestamp_us: int) -> None:
        self._task = task
        self._relation = task.open_table(timestamp_us)
        task.check(self._relation)
        self._budget = Budget(task.memory_bytes)
        self._spec = task.spec()
        self.group_rows = plan_group(self._relation, self._spec, self._budget, task.shape)
        parameters = dict(task.parameters)
        if task.strategy == "sweepjoin":
            parameters.setdefault("window_tuples", self.group_rows)
        self._join: SemiStreamJoin = make_join(task.strategy, self._relation, self._spec, self._budget, **parameters)
        self._ledger = Ledger()
        self._reported = Ledger().totals
        self._base = 0

    def run(self, group: list[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        """Join a group and give its structs in the order of the rows; the last one carries the counts of the group."""
        keys = [pa.concat_arrays([c[i] for c in group]) if len(group) > 1 else group[0][i] for i in range(len(group[0]))]
        batch = pa.RecordBatch.from_arrays(keys, schema=self._spec.stream_schema)
        rows = batch.num_rows
        sequence, output = self._drain(batch)
        sequence -= self._base
        self._base += rows
        yield from _ordered(self._task, rows, sequence, output, self._stats())

    def close(self) -> None:
        pa.default_memory_pool().release_unused()

    def _drain(self, batch: pa.RecordBatch) -> tuple[Int64Array, pa.RecordBatch]:
        """Matches of the whole group, in the order the join found them."""
        schema = self._spec.output_schema(self._relation)
        outputs = [pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)]
        sequences, offered = [np.zeros(0, np.int64)], 0
        while offered < batch.num_rows or self._join.pending:
            if offered < batch.num_rows:
                offered += self._join.offer(batch.slice(offered))
            step = self._join.step()
            self._ledger.post(step.counts, self._join.pending)
            if len(step.sequence):
                outputs.append(step.output)
                sequences.append(step.sequence)
        if len(outputs) == 2:
            return sequences[1], outputs[1]
        return np.concatenate(sequences), pa.concat_batches(outputs)

    def _stats(self) -> str:
        """Counts since the group before, as JSON."""
        totals, before = self._ledger.totals.as_dict(), self._reported.as_dict()
        self._reported = self._ledger.totals
        counts: dict[str, Any] = {name: totals[name] - before[name] for name in totals}
        version = getattr(self._relation, "version", None)
        counts |= {
            "waiting": self._ledger.waiting,
            "memory_bytes": self._budget.peak_bytes,
            "table_version": version.number if version is not None else 0,
            "strategy": self._task.strategy,
        }
        take = getattr(self._relation, "take_io_counts", None)
        if take is not None:
            counts |= take()
        return json.dumps(counts)


def plan_group(relation: Relation, spec: JoinSpec, budget: Budget, shape: Shape) -> int:
    """Rows joined at a time, and the part of the budget that putting them in order takes."""
    share = budget.memory_bytes // _REORDER_SHARE
    found = row_bytes(pa.schema([relation.schema.field(name) for name in spec.columns]))
    if spec.columns and relation.rows:
        found = max(found, relation.pages * relation.page_bytes // relation.rows)
    row = int(_COPIES * found) + 2 * row_bytes(spec.stream_schema) + 40
    rows = max(1, min(share // row, _MAX_GROUP_ROWS))
    budget.reserve("rows being put in order", min(share, rows * row))
    return rows


def _cut(group: list[tuple[pa.Array, ...]], rows: int) -> tuple[list[Any], list[Any], int]:
    """The first `rows` rows of the group, and the rest."""
    head, rest, left = [], [], 0
    for columns in group:
        size = len(columns[0])
        take = min(rows, size)
        if take:
            head.append(tuple(column.slice(0, take) for column in columns))
        if take < size:
            rest.append(tuple(column.slice(take) for column in columns))
            left += size - take
        rows -= take
    return head, rest, left


def _ordered(
    task: EnrichTask, rows: int, sequence: Int64Array, output: pa.RecordBatch, stats: str
) -> Iterator[pa.Array]:
    """Structs (found, columns ..., stats), or (rows, stats) where a key may have several rows, in stream order."""
    if task.shape == "rows":
        order = np.argsort(sequence, kind="stable")
        starts = np.searchsorted(sequence[order], np.arange(rows + 1))
        yield from _slices(rows, stats, lambda start, end: [_lists(output, order, starts[start : end + 1])])
        return
    found = np.zeros(rows, np.bool_)
    found[sequence] = True
    if task.shape == "flag":
        yield from _slices(rows, stats, lambda start, end: [pa.array(found[start:end])])
        return
    places = np.zeros(rows, np.int64)
    places[sequence] = np.arange(len(sequence))

    def columns(start: int, end: int) -> list[pa.Array]:
        wanted = pa.array(places[start:end], mask=~found[start:end])
        return [pa.array(found[start:end]), *output.take(wanted).columns]

    yield from _slices(rows, stats, columns)


def _lists(output: pa.RecordBatch, order: Int64Array, starts: Int64Array) -> pa.Array:
    """One list of structs per row."""
    rows = output.take(pa.array(order[starts[0] : starts[-1]]))
    fields = [pa.field(f.name, f.type) for f in output.schema]
    structs = pa.StructArray.from_arrays(rows.columns, fields=fields)
    return pa.ListArray.from_arrays(pa.array(starts - starts[0], pa.int32()), structs)


def _slices(rows: int, stats: str, columns: Callable[[int, int], Sequence[pa.Array]]) -> Iterator[pa.Array]:
    for start in range(0, rows, EMIT_ROWS):
        end = min(start + EMIT_ROWS, rows)
        arrays = list(columns(start, end))
        last = [stats] if end == rows else [None]
        notes = pa.concat_arrays([pa.nulls(end - start - 1, pa.utf8()), pa.array(last, pa.utf8())])
        names = [f"c{i}" for i in range(len(arrays))]
        yield pa.StructArray.from_arrays([*arrays, notes], [*names, "stats"])
