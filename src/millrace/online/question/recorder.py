"""Records of one side, made batch by batch: what changes while a side is read is here, what never does is in `Side`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.arrays import BoolArray, FloatArray, Int64Array
from millrace.core.compiled import kernel
from millrace.online.question.evaluate import doubles, evaluate, plain
from millrace.online.question.expressions import Expression
from millrace.online.question.sides import Grouping, NeedsRoom, Side, Word
from millrace.online.storage.inputs import Numbered


class Recorder:
    """Makes records of batches of one side, from first to last: numbers groups as they come, and puts rows into random order.

    `finite`: where the side says that it matters, a value that is not finite ends the run (`NeedsRoom`).
    """

    def __init__(self, side: Side, *, finite: bool = False) -> None:
        self.side = side
        self.grouping = Grouping(side.number, side.most_groups) if side.group_columns else None
        self._finite = finite and side.finite
        seed = side.shuffle
        self._random = None if seed is None else np.random.default_rng(seed).integers(0, 1 << 63, 1, np.uint64)

    @property
    def groups(self) -> Sequence[tuple[Any, ...]]:
        """The groups seen so far, in the order of their numbers; one, without columns, where there is no GROUP BY."""
        return [()] if self.grouping is None else self.grouping.keys

    def reusing(self, buffers: int) -> Callable[[pa.RecordBatch], Numbered]:
        """`numbered` for one batch after the other, of which the last so many are in use: memory is taken from those before."""
        ring = deque([np.zeros(0, np.int64)] * buffers)

        def numbered(batch: pa.RecordBatch) -> Numbered:
            words = batch.num_rows * self.side.width
            if len(ring[0]) < words:
                ring[0] = np.empty(words, np.int64)
            ring.rotate(-1)
            return self.numbered(batch, ring[-1])

        return numbered

    def numbered(self, batch: pa.RecordBatch, room: Int64Array | None = None) -> Numbered:
        """Records, in `room` if there is one, and which row of the batch each is; None: they are all of the rows."""
        rows = batch.num_rows
        encoded = self.side.codec.encode([plain(batch.column(name)) for name in self.side.key])
        codes, kept = encoded.codes, self._kept(batch, encoded.valid)
        if not kept.all():
            batch, codes = batch.filter(pa.array(kept)), codes[kept]
        words = self._encode(batch, codes, np.empty(len(codes) * self.side.width, np.int64) if room is None else room)
        places = None if len(words) == rows else np.flatnonzero(kept)
        return (words, places) if self._random is None else self._shuffled(words, rows)

    def _kept(self, batch: pa.RecordBatch, valid: BoolArray) -> BoolArray:
        for condition in self.side.filters:
            holds = evaluate(condition, lambda _, name: plain(batch.column(name)), batch.num_rows)
            valid = valid & pc.fill_null(holds, False).to_numpy(zero_copy_only=False)
        return valid

    def _encode(self, batch: pa.RecordBatch, codes: Int64Array, room: Int64Array) -> Int64Array:
        rows = len(codes)
        words: Int64Array = room[: rows * self.side.width].reshape(rows, self.side.width)
        if self.side.records.columns:
            words[:, : self.side.records.width] = self._records(batch)
        words[:, 0] = codes
        values: dict[str, pa.Array] = {}

        def value(expression: Expression) -> pa.Array:
            if expression.key not in values:
                values[expression.key] = evaluate(expression, lambda _, name: plain(batch.column(name)), rows)
            return values[expression.key]

        numbers = words.view(np.float64)
        for number, word in enumerate(self.side.words):
            found = _doubles(word, value, rows)
            if self._finite and word.expression is not None and not np.isfinite(found).all():
                raise NeedsRoom(self.side.number, odd=True)
            numbers[:, self.side.place(number)] = found
        if self.grouping is not None:
            words[:, self.side.width - 1] = self.grouping.codes([plain(batch.column(name)) for name in self.side.group_columns])
        return words

    def _records(self, batch: pa.RecordBatch) -> Int64Array:
        arrays = []
        for field in self.side.records.columns:
            column = plain(batch.column(field.name))
            column = column if column.type == field.type else column.cast(field.type)
            if pa.types.is_string(field.type) or pa.types.is_binary(field.type):
                longest = pc.max(pc.binary_length(column)).as_py() or 0
                if longest > self.side.records.text_bytes:
                    raise NeedsRoom(self.side.number, text_bytes=longest)
            arrays.append(column)
        wanted = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(self.side.records.columns))
        missing = [name for name in self.side.key if name not in wanted.schema.names]
        for name in missing:
            wanted = wanted.append_column(name, plain(batch.column(name)))
        return self.side.records.encode(wanted)

    def _shuffled(self, words: Int64Array, rows: int) -> Numbered:
        assert self._random is not None
        _shuffle(words, self._random)
        if len(words) == rows:
            return words, None
        places: Int64Array = np.empty(len(words), np.int64)
        _choose(rows, places, self._random)
        return words, places


@kernel
def _below(count: Any, state: Any) -> Any:
    """A random number below `count` (up to 2^32), by SplitMix64 (Steele, Lea, Flood 2014)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    word = state[0]
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    word ^= word >> np.uint64(31)
    return np.int64(((word >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))


@kernel
def _shuffle(words: Any, state: Any) -> None:
    """Rows into random order, in place (Fisher and Yates)."""
    width = words.shape[1]
    for i in range(len(words) - 1, 0, -1):
        j = _below(i + 1, state)
        for d in range(width):
            words[i, d], words[j, d] = words[j, d], words[i, d]


@kernel
def _choose(rows: Any, places: Any, state: Any) -> None:
    """Some of `rows` places, all choices alike, in order: each with the probability that is left to it."""
    chosen = 0
    for place in range(rows):
        if _below(rows - place, state) < len(places) - chosen:
            places[chosen] = place
            chosen += 1


def _doubles(word: Word, value: Any, rows: int) -> FloatArray:
    there = np.ones(rows, np.bool_)
    for need in word.needs:
        column = value(need)
        if column.null_count:
            there &= column.is_valid().to_numpy(zero_copy_only=False)
    if word.expression is None:
        return there.astype(np.float64)
    column = doubles(value(word.expression))
    numbers: FloatArray = (column.fill_null(0.0) if column.null_count else column).to_numpy(zero_copy_only=False)
    if word.shift:
        numbers = numbers - word.shift
    return numbers if there.all() else np.where(there, numbers, 0.0)
