"""Small data with every kind of trouble. The laws are checked on this data."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from millrace.core.protocols import How, JoinSpec

PAUSE = 0  # a batch of no rows: nothing arrives, the join goes on


class KeyType(NamedTuple):
    """A key type in the relation and in the stream, and how number i is written as a key on either side."""

    name: str
    relation: pa.DataType
    stream: pa.DataType
    value: Callable[[int], Any]
    stream_value: Callable[[int], Any] | None = None


def _float(i: int, zero: float = 0.0) -> float:
    odd = (zero, float("nan"), 1.5, float("inf"), -2.25)
    return odd[i] if i < len(odd) else i / 4


def _negative_zero(i: int) -> float:
    return _float(i, -0.0)


_DAY = datetime.date(2024, 1, 1)
_NOON = datetime.datetime(2024, 1, 1, 12)

KEY_TYPES: tuple[KeyType, ...] = (
    KeyType("int64", pa.int64(), pa.int64(), lambda i: i),
    KeyType("int across widths", pa.int64(), pa.int16(), lambda i: i),
    KeyType("unsigned", pa.uint32(), pa.int64(), lambda i: i),
    KeyType("boolean", pa.bool_(), pa.bool_(), lambda i: i % 2 == 1),
    KeyType("float", pa.float64(), pa.float64(), _float, _negative_zero),
    KeyType("float across widths", pa.float64(), pa.float32(), _float, _negative_zero),
    KeyType("date", pa.date32(), pa.date32(), lambda i: _DAY + datetime.timedelta(days=i)),
    KeyType("timestamp", pa.timestamp("us"), pa.timestamp("us"), lambda i: _NOON + datetime.timedelta(microseconds=i)),
    KeyType("timestamp across units", pa.timestamp("us", "UTC"), pa.timestamp("s", "UTC"),
            lambda i: _NOON + datetime.timedelta(seconds=i)),
    KeyType("string", pa.string(), pa.string(), lambda i: "é" * (i % 3) + f"key {i}" + "x" * (i % 11)),
    KeyType("large string", pa.string(), pa.large_string(), lambda i: "" if i == 3 else f"k{i}"),
    KeyType("binary", pa.binary(), pa.binary(), lambda i: bytes([i % 7]) * (i % 7) + bytes([i])),
    KeyType("short decimal", pa.decimal128(9, 2), pa.decimal128(9, 2), lambda i: decimal.Decimal(i) / 4),
    KeyType("decimal across scales", pa.decimal128(12, 2), pa.decimal128(20, 5), lambda i: decimal.Decimal(i) / 4),
    KeyType("long decimal", pa.decimal128(38, 4), pa.decimal128(30, 2), lambda i: decimal.Decimal(10**20 + i) / 4),
)  # fmt: skip


class Sample(NamedTuple):
    """A relation's rows, a stream, and what to join; the same data for every `how`."""

    relation: pa.Table
    stream: pa.Table
    spec: JoinSpec


def sample(how: How, *, kind: KeyType = KEY_TYPES[0], stream_rows: int = 120, seed: int = 1) -> Sample:
    """The relation has keys 0 to 29, every fifth key three times, and one null key. The stream is skewed; it has absent keys,
    null keys, and most keys more than once."""
    random = np.random.default_rng(seed)
    present = [key for key in range(30) for _ in range(3 if key % 5 == 0 else 1)]
    skewed = np.minimum(random.integers(0, 40, stream_rows), random.integers(0, 60, stream_rows)).tolist()
    drawn = [None if i % 17 == 5 else key for i, key in enumerate(skewed)]
    relation_keys: list[int | None] = [*present, None]
    random.shuffle(relation_keys)
    relation = pa.table({
        "id": written(kind.relation, relation_keys, kind.value),
        "price": pa.array([i * 0.5 if i % 4 else None for i in range(len(relation_keys))], pa.float64()),
        "name": pa.array([f"row {i}" for i in range(len(relation_keys))]),
    })  # fmt: skip
    stream = pa.table({
        "event": pa.array(range(stream_rows), pa.int64()),
        "product": written(kind.stream, drawn, kind.stream_value or kind.value),
        "note": pa.array([None if i % 7 == 0 else "n" * (i % 5) for i in range(stream_rows)]),
    })  # fmt: skip
    return Sample(relation, stream, spec_of(stream, how))


def composite(how: How) -> Sample:
    """The same with a key of two columns, a string and an integer. Either column may be null."""
    relation, stream, _ = sample(how)
    keys = [None if row is None else row % 4 for row in relation.column("id").to_pylist()]
    relation = relation.append_column("shop", pa.array([None if key is None else f"shop {key}" for key in keys]))
    shops = [None if i % 13 == 0 else f"shop {0 if key is None else key % (4 + i % 2)}"
             for i, key in enumerate(stream.column("product").to_pylist())]  # fmt: skip
    stream = stream.append_column("shop", pa.array(shops))
    on = (("shop", "shop"), ("product", "id"))
    return Sample(relation, stream, JoinSpec(stream.schema, on, how, ("event", "product"), _columns(how)))


def spec_of(stream: pa.Table, how: How) -> JoinSpec:
    return JoinSpec(stream.schema, (("product", "id"),), how, tuple(stream.schema.names), _columns(how))


def _columns(how: How) -> tuple[str, ...]:
    return ("id", "price", "name") if how in ("inner", "left") else ()


def written(kind: pa.DataType, keys: Sequence[int | None], value: Callable[[int], Any]) -> pa.Array:
    return pa.array([None if key is None else value(key) for key in keys], kind)


def cut(table: pa.Table, sizes: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """`table` as batches of the given sizes, taken in turn until the rows are used up; `PAUSE` gives an empty batch."""
    whole = pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=table.schema)
    if not any(sizes) and whole.num_rows:
        raise ValueError("a stream with rows needs at least one batch that is not empty")
    at = turn = 0
    while at < whole.num_rows:
        size = sizes[turn % len(sizes)]
        yield whole.slice(at, size)
        at += size
        turn += 1
