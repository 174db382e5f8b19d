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
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from millrace.catalog import make_join
from millrace.core.budget import Budget, format_bytes
from millrace.core.conditions import Between, Condition
from millrace.core.errors import BudgetError, SchemaError, TableError, TableVersionError
from millrace.core.ledger import Ledger
from millrace.core.protocols import How, JoinSpec, Relation
from millrace.core.rowbytes import fitting, sizes_of
from millrace.core.step import Int64Array, Step, StepCounts
from millrace.joins.emit import mean_row_bytes
from millrace.relations.inplace import SCRATCH_BYTES, InPlace
from millrace.relations.ranges import RangesInPlace, serves
from millrace.relations.stored import StoredRelation
from millrace.spark.counters import TaskCounters
from millrace.spark.planned import MAX_ARRAY_ROWS, PlannedTable
from millrace.spark.registry import unit_costs
from millrace.spark.sockets import acknowledge_quickly
from millrace.structures.window import row_bytes

EMIT_ROWS = 8_192
EMIT_BYTES = 8 << 20  # that go back at a time, but for a single row
_COPIES = 2.5  # what a row of the output takes while it is put in stream order: both orders, and a slice under way
_SPARE_ROWS = 1.2  # groups are planned so much smaller: rows differ, and a group that takes too much is joined again
_REORDER_SHARE = 2  # half of the budget for that
_KEY_SHARE = 16
_READ_COUNTS = ("pages_read", "bytes_read", "seeks", "index_reads", "probes")
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
    tables: int = 1  # that have as much memory, of what was given

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
    def in_order(self) -> bool:
        """Whether whole rows are put in the order of the stream."""
        return self.ordered and self.shape == "rows"

    @property
    def shares(self) -> int:
        """Parts that the memory is cut into: one for the join, and one for rows that wait for their turn."""
        return 2 if self.in_order else 1

    def in_all(self, small: BudgetError) -> BudgetError:
        """What a join says of its own part of the memory, said of all that was given."""
        parts = self.shares * self.tables
        if parts == 1:
            return small
        reason, needed = str(small).split("; give memory=")[0], small.needed_bytes * parts
        given = format_bytes(self.memory_bytes * self.tables)
        return BudgetError(f"{reason} (of {given}, a join has one part of {parts}); give memory={needed} or more", needed)

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
        rows = held_bytes = most_rows = most_bytes = 0
        hosts: list[TaskHost] = []
        acknowledge_quickly()
        for columns in batches:
            if len(columns[0]) == 0:
                continue
            if not hosts:
                hosts = [TaskHost(task, columns[-1][0].value) for task in self.tasks]
                most_rows = min((host.plan.rows for host in hosts if not host.at_once), default=0)
                most_bytes = min(host.plan.key_bytes for host in hosts)
            if rows and rows + len(columns[0]) > most_rows:
                yield from self._structs(hosts, _whole(group))
                group, rows, held_bytes = [], 0, 0
            group.append(columns[:-1])
            rows += len(columns[0])
            held_bytes += sum(column.nbytes for column in columns[:-1])
            if rows >= most_rows or held_bytes >= most_bytes:
                yield from self._structs(hosts, _whole(group))
                group, rows, held_bytes = [], 0, 0
        if rows:
            yield from self._structs(hosts, _whole(group))
        for host in hosts:
            host.close()
        acknowledge_quickly()

    def _structs(self, hosts: Sequence[TaskHost], columns: Sequence[pa.Array]) -> Iterator[pa.Array]:
        """Structs of rows, as many at a time as all tables have ready."""
        turns, at = [], 0
        for task, host in zip(self.tasks, hosts, strict=True):
            turns.append(_Turn(host, columns[at : at + len(task.stream_schema)]))
            at += len(task.stream_schema)
        left = len(columns[0])
        while left:
            rows = min(turn.ready() for turn in turns)
            arrays = [array for turn in turns for array in turn.take(rows)]
            left -= rows
            if len(arrays) == 1:
                yield arrays[0]
                continue
            yield pa.StructArray.from_arrays(arrays, [f"c{i}" for i in range(len(arrays))])


@dataclass(frozen=True)
class Joined:
    """Rows of a group that were joined: `columns(start, end)` gives what goes back for some of them, in stream order."""

    rows: int
    columns: Callable[[int, int], list[pa.Array]]
    sizes: Int64Array | None  # bytes of what goes back for each row; None where all of it is little


class _Turn:
    """A table's part in a group: what its host has joined, and how much of that went back."""

    def __init__(self, host: TaskHost, keys: Sequence[pa.Array]) -> None:
        self._host = host
        self._keys = keys
        self._next = 0  # keys that were joined
        self._joined: Joined | None = None
        self._at = 0

    def ready(self) -> int:
        """Rows that can go back next."""
        if self._joined is None or self._at == self._joined.rows:
            self._joined = None  # before the next
            self._joined = self._host.join([column.slice(self._next) for column in self._keys])
            self._next += self._joined.rows
            self._at = 0
        rows = min(self._joined.rows - self._at, self._host.emit_rows)
        if self._joined.sizes is not None:
            rows = max(1, min(rows, fitting(self._joined.sizes[self._at : self._at + rows], EMIT_BYTES)))
        return rows

    def take(self, rows: int) -> list[pa.Array]:
        assert self._joined is not None
        start, self._at = self._at, self._at + rows
        return [*self._joined.columns(start, self._at), *self._host.note(rows, last=self._at == self._joined.rows)]


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
            for output in host.drain():
                yield from self._through(hosts, output.columns, place + 1)
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
        for output in hosts[place].feed(rows):
            yield from self._through(hosts, output.columns, place + 1)

    def _rows_out(self, columns: Sequence[pa.Array]) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(columns[0]), EMIT_ROWS):
            part = [column.slice(start, EMIT_ROWS) for column in columns]
            rows = len(part[0])
            counts = []
            if self._noted:
                counts = [pa.array(np.ones(rows, np.bool_)), *[pa.nulls(rows, pa.utf8())] * self._noted]
            yield _positional([*part, *counts])


class TaskHost:
    """One join in one task, with its ledger.

    Rows that are put in order are held until those before them are done, so they are joined in groups. How long the rows of a
    group are shows only when they are found. If they take more than was set aside, the group is given up and joined again
    with fewer rows at a time; later groups may be larger again.
    """

    def __init__(self, task: EnrichTask, timestamp_us: int) -> None:
        self._task = task
        self._relation = task.table.open_in_task(timestamp_us, task.table_columns)
        task.check(self._relation)
        self._spec = task.spec()
        self._in_place = in_place(self._relation, task)
        self.at_once = self._in_place is not None
        self._ledger = Ledger()
        self._reported = Ledger().totals
        self._given_up = StepCounts()  # what was read for groups that were given up
        self._groups = 0
        self._peak_bytes = 0
        self._held: list[pa.RecordBatch] = []  # rows that wait to be joined in order
        self._begin()
        self._group_rows = self.plan.rows  # of the next group

    def _begin(self) -> None:
        """Make the join, with nothing in it."""
        task = self._task
        self._budget = Budget(task.memory_bytes // task.shares)
        self.plan = plan_group(self._relation, self._spec, self._budget, task)
        self._offered = 0  # rows that the join has taken
        self._reversed_ranges = partial(getattr, self._in_place, "reversed_ranges", 0)
        if not self.at_once:
            self._join = make_join(task.strategy, self._relation, self._spec, self._budget, **self._parameters())
            self._reversed_ranges = partial(getattr, self._join, "reversed_ranges", 0)

    @property
    def output_schema(self) -> pa.Schema:
        return self._spec.output_schema(self._relation)

    @property
    def emit_rows(self) -> int:
        """Rows that go back at a time."""
        return _IN_PLACE_ROWS if self.at_once else EMIT_ROWS

    def join(self, keys: Sequence[pa.Array]) -> Joined:
        """Join the first of these keys: as many as there is memory for, but one at least."""
        self._groups += 1
        return self._look_up(keys) if self.at_once else self._join_group(keys)

    def feed(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take all of a batch; what is put out meanwhile."""
        if not self._task.in_order:
            yield from self._outputs(self._offer(batch))
            return
        self._held.append(batch)
        rows, held_bytes = sum(part.num_rows for part in self._held), sum(part.nbytes for part in self._held)
        if rows >= self.plan.rows or held_bytes >= self.plan.key_bytes:
            yield from self._in_order()

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Step until nobody waits; what is put out."""
        if self._task.in_order:
            yield from self._in_order()
        else:
            yield from self._outputs(self._finish())

    def stats(self) -> str:
        """Counts since the last call, as JSON."""
        totals, before = self._ledger.totals.as_dict(), self._reported.as_dict()
        self._reported = self._ledger.totals
        counts: dict[str, Any] = {name: totals[name] - before[name] for name in totals}
        version = getattr(self._relation, "version", None)
        counts |= {
            "groups": max(1, self._groups),  # rows that are not put in order are one
            "waiting": self._ledger.waiting,
            "memory_bytes": max(self._peak_bytes, self._budget.peak_bytes),
            "table_version": version.number if version is not None else None,
            "strategy": self._task.strategy,
            "reversed_ranges": self._reversed_ranges(),
        }
        self._groups = 0
        take = getattr(self._relation, "take_io_counts", None)
        return json.dumps(counts | (take() if take is not None else {}))

    def note(self, rows: int, *, last: bool) -> list[pa.Array]:
        """The column of counts, if they travel with the rows: in the last row of a group."""
        if self._task.counters is not None:
            return []
        note = [self.stats() if last else None]
        return [pa.concat_arrays([pa.nulls(rows - 1, pa.utf8()), pa.array(note, pa.utf8())])]

    def close(self) -> None:
        if self._task.counters is not None:
            self._task.counters.send(self.stats())
        pa.default_memory_pool().release_unused()
        _settle()

    def _look_up(self, keys: Sequence[pa.Array]) -> Joined:
        """Rows that lie in memory."""
        assert self._in_place is not None
        size = min(self._group_rows, len(keys[0]))
        answer = self._in_place.look_up([column.slice(0, size) for column in keys], self.plan.limit_bytes)
        rows = len(answer.found)
        self._group_rows = self.plan.rows if rows == size else max(_LEAST_IN_PLACE, 4 * rows)
        self._ledger.post(answer.counts, waiting=0)
        found_bytes = sum(column.nbytes for column in answer.columns)
        self._take_bytes(_SPARE_TEXT * found_bytes, found_bytes)
        everything = [*([pa.array(answer.found)] if self._task.flagged else []), *answer.columns]
        sizes = sizes_of(answer.columns, rows) if found_bytes > EMIT_BYTES else None
        return Joined(rows, lambda start, end: [column.slice(start, end - start) for column in everything], sizes)

    def _join_group(self, keys: Sequence[pa.Array]) -> Joined:
        while True:
            first = [column.slice(0, self._group_rows) for column in keys]
            batch = pa.RecordBatch.from_arrays(first, schema=self._spec.stream_schema)
            gathered = self._gather(batch)
            if gathered is not None:
                return _in_stream_order(self._task, batch.num_rows, *gathered)

    def _in_order(self) -> Iterator[pa.RecordBatch]:
        """Join the rows that are held, and put out what is found in their order."""
        held, self._held = self._held, []
        rows = pa.concat_batches(held) if held else _empty(self._spec.stream_schema)
        while rows.num_rows:
            group = rows.slice(0, self._group_rows)
            if group.num_rows == 1:  # nothing to put in order, and so nothing to hold
                found_bytes = 0
                for output in self._outputs(chain(self._offer(group), self._finish())):
                    found_bytes += output.nbytes
                    yield output
                self._next_group(found_bytes)
            else:
                gathered = self._gather(group)
                if gathered is None:
                    continue
                sequence, output = gathered
                yield output.take(pa.array(np.argsort(sequence, kind="stable")))
            rows = rows.slice(group.num_rows)

    def _gather(self, batch: pa.RecordBatch) -> tuple[Int64Array, pa.RecordBatch] | None:
        """What all rows of a batch find: the number of the row for each row of the output. None if that takes too much: the
        next group is smaller."""
        first, counts = self._offered, self._given_up
        gathered = _Gathered(self.output_schema)
        for step in chain(self._offer(batch), self._finish()):
            counts += step.counts
            gathered.add(step)
            if gathered.bytes > self.plan.limit_bytes:
                self._give_up(batch.num_rows, gathered, counts)
                return None
        self._ledger.post(counts, self._join.pending)
        self._given_up = StepCounts()
        self._take_bytes(int(_COPIES * gathered.bytes), gathered.bytes)
        self._next_group(gathered.bytes)
        sequence, output = gathered.together()
        return sequence - first, output

    def _next_group(self, found_bytes: int) -> None:
        """Groups may be larger again, if one of twice the size would surely do."""
        if 4 * found_bytes < self.plan.limit_bytes:
            self._group_rows = min(self.plan.rows, 2 * self._group_rows)

    def _give_up(self, rows: int, gathered: _Gathered, counts: StepCounts) -> None:
        """Forget a group, and say how many rows the next may have."""
        if rows == 1:
            raise self._too_long(gathered.bytes)
        self._group_rows = max(1, rows // 16, min(rows // 2, counts.removed // 2))
        self._given_up = StepCounts(**{name: getattr(counts, name) for name in _READ_COUNTS})
        self._peak_bytes = max(self._peak_bytes, self._budget.peak_bytes)
        del self._join
        self._begin()

    def _take_bytes(self, wanted: int, found_bytes: int) -> None:
        """Rows that are put in order may take more than was planned, as far as the budget goes."""
        more = wanted - self.plan.reserved_bytes
        if found_bytes > self.plan.limit_bytes and more > self._budget.free_bytes:
            raise self._too_long(found_bytes)
        if more > 0:
            self._peak_bytes = max(self._peak_bytes, self._budget.used_bytes + more)

    def _too_long(self, found_bytes: int) -> BudgetError:
        """What one key finds does not fit."""
        given = self._task.memory_bytes * self._task.tables
        needed = given * found_bytes // max(1, self.plan.limit_bytes) + (1 << 20)
        return BudgetError(
            f"the memory budget of {format_bytes(given)} is too small for a key whose rows take {format_bytes(found_bytes)}; "
            f"give memory={needed} or more, or fewer columns with columns=",
            needed,
        )

    def _offer(self, batch: pa.RecordBatch) -> Iterator[Step]:
        """Offer all of a batch, stepping whenever there is no room."""
        self._offered += batch.num_rows
        offered = self._taken(batch)
        while offered < batch.num_rows:
            yield self._step()
            offered += self._taken(batch.slice(offered))

    def _finish(self) -> Iterator[Step]:
        while self._join.pending:
            yield self._step()

    def _taken(self, batch: pa.RecordBatch) -> int:
        try:
            return self._join.offer(batch)
        except BudgetError as small:
            raise self._task.in_all(small) from small

    def _step(self) -> Step:
        try:
            return self._join.step()
        except BudgetError as small:
            raise self._task.in_all(small) from small

    def _outputs(self, steps: Iterable[Step]) -> Iterator[pa.RecordBatch]:
        """What steps put out, each of them posted."""
        for step in steps:
            self._ledger.post(step.counts, self._join.pending)
            if step.output.num_rows:
                yield step.output

    def _parameters(self) -> dict[str, Any]:
        """What a join is told: no more slots than a group has rows, and what a seek costs on this disk."""
        if self._task.strategy == "inlj":
            return {"tuples_per_step": None, "pool_bytes": "rest"}
        if self._task.strategy not in ("sweepjoin", "xhybridjoin"):
            return {}
        windowed = self._task.strategy == "sweepjoin" and self._task.shape != "rows"
        parameters: dict[str, Any] = {"window_tuples": self.plan.rows} if windowed else {}
        if isinstance(self._relation, StoredRelation) and not self._relation.resident:
            parameters["costs"] = unit_costs(self._relation)
        return parameters


class _Gathered:
    """What many steps put out, on the way to one batch. Small outputs are merged: a batch of one row takes a kilobyte."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._sequences: list[Int64Array] = []
        self._outputs: list[pa.RecordBatch] = []
        self._small = 0  # outputs at the end that are still to be merged
        self.rows = self.bytes = 0

    def add(self, step: Step) -> None:
        if not len(step.sequence):
            return
        self._sequences.append(step.sequence)
        self._outputs.append(step.output)
        self.rows += len(step.sequence)
        self.bytes += step.output.nbytes
        self._small = self._small + 1 if len(step.sequence) < _SMALL_ROWS else 0
        if self._small == _SMALL_OUTPUTS:
            self._outputs[-self._small :] = [pa.concat_batches(self._outputs[-self._small :])]
            self._sequences[-self._small :] = [np.concatenate(self._sequences[-self._small :])]
            self._small = 0

    def together(self) -> tuple[Int64Array, pa.RecordBatch]:
        if len(self._outputs) > 1:
            return np.concatenate(self._sequences), pa.concat_batches(self._outputs)
        return (self._sequences[0], self._outputs[0]) if self._outputs else (np.zeros(0, np.int64), _empty(self._schema))


class GroupPlan(NamedTuple):
    """Rows joined at a time, and what they may take."""

    rows: int
    reserved_bytes: int  # of the budget, for rows that are put in order
    limit_bytes: int  # that rows of the table may take before they are put in order
    key_bytes: int  # that keys, or rows of the stream, may take while they are gathered


def plan_group(relation: Relation, spec: JoinSpec, budget: Budget, task: EnrichTask) -> GroupPlan:
    """Rows joined at a time, and the part of the budget that putting them in order takes. Whole rows that come in any order
    take nothing; those that are put in order have a part of the memory beside the budget of the join."""
    key_bytes = task.memory_bytes // _KEY_SHARE
    if task.shape == "rows":
        beside = task.memory_bytes - budget.memory_bytes
        return GroupPlan(_MAX_GROUP_ROWS, beside, int((beside - key_bytes) / _COPIES), key_bytes)
    share = budget.memory_bytes // _REORDER_SHARE
    found = row_bytes(pa.schema([relation.schema.field(name) for name in spec.columns]))
    if spec.columns:
        found = max(found, mean_row_bytes(relation))
    matches = (task.table.longest_run or 1) if task.shape == "array" else 1
    at_once = in_place(relation, task) is not None
    if at_once:
        row = int(_SPARE_TEXT * found) + row_bytes(spec.stream_schema) + SCRATCH_BYTES
        least, most, copies = _LEAST_IN_PLACE, _IN_PLACE_ROWS, float(_SPARE_TEXT)
    else:
        row = int(_SPARE_ROWS * _COPIES * found * matches) + 2 * row_bytes(spec.stream_schema) + 40
        least, most, copies = 1, _RESIDENT_GROUP_ROWS if relation.resident else _MAX_GROUP_ROWS, _COPIES
    rows = max(least, min(share // row, most))
    reserved = rows * row if at_once or not relation.resident else max(rows * row, share)
    budget.reserve("rows being put in order", reserved)
    limit = max(reserved, share) if at_once else reserved  # a join takes what is left, a look-up nothing
    return GroupPlan(rows, reserved, int(limit / copies), key_bytes)


def _whole(group: list[tuple[pa.Array, ...]]) -> list[pa.Array]:
    """The columns of a group of batches."""
    return [pa.concat_arrays(columns) if len(columns) > 1 else columns[0] for columns in zip(*group, strict=True)]


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


def _in_stream_order(task: EnrichTask, rows: int, sequence: Int64Array, output: pa.RecordBatch) -> Joined:
    """What goes back for the rows of a group: (flag, columns ...) or (array of matches)."""
    sizes = sizes_of(output.columns, output.num_rows) if output.nbytes > EMIT_BYTES else None
    if task.shape == "array":
        order = np.argsort(sequence, kind="stable")
        starts = np.searchsorted(sequence[order], np.arange(rows + 1))
        if sizes is not None:
            sizes = np.diff(np.concatenate(([0], np.cumsum(sizes[order])))[starts])
        return Joined(rows, lambda start, end: [_lists(output, order, starts[start : end + 1])], sizes)
    flags = np.zeros(rows, np.bool_)
    flags[sequence] = True
    places = np.zeros(rows, np.int64)
    places[sequence] = np.arange(len(sequence))
    if sizes is not None:
        sizes = np.where(flags, sizes[places], 0)

    def columns(start: int, end: int) -> list[pa.Array]:
        flag = [pa.array(flags[start:end])] if task.flagged else []
        if not output.num_columns:
            return flag
        wanted = pa.array(places[start:end], mask=~flags[start:end])
        return [*flag, *output.take(wanted).columns]

    return Joined(rows, columns, sizes)


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
