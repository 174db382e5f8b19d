"""From pairs of (window slot, relation row) to output rows, for every `how`. Shared by all joins."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.core.protocols import JoinSpec, PageRun, Relation
from millrace.core.step import Int64Array, Step, StepCounts
from millrace.structures.window import Window

OUTPUT_ROWS = 65_536  # pairs put out at once: what bounds the memory of a step with a high fan-out


class Emitter:
    """Collects what one step puts out.

    Who calls what: `begin` first (null keys leave), then `pairs` for rows that met, `leave` for tuples that are done,
    and `finish` last. A tuple is put out by `pairs` (inner, left, and semi on its first match) or by `leave` (anti, and
    left when it met nothing), never by both.

    With `output_rows` given, a step puts out no more: `room` says how many pairs still fit, and tuples that would leave
    with a row of their own beyond it stay pending and leave in a later step.
    """

    def __init__(self, relation: Relation, spec: JoinSpec, window: Window, output_rows: int | None = None) -> None:
        spec.check_against(relation)
        self.schema = spec.output_schema(relation)
        self._relation = relation
        self._spec = spec
        self._window = window
        self._output_rows = output_rows if output_rows is not None else 1 << 62
        self._outputs: list[pa.RecordBatch] = []
        self._sequences: list[Int64Array] = []
        self._entered: list[Int64Array] = []
        self._left: list[Int64Array] = []
        self._matches = self._removed = self._matched = self._alone = self._nulls = 0

    @property
    def room(self) -> int:
        """Rows that this step may still put out."""
        return max(0, self._output_rows - sum(len(part) for part in self._sequences))

    def begin(self) -> None:
        """Tuples whose key can't match leave at once, as do those that an earlier step had no room for."""
        window = self._window
        nulls, impossible = window.null_slots, window.impossible_slots
        window.null_slots = window.impossible_slots = np.zeros(0, np.int64)
        self._leave(nulls, null=True)
        self._leave(impossible, null=False)

    def pairs(self, run: PageRun, slots: Int64Array, rows: Int64Array) -> int:
        """Tuple `slots[i]` met row `rows[i]` of the run: the condition holds, or their codes are equal. Returns how many pairs
        are put together: of the latter those whose keys are equal."""
        if len(slots) == 0:
            return 0
        if self._spec.condition is None and not self._relation.codec.exact:
            slots, rows = self._verified(run, slots, rows)
        self._matches += len(slots)
        if self._spec.how == "semi":
            first = np.unique(slots[~self._window.matched[slots]])
            self._put(first, None)
        elif self._spec.how != "anti":
            self._put(slots, run.take(rows, self._spec.columns) if self._spec.columns else None)
        self._window.matched[slots] = True
        return len(slots)

    def leave(self, slots: Int64Array) -> None:
        """These tuples have met all there is for them."""
        self._leave(slots, null=False)

    def finish(self, counts: StepCounts) -> Step:
        """The step: what the join itself counted, plus what was collected here."""
        window = self._window
        reason = "absent_keys" if self._spec.condition is None else "condition_false"
        counts += StepCounts(
            tuples_in=window.arrived, matches=self._matches, removed=self._removed, matched=self._matched,
            null_keys=self._nulls, **{reason: self._alone},
        )  # fmt: skip
        step = Step(counts, self._output(), _joined(self._sequences), _joined(self._entered), _joined(self._left))
        window.arrived = 0
        window.steps += 1
        self._outputs, self._sequences, self._entered, self._left = [], [], [], []
        self._matches = self._removed = self._matched = self._alone = self._nulls = 0
        return step

    def _leave(self, slots: Int64Array, *, null: bool) -> None:
        if len(slots) == 0:
            return
        window = self._window
        met = window.matched[slots]
        lonely = slots[~met]
        if self._spec.how in ("left", "anti"):
            if len(lonely) > self.room:
                lonely = self._put_off(lonely, null=null)
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

    def _put_off(self, slots: Int64Array, *, null: bool) -> Int64Array:
        """Leave those that do not fit for the next `begin`, and return the others."""
        window, room = self._window, self.room
        if null:
            window.null_slots = np.concatenate((window.null_slots, slots[room:]))
        else:
            window.impossible_slots = np.concatenate((window.impossible_slots, slots[room:]))
        return slots[:room]

    def _verified(self, run: PageRun, slots: Int64Array, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        assert self._window.rows is not None
        waiting = self._window.rows.take(slots)
        found = run.take(rows, self._relation.key)
        same = self._relation.codec.equal([waiting.column(name) for name, _ in self._spec.on], found.columns)
        return (slots, rows) if same.all() else (slots[same], rows[same])

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

    def _output(self) -> pa.RecordBatch:
        if not self._outputs:
            return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in self.schema], schema=self.schema)
        return self._outputs[0] if len(self._outputs) == 1 else pa.concat_batches(self._outputs)


def _joined(parts: list[Int64Array]) -> Int64Array:
    if not parts:
        return np.zeros(0, np.int64)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
