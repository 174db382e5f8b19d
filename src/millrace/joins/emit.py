"""From pairs of (window slot, relation row) to output rows, for every `how`. Shared by all joins."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.budget import format_bytes
from millrace.core.errors import BudgetError
from millrace.core.protocols import JoinSpec, PageRun, Relation
from millrace.core.step import Step, StepCounts
from millrace.structures.rows import all_fixed
from millrace.structures.window import Window, row_bytes

OUTPUT_ROWS = 65_536  # pairs put out at once: what bounds the memory of a step with a high fan-out
_PAIR_BYTES = 8 + 8 + 8  # slot, row, sequence
_NO_LIMIT = 1 << 62
LONG_ROW_SHARE = 32  # of the memory beyond the first megabyte, for a row longer than all that a step was to put out
LONG_ROWS_FROM = 1 << 20


@dataclass
class _Met:
    """Pairs that are still to be put out."""

    run: PageRun
    slots: Int64Array
    rows: Int64Array


@dataclass
class _Leaving:
    """Tuples that leave once the pairs before them are out."""

    slots: Int64Array
    null: bool


class Watcher(Protocol):
    """Is told what a join finds out, while the pages are at hand: a front stage that learns which keys come often."""

    def met(self, run: PageRun, slots: Int64Array, rows: Int64Array) -> None:
        """Tuple `slots[i]` met row `rows[i]` of the run. Keys are equal. The window does not call these tuples matched yet."""

    def left(self, slots: Int64Array) -> None:
        """These tuples have met all rows that could match."""


class Emitter:
    """Collects what one step puts out.

    Who calls what: `begin` first (null keys leave), then `pairs` for rows that met, `leave` for tuples that are done,
    and `finish` last. A tuple is put out by `pairs` (inner, left, and semi on its first match) or by `leave` (anti, and
    left when it met nothing), never by both.

    With `output_rows` given, a step puts out at most so many rows, and at most the bytes that were planned for them. `room`
    says how many pairs still fit. Rows may be longer than planned, which shows only when they are put together. Rows that do
    not fit wait here, with the tuples that leave after them. While the emitter is `behind`, a join must not read or match
    anything: its step is `go_on`. A tuple that leaves with a row of its own, and finds no room, stays pending and leaves in a
    later step.
    """

    def __init__(self, relation: Relation, spec: JoinSpec, window: Window, output_rows: int | None = None) -> None:
        spec.check_against(relation)
        self.schema = spec.output_schema(relation)
        self._relation = relation
        self._spec = spec
        self._window = window
        self._output_rows = output_rows if output_rows is not None else _NO_LIMIT
        self._limit_bytes = self._most_bytes = _NO_LIMIT  # of the rows of a step, and of the one row of a step
        if output_rows is not None and not all_fixed(self.schema):
            self._limit_bytes = output_rows * sum(_planned_bytes(relation, spec))
            self._most_bytes = self._limit_bytes + long_row_bytes(relation, spec, window.budget.memory_bytes)
        self.watcher: Watcher | None = None
        self._queue: deque[_Met | _Leaving] = deque()  # empty, unless the last step was full
        self._outputs: list[pa.RecordBatch] = []
        self._sequences: list[Int64Array] = []
        self._entered: list[Int64Array] = []
        self._left: list[Int64Array] = []
        self._put_rows = self._put_bytes = 0
        self._matches = self._removed = self._matched = self._alone = self._nulls = 0

    @property
    def room(self) -> int:
        """Rows that this step may still put out."""
        return 0 if self._full else max(0, self._output_rows - self._put_rows)

    @property
    def behind(self) -> bool:
        """Whether the next step must be `go_on`."""
        return bool(self._queue)

    @property
    def _full(self) -> bool:
        return bool(self._queue) or self._put_bytes >= self._limit_bytes

    def begin(self) -> None:
        """Tuples whose key can't match leave at once, and so do tuples that an earlier step had no room for."""
        window = self._window
        nulls, impossible = window.null_slots, window.impossible_slots
        window.null_slots = window.impossible_slots = np.zeros(0, np.int64)
        self._leave(nulls, null=True)
        self._leave(impossible, null=False)

    def go_on(self) -> Step:
        """A step that puts out what the last step had no room for."""
        waiting, self._queue = self._queue, deque()
        while waiting:
            first = waiting.popleft()
            if isinstance(first, _Leaving):
                self._leave(first.slots, null=first.null)
            else:
                self._put_pairs(first)
            if self._queue:
                self._queue.extend(waiting)
                break
        return self.finish(StepCounts())

    def pairs(self, run: PageRun, slots: Int64Array, rows: Int64Array, *, verified: bool = False) -> int:
        """Tuple `slots[i]` met row `rows[i]` of the run: the condition holds, or their codes are equal. Returns how many pairs
        are put together. Where only codes are equal, the real keys are compared first, unless that was done."""
        if len(slots) == 0:
            return 0
        if self._spec.condition is None and not self._relation.codec.exact and not verified:
            slots, rows = self._verified(run, slots, rows)
        if self.watcher is not None:
            self.watcher.met(run, slots, rows)
        self._matches += len(slots)
        if self._spec.how == "semi":
            self._put_pairs(_Met(run, *_firsts(slots[~self._window.matched[slots]])))
        elif self._spec.how != "anti":
            self._put_pairs(_Met(run, slots, rows))
        self._window.matched[slots] = True
        return len(slots)

    def leave(self, slots: Int64Array) -> None:
        """These tuples have met all rows that could match."""
        if self.watcher is not None:
            self.watcher.left(slots)
        if self._queue:
            self._queue.append(_Leaving(slots, null=False))
        else:
            self._leave(slots, null=False)

    def put_out_less(self, rows: int) -> None:
        """From now on a step puts out so many rows less: whoever holds the join puts them out beside it."""
        if self._output_rows != _NO_LIMIT:
            self._output_rows = max(1, min(self._output_rows, OUTPUT_ROWS - rows))

    def finish(self, counts: StepCounts) -> Step:
        """The step: the counts of the join itself, plus what was collected here."""
        window = self._window
        reason = "absent_keys" if self._spec.condition is None else "condition_false"
        counts += StepCounts(
            tuples_in=window.arrived, matches=self._matches, removed=self._removed, matched=self._matched,
            null_keys=self._nulls, deferred=window.given_back, **{reason: self._alone},
        )  # fmt: skip
        step = Step(counts, self._output(), _joined(self._sequences), _joined(self._entered), _joined(self._left))
        window.arrived = window.given_back = 0
        window.steps += 1
        self._outputs, self._sequences, self._entered, self._left = [], [], [], []
        self._put_rows = self._put_bytes = 0
        self._matches = self._removed = self._matched = self._alone = self._nulls = 0
        return step

    def _leave(self, slots: Int64Array, *, null: bool) -> None:
        if len(slots) == 0:
            return
        window = self._window
        met = window.matched[slots]
        lonely = slots[~met]
        if self._spec.how in ("left", "anti"):
            fits = min(self.room, self._fitting(lonely, self._limit_bytes - self._put_bytes))
            if len(lonely) > fits:
                lonely = self._put_off(lonely, fits, null=null)
                slots = np.concatenate((slots[met], lonely))
            self._put(lonely, None)
        self._removed += len(slots)
        self._matched += len(slots) - len(lonely)
        if null:
            self._nulls += len(lonely)
        else:
            self._alone += len(lonely)
        self._entered.append(window.entered[slots])
        self._left.append(window.sequence[slots])
        window.release(slots)

    def _put_off(self, slots: Int64Array, fits: int, *, null: bool) -> Int64Array:
        """Leave tuples that do not fit for the next `begin`, and return the others."""
        window = self._window
        if null:
            window.null_slots = np.concatenate((window.null_slots, slots[fits:]))
        else:
            window.impossible_slots = np.concatenate((window.impossible_slots, slots[fits:]))
        return slots[:fits]

    def _verified(self, run: PageRun, slots: Int64Array, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The pairs whose keys are equal."""
        window, done = self._window, 0
        assert window.rows is not None
        same: list[Int64Array] = []
        while done < len(slots):
            some = done + max(1, window.rows.fitting(slots[done:], self._limit_bytes))
            found = run.take(rows[done:some], self._relation.key, self._limit_bytes)
            waiting = window.rows.take(slots[done : done + found.num_rows])
            equal = self._relation.codec.equal([waiting.column(name) for name, _ in self._spec.on], found.columns)
            same.append(done + np.flatnonzero(equal))
            done += found.num_rows
        kept = _joined(same)
        return (slots, rows) if len(kept) == len(slots) else (slots[kept], rows[kept])

    def _put_pairs(self, met: _Met) -> None:
        """Put out as many pairs as there is room for; the others wait."""
        count = 0 if self._full else self._put_first(met)
        if count < len(met.slots):
            self._queue.append(_Met(met.run, met.slots[count:], met.rows[count:]))

    def _put_first(self, met: _Met) -> int:
        """Put out the first pairs that fit, at least one if the step has nothing else; returns how many."""
        columns = self._spec.columns
        if self._limit_bytes == _NO_LIMIT:
            self._put(met.slots, met.run.take(met.rows, columns) if columns else None)
            return len(met.slots)
        left = (self._limit_bytes - self._put_bytes) // 2  # for either side
        count = self._fitting(met.slots, left)
        if count == 0:
            return 0
        found = None
        if columns:
            found = met.run.take(met.rows[:count], columns, left)
            if found.nbytes > left and self._put_rows and found.num_rows == 1:
                return 0
            count = found.num_rows
        self._put(met.slots[:count], found)
        return count

    def _fitting(self, slots: Int64Array, limit_bytes: int) -> int:
        """How many of the first tuples fit into the bytes that are left; at least one if the step has nothing else."""
        if not len(slots) or not self._spec.carry or self._limit_bytes == _NO_LIMIT:
            return len(slots)
        assert self._window.rows is not None
        return max(self._window.rows.fitting(slots, limit_bytes), 0 if self._put_rows else 1)

    def _put(self, slots: Int64Array, found: pa.RecordBatch | None) -> None:
        if len(slots) == 0:
            return
        columns: list[pa.Array] = []
        if self._spec.carry:
            assert self._window.rows is not None
            waiting = self._window.rows.take(slots)
            columns = [waiting.column(name) for name in self._spec.carry]
        if found is not None:
            columns += found.columns
        elif self._spec.how == "left":
            columns += [pa.nulls(len(slots), field.type) for field in list(self.schema)[len(columns) :]]
        if columns:
            self._outputs.append(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        self._sequences.append(self._window.sequence[slots])
        self._put_rows += len(slots)
        if self._limit_bytes != _NO_LIMIT:
            self._put_bytes += self._outputs[-1].nbytes
            self._check_bytes()

    def _check_bytes(self) -> None:
        """A single row may be longer than the planned output of a step, but not longer than the memory for such rows."""
        if self._put_bytes > self._most_bytes:
            given, needed = self._window.budget.memory_bytes, LONG_ROWS_FROM + LONG_ROW_SHARE * self._put_bytes
            raise BudgetError(
                f"the memory budget of {format_bytes(given)} is too small for an output row of "
                f"{format_bytes(self._put_bytes)}; give memory={needed} or more, or fewer columns with columns=",
                needed,
            )

    def _output(self) -> pa.RecordBatch:
        if not self._outputs:
            return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in self.schema], schema=self.schema)
        return self._outputs[0] if len(self._outputs) == 1 else pa.concat_batches(self._outputs)


def _firsts(slots: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Each slot once, with any row: a semi join puts out no relation columns."""
    first = np.unique(slots)
    return first, np.zeros(len(first), np.int64)


def output_row_bytes(relation: Relation, spec: JoinSpec) -> int:
    """Bytes to plan for one output row while a step builds it: for a moment, parts and whole row exist side by side."""
    if spec.condition is not None:
        keys = tuple(theirs for _, theirs in spec.condition.on)
    else:
        keys = () if relation.codec.exact else relation.key
    compared = 2 * _relation_bytes(relation, keys)
    return _PAIR_BYTES + 2 * sum(_planned_bytes(relation, spec)) + compared


def long_row_bytes(relation: Relation, spec: JoinSpec, memory_bytes: int) -> int:
    """Bytes to plan for a row that is far longer than the mean: a part of the memory, and at least the longest row of the
    relation, if known. 0 if all rows have one length."""
    if all_fixed(spec.output_schema(relation)):
        return 0
    longest: int = getattr(relation, "longest_row_bytes", 0)
    return max(longest, (memory_bytes - LONG_ROWS_FROM) // LONG_ROW_SHARE)


def _planned_bytes(relation: Relation, spec: JoinSpec) -> tuple[int, int]:
    """Bytes of an output row, by side: stream and relation."""
    carried = row_bytes(pa.schema([spec.stream_schema.field(name) for name in spec.carry]))
    return carried, _relation_bytes(relation, spec.columns)


def _relation_bytes(relation: Relation, columns: tuple[str, ...]) -> int:
    """Bytes of these columns in a row; if widths vary, at least the mean row of the relation."""
    schema = pa.schema([relation.schema.field(name) for name in columns])
    planned = row_bytes(schema)
    return planned if all_fixed(schema) else max(planned, mean_row_bytes(relation))


def mean_row_bytes(relation: Relation) -> int:
    """Bytes of a row of the relation with all its columns, on average."""
    total: int = getattr(relation, "total_bytes", relation.page_bytes * relation.pages)
    return total // max(1, relation.rows)


def _joined(parts: list[Int64Array]) -> Int64Array:
    if not parts:
        return np.zeros(0, np.int64)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
