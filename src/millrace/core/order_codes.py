"""Values as 64-bit codes that sort like the values. Ranges and bands are compared by these codes.

Integers, dates and times are their own codes. The code of a decimal of at most 18 digits is its digits. The bits of a float are
turned so that they sort as in Spark: -0.0 as 0.0, and NaN above everything.

Columns of different types are compared in the type that Spark chooses (with `spark.sql.ansi.enabled`, its default):

    integer -> decimal -> double             a whole number beside a decimal is compared exactly, beside a float as a double
    date -> timestamp_ntz -> timestamp       a date is its midnight, a time without a zone a time of the session's zone
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.arrays import BoolArray, FloatArray, Int64Array
from millrace.core.errors import SchemaError
from millrace.core.keys import canonical_bits, decimal_words, family, integers

LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_UNITS = ("s", "ms", "us", "ns")
_DAY = {unit: 86_400 * 1000**place for place, unit in enumerate(_UNITS)}
_DIGITS = 18
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}  # by bits
_TURN = np.int64(MOST)
_LADDERS = (("integer", "decimal", "float"), ("date", "timestamp_ntz", "timestamp"), ("duration",))


def common_type(fields: Sequence[pa.Field], *, only_compared: bool = False) -> pa.DataType:
    """The type in which the first column is compared with each of the others; an error if there is none.

    With `only_compared` the others are bounds, and nothing is added to them. A decimal then needs no digits for numbers that
    the first column, or the others, can't hold.
    """
    groups = [_pair_group(fields[0], other) for other in fields[1:]]
    group = max(groups, key=_rung)
    for other, own in zip(fields[1:], groups, strict=True):
        if own != group and group in ("float", "timestamp") and own != "date":
            widest = fields[1 + groups.index(group)]
            raise SchemaError(
                f"{_named(fields[0])} would be compared with {_named(other)} as {own} and with {_named(widest)} as {group}; "
                "cast one of them, so that both have one type"
            )
    if group == "integer":
        return pa.int64()
    if group == "float":
        return pa.float64()
    if group == "date":
        return pa.date32()
    if group == "decimal":
        return _common_decimal(fields, only_compared)
    unit = max((field.type.unit for field in fields if not pa.types.is_date(field.type)), key=_UNITS.index)
    if group == "duration":
        return pa.duration(unit)
    return pa.timestamp(unit, "UTC" if group == "timestamp" else None)


def check_zone(fields: Sequence[pa.Field], common: pa.DataType, zone: str) -> None:
    """Raise an error if columns without a zone are compared with times and the zone is not known."""
    if not pa.types.is_timestamp(common) or common.tz is None or all(_group(field) == "timestamp" for field in fields):
        return
    try:
        pc.assume_timezone(pa.array([0], pa.timestamp("s")), zone)
    except pa.ArrowException as unknown:
        raise SchemaError(
            f"columns {', '.join(_named(field) for field in fields)} are compared as times of the session's zone {zone!r}, and "
            f"Arrow does not know it ({unknown}); set spark.sql.session.timeZone to a name such as Europe/Berlin"
        ) from None


def ordered_codes(column: pa.Array, common: pa.DataType, zone: str = "UTC") -> tuple[Int64Array, BoolArray]:
    """Codes of a column as values of type `common`, and which values are not null."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_floating(common):
        return float_codes(_doubles(column)), valid
    if pa.types.is_decimal(common):
        return _digits(column, common), valid
    if not same_codes(column.type, common):
        try:
            column = _times(column, common, zone)
        except pa.ArrowInvalid as beyond:
            raise SchemaError(
                f"a value of type {column.type} can't be compared as {common} ({beyond}); cast it first"
            ) from None
    return integers(column), valid


def same_codes(own: pa.DataType, common: pa.DataType) -> bool:
    """Whether values of type `own` have the codes of a key column of that type when they are compared as `common`."""
    if pa.types.is_decimal(common):
        fits = pa.types.is_decimal(own) and own.precision - own.scale <= common.precision - common.scale
        return bool(fits and own.scale == common.scale)
    if pa.types.is_timestamp(own) and pa.types.is_timestamp(common):
        return bool(own.unit == common.unit and (own.tz is None) == (common.tz is None))
    return own == common or (pa.types.is_integer(own) and pa.types.is_integer(common))


def has_floors(own: pa.DataType, common: pa.DataType) -> bool:
    """Whether `floors` works for these types."""
    if pa.types.is_timestamp(common):
        return pa.types.is_date(own) or same_codes(own, common)
    if pa.types.is_decimal(common):
        return pa.types.is_integer(own) or pa.types.is_decimal(own)
    return same_codes(own, common)


def floors(codes: Int64Array, common: pa.DataType, own: pa.DataType, zone: str) -> Int64Array:
    """For codes of type `common`: the greatest values of type `own`, as codes of a key column, that are not above them."""
    if same_codes(own, common):
        return codes
    if pa.types.is_decimal(common):
        return codes // 10 ** (common.scale - (own.scale if pa.types.is_decimal(own) else 0))
    if common.tz is None:
        return codes // _DAY[common.unit]
    moments = pa.array(codes).view(pa.timestamp(common.unit, zone))
    days = integers(pc.local_timestamp(moments)) // _DAY[common.unit]
    # clocks that are put back over midnight show the day before for a while, though the next day has begun
    following = pa.array((days + 1).astype(np.int32)).view(pa.date32())
    return days + (integers(_times(following, common, zone)) <= codes)


def float_codes(numbers: FloatArray) -> Int64Array:
    """
    >>> float_codes(np.array([-1.0, -0.0, 0.0, 2.0])).argsort(kind="stable").tolist()
    [0, 1, 2, 3]
    """
    bits = canonical_bits(numbers)
    return np.where(bits < 0, bits ^ _TURN, bits)


def floats_of(codes: Int64Array) -> FloatArray:
    """The floats that have these codes."""
    return np.where(codes < 0, codes ^ _TURN, codes).view(np.float64)


def _doubles(column: pa.Array) -> FloatArray:
    """The nearest doubles; 0 for null."""
    if pa.types.is_integer(column.type):
        return integers(column).astype(np.float64)
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.string())  # by way of their text they become the nearest doubles, and not just near ones
    numbers: FloatArray = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    return numbers


def _digits(column: pa.Array, common: pa.DataType) -> Int64Array:
    """Whole numbers or decimals in units of the last place of `common`. A value out of range becomes one just out of range."""
    whole = common.precision - common.scale
    if pa.types.is_decimal(column.type):
        scale, most = column.type.scale, column.type.precision
        codes, high = decimal_words(column)
    else:
        scale, most = 0, _INTEGER_DIGITS[column.type.bit_width]
        codes = integers(column)
        high = codes >> 63
    if most - scale > whole:
        limit = np.int64(10 ** (whole + scale))
        fits = (high == codes >> 63) & (codes < limit) & (codes > -limit)
        codes = np.where(fits, codes, np.where(high < 0, -limit, limit))
    return codes * 10 ** (common.scale - scale) if common.scale > scale else codes


def _times(column: pa.Array, common: pa.DataType, zone: str) -> pa.Array:
    """Dates, times and durations as values of type `common`, as Spark casts them in a session of this zone."""
    if pa.types.is_duration(common) or (pa.types.is_timestamp(column.type) and column.type.tz is not None):
        return column.cast(common)
    local = column.cast(pa.timestamp(common.unit))
    if common.tz is None:
        return local
    if pa.types.is_date(column.type):  # a day that begins when clocks are put forward begins after that
        return pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="latest")
    before = pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="earliest")
    # a time that clocks skip keeps its distance to the last time before the gap, as if nothing were skipped
    return pc.add(before, pc.subtract(local, pc.local_timestamp(before)))


def _pair_group(one: pa.Field, other: pa.Field) -> str:
    mine, theirs = _group(one), _group(other)
    for ladder in _LADDERS:
        if mine in ladder and theirs in ladder:
            return max(mine, theirs, key=ladder.index)
    raise SchemaError(f"columns {_named(one)} and {_named(other)} can't be compared; cast one of them")


def _rung(group: str) -> int:
    return next(ladder.index(group) for ladder in _LADDERS if group in ladder)


def _named(field: pa.Field) -> str:
    return f"{field.name!r} ({field.type})"


def _group(field: pa.Field) -> str:
    group = family(field.type)
    if group in ("string", "binary", "boolean"):
        raise SchemaError(
            f"column {field.name!r} is {field.type}, and ranges and bands are over numbers, dates and times; use mr.expr(...)"
        )
    return group


def _common_decimal(fields: Sequence[pa.Field], only_compared: bool) -> pa.DataType:
    decimals = [(f.type.precision, f.type.scale) if pa.types.is_decimal(f.type) else (_INTEGER_DIGITS[f.type.bit_width], 0)
                for f in fields]  # fmt: skip
    scale = max(scale for _, scale in decimals)
    mine, *theirs = (precision - scale for precision, scale in decimals)
    whole = max(mine, *theirs)
    if only_compared and whole + scale > _DIGITS:
        whole = min(mine, max(theirs))
    if whole + scale > _DIGITS:
        names = ", ".join(_named(field) for field in fields)
        raise SchemaError(
            f"columns {names} need {whole + scale} digits to be compared, and {_DIGITS} is the most: cast them, or use "
            "mr.expr(...)"
        )
    return pa.decimal128(whole + scale, scale)
