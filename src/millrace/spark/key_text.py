"""Values of keys on their way from a task to the driver: as JSON, and back as the Python values that Spark would give.

Times and dates go as the numbers that Arrow stores. A text or binary longer than `CUT_BYTES` is cut and goes with its key code,
so that two long keys with the same beginning stay apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.keys import family, integers

CUT_BYTES = 200
_BYTES = ("string", "binary")
_NUMBERS = ("integer", "date", "timestamp", "timestamp_ntz", "duration")


def value_bytes(kind: pa.DataType) -> int:
    """Bytes of a value that is kept by a task, at most."""
    return CUT_BYTES + 1 + 8 if family(kind) in _BYTES else max(1, kind.bit_width // 8)


def kept_values(column: pa.Array, rows: pa.Array) -> pa.Array:
    """The values at these rows, as a task keeps them. Long texts are not copied as a whole."""
    if column.nbytes > CUT_BYTES * len(column):
        return shortened(column).take(rows)
    return shortened(column.take(rows))


def shortened(column: pa.Array) -> pa.Array:
    """Values of `CUT_BYTES` and one byte at most. The one byte more tells that there was more."""
    if family(column.type) not in _BYTES:
        return column
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    return pc.binary_slice(column.cast(pa.large_binary() if large else pa.binary()), 0, CUT_BYTES + 1)


def as_json(values: pa.Array, kind: pa.DataType, codes: Sequence[int]) -> list[Any]:
    """Values of a column of type `kind`, as `shortened` gave them, for JSON. None is null."""
    group = family(kind)
    if group in _NUMBERS:
        return integers(values).tolist()
    if group == "boolean":
        return list(values.to_pylist())
    if group == "float":
        return [repr(value + 0.0) for value in values.to_pylist()]  # one text for both zeros
    if group == "decimal":
        return [str(value) for value in values.to_pylist()]
    write = _text if group == "string" else bytes.hex
    pairs = zip(values.to_pylist(), codes, strict=True)
    return [write(value) if len(value) <= CUT_BYTES else [write(_cut(value, group)), code] for value, code in pairs]


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _cut(value: bytes, group: str) -> bytes:
    """The beginning of a value that is one byte too long or more. A letter of several bytes is not cut in two."""
    end = CUT_BYTES
    while group == "string" and end > CUT_BYTES - 3 and value[end] & 0xC0 == 0x80:
        end -= 1
    return value[:end]


def was_cut(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def from_json(value: Any, group: str) -> Any:
    """The Python value. A text that was cut ends with `...`."""
    if was_cut(value):
        return from_json(value[0], group) + ("..." if group == "string" else b"...")
    read = _READ.get(group)
    return value if read is None else read(value)


def _since_1970(start: date, unit: str) -> Callable[[int], Any]:
    def read(count: int) -> Any:
        try:
            return start + (timedelta(days=count) if unit == "D" else timedelta(microseconds=count))
        except OverflowError:  # Python's years end at 9999, Spark's do not
            return str(np.array(count, f"datetime64[{unit}]"))

    return read


_READ: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "decimal": Decimal,
    "binary": bytes.fromhex,
    "date": _since_1970(date(1970, 1, 1), "D"),
    "timestamp": _since_1970(datetime(1970, 1, 1, tzinfo=UTC), "us"),
    "timestamp_ntz": _since_1970(datetime(1970, 1, 1), "us"),
    "duration": lambda count: timedelta(microseconds=count),
}
