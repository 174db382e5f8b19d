"""One side of a query: how its rows become the records that joins hold, and which groups it has.

    word 0     ...                            ...                       last
    key code | columns for pairs (`Records`) | doubles (`Word`)       | group

Rows that a filter drops, or whose key is null, are read and counted, and go no further.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.errors import SchemaError
from millrace.core.keys import KeyCodec
from millrace.core.step import Int64Array
from millrace.online.evaluate import doubles, evaluate, plain
from millrace.online.expressions import Expression
from millrace.online.inputs import Numbered
from millrace.online.records import Records

_NAN = float("nan")  # one object, so that all NaN are one group


class NeedsRoom(Exception):
    """A run must start again with more room: more groups on a side, or longer texts."""

    def __init__(self, side: int, *, groups: int = 0, text_bytes: int = 0) -> None:
        super().__init__(f"side {side}: {groups} groups, texts of {text_bytes} bytes")
        self.side, self.groups, self.text_bytes = side, groups, text_bytes


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
        self._random = None if shuffle is None else np.random.default_rng(shuffle)
        self.width = self.records.width + len(self.words) + (grouping is not None)

    def place(self, word: int) -> int:
        return self.records.width + word

    @property
    def group_place(self) -> int | None:
        return None if self.grouping is None else self.width - 1

    def numbered(self, batch: pa.RecordBatch) -> Numbered:
        """Records, and which row of the batch each is; None: they are all of the rows."""
        rows = batch.num_rows
        encoded = self._codec.encode([plain(batch.column(name)) for name in self.key])
        codes, kept = encoded.codes, self._kept(batch, encoded.valid)
        if not kept.all():
            batch, codes = batch.filter(pa.array(kept)), codes[kept]
        words = self._encode(batch, codes)
        places = None if len(words) == rows else np.flatnonzero(kept)
        return (words, places) if self._random is None else self._shuffled(words, rows)

    def _kept(self, batch: pa.RecordBatch, valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        for condition in self.filters:
            holds = evaluate(condition, lambda _, name: plain(batch.column(name)), batch.num_rows)
            valid = valid & pc.fill_null(holds, False).to_numpy(zero_copy_only=False)
        return valid

    def _encode(self, batch: pa.RecordBatch, codes: Int64Array) -> Int64Array:
        rows = len(codes)
        words: Int64Array = np.empty((rows, self.width), np.int64)
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
            numbers[:, self.place(number)] = _doubles(word, value, rows)
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
        words = words[self._random.permutation(len(words))]
        if len(words) == rows:
            return words, None
        return words, np.sort(self._random.choice(rows, len(words), replace=False))


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
