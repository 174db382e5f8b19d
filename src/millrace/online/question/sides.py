"""One side of a query: how its rows become the records that joins hold, and which groups it has.

    word 0     ...                            ...                       last
    key code | columns for pairs (`Records`) | doubles (`Word`)       | group

Rows that a filter drops, or whose key is null, are read and counted, and go no further.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.arrays import Int64Array
from millrace.core.compiled import kernel
from millrace.core.errors import SchemaError
from millrace.core.keys import KeyCodec
from millrace.online.question.evaluate import doubles, evaluate, plain
from millrace.online.question.expressions import Expression
from millrace.online.question.records import Records
from millrace.online.storage.inputs import Numbered

_NAN = float("nan")  # one object, so that all NaN are one group


class NeedsRoom(Exception):
    """A run must start again with more room: more groups on a side, longer texts, or products of an infinity or NaN (`odd`)."""

    def __init__(self, side: int, *, groups: int = 0, text_bytes: int = 0, odd: bool = False) -> None:
        super().__init__(f"side {side}: {groups} groups, texts of {text_bytes} bytes, odd values: {odd}")
        self.side, self.groups, self.text_bytes, self.odd = side, groups, text_bytes, odd


@dataclass(frozen=True)
class Word:
    """A double of a record: an expression less `shift`, 0 where any of `needs` is null; or 1 where all are there."""

    expression: Expression | None
    needs: tuple[Expression, ...]
    shift: float = 0.0

    @property
    def key(self) -> tuple[str | None, tuple[str, ...], float]:
        return None if self.expression is None else self.expression.key, tuple(each.key for each in self.needs), self.shift


class Grouping:
    """Numbers of groups, given as they come. NULL is a group, as in SQL, and so is NaN."""

    def __init__(self, side: int, columns: Sequence[str], most: int) -> None:
        self.side, self.columns, self.most = side, tuple(columns), most
        self.keys: list[tuple[Any, ...]] = []
        self._numbers: dict[tuple[Any, ...], int] = {}

    def codes(self, columns: Sequence[pa.Array]) -> Int64Array:
        """The group of each row."""
        rows = len(columns[0])
        combined = np.zeros(rows, np.int64)
        values: list[list[Any]] = []
        for column in columns:
            encoded = column.dictionary_encode(null_encoding="encode")
            found = [_NAN if isinstance(value, float) and value != value else value for value in encoded.dictionary.to_pylist()]
            values.append(found)
            combined = combined * max(1, len(found)) + encoded.indices.to_numpy(zero_copy_only=False)
        if math.prod(len(found) for found in values) <= max(1 << 16, 4 * rows):
            there = np.flatnonzero(np.bincount(combined))
            place = combined
            numbers = np.zeros(int(there[-1]) + 1 if rows else 0, np.int64)
            numbers[there] = [self._number(int(code), values) for code in there]
        else:
            there, place = np.unique(combined, return_inverse=True)
            numbers = np.array([self._number(int(code), values) for code in there], np.int64)
        if len(self.keys) > self.most:
            raise NeedsRoom(self.side, groups=len(self.keys))
        return numbers[place]

    def _number(self, code: int, values: list[list[Any]]) -> int:
        parts: list[Any] = []
        for found in values[::-1]:
            code, index = divmod(code, max(1, len(found)))
            parts.append(found[index])
        key = tuple(parts[::-1])
        if key not in self._numbers:
            self._numbers[key] = len(self.keys)
            self.keys.append(key)
        return self._numbers[key]


class Side:
    """Makes records of batches of one side."""

    def __init__(
        self, number: int, codec: KeyCodec, key: Sequence[str], *, filters: Sequence[Expression] = (),
        words: Sequence[Word] = (), columns: Sequence[pa.Field] = (), grouping: Grouping | None = None, text_bytes: int = 64,
        shuffle: int | None = None,
    ) -> None:  # fmt: skip
        """`shuffle`: a seed to put the rows of each batch into random order with."""
        self.number, self._codec, self.key = number, codec, tuple(key)
        self.filters, self.words, self.grouping = tuple(filters), tuple(words), grouping
        self.records = Records(codec, key, columns=columns, text_bytes=text_bytes)
        self.finite = False  # whether a value that is not finite ends the run
        self._random = None if shuffle is None else np.random.default_rng(shuffle).integers(0, 1 << 63, 1, np.uint64)
        self.width = self.records.width + len(self.words) + (grouping is not None)

    def place(self, word: int) -> int:
        return self.records.width + word

    @property
    def group_place(self) -> int | None:
        return None if self.grouping is None else self.width - 1

    def reusing(self, buffers: int) -> Callable[[pa.RecordBatch], Numbered]:
        """`numbered` for one batch after the other, of which the last so many are in use: memory is taken from those before."""
        ring = deque([np.zeros(0, np.int64)] * buffers)

        def numbered(batch: pa.RecordBatch) -> Numbered:
            words = batch.num_rows * self.width
            if len(ring[0]) < words:
                ring[0] = np.empty(words, np.int64)
            ring.rotate(-1)
            return self.numbered(batch, ring[-1])

        return numbered

    def numbered(self, batch: pa.RecordBatch, room: Int64Array | None = None) -> Numbered:
        """Records, in `room` if there is one, and which row of the batch each is; None: they are all of the rows."""
        rows = batch.num_rows
        encoded = self._codec.encode([plain(batch.column(name)) for name in self.key])
        codes, kept = encoded.codes, self._kept(batch, encoded.valid)
        if not kept.all():
            batch, codes = batch.filter(pa.array(kept)), codes[kept]
        words = self._encode(batch, codes, np.empty(len(codes) * self.width, np.int64) if room is None else room)
        places = None if len(words) == rows else np.flatnonzero(kept)
        return (words, places) if self._random is None else self._shuffled(words, rows)

    def _kept(self, batch: pa.RecordBatch, valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        for condition in self.filters:
            holds = evaluate(condition, lambda _, name: plain(batch.column(name)), batch.num_rows)
            valid = valid & pc.fill_null(holds, False).to_numpy(zero_copy_only=False)
        return valid

    def _encode(self, batch: pa.RecordBatch, codes: Int64Array, room: Int64Array) -> Int64Array:
        rows = len(codes)
        words: Int64Array = room[: rows * self.width].reshape(rows, self.width)
        if self.records.columns:
            words[:, : self.records.width] = self._records(batch)
        words[:, 0] = codes
        values: dict[str, pa.Array] = {}

        def value(expression: Expression) -> pa.Array:
            if expression.key not in values:
                values[expression.key] = evaluate(expression, lambda _, name: plain(batch.column(name)), rows)
            return values[expression.key]

        numbers = words.view(np.float64)
        for number, word in enumerate(self.words):
            found = _doubles(word, value, rows)
            if self.finite and word.expression is not None and not np.isfinite(found).all():
                raise NeedsRoom(self.number, odd=True)
            numbers[:, self.place(number)] = found
        if self.grouping is not None:
            words[:, self.width - 1] = self.grouping.codes([plain(batch.column(name)) for name in self.grouping.columns])
        return words

    def _records(self, batch: pa.RecordBatch) -> Int64Array:
        arrays = []
        for field in self.records.columns:
            column = plain(batch.column(field.name))
            column = column if column.type == field.type else column.cast(field.type)
            if pa.types.is_string(field.type) or pa.types.is_binary(field.type):
                longest = pc.max(pc.binary_length(column)).as_py() or 0
                if longest > self.records.text_bytes:
                    raise NeedsRoom(self.number, text_bytes=longest)
            arrays.append(column)
        wanted = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(self.records.columns))
        missing = [name for name in self.key if name not in wanted.schema.names]
        for name in missing:
            wanted = wanted.append_column(name, plain(batch.column(name)))
        return self.records.encode(wanted)

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


def _doubles(word: Word, value: Any, rows: int) -> npt.NDArray[np.float64]:
    there = np.ones(rows, np.bool_)
    for need in word.needs:
        column = value(need)
        if column.null_count:
            there &= column.is_valid().to_numpy(zero_copy_only=False)
    if word.expression is None:
        return there.astype(np.float64)
    column = doubles(value(word.expression))
    numbers: npt.NDArray[np.float64] = (column.fill_null(0.0) if column.null_count else column).to_numpy(zero_copy_only=False)
    if word.shift:
        numbers = numbers - word.shift
    return numbers if there.all() else np.where(there, numbers, 0.0)


def key_types(
    pairs: Sequence[tuple[str, str]], kinds: Sequence[tuple[pa.DataType, pa.DataType]]
) -> tuple[KeyCodec, tuple[pa.DataType, ...]]:
    """The codec of both sides' keys, and the types in which keys are compared where codes are hashes."""
    codec = KeyCodec(tuple(kind for kind, _ in kinds))
    for (mine, theirs), (kind, other) in zip(pairs, kinds, strict=True):
        try:
            KeyCodec((kind,)).check([(theirs, other)])
        except SchemaError:
            raise SchemaError(
                f"left.{mine} is {kind} and right.{theirs} is {other}: they can't be compared; cast one of them first"
            ) from None
    if codec.exact:
        return codec, ()
    return codec, tuple(_common(*pair, *both) for pair, both in zip(pairs, kinds, strict=True))


def _common(mine: str, theirs: str, kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    if pa.types.is_integer(kind):
        return pa.int64()
    if kind != other:
        raise SchemaError(f"left.{mine} is {kind} and right.{theirs} is {other}: cast both to one type to join on them")
    return kind
