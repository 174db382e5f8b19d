"""How many bytes each row of Arrow data takes. This bounds memory where rows differ in size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.arrays import Int64Array


def has_fixed_width(kind: pa.DataType) -> bool:
    """Whether all values of a type take the same number of bytes."""
    try:
        return kind.bit_width > 0 and not pa.types.is_dictionary(kind)
    except ValueError:
        return bool(pa.types.is_null(kind))


def sizes_of(columns: Iterable[pa.Array], rows: int) -> Int64Array:
    """Bytes of each row of these columns, null flags aside.

    >>> sizes_of([pa.array([1, 2]), pa.array(["a", "bcd"])], 2).tolist()
    [17, 19]
    """
    total = np.zeros(rows, np.int64)
    for column in columns:
        total += _value_bytes(column)
    return total


def fitting(sizes: Int64Array, limit_bytes: int) -> int:
    """How many of the first rows take no more than `limit_bytes` together."""
    return int(np.searchsorted(np.cumsum(sizes), limit_bytes, "right"))


def within(batch: pa.RecordBatch, limit_bytes: int | None) -> pa.RecordBatch:
    """The first rows of a batch that take no more than `limit_bytes`, but at least one row. Without a limit: all rows."""
    if limit_bytes is None or batch.nbytes <= limit_bytes:
        return batch
    return batch.slice(0, max(1, fitting(sizes_of(batch.columns, batch.num_rows), limit_bytes)))


def cuts(sizes: Int64Array, limit_bytes: int, limit_rows: int) -> list[tuple[int, int]]:
    """Consecutive ranges of rows. Each range has at most so many bytes and rows, but at least one row.

    >>> cuts(np.array([3, 3, 9, 1, 1, 1]), limit_bytes=6, limit_rows=2)
    [(0, 2), (2, 3), (3, 5), (5, 6)]
    """
    ends = np.cumsum(sizes)
    ranges, start, before = [], 0, 0
    while start < len(sizes):
        most = int(np.searchsorted(ends, before + limit_bytes, "right"))
        end = max(start + 1, min(start + limit_rows, most))
        ranges.append((start, end))
        start, before = end, int(ends[end - 1])
    return ranges


def _value_bytes(values: pa.Array) -> Any:
    """Bytes of each value: one number where all are the same."""
    kind = values.type
    if len(values) == 0 or has_fixed_width(kind):
        return 0 if pa.types.is_null(kind) or len(values) == 0 else max(1, kind.bit_width // 8)
    if isinstance(values, pa.ExtensionArray):
        return _value_bytes(values.storage)
    if pa.types.is_struct(kind):
        return sum(_value_bytes(values.field(i)) for i in range(kind.num_fields))
    if pa.types.is_dictionary(kind):
        each = np.zeros(len(values.dictionary) + 1, np.int64)  # the last one stands for null
        each[:-1] = _value_bytes(values.dictionary)
        return each[values.indices.fill_null(len(values.dictionary)).to_numpy()] + kind.index_type.bit_width // 8
    if pa.types.is_fixed_size_list(kind):
        inside = values.values.slice(values.offset * kind.list_size, len(values) * kind.list_size)
        return np.broadcast_to(_value_bytes(inside), len(inside)).reshape(len(values), kind.list_size).sum(axis=1)
    offsets = _offsets(values)
    if offsets is None:
        views = np.frombuffer(values.buffers()[1], np.int32).reshape(-1, 4)  # a view begins with its length
        return views[values.offset : values.offset + len(values), 0].astype(np.int64) + views.itemsize * 4
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        inside = values.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        each = np.zeros(len(inside) + 1, np.int64)
        np.cumsum(np.broadcast_to(_value_bytes(inside), len(inside)), out=each[1:])
        return np.diff(each[offsets - offsets[0]]) + offsets.itemsize
    return np.diff(offsets) + offsets.itemsize


def _offsets(values: pa.Array) -> Any:
    """Where each value begins, and where the last value ends; None for types without offsets."""
    kind = values.type
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) or pa.types.is_large_list(kind):
        width: Any = np.int64
    elif pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_list(kind) or pa.types.is_map(kind):
        width = np.int32
    else:
        return None
    return np.frombuffer(values.buffers()[1], width)[values.offset : values.offset + len(values) + 1].astype(np.int64)
