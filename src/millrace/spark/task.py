"""What runs inside a task: the join is offered the task's rows, stepped until it is empty, and its rows put out.

    keys_in   key batches -> [ group ] -> offer, step, step ... -> rows in page order -> structs in stream order
              key batches -> looked up at once, where pages lie in memory             -> structs in stream order
    rows_in   row batches -> offer, step, step ...              -> joined rows, in the order they are found,
                                                                   offered to the join with the next table

`keys_in` is the function of an iterator `arrow_udf`: the stream's own columns stay in the JVM. `rows_in` is that of a
`mapInArrow`, for conditions and for tables with so many rows to a key that matches can't be held back.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from millrace.catalog import make_join
from millrace.core.budget import Budget
from millrace.core.conditions import Between, Condition
from millrace.core.errors import SchemaError, TableError, TableVersionError
from millrace.core.ledger import Ledger
from millrace.core.protocols import How, JoinSpec, Relation
from millrace.core.step import Int64Array, Step
from millrace.joins.ordered import Ordered
from millrace.relations.inplace import SCRATCH_BYTES, InPlace
from millrace.relations.ranges import RangesInPlace, serves
from millrace.relations.stored import StoredRelation
from millrace.spark.counters import TaskCounters
from millrace.spark.planned import MAX_ARRAY_ROWS, PlannedTable
from millrace.spark.registry import unit_costs
from millrace.spark.sockets import acknowledge_quickly
from millrace.structures.window import row_bytes

EMIT_ROWS = 8_192
_COPIES = 2.5  # what a row of the output takes while it is put in stream order: both orders, and a slice under way
_REORDER_SHARE = 2  # half of the budget for that
_MAX_GROUP_ROWS = 1 << 20
_LEAST_IN_PLACE = 64  # rows: with fewer at a time, all the time goes into calls
_SMALL_ROWS = 128  # outputs shorter than this are merged, many at a time: each takes kilobytes beside its rows
_SMALL_OUTPUTS = 256
_RESIDENT_GROUP_ROWS = 1 << 16  # where a page costs no read, more rows at a time only miss the processor's caches
_SPARE_TEXT = 2  # room for texts is made before they are known
_IN_PLACE_ROWS = 1 << 14  # at most, of one batch, that are looked up at once

Shape = Literal["flag", "row", "array", "rows"]


@dataclass(frozen=True)
class EnrichTask:
    """All that a task needs to know; travels to the workers with the function.

    `shape` says what goes back to the JVM for a stream row: whether it matched (`flag`), its one match (`row`), an array of
    its few matches (`array`), or joined rows instead of it (`rows`).
    """

    table: PlannedTable
    stream_schema: pa.Schema  # keys only, except for `rows`
    on: tuple[tuple[str, str], ...]
    how: How
    columns: tuple[str, ...]
    shape: Shape
    memory_bytes: int
    strategy: str
    counters: TaskCounters | None = None  # where the counts of the task go; None: into the rows themselves
    ordered: bool = False  # rows come in stream order; all shapes but `rows` do anyway
    condition: Condition | None = None  # instead of `on`; `rows`, unless a row lies in one range at most

    def spec(self) -> JoinSpec:
        if self.shape == "rows":
            carried = tuple(self.stream_schema.names)
            return JoinSpec(self.stream_schema, self.on, self.how, carried, self.columns, self.condition)
        how: How = "semi" if self.shape == "flag" else "inner"
        return JoinSpec(self.stream_schema, self.on, how, (), self.columns, self.condition)

    @property
    def table_columns(self) -> tuple[str, ...]:
        """Columns that are put out or compared, beside the key."""
        compared = self.condition.table_columns(self.table.schema) if self.condition is not None else ()
        return tuple(dict.fromkeys((*self.columns, *compared)))

    @property
    def flagged(self) -> bool:
        """Whether a struct starts with whether the row matched: a left join needs no such column beside others."""
        return self.shape == "flag" or (self.shape == "row" and (self.how == "inner" or not self.columns))

    @property
    def shares(self) -> int:
        """Parts that the memory is cut into: one for the join, and one for rows that wait for their turn."""
        return 2 if self.ordered and self.shape == "rows" else 1

    def check(self, relation: Relation) -> None:
        """The version that this batch sees still is what the query was planned for."""
        for name in (*self.table_columns, *self.table.key):
            kind = self.table.schema.field(name).type
            if name not in relation.schema.names or relation.schema.field(name).type != kind:
                raise SchemaError(
                    f"the table's column {name!r} is not {kind} any more in the version of this batch; start the query again"
                )
        if self.condition is not None:
            if self.shape != "rows":
                self._check_ranges(relation, self.condition)
            return
        most = {"row": 1, "array": MAX_ARRAY_ROWS}.get(self.shape)
        version = getattr(relation, "version", None)
        if most is not None and version is not None and version.longest_run > most:
            raise TableVersionError(
                f"a key had at most {most} rows in the table when this query was planned and has {version.longest_run} in the "
                "version of this batch; start the query again"
            )

    def _check_ranges(self, relation: Relation, condition: Condition) -> None:
        if not relation.resident:
            raise TableError(
                "the table was mapped when this query was planned and can't be on this host; give read='mmap', or "
                "strategy='rmeshjoin' to scan it"
            )
        if not one_range_each(relation, condition, self.stream_schema.field(0).type):
            raise TableVersionError("ranges overlap in the version of this batch and did not before; start the query again")


@dataclass(frozen=True)
class OnePass:
    """Several tables looked up for the same rows, in one trip to Python: the function of an `arrow_udf`."""

    tasks: tuple[EnrichTask, ...]

    def keys_in(self, batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        """(key columns of each table ..., timestamp of the batch) in; one struct per row out, with the fields of each table
        in turn, named by their place, or a plain value if that is all."""
        group: list[tuple[pa.Array, ...]] = []
        rows = 0
        hosts: list[TaskHost] = []
        size = 0
        acknowledge_quickly()
        for columns in batches:
            if len(columns[0]) == 0:
                continue
            if not hosts:
                hosts = [TaskHost(task, columns[-1][0].value) for task in self.tasks]
                size = min(host.group_rows for host in hosts)
            if all(host.at_once for host in hosts):
                yield from self._structs(hosts, columns[:-1], size)
                continue
            group.append(columns[:-1])
            rows += len(columns[0])
            while rows >= size:
                head, group, rows = _cut(group, size)
                yield from self._structs(hosts, _whole(head), EMIT_ROWS)
        if rows:
            yield from self._structs(hosts, _whole(group), EMIT_ROWS)
        for host in hosts:
            host.close()
        acknowledge_quickly()

    def _structs(self, hosts: Sequence[TaskHost], columns: Sequence[pa.Array], size: int) -> Iterator[pa.Array]:
        """Structs of rows that are joined together, `size` of them at a time."""
        parts, at = [], 0
        for task, host in zip(self.tasks, hosts, strict=True):
            keys = columns[at : at + len(task.stream_schema)]
            parts.append(host.look_up(keys, size) if host.at_once else host.run(keys, size))
            at += len(keys)
        for pieces in zip(*parts, strict=True):
            arrays = [array for piece in pieces for array in piece]
            if len(arrays) == 1:
                yield arrays[0]
                continue
            yield pa.StructArray.from_arrays(arrays, [f"c{i}" for i in range(len(arrays))])


@dataclass(frozen=True)
class RowsPass:
    """Several tables joined one behind the other, in one trip of whole rows to Python: the function of a `mapInArrow`. Each
    task but the first takes the rows that the one before it puts out."""

    tasks: tuple[EnrichTask, ...]

    def rows_in(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """(stream columns ..., timestamp of the batch) in; (stream and table columns ...) out, and, if there are tasks without
        `counters`, (..., is a row, stats of each of those)."""
        hosts: list[TaskHost] = []
        acknowledge_quickly()
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if not hosts:
                hosts = [TaskHost(task, batch.column(batch.num_columns - 1)[0].value) for task in self.tasks]
            yield from self._through(hosts, batch.columns[:-1])
        for place, host in enumerate(hosts):
            for step in host.drain():
                yield from self._through(hosts, step.output.columns, place + 1)
        if hosts and self._noted:
            notes = [host.stats() for task, host in zip(self.tasks, hosts, strict=True) if task.counters is None]
            yield _stats_row(hosts[-1].output_schema, notes)
        for host in hosts:
            host.close()
        acknowledge_quickly()

    @property
    def _noted(self) -> int:
        """Tasks whose counts go with the rows."""
        return sum(task.counters is None for task in self.tasks)

    def _through(self, hosts: Sequence[TaskHost], columns: Sequence[pa.Array], place: int = 0) -> Iterator[pa.RecordBatch]:
        """Rows on their way through the joins from `place` on; what they put out meanwhile."""
        if place == len(hosts):
            yield from self._rows_out(columns)
            return
        rows = pa.RecordBatch.from_arrays(columns, schema=self.tasks[place].stream_schema)
        for step in hosts[place].feed(rows):
            if step.output.num_rows:
                yield from self._through(hosts, step.output.columns, place + 1)

    def _rows_out(self, columns: Sequence[pa.Array]) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(columns[0]), EMIT_ROWS):
            part = [column.slice(start, EMIT_ROWS) for column in columns]
            rows = len(part[0])
            counts = []
            if self._noted:
                counts = [pa.array(np.ones(rows, np.bool_)), *[pa.nulls(rows, pa.utf8())] * self._noted]
            yield _positional([*part, *counts])


class TaskHost:
    """One join in one task, with its ledger."""

    def __init__(self, task: EnrichTask, timestamp_us: int) -> None:
        self._task = task
        self._relation = task.table.open_in_task(timestamp_us, task.table_columns)
        task.check(self._relation)
        self._budget = Budget(task.memory_bytes // task.shares)
        self._spec = task.spec()
        self.group_rows = plan_group(self._relation, self._spec, self._budget, task)
        self._in_place = in_place(self._relation, task)
        self.at_once = self._in_place is not None
        self._reversed_ranges = partial(getattr, self._in_place, "reversed_ranges", 0)
        if not self.at_once:
            self._join = made = make_join(task.strategy, self._relation, self._spec, self._budget, **self._parameters())
            self._reversed_ranges = partial(getattr, made, "reversed_ranges", 0)
            if task.shares > 1:
                self._join = Ordered(made, task.memory_bytes // task.shares)
        self._ledger = Ledger()
        self._reported = Ledger().totals
        self._base = 0
        self._groups = 0

    @property
    def output_schema(self) -> pa.Schema:
        return self._spec.output_schema(self._relation)

    def feed(self, batch: pa.RecordBatch) -> Iterator[Step]:
        """Offer all of a batch, stepping whenever there is no room."""
        offered = self._join.offer(batch)
        while offered < batch.num_rows:
            yield self._step()
            offered += self._join.offer(batch.slice(offered))

    def drain(self) -> Iterator[Step]:
        """Step until nobody waits."""
        while self._join.pending:
            yield self._step()

    def look_up(self, keys: Sequence[pa.Array], size: int) -> Iterator[list[pa.Array]]:
        """Columns of keys whose rows lie in memory, `size` rows at a time; counts behind them if they go that way."""
        assert self._in_place is not None
        for start in range(0, len(keys[0]), size):
            self._groups += 1
            answer = self._in_place.look_up([column.slice(start, size) for column in keys])
            self._ledger.post(answer.counts, waiting=0)
            flag = [pa.array(answer.found)] if self._task.flagged else []
            yield [*flag, *answer.columns, *self._note(len(answer.found), last=True)]

    def run(self, keys: Sequence[pa.Array], size: int) -> Iterator[list[pa.Array]]:
        """Join a group, and give its columns in the order of the rows, `size` rows at a time; counts behind the last."""
        self._groups += 1
        batch = pa.RecordBatch.from_arrays(list(keys), schema=self._spec.stream_schema)
        sequence, output = _together(chain(self.feed(batch), self.drain()), self.output_schema)
        sequence -= self._base
        self._base += batch.num_rows
        columns = _ordered(self._task, batch.num_rows, sequence, output)
        for start in range(0, batch.num_rows, size):
            end = min(start + size, batch.num_rows)
            yield [*columns(start, end), *self._note(end - start, last=end == batch.num_rows)]

    def stats(self) -> str:
        """Counts since the last call, as JSON."""
        totals, before = self._ledger.totals.as_dict(), self._reported.as_dict()
        self._reported = self._ledger.totals
        counts: dict[str, Any] = {name: totals[name] - before[name] for name in totals}
        version = getattr(self._relation, "version", None)
        counts |= {
            "groups": max(1, self._groups),  # rows that are not put in order are one
            "waiting": self._ledger.waiting,
            "memory_bytes": self._budget.peak_bytes,
            "table_version": version.number if version is not None else 0,
            "strategy": self._task.strategy,
            "reversed_ranges": self._reversed_ranges(),
        }
        self._groups = 0
        take = getattr(self._relation, "take_io_counts", None)
        return json.dumps(counts | (take() if take is not None else {}))

    def close(self) -> None:
        if self._task.counters is not None:
            self._task.counters.send(self.stats())
        pa.default_memory_pool().release_unused()
        _settle()

    def _note(self, rows: int, *, last: bool) -> list[pa.Array]:
        """The column of counts, if they travel with the rows: in the last row of a group."""
        if self._task.counters is not None:
            return []
        note = [self.stats() if last else None]
        return [pa.concat_arrays([pa.nulls(rows - 1, pa.utf8()), pa.array(note, pa.utf8())])]

    def _parameters(self) -> dict[str, Any]:
        """What a join is told: no more slots than a group has rows, and what a seek costs on this disk."""
        if self._task.strategy == "inlj":
            return {"tuples_per_step": None, "pool_bytes": "rest"}
        if self._task.strategy not in ("sweepjoin", "xhybridjoin"):
            return {}
        windowed = self._task.strategy == "sweepjoin" and self._task.shape != "rows"
        parameters: dict[str, Any] = {"window_tuples": self.group_rows} if windowed else {}
        if isinstance(self._relation, StoredRelation) and not self._relation.resident:
            parameters["costs"] = unit_costs(self._relation)
        return parameters

    def _step(self) -> Step:
        step = self._join.step()
        self._ledger.post(step.counts, self._join.pending)
        return step


def _together(steps: Iterable[Step], schema: pa.Schema) -> tuple[Int64Array, pa.RecordBatch]:
    """What many steps put out, as one. Small outputs are merged on the way: a batch of one row takes a kilobyte."""
    sequences: list[Int64Array] = []
    outputs: list[pa.RecordBatch] = []
    small = 0  # outputs at the end that are still to be merged
    for step in steps:
        if not len(step.sequence):
            continue
        sequences.append(step.sequence)
        outputs.append(step.output)
        small = small + 1 if len(step.sequence) < _SMALL_ROWS else 0
        if small == _SMALL_OUTPUTS:
            outputs[-small:] = [pa.concat_batches(outputs[-small:])]
            sequences[-small:] = [np.concatenate(sequences[-small:])]
            small = 0
    if len(outputs) > 1:
        return np.concatenate(sequences), pa.concat_batches(outputs)
    return (sequences[0].copy(), outputs[0]) if outputs else (np.zeros(0, np.int64), _empty(schema))


def plan_group(relation: Relation, spec: JoinSpec, budget: Budget, task: EnrichTask) -> int:
    """Rows joined at a time, and the part of the budget that putting them in order takes; `rows` are not put in order."""
    if task.shape == "rows":
        return _MAX_GROUP_ROWS
    share = budget.memory_bytes // _REORDER_SHARE
    found = row_bytes(pa.schema([relation.schema.field(name) for name in spec.columns]))
    if spec.columns and relation.rows:
        found = max(found, relation.pages * relation.page_bytes // relation.rows)
    matches = (task.table.longest_run or 1) if task.shape == "array" else 1
    if in_place(relation, task) is not None:
        row = int(_SPARE_TEXT * found) + row_bytes(spec.stream_schema) + SCRATCH_BYTES
        least, most = _LEAST_IN_PLACE, _IN_PLACE_ROWS
    else:
        row = int(_COPIES * found * matches) + 2 * row_bytes(spec.stream_schema) + 40
        least, most = 1, _RESIDENT_GROUP_ROWS if relation.resident else _MAX_GROUP_ROWS
    rows = max(least, min(share // row, most))
    budget.reserve("rows being put in order", rows * row)
    return rows


def _whole(group: list[tuple[pa.Array, ...]]) -> list[pa.Array]:
    """The columns of a group of batches."""
    return [pa.concat_arrays(columns) if len(columns) > 1 else columns[0] for columns in zip(*group, strict=True)]


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


def one_range_each(relation: Relation, condition: Condition, value: pa.DataType) -> bool:
    """Whether every row of the stream lies in one range at most, which can be looked up."""
    if not isinstance(condition, Between) or not isinstance(relation, StoredRelation):
        return False
    return serves(relation, condition, value)


def in_place(relation: Relation, task: EnrichTask) -> InPlace | RangesInPlace | None:
    """How to look keys up without a join: where pages lie in memory, and one row of the table answers a key."""
    if isinstance(task.condition, Between) and task.shape != "rows" and isinstance(relation, StoredRelation):
        return RangesInPlace(relation, task.spec().columns, task.condition, task.stream_schema.field(0).type)
    if task.strategy != "sweepjoin" or not isinstance(relation, StoredRelation) or not relation.resident:
        return None
    if relation.disk_index is not None:
        return None  # a page is found by a search of the index, which a join does for many keys at once
    if task.shape == "row" or (task.shape == "flag" and (relation.codec.exact or relation.unique)):
        return InPlace(relation, task.spec().columns)
    return None


def _ordered(task: EnrichTask, rows: int, sequence: Int64Array, output: pa.RecordBatch) -> Callable[[int, int], list[pa.Array]]:
    """What gives the columns (flag, columns ...), or (array of matches), of rows from one to another, in stream order."""
    if task.shape == "array":
        order = np.argsort(sequence, kind="stable")
        starts = np.searchsorted(sequence[order], np.arange(rows + 1))
        return lambda start, end: [_lists(output, order, starts[start : end + 1])]
    flags = np.zeros(rows, np.bool_)
    flags[sequence] = True
    places = np.zeros(rows, np.int64)
    places[sequence] = np.arange(len(sequence))

    def columns(start: int, end: int) -> list[pa.Array]:
        flag = [pa.array(flags[start:end])] if task.flagged else []
        if not output.num_columns:
            return flag
        wanted = pa.array(places[start:end], mask=~flags[start:end])
        return [*flag, *output.take(wanted).columns]

    return columns


def _lists(output: pa.RecordBatch, order: Int64Array, starts: Int64Array) -> pa.Array:
    """One list of structs per row."""
    rows = output.take(pa.array(order[starts[0] : starts[-1]]))
    if rows.num_columns:
        structs = pa.StructArray.from_arrays(rows.columns, [f"c{i}" for i in range(rows.num_columns)])
    else:  # a struct of nothing, whose length only the matches tell
        structs = pa.Array.from_buffers(pa.struct([]), int(starts[-1] - starts[0]), [None])
    return pa.ListArray.from_arrays(pa.array(starts - starts[0], pa.int32()), structs)


def _stats_row(schema: pa.Schema, notes: Sequence[str]) -> pa.RecordBatch:
    """A row that is none: it carries the counts of the tasks and is dropped behind them."""
    return _positional([*(pa.nulls(1, f.type) for f in schema), pa.array([False]), *(pa.array([note]) for note in notes)])


def _positional(columns: list[pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(columns, [f"c{i}" for i in range(len(columns))])


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)


_settled = False


def _settle() -> None:
    """Once in a worker's life: spare its collector what has been loaded by now.

    Spark's workers collect garbage after every task, and going through compiled kernels and libraries, none of which is ever
    garbage, takes longer than many a task.
    """
    global _settled
    if not _settled:
        gc.collect()
        gc.freeze()
        _settled = True
