"""What a folder name such as `day=2024-05-01` says, in the type that Spark has found for the column.

Spark tries integers, decimals, floats, timestamps and dates in turn and takes the type that fits all folders, or text. The type
is known here; a value is read as Spark reads it, or refused where that is not certain.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from zoneinfo import ZoneInfo

import pyarrow as pa

from millrace.core.errors import ParameterError, SchemaError

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_FLOAT = re.compile(rf"NaN|[+-]?Infinity|{_NUMBER.pattern}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?: ([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?)?")
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{2}))?")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


def partition_value(path: str, field: pa.Field, text: str | None, zone: str = "UTC") -> pa.Scalar:
    """The value of a partition column. `zone` is that of the session: timestamps in folder names are local times."""
    if text is None:
        return pa.scalar(None, field.type)
    try:
        value = _value(field.type, text, zone)
        if value is not None:
            return value
        why = "not written the way Spark writes it"
    except (pa.ArrowException, ValueError, OverflowError, decimal.DecimalException) as wrong:
        if isinstance(wrong, ParameterError):
            raise
        why = str(wrong)
    raise SchemaError(f"{path}: {field.name}={text} in its path is no {field.type} ({why})")


def _value(kind: pa.DataType, text: str, zone: str) -> pa.Scalar | None:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.scalar(text, kind)
    if pa.types.is_integer(kind):
        return pa.scalar(int(text), kind) if _INTEGER.fullmatch(text) else None
    if pa.types.is_decimal(kind):
        return pa.scalar(_decimal(text, kind), kind) if _NUMBER.fullmatch(text) else None
    if pa.types.is_floating(kind):
        return pa.scalar(float(text), kind) if _FLOAT.fullmatch(text) else None
    if pa.types.is_date(kind):
        return pa.scalar(dt.date.fromisoformat(text), kind) if _DATE.fullmatch(text) else None
    if pa.types.is_timestamp(kind):
        return _timestamp(kind, text, zone)
    return pa.scalar(text).cast(kind)


def _decimal(text: str, kind: pa.DataType) -> decimal.Decimal:
    return decimal.Decimal(text).quantize(decimal.Decimal(1).scaleb(-kind.scale), context=decimal.Context(prec=kind.precision))


def _timestamp(kind: pa.DataType, text: str, zone: str) -> pa.Scalar | None:
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    day, time, fraction = found[1], found[2] or "00:00:00", found[3] or ""
    moment = dt.datetime.fromisoformat(f"{day} {time}")  # in an hour that comes twice the first one, as in Java
    moment = moment.replace(tzinfo=_zone(zone) if kind.tz else dt.UTC)
    micros = (moment - _EPOCH) // _MICROSECOND + int(fraction[:6].ljust(6, "0"))
    return pa.scalar(micros, pa.int64()).cast(pa.timestamp("us", kind.tz)).cast(kind)


def _zone(name: str) -> dt.tzinfo:
    if name in ("Z", "UTC", "GMT"):
        return dt.UTC
    offset = _OFFSET.fullmatch(name)
    try:
        if offset is None:
            return ZoneInfo(name)
        distance = dt.timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0))
        return dt.timezone(-distance if offset[1] == "-" else distance)
    except (KeyError, ValueError, OSError) as unknown:
        raise ParameterError(
            f"the session's time zone {name!r} is not known to Python, and timestamps in folder names are times of that zone; "
            "set spark.sql.session.timeZone to a region such as Europe/Berlin"
        ) from unknown
