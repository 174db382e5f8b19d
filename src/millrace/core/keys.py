"""Key codec: key columns in, one 64-bit code per row out, by Spark's rules of equality.

A code is *exact* if equal codes mean equal keys (one column of at most 64 bits). A code is *ordered* if it also sorts
like the key, which keeps neighbours together on disk. Strings, binary, long decimals and composite keys get a 64-bit
hash: rows with equal codes are then compared on the real columns before they are joined. -0.0 equals 0.0, NaN equals
NaN, a decimal equals the same number with more zeros behind the point, and a null equals nothing.
"""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.arrays import BoolArray, FloatArray, Int64Array
from millrace.core.compiled import kernel
from millrace.core.errors import SchemaError

CODEC_VERSION = 1
_ORDERED = ("integer", "boolean", "date", "timestamp", "timestamp_ntz", "duration", "decimal")


class Codes(NamedTuple):
    """Codes of a batch; `valid[i]` is false where a key column is null or holds a value that no table key can equal."""

    codes: Int64Array
    valid: BoolArray
    nulls: BoolArray


def family(kind: pa.DataType) -> str:
    """The family of a type. Types of one family can be compared and have one codec."""
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return "integer"
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_floating(kind) and kind != pa.float16():
        return "float"
    if pa.types.is_date32(kind):
        return "date"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_duration(kind):
        return "duration"
    if pa.types.is_decimal128(kind):
        return "decimal"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "string"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "binary"
    raise SchemaError(
        f"a column of type {kind} can't be a key; keys are integers, floats, booleans, dates, timestamps, strings, "
        "binary, decimals, or several of them: cast the column first"
    )


@dataclass(frozen=True)
class KeyCodec:
    """How the keys of one table become codes.

    >>> codec = KeyCodec((pa.int32(),))
    >>> codec.encode([pa.array([7, None], pa.int32())]).codes.tolist()
    [7, 0]
    """

    types: tuple[pa.DataType, ...]
    mixed: bool = False  # spread exact codes over all 64 bits, for the hash layout

    def __post_init__(self) -> None:
        for kind in self.types:
            family(kind)

    @cached_property
    def exact(self) -> bool:
        """Equal codes mean equal keys."""
        if len(self.types) != 1:
            return False
        kind = self.types[0]
        if family(kind) == "decimal":
            return bool(kind.precision <= 18)
        return family(kind) not in ("string", "binary")

    @cached_property
    def ordered(self) -> bool:
        """Codes sort like keys."""
        return self.exact and not self.mixed and family(self.types[0]) in _ORDERED

    def check(self, columns: Sequence[tuple[str, pa.DataType]]) -> None:
        """Raise a clear error if these columns (name, type) can't be compared with this table's key."""
        for (name, kind), own in zip(columns, self.types, strict=True):
            if family(kind) != family(own):
                lossy = family(own) == "integer" and family(kind) in ("float", "decimal")
                advice = "a cast to whole numbers would change fractions: filter them out first" if lossy else "cast the column"
                raise SchemaError(
                    f"column {name!r} is {kind} and the table's key is {own}: they can't be compared; give both the same "
                    f"type ({advice}, or build the table with another type of key)"
                )

    def encode(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> Codes:
        """Codes of rows given by their key columns, which may be of any type that `check` lets pass."""
        plain = [_flat(column) for column in columns]
        nulls = np.zeros(len(plain[0]), np.bool_)
        for column in plain:
            if column.null_count:
                nulls |= column.is_null().to_numpy(zero_copy_only=False)
        valid = ~nulls
        if len(plain) == 1:
            codes = _column_codes(plain[0], self.types[0], valid)
            if self.mixed or family(self.types[0]) == "float":
                codes = mix(codes)
        else:
            codes = np.zeros(len(nulls), np.int64)
            for column, kind in zip(plain, self.types, strict=True):
                combine(codes, _column_codes(column, kind, valid))
        return Codes(codes, valid, nulls)

    def equal(self, left: Sequence[pa.Array], right: Sequence[pa.Array]) -> BoolArray:
        """Row by row, whether the real keys are equal. Needed only where codes are not exact. Nulls are never equal."""
        same = np.ones(len(left[0]), np.bool_)
        for one, other, own in zip(left, right, self.types, strict=True):
            if family(own) == "decimal":
                one, other = _rescaled(_flat(one), own, same), _rescaled(_flat(other), own, same)
            if family(own) in ("string", "binary", "decimal"):
                answer = pc.fill_null(pc.equal(one, other), False)
                same &= answer.to_numpy(zero_copy_only=False)
            else:
                same &= _column_codes(_flat(one), own, same) == _column_codes(_flat(other), own, same)
                for column in (one, other):
                    if column.null_count:
                        same &= column.is_valid().to_numpy(zero_copy_only=False)
        return same


def _flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return column


def _column_codes(column: pa.Array, own: pa.DataType, valid: BoolArray) -> Int64Array:
    """Codes of one column for a key column of type `own`; clears `valid` where no value of `own` can be equal."""
    group = family(own)
    if group in ("string", "binary"):
        return _hash_bytes(column)
    if group == "decimal":
        return _decimal_codes(column, own, valid)
    if group == "float":
        numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        return canonical_bits(numbers)
    if group == "boolean":
        return column.cast(pa.int8()).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if group in ("timestamp", "timestamp_ntz", "duration") and column.type.unit != own.unit:
        column = _with_unit(column, own.unit, valid)
    return integers(column)


def integers(column: pa.Array) -> Int64Array:
    """Integers, dates and times as they are stored; 0 for null."""
    if column.type.bit_width == 64:
        column = column.view(pa.int64())
    else:
        column = (column.view(pa.int32()) if pa.types.is_date32(column.type) else column).cast(pa.int64())
    if column.null_count:
        column = column.fill_null(0)
    codes: Int64Array = column.to_numpy(zero_copy_only=True)
    return codes


def _with_unit(column: pa.Array, unit: str, valid: BoolArray) -> pa.Array:
    """The same times in `unit`; clears `valid` where the unit would change the time."""
    kind = column.type
    target = pa.duration(unit) if pa.types.is_duration(kind) else pa.timestamp(unit, kind.tz)
    changed = column.cast(target, safe=False)  # cuts off what is finer than the unit, wraps what is out of its range
    back = changed.cast(kind, safe=False)
    if not back.equals(column):
        valid &= pc.fill_null(pc.equal(back, column), True).to_numpy(zero_copy_only=False)
    return changed


def _decimal_codes(column: pa.Array, own: pa.DataType, valid: BoolArray) -> Int64Array:
    """Unscaled values at the scale of `own`; a value with more digits than `own` can hold matches nothing."""
    column = _rescaled(column, own, valid)
    low, high = decimal_words(column)
    if own.precision > 18:
        codes = high.copy()
        combine(codes, np.ascontiguousarray(low))
    else:
        codes = low.copy()
        valid &= high == (low >> 63)
    if column.null_count:
        codes[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return codes


def decimal_words(column: pa.Array) -> tuple[Int64Array, Int64Array]:
    """Lower and upper 64 bits of the digits of decimals; any value for null."""
    words = np.frombuffer(column.buffers()[1], np.int64, len(column) * 2, column.offset * 16)
    return words[0::2], words[1::2]


def _rescaled(column: pa.Array, own: pa.DataType, valid: BoolArray) -> pa.Array:
    """The same numbers with as many digits behind the point as `own`; clears `valid` where this changes the number."""
    scale = own.scale
    if column.type.scale == scale:
        return column
    wide = pa.decimal128(38, scale)
    limit = pa.decimal128(38, column.type.scale)
    if scale < column.type.scale:
        cut = column.cast(limit).cast(wide, safe=False)
        kept = pc.fill_null(pc.equal(cut.cast(limit), column), True)
        valid &= kept.to_numpy(zero_copy_only=False)
        return cut
    spare = 38 - (scale - column.type.scale)
    if column.type.precision > spare:
        bound = pa.scalar(decimal.Decimal(10) ** (spare - column.type.scale), limit)
        fits = pc.fill_null(pc.less(pc.abs(column.cast(limit)), bound), True)
        valid &= fits.to_numpy(zero_copy_only=False)
        column = pc.if_else(fits, column, None)
    return column.cast(limit).cast(wide)


def _hash_bytes(column: pa.Array) -> Int64Array:
    if len(column) == 0:  # its offsets may be missing
        return np.zeros(0, np.int64)
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    width = np.int64 if large else np.int32
    starts = np.frombuffer(offsets, width, len(column) + 1, column.offset * np.dtype(width).itemsize)
    values = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    codes = np.empty(len(column), np.int64)
    _hash_bytes_kernel(starts, values, codes)
    return codes


@kernel
def _mix_one(word: Any) -> Any:
    """A bijection on 64 bits whose every output bit depends on every input bit."""
    word ^= word >> np.uint64(32)
    word *= np.uint64(0xD6E8FEB86659FD93)
    word ^= word >> np.uint64(32)
    word *= np.uint64(0xD6E8FEB86659FD93)
    word ^= word >> np.uint64(32)
    return word


@kernel
def _mix_kernel(words: Any, out: Any) -> None:
    for i in range(len(words)):
        out[i] = _mix_one(words[i])


def mix(codes: Int64Array) -> Int64Array:
    """Spread codes over all 64 bits, one to one."""
    out = np.empty(len(codes), np.uint64)
    _mix_kernel(codes.view(np.uint64), out)
    return out.view(np.int64)


@kernel
def _combine_kernel(state: Any, words: Any) -> None:
    for i in range(len(state)):
        state[i] = _mix_one(state[i] * np.uint64(0x9E3779B97F4A7C15) + words[i] + np.uint64(1))


def combine(state: Int64Array, codes: Int64Array) -> None:
    """Fold another column's codes into `state`, in place."""
    _combine_kernel(state.view(np.uint64), codes.view(np.uint64))


@kernel
def _hash_bytes_kernel(starts: Any, values: Any, codes: Any) -> None:
    for i in range(len(codes)):
        start = starts[i]
        size = starts[i + 1] - start
        state = np.uint64(size) * np.uint64(0x9E3779B97F4A7C15)
        word = np.uint64(0)
        filled = 0
        for j in range(size):
            word |= np.uint64(values[start + j]) << np.uint64(8 * filled)
            filled += 1
            if filled == 8:
                state = _mix_one(state ^ word)
                word = np.uint64(0)
                filled = 0
        codes[i] = np.int64(_mix_one(state ^ word) ^ np.uint64(filled))


@kernel
def _canonical_kernel(numbers: Any, bits: Any, out: Any) -> None:
    for i in range(len(numbers)):
        if numbers[i] != numbers[i]:
            out[i] = np.int64(0x7FF8000000000000)
        elif numbers[i] == 0.0:
            out[i] = 0
        else:
            out[i] = bits[i]


def canonical_bits(numbers: FloatArray) -> Int64Array:
    """Bits of doubles with one NaN and one zero."""
    numbers = np.ascontiguousarray(numbers)
    out = np.empty(len(numbers), np.int64)
    _canonical_kernel(numbers, numbers.view(np.int64), out)
    return out
