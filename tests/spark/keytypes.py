"""Key types and values that try to break equality: specials of every type, absent keys, nulls, duplicates."""

from __future__ import annotations

import datetime as dt
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

UTC = dt.UTC


@dataclass(frozen=True)
class KeyKind:
    """Key columns by name: the table's type, the stream's, and the values keys are drawn from."""

    table_types: dict[str, pa.DataType]
    stream_types: dict[str, pa.DataType]
    pool: Callable[[], list[tuple[Any, ...]]]
    foreign: tuple[Any, ...] = ()  # values that only the stream's type can hold: never a match

    @property
    def names(self) -> list[str]:
        return list(self.table_types)


def _one(
    kind: pa.DataType, values: Callable[[], list[Any]], stream: pa.DataType | None = None, foreign: tuple[Any, ...] = ()
) -> KeyKind:
    return KeyKind({"k": kind}, {"k": stream or kind}, lambda: [(value,) for value in values()], foreign)


def _integers(bits: int) -> Callable[[], list[Any]]:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    middle = [-1, 0, 1, *(v for v in range(-90, 90, 7) if low < v < high)]
    return lambda: list(dict.fromkeys([low, high, low + 1, high - 1, *middle]))


def _nan(payload: int) -> float:
    return float(struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000000 | payload))[0])


def _doubles() -> list[Any]:
    plain = [float("inf"), float("-inf"), 1.5, -1.5, 0.1, 1e-310, 1.7976931348623157e308, 1.0, 2.0, 16777216.0]
    return [float("nan"), -0.0, *plain, *(n + 0.25 for n in range(30)), _nan(1), 0.0]


def _floats() -> list[Any]:
    plain = [float("inf"), float("-inf"), 1.5, -1.5, 1e-40, 3.4028234663852886e38, 0.10000000149011612]
    return [float("nan"), -0.0, *plain, *(n + 0.5 for n in range(30)), 0.0]


def _dates() -> list[Any]:
    return [dt.date(1, 1, 1), dt.date(9999, 12, 31), *(dt.date(1969, 12, 20) + dt.timedelta(days=n) for n in range(30))]


def _timestamps() -> list[Any]:
    start = dt.datetime(2024, 3, 31, 0, 30)  # a change to summer time lies near
    odd = [
        dt.datetime(1582, 10, 15),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
    ]
    return [*odd, dt.datetime(1970, 1, 1), *(start + dt.timedelta(microseconds=n * 613_000_001) for n in range(30))]


def _strings() -> list[Any]:
    odd = ["", " ", "a", "A", "a ", "\0", "a\0", "ä", "a\u0308", "日本語", "🚂", "'", '"', "null", "x" * 5000, "x" * 4999 + "y"]
    return [*odd, *(f"key {n}" for n in range(30))]


def _binary() -> list[Any]:
    return [value.encode() for value in _strings()] + [b"\xff\xfe", b"\x80"]


def _short_decimals() -> list[Any]:
    odd = ["0", "0.01", "-0.01", "99999999.99", "-99999999.99", "1.00", "1.10"]
    return [Decimal(v) for v in odd] + [Decimal(n) / 4 for n in range(30, 60)]


def _long_decimals() -> list[Any]:
    odd = ["0", "1e-10", "-1e-10", "9" * 28 + "." + "9" * 10, "-" + "9" * 28 + "." + "9" * 10, "1", "18446744073709551616"]
    return [Decimal(v) for v in odd] + [Decimal(n) * Decimal("1000000000000000000000.0000000001") for n in range(1, 30)]


def _pairs() -> list[tuple[Any, ...]]:
    return [(n % 5 - 1, value) for n in range(10) for value in ("", "a", "aa", f"k{n}")]


def _triples() -> list[tuple[Any, ...]]:
    day = dt.date(2024, 2, 28)
    numbers = (float("nan"), -0.0, 1.5)
    return [(n % 4, day + dt.timedelta(days=n % 3), numbers[n % 3 - m % 2]) for n in range(12) for m in range(2)]


KINDS: dict[str, KeyKind] = {
    "byte": _one(pa.int8(), _integers(8)),
    "short": _one(pa.int16(), _integers(16)),
    "int": _one(pa.int32(), _integers(32)),
    "long": _one(pa.int64(), _integers(64)),
    "float": _one(pa.float32(), _floats),
    "double": _one(pa.float64(), _doubles),
    "boolean": _one(pa.bool_(), lambda: [True, False]),
    "date": _one(pa.date32(), _dates),
    "timestamp": _one(pa.timestamp("us", "UTC"), lambda: [value.replace(tzinfo=UTC) for value in _timestamps()]),
    "timestamp_ntz": _one(pa.timestamp("us"), _timestamps),
    "string": _one(pa.string(), _strings),
    "binary": _one(pa.binary(), _binary),
    "decimal(10,2)": _one(pa.decimal128(10, 2), _short_decimals),
    "decimal(38,10)": _one(pa.decimal128(38, 10), _long_decimals),
    "interval": _one(pa.duration("us"), lambda: [dt.timedelta(microseconds=n * 90_000_000_001) for n in range(-15, 15)]),
    "int+string": KeyKind({"k": pa.int32(), "j": pa.string()}, {"k": pa.int32(), "j": pa.string()}, _pairs),
    "long+date+double": KeyKind(
        {"k": pa.int64(), "j": pa.date32(), "i": pa.float64()}, {"k": pa.int64(), "j": pa.date32(), "i": pa.float64()}, _triples
    ),
    "int for long": _one(pa.int64(), _integers(32), pa.int32()),
    "long for int": _one(pa.int32(), _integers(32), pa.int64(), (2**40, 2**32 + 1, -(2**32), 2**31, -(2**63))),
    "byte for long": _one(pa.int64(), _integers(8), pa.int8()),
    "float for double": _one(pa.float64(), _floats, pa.float32()),
    "double for float": _one(pa.float32(), _floats, pa.float64(), (0.1, 1e300, 1e-320, 16777217.0)),
    "decimal(12,4) for decimal(10,2)": _one(
        pa.decimal128(10, 2), _short_decimals, pa.decimal128(12, 4), (Decimal("0.0001"), Decimal("1.1001"))
    ),
    "decimal(10,2) for decimal(38,10)": _one(pa.decimal128(38, 10), _short_decimals, pa.decimal128(10, 2)),
    "decimal(38,10) for decimal(10,2)": _one(
        pa.decimal128(10, 2), _short_decimals, pa.decimal128(38, 10), (Decimal("9" * 28), Decimal("0.001"), Decimal(2**62))
    ),
}  # fmt: skip


def table_rows(kind: KeyKind, *, unique: bool, seed: int = 1) -> pa.Table:
    """Two thirds of the pool's keys, once each or one to four times, and rows whose key is null."""
    rng = random.Random(seed)
    pool = kind.pool()
    known = pool[: max(1, len(pool) * 2 // 3)]
    keys: list[tuple[Any, ...]] = []
    if unique:
        keys = list({_normal(key): key for key in known}.values())
    else:
        for key in [*known, *pool[-2:]]:
            keys += [key] * rng.randint(1, 4)
    keys += [tuple(None if i == gap else value for i, value in enumerate(pool[0])) for gap in range(len(kind.names))]
    rng.shuffle(keys)
    columns: dict[str, pa.Array] = {
        name: pa.array([key[i] for key in keys], kind.table_types[name]) for i, name in enumerate(kind.names)
    }
    columns["v"] = pa.array([None if n % 7 == 3 else n for n in range(len(keys))], pa.int64())
    columns["w"] = pa.array([None if n % 5 == 2 else f"w{n}" * (n % 4) for n in range(len(keys))])
    columns["x"] = pa.array([None if n % 6 == 1 else n % 2 == 0 for n in range(len(keys))])
    return pa.table(columns)


def stream_rows(kind: KeyKind, rows: int = 250, seed: int = 2) -> pa.Table:
    """Keys with repeats, known, absent and null."""
    rng = random.Random(seed)
    pool = kind.pool()
    keys: list[tuple[Any, ...]] = [*pool, *(rng.choice(pool) for _ in range(rows - len(pool)))]
    keys += [(value,) for value in kind.foreign for _ in range(2)]
    for n in range(0, len(keys), 17):
        gap = rng.randrange(len(kind.names))
        keys[n] = tuple(None if i == gap else value for i, value in enumerate(keys[n]))
    columns: dict[str, pa.Array] = {"id": pa.array(range(len(keys)), pa.int64())}
    for i, name in enumerate(kind.names):
        columns[name] = pa.array([key[i] for key in keys], kind.stream_types[name])
    return pa.table(columns)


def _normal(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Equal where Spark says equal."""
    return tuple("NaN" if value != value else 0.0 if value == 0 else value for value in key)
