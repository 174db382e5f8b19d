"""The front stage of a cached join: keys that come often are answered from rows in memory, before the back stage sees them.

    stream --> [ hot rows: key -> all rows of the key ] --- hit ---> output
                       |            ^
                      miss          | rows of keys that came often
                       v            |
               [ back stage: any join ] --> output

The front stage learns from what the back stage finds. A row that several waiting tuples meet at once has a key that comes
often: the row is copied while its page is at hand. All rows of a key come in, or none: where keys repeat in the relation, the
rows that one tuple meets are collected until the tuple leaves, because then it has met all of them. A tuple that leaves without
a match shows that its key is absent, which is kept as well (where a code says all of a key).

`threshold` is how many tuples must wait for a key before its rows come in. With "auto" it falls while there is room, and rises
when keys leave soon after they came. When the relation grows, everything is forgotten, and only tuples that came later teach.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from millrace.core.arrays import FloatArray, Int32Array, Int64Array
from millrace.core.budget import Budget
from millrace.core.protocols import JoinSpec, PageRun, Relation
from millrace.core.step import Step, StepCounts
from millrace.joins.emit import Emitter, mean_row_bytes, output_row_bytes
from millrace.joins.front_learning import Learning
from millrace.joins.hot_rows import HotKeys, HotRows
from millrace.joins.recent_keys import RecentKeys
from millrace.structures.rows import all_fixed
from millrace.structures.window import Window, row_bytes

Threshold = int | float | Literal["auto"]

_LEAST_OUTPUT_ROWS = 64
_ENOUGH_BYTES = 1 << 30
_MOST_OUTPUT_ROWS = 16_384
_OUTPUT_SHARE = 8  # of the front stage's memory, for the rows of a step
_SCRATCH_BYTES = 64  # per tuple that is looked up: code, entry, flags, positions, pairs
_RECENT_SHARE = 16
_COLLECT_SHARE = 16
_MOST_THRESHOLD = 64
_MANY_LEFT, _FEW_LEFT = 0.3, 0.1  # of the keys, in a period
_CHECKS, _CHECKS_TO_FILL = 16, 256  # looks at the threshold in a period; more often while there is room


@dataclass(frozen=True)
class FrontSizing:
    """How the memory of a front stage is divided."""

    memory_bytes: int
    output_rows: int
    recent_bytes: int
    collect_bytes: int
    hot_bytes: int

    @property
    def rows_at_once(self) -> int:
        """Tuples that are looked up at a time."""
        return self.output_rows


def kept_schema(relation: Relation, spec: JoinSpec) -> pa.Schema:
    """What is kept of a relation row: the columns of the output, and the key where its code does not say all of it."""
    names = dict.fromkeys((*spec.columns, *(() if relation.codec.exact else relation.key)))
    return pa.schema([relation.schema.field(name) for name in names])


def divide_front(relation: Relation, spec: JoinSpec, memory_bytes: int, *, recent: bool) -> FrontSizing:
    """The parts of a front stage in so much memory."""
    each = _row_price(relation, spec)
    rows = min(max(_LEAST_OUTPUT_ROWS, memory_bytes // _OUTPUT_SHARE // each), _MOST_OUTPUT_ROWS)
    recent_bytes = memory_bytes // _RECENT_SHARE if recent else 0
    collect_bytes = max(relation.page_bytes, memory_bytes // _COLLECT_SHARE)
    hot_bytes = memory_bytes - rows * each - recent_bytes - collect_bytes
    return FrontSizing(memory_bytes, rows, recent_bytes, collect_bytes, hot_bytes)


def least_front_bytes(relation: Relation, spec: JoinSpec) -> int:
    """Memory of the smallest front stage: it can hold one page of rows."""
    least = _LEAST_OUTPUT_ROWS * _row_price(relation, spec) + relation.page_bytes + HotRows.least_bytes(relation.page_bytes)
    return least * _RECENT_SHARE // (_RECENT_SHARE - 1) + 1024


def most_front_bytes(relation: Relation, spec: JoinSpec) -> int:
    """Memory of a front stage that holds the whole relation, and as much again: more would never be used. A relation that grows
    gets the rest when the stages are made anew. Up to a gigabyte nothing is spared."""
    rows = HotRows.bytes_for(2 * relation.rows, _kept_row_bytes(relation, kept_schema(relation, spec)))
    return max(_ENOUGH_BYTES, least_front_bytes(relation, spec) + 2 * rows + _MOST_OUTPUT_ROWS * _row_price(relation, spec))


def kept_keys(relation: Relation, spec: JoinSpec, sizing: FrontSizing, rows_each: float = 1.0) -> int:
    """How many keys a front stage has room for, with so many rows each."""
    row_bytes = _kept_row_bytes(relation, kept_schema(relation, spec))
    return HotRows.keys_in(sizing.hot_bytes, int(row_bytes * max(1.0, rows_each)))


def _row_price(relation: Relation, spec: JoinSpec) -> int:
    """Bytes of a row of the output, with its slot and its look-up."""
    return output_row_bytes(relation, spec) + Window.bytes_per_tuple(relation, spec) + _SCRATCH_BYTES


class FrontStage:
    """Answers tuples whose key it has, and learns keys from the back stage (`learn_from`).

    `hot`: rows that another join of the same kind had in its front stage, if there was one.
    """

    def __init__(
        self, relation: Relation, spec: JoinSpec, sizing: FrontSizing, threshold: Threshold, hot: HotRows | None = None
    ) -> None:
        self._relation = relation
        self._spec = spec
        self._sizing = sizing
        self.budget = Budget(sizing.memory_bytes)
        schema = kept_schema(relation, spec)
        self.hot = hot or HotRows(schema, sizing.hot_bytes, _kept_row_bytes(relation, schema))
        self.budget.reserve("hot rows", self.hot.nbytes)
        self.budget.reserve("rows being collected", sizing.collect_bytes)
        self._window = Window(relation, spec, self.budget, sizing.output_rows)
        self._emitter = Emitter(relation, spec, self._window, sizing.output_rows)
        self.budget.reserve("output", min(self.budget.free_bytes, sizing.output_rows * output_row_bytes(relation, spec)))
        self.recent = RecentKeys(sizing.recent_bytes, self.hot.capacity) if sizing.recent_bytes else None
        if self.recent is not None:
            self.budget.reserve("recent keys", self.recent.nbytes)
        self._auto = threshold == "auto"
        self.threshold = self.hot.threshold if threshold == "auto" else max(1, int(np.ceil(threshold)))
        self._whole = spec.how in ("semi", "anti")  # one row says all of a key
        self._learning = Learning(self)
        # Bytes: a tuple without room here, and a tuple or row that would fill the output of a step, is left to the back stage.
        self._longest_row = self._window.row_bytes_at_most
        if not all_fixed(spec.output_schema(relation)):
            output = sizing.output_rows * row_bytes(spec.output_schema(relation)) // 8
            self._longest_row = min(output, self._longest_row)
            self.hot.longest_block = min(self.hot.longest_block, output)
        self.pending = 0
        self.now = 0  # the number of the next tuple
        self.since = 0  # only tuples from this number on teach: the relation has not changed since they came
        self._lookups = self._hits = 0  # since the last step
        self.looked_up = (0, 0)  # tuples ever, and those that were answered

    @property
    def output_rows(self) -> int:
        """Rows of a step, at most."""
        return self._sizing.output_rows

    @property
    def rows_at_once(self) -> int:
        return self._sizing.rows_at_once

    def learn_from(self, window: Window, emitter: Emitter) -> None:
        """Watch a back stage."""
        self._learning.window = window
        emitter.watcher = self._learning

    def stop_learning(self, emitter: Emitter) -> None:
        """Watch no more. What a tuple met so far is forgotten, because it may meet more meanwhile."""
        self._learning.collected.clear()
        emitter.watcher = None

    def retire(self) -> None:
        """This front stage is not used any more, but for its hot rows: nothing holds its other memory."""
        del self._learning, self._window, self._emitter

    @property
    def room(self) -> int:
        """Tuples that can still be answered before the next step."""
        return min(self._emitter.room, self._window.free_slots, max(0, self.output_rows - self.pending))

    def find(self, batch: pa.RecordBatch) -> tuple[Int32Array, Int64Array]:
        """For each tuple the entry that answers it, or -1; and its code."""
        encoded = self._window.encode(batch)
        entries = self.hot.find(encoded.codes)
        if not encoded.valid.all():
            entries[~encoded.valid] = -1
        if not all_fixed(self._window.rows.schema if self._window.rows is not None else pa.schema([])):
            assert self._window.rows is not None
            entries[self._window.rows.sizes(batch) > self._longest_row] = -1
        if not self._relation.codec.exact:
            self._check_keys(batch, entries)
        return entries, encoded.codes

    def _check_keys(self, batch: pa.RecordBatch, entries: Int32Array) -> None:
        """Where only codes are equal, an entry answers if the keys are."""
        places = np.flatnonzero(entries >= 0)
        if len(places) == 0:
            return
        tuples, records = self.hot.pairs(entries[places])
        firsts = records[np.flatnonzero(np.diff(tuples, prepend=-1))]  # each entry has a row: absent keys have exact codes
        found = self.hot.take(firsts, self._relation.key)
        mine = [batch.column(name).take(pa.array(places)) for name, _ in self._spec.on]
        entries[places[~self._relation.codec.equal(mine, found.columns)]] = -1

    @property
    def keeps_rows(self) -> bool:
        """Whether more is kept of a tuple than its code, until it is put out."""
        return self._window.rows is not None

    def answer(
        self, batch: pa.RecordBatch | None, codes: Int64Array, entries: Int32Array, numbers: Int64Array, step: int
    ) -> None:  # fmt: skip
        """Answer tuples with these codes by the entries that were found for them. `batch`: the tuples, if rows are kept."""
        self._window.given, self._window.steps = numbers, step
        if batch is None:
            slots = self._window.admit_codes(codes)
        else:
            _, slots = self._window.admit(batch, batch.num_rows)
        self._window.given = None
        assert len(slots) == len(codes), "a front stage took more tuples than it has room for"
        tuples, records = self.hot.pairs(entries)
        every = len(tuples) == len(slots) and self.hot.one_row
        self._emitter.pairs(_as_run(self.hot), slots if every else slots[tuples], records, verified=True)
        self._emitter.leave(slots)
        self.pending += len(slots)

    def note(self, tuples: int, hits: Int32Array, missed: Int64Array) -> None:
        """So many tuples were taken: these entries answered some of them, and these codes went to the back stage."""
        self.hot.note_hits(hits, tuples)
        self._lookups += tuples
        self._hits += len(hits)
        self.looked_up = (self.looked_up[0] + tuples, self.looked_up[1] + len(hits))
        if self.recent is not None:
            self.recent.add(missed)
        self.hot.unchecked += tuples
        often = _CHECKS_TO_FILL if not self.hot.full else _CHECKS
        if self._auto and self.hot.unchecked >= max(256, self.hot.period // often):
            self._adapt_threshold()

    def fits(self, entries: Int32Array, batch: pa.RecordBatch | None) -> int:
        """How many tuples, from the first on, can be answered before the next step; each has an entry."""
        most = min(len(entries), self.room)
        if batch is not None:
            most = min(most, self._window.row_room(batch))
        if self.one_row:
            return most
        upto = np.cumsum(np.maximum(self.hot.rows_of(entries[:most]), 1))
        fit = int(np.searchsorted(upto, self._emitter.room, "right"))
        return max(fit, 1) if most and not self.pending else fit

    def step(self, number: int) -> Step:
        """Put out what was answered."""
        self._window.steps = number
        counts = StepCounts(front_lookups=self._lookups, front_hits=self._hits)
        self._lookups = self._hits = 0
        if self._emitter.behind:
            step = self._emitter.go_on()
        else:
            self._emitter.begin()
            step = self._emitter.finish(StepCounts())
        self.pending -= step.counts.removed
        return Step(step.counts + counts, step.output, step.sequence, step.entered, step.left)

    @property
    def can_change(self) -> bool:
        """Whether keys may come and go: nothing that was found waits to be put out."""
        return not self._emitter.behind

    def forget(self, since: int) -> None:
        """The relation has changed: keys must be learned again, from tuples with this number or a higher one."""
        self.hot.clear()
        self.since = since
        self._learning.collected.clear()

    def _adapt_threshold(self) -> None:
        hot = self.hot
        share = hot.take_evictions() / max(1, hot.keys) * hot.period / hot.unchecked
        hot.unchecked = 0
        if not hot.full:
            self.threshold = max(1, self.threshold - 1)
        elif share > _MANY_LEFT:
            self.threshold = min(_MOST_THRESHOLD, self.threshold + 1)
        elif share < _FEW_LEFT:
            self.threshold = max(1, self.threshold - 1)
        hot.threshold = self.threshold

    # --- what is learned

    def scored(self, counts: Int64Array, span: int) -> FloatArray:
        """Hits in a period that keys will have which came so often among so many tuples."""
        return np.asarray(counts * (self.hot.period / max(span, 1)))

    def put(self, codes: Int64Array, scores: FloatArray, rows: Int64Array, batch: pa.RecordBatch | None) -> None:
        """Take in keys with their rows, the highest score first."""
        self.hot.put(HotKeys(codes, scores, rows), batch)

    @property
    def relation(self) -> Relation:
        return self._relation

    @property
    def one_row(self) -> bool:
        """Whether the first row that is found is all that is needed of a key."""
        return self._whole or bool(getattr(self._relation, "unique", False))

    @property
    def columns(self) -> list[str]:
        return list(self.hot.schema.names)

    @property
    def collect_bytes(self) -> int:
        return self._sizing.collect_bytes


def _kept_row_bytes(relation: Relation, schema: pa.Schema) -> int:
    """Bytes of a row that is kept, about."""
    fixed = row_bytes(pa.schema([field for field in schema if all_fixed(pa.schema([field]))])) + -(-len(schema) // 8)
    if all_fixed(schema):
        return fixed
    texts = [field for field in schema if not all_fixed(pa.schema([field]))]
    others = row_bytes(pa.schema([field for field in relation.schema if all_fixed(pa.schema([field]))]))
    return fixed + 4 * len(texts) + max(4 * len(texts), mean_row_bytes(relation) - others)


def _as_run(hot: HotRows) -> PageRun:
    """Rows in memory in the place of a run of pages: only `take` is used of it, with addresses for rows."""
    return hot  # type: ignore[return-value]
