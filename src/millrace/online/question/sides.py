"""One side of a query: how its rows become the records that joins hold, and which groups it has.

    word 0     ...                            ...                       last
    key code | columns for pairs (`Records`) | doubles (`Word`)       | group

Rows that a filter drops, or whose key is null, are read and counted, and go no further.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.errors import SchemaError
from millrace.core.keys import KeyCodec
from millrace.online.question.expressions import Expression
from millrace.online.question.records import Records

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

    def __init__(self, side: int, most: int) -> None:
        self.side, self.most = side, most
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


@dataclass(frozen=True)
class Side:
    """What records of one side hold, and how they are made; a `Recorder` makes them."""

    number: int
    codec: KeyCodec
    key: Sequence[str]
    filters: Sequence[Expression] = ()
    words: Sequence[Word] = ()
    columns: Sequence[pa.Field] = ()
    group_columns: Sequence[str] = ()
    most_groups: int = 1
    text_bytes: int = 64
    shuffle: int | None = None  # a seed to put the rows of each batch into random order with
    finite: bool = False  # whether a value that is not finite changes what must be summed

    @cached_property
    def records(self) -> Records:
        return Records(self.codec, self.key, columns=self.columns, text_bytes=self.text_bytes)

    @cached_property
    def width(self) -> int:
        return self.records.width + len(self.words) + bool(self.group_columns)

    def place(self, word: int) -> int:
        return self.records.width + word

    @property
    def group_place(self) -> int | None:
        return self.width - 1 if self.group_columns else None


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
