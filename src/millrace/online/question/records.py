"""Rows of an input as records of int64 words, and back: what online joins hold, spill and compare.

    word 0     1       2 ...
    key code | nulls | columns
             | bits  | as stored, texts with their length in front

Rows with a null key, or one that no key of the other side can equal, are left out: they join nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.compiled import kernel
from millrace.core.errors import SchemaError
from millrace.core.keys import KeyCodec, family

_SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
_DECIMAL_DIGITS = 18  # of a decimal that fits into 64 bits


class Records:
    """The records of one side, up to what is added to them for the fast path (`sides`).

    `columns`: columns that a function of pairs is given, or that hashed keys are compared on. A text longer than `text_bytes`
    is an error that says so.

    >>> side = Records(KeyCodec((pa.int64(),)), ["k"], columns=[pa.field("v", pa.int8())])
    >>> words = side.encode(pa.record_batch({"k": pa.array([7, None, 9]), "v": pa.array([1, 2, None], pa.int8())}))
    >>> words[:, 0].tolist(), side.decode(words).column("v").to_pylist()
    ([7, 9], [1, None])
    """

    def __init__(self, codec: KeyCodec, key: Sequence[str], *, columns: Sequence[pa.Field] = (), text_bytes: int = 64) -> None:
        self.codec, self.key = codec, tuple(key)
        self.columns, self.text_bytes = tuple(columns), text_bytes
        self._text_words = 1 + -(-text_bytes // 8)
        self._first = 1 + bool(self.columns)
        self._places: list[tuple[int, int]] = []
        place = self._first
        for field in self.columns:
            words = self._text_words if _is_text(field.type) else _fixed_words(field)
            self._places.append((place, words))
            place += words
        self.width = place

    def words_of(self, name: str) -> tuple[int, ...]:
        """The words of a column among `columns`: what hashed keys are compared on."""
        for field, (place, words) in zip(self.columns, self._places, strict=True):
            if field.name == name:
                return tuple(range(place, place + words))
        raise SchemaError(f"there is no column {name!r} among the columns of the records")

    def encode(self, batch: pa.RecordBatch) -> Int64Array:
        """The records of the rows that can join."""
        encoded = self.codec.encode([batch.column(name) for name in self.key])
        words: Int64Array = np.empty((batch.num_rows, self.width), np.int64)
        words[:, 0] = encoded.codes
        if self.columns:
            words[:, self._first - 1] = 0
            for number, field in enumerate(self.columns):
                self._put(words, number, field, batch.column(field.name))
        return words if encoded.valid.all() else words[encoded.valid]

    def _put(self, words: Int64Array, number: int, field: pa.Field, column: pa.Array) -> None:
        place, count = self._places[number]
        if column.null_count:
            nulls = column.is_null().to_numpy(zero_copy_only=False)
            words[:, self._first - 1] |= nulls.astype(np.int64) << number
        if _is_text(field.type):
            self._put_text(words, place, count, field, column)
        else:
            words[:, place] = _fixed(column)

    def _put_text(self, words: Int64Array, place: int, count: int, field: pa.Field, column: pa.Array) -> None:
        plain = column.cast(pa.large_binary()).fill_null(b"")
        _, offsets, data = plain.buffers()
        starts = np.frombuffer(offsets, np.int64, len(plain) + 1, plain.offset * 8)
        longest = int(np.diff(starts).max()) if len(plain) else 0
        if longest > self.text_bytes:
            raise SchemaError(
                f"column {field.name!r} holds a text of {longest} bytes and records have room for {self.text_bytes}; "
                f"give text_bytes={longest} or more"
            )
        raw = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
        words[:, place] = np.diff(starts)
        words[:, place + 1 : place + count] = 0
        _put_texts(starts, raw, words.view(np.uint8), 8 * (place + 1))

    def decode(self, words: Int64Array) -> pa.RecordBatch:
        """The `columns` of records."""
        arrays = []
        for number, (field, (place, count)) in enumerate(zip(self.columns, self._places, strict=True)):
            nulls = (words[:, self._first - 1] >> number) & 1 == 1
            if _is_text(field.type):
                arrays.append(_texts(words, place, count, nulls, field.type))
            else:
                arrays.append(_unfixed(words[:, place], nulls, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(self.columns))


def _is_text(kind: pa.DataType) -> bool:
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(is_one(kind) for is_one in texts)


def is_short_decimal(kind: pa.DataType) -> bool:
    """Whether its numbers, without the point, fit into 64 bits."""
    return bool(pa.types.is_decimal128(kind) and kind.precision <= _DECIMAL_DIGITS)


def unscaled(column: pa.Array) -> Int64Array:
    """The numbers of short decimals, without the point; any number where they are null."""
    words: Int64Array = np.frombuffer(column.buffers()[1], np.int64)[2 * column.offset : 2 * (column.offset + len(column)) : 2]
    return words


def _fixed_words(field: pa.Field) -> int:
    kind = field.type
    if pa.types.is_boolean(kind) or is_short_decimal(kind) or (pa.types.is_primitive(kind) and kind.bit_width in _SIGNED):
        return 1
    advice = "cast it to a number, a date or a text first"
    raise SchemaError(f"column {field.name!r} is {kind} and can't be part of a record; {advice}")


def _fixed(column: pa.Array) -> Any:
    """Any fixed-width value as an int64, bit for bit or sign-extended."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8()).fill_null(0).to_numpy(zero_copy_only=False)
    if is_short_decimal(kind):
        return unscaled(column)
    if column.null_count:
        column = pa.Array.from_buffers(kind, len(column), [None, *column.buffers()[1:]], offset=column.offset)
    return column.view(pa.from_numpy_dtype(np.dtype(_SIGNED[kind.bit_width]))).to_numpy(zero_copy_only=False)


def _unfixed(words: Int64Array, nulls: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array(words != 0, mask=nulls)
    if is_short_decimal(kind):
        wide = pa.py_buffer(np.stack([words, words >> 63], axis=1))  # 128 bits
        plain = pa.Array.from_buffers(kind, len(words), [None, wide])
    else:
        plain = pa.array(words.astype(_SIGNED[kind.bit_width])).view(kind)
    if not nulls.any():
        return plain
    valid = np.packbits(~nulls, bitorder="little")
    return pa.Array.from_buffers(kind, len(plain), [pa.py_buffer(valid), plain.buffers()[1]])


def _texts(words: Int64Array, place: int, count: int, nulls: Any, kind: pa.DataType) -> pa.Array:
    lengths = words[:, place]
    offsets = np.zeros(len(words) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    data = np.zeros(int(offsets[-1]), np.uint8)
    _get_texts(offsets, data, np.ascontiguousarray(words).view(np.uint8), 8 * (place + 1))
    valid = pa.py_buffer(np.packbits(~nulls, bitorder="little")) if nulls.any() else None
    large = pa.large_string() if "string" in str(kind) else pa.large_binary()
    return pa.Array.from_buffers(large, len(words), [valid, pa.py_buffer(offsets), pa.py_buffer(data)]).cast(kind)


@kernel
def _put_texts(starts: Any, raw: Any, out: Any, place: Any) -> None:
    for i in range(len(starts) - 1):
        for j in range(starts[i + 1] - starts[i]):
            out[i, place + j] = raw[starts[i] + j]


@kernel
def _get_texts(starts: Any, out: Any, raw: Any, place: Any) -> None:
    for i in range(len(starts) - 1):
        for j in range(starts[i + 1] - starts[i]):
            out[starts[i] + j] = raw[i, place + j]


def same_words(left: Records, right: Records, key: Sequence[tuple[str, str]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Which words must agree for keys to be equal, where their codes are hashes. Key columns need one type on both sides."""
    a: list[int] = []
    b: list[int] = []
    for one, other in key:
        kinds = [next(f.type for f in side.columns if f.name == name) for side, name in ((left, one), (right, other))]
        if kinds[0] != kinds[1] or family(kinds[0]) == "float":
            one_type = "cast both to one type, not a float, to join on several"
            raise SchemaError(f"{one!r} is {kinds[0]} and {other!r} is {kinds[1]}: {one_type}")
        a += left.words_of(one)
        b += right.words_of(other)
    if len(a) != len(b):
        raise SchemaError("texts of keys need records with the same text_bytes on both sides")
    return tuple(a), tuple(b)
