"""Values as 64-bit codes that sort as the values do: what ranges and bands are compared by.

Integers, dates and times are their own codes; a decimal of at most 18 digits is its digits; the bits of a float are turned
so that they sort, with -0.0 as 0.0 and NaN above everything, as Spark has it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import SchemaError
from millrace.core.keys import BoolArray, canonical_bits, decimal_words, family, integers
from millrace.core.step import Int64Array

LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_UNITS = ("s", "ms", "us", "ns")
_DIGITS = 18
_TURN = np.int64(MOST)


def common_type(fields: Sequence[pa.Field]) -> pa.DataType:
    """The type in which these columns are compared; an error where they can't be."""
    first = fields[0]
    group = _group(first)
    for field in fields[1:]:
        if _group(field) != group:
            raise SchemaError(
                f"columns {first.name!r} ({first.type}) and {field.name!r} ({field.type}) can't be compared; cast one of them"
            )
    if group == "integer":
        return pa.int64()
    if group == "float":
        return pa.float64()
    if group == "date":
        return pa.date32()
    if group == "decimal":
        return _common_decimal(fields)
    unit = max((field.type.unit for field in fields), key=_UNITS.index)
    return pa.duration(unit) if group == "duration" else pa.timestamp(unit, first.type.tz)


def ordered_codes(column: pa.Array, common: pa.DataType) -> tuple[Int64Array, BoolArray]:
    """Codes of a column as values of type `common`, and which of them are not null."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_floating(common):
        return float_codes(column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)), valid
    if pa.types.is_decimal(common):
        return decimal_words(column.cast(common))[0], valid
    if column.type != common and not pa.types.is_integer(common):
        column = column.cast(common)
    return integers(column), valid


def float_codes(numbers: npt.NDArray[np.float64]) -> Int64Array:
    """
    >>> float_codes(np.array([-1.0, -0.0, 0.0, 2.0])).argsort(kind="stable").tolist()
    [0, 1, 2, 3]
    """
    bits = canonical_bits(numbers)
    return np.where(bits < 0, bits ^ _TURN, bits)


def floats_of(codes: Int64Array) -> npt.NDArray[np.float64]:
    """The floats that have these codes."""
    return np.where(codes < 0, codes ^ _TURN, codes).view(np.float64)


def _group(field: pa.Field) -> str:
    group = family(field.type)
    if group in ("string", "binary", "boolean"):
        raise SchemaError(
            f"column {field.name!r} is {field.type}, and ranges and bands are over numbers, dates and times; use mr.expr(...)"
        )
    return group


def _common_decimal(fields: Sequence[pa.Field]) -> pa.DataType:
    scale = max(field.type.scale for field in fields)
    whole = max(field.type.precision - field.type.scale for field in fields)
    if whole + scale > _DIGITS:
        names = ", ".join(f"{field.name!r} ({field.type})" for field in fields)
        raise SchemaError(
            f"columns {names} need {whole + scale} digits to be compared, and {_DIGITS} is the most: cast them, or use "
            "mr.expr(...)"
        )
    return pa.decimal128(whole + scale, scale)
