"""Rows into records and records into columns, by compiled kernels. See `layout` for what a record looks like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.compiled import kernel
from millrace.core.errors import TableError
from millrace.core.step import Int64Array
from millrace.relations.layout import PackedColumn, PageLayout
from millrace.relations.memoryaccess import (
    copy_bytes,
    load8,
    load16,
    load32,
    load64,
    prefetch,
    store8,
    store16,
    store32,
    store64,
)

AHEAD = 32  # rows: enough to hide a miss, few enough to stay in the nearest cache
_LINE = 64


def pack(batch: pa.RecordBatch, layout: PageLayout) -> tuple[pa.Array, int]:
    """The records of a batch, and the null flags of the columns that have nulls."""
    rows = batch.num_rows
    ends = np.full(rows, layout.head_bytes, np.int64)
    texts = {column.name: _text(batch.column(column.name)) for column in layout.texts}
    for offsets, _ in texts.values():
        ends += np.diff(offsets)
    starts = np.zeros(rows + 1, np.int64)
    np.cumsum(ends, out=starts[1:])
    data = np.zeros(int(starts[-1]), np.uint8)
    target = data.ctypes.data + starts[:-1]
    flags = 0
    filled = np.zeros(rows, np.int32)
    for column in layout.packed:
        values = batch.column(column.name)
        if values.null_count:
            flags |= column.null_flag
            nulls = values.is_null().to_numpy(zero_copy_only=False)
            set_null_bits(target[nulls], column.number >> 3, 1 << (column.number & 7))
        if column.kind == "bytes":
            offsets, source = texts[column.name]
            address = source.address if source is not None else 0
            put_texts(target, column.place, layout.head_bytes, address, offsets, filled)
        else:
            plain = _fixed(values, column)
            put_fixed(target, column.place, plain.ctypes.data, column.width)
    buffers = [None, pa.py_buffer(starts.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers, 0), flags


def unpack(
    records: Int64Array, to: Int64Array, count: int, columns: Sequence[PackedColumn], layout: PageLayout, may_be_null: set[str]
) -> list[pa.Array]:
    """Columns of `count` rows: row `to[i]` from the record at address `records[i]`; rows that nothing goes to are null."""
    fixed = [column for column in columns if column.kind != "bytes"]
    texts = [column for column in columns if column.kind == "bytes"]
    whole = count == len(records)
    make = np.empty if whole else np.zeros
    values = [make(count * column.width, np.uint8) for column in fixed]
    ends = np.zeros((len(texts), count + 1), np.int32)
    before = _text_places(texts, layout)
    take_heads(
        records, to, _array(column.place for column in fixed), _array(column.width for column in fixed),
        _array(out.ctypes.data for out in values), before, ends,
    )  # fmt: skip
    totals = [int(total) for total in add_up(ends)]
    for column, total in zip(texts, totals, strict=True):
        if total > 2**31 - 1:
            raise TableError(
                f"column {column.name!r} has values too long to put out {count} of them at once; give less memory= or "
                "leave the column out with columns="
            )
    tails = [pa.allocate_buffer(total) for total in totals]
    if texts:
        take_tails(records, to, layout.head_bytes, before, ends, _array(tail.address for tail in tails))
    found = dict(zip([c.name for c in fixed], [[_plain(c, out)] for c, out in zip(fixed, values, strict=True)], strict=True))
    for number, (column, tail) in enumerate(zip(texts, tails, strict=True)):
        found[column.name] = [pa.py_buffer(ends[number]), tail]
    arrays = []
    for column in columns:
        validity, nulls = None, 0
        if not whole or column.name in may_be_null:
            bits = np.zeros(-(-count // 8), np.uint8)
            nulls = count - take_validity(records, to, column.number >> 3, 1 << (column.number & 7), bits)
            validity = pa.py_buffer(bits) if nulls else None
        arrays.append(pa.Array.from_buffers(column.type, count, [validity, *found[column.name]], nulls))
    return arrays


def _text(values: pa.Array) -> tuple[npt.NDArray[np.int32], pa.Buffer | None]:
    _, offsets, data = values.buffers()
    return np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1], data


def _fixed(values: pa.Array, column: PackedColumn) -> npt.NDArray[np.uint8]:
    """The values as bytes; whatever stands where they are null."""
    if column.kind == "bits":
        return values.fill_null(False).to_numpy(zero_copy_only=False).view(np.uint8)
    data = np.frombuffer(values.buffers()[1], np.uint8)
    return data[values.offset * column.width : (values.offset + len(values)) * column.width]


def _plain(column: PackedColumn, out: npt.NDArray[np.uint8]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(out, bitorder="little") if column.kind == "bits" else out)


def _text_places(texts: Sequence[PackedColumn], layout: PageLayout) -> Int64Array:
    """For each text, where in a record the end of the one before it stands (-1: it is the first), and its own end."""
    order = [column.name for column in layout.texts]
    places = []
    for column in texts:
        number = order.index(column.name)
        places.append((layout.texts[number - 1].place if number else -1, column.place))
    return np.array(places, np.int64).reshape(len(texts), 2)


def _array(numbers: Any) -> Int64Array:
    return np.fromiter(numbers, np.int64)


@kernel
def set_null_bits(target: Any, place: Any, bit: Any) -> None:
    for i in range(len(target)):
        store8(target[i] + place, np.uint8(load8(target[i] + place) | np.uint8(bit)))


@kernel
def put_fixed(target: Any, place: Any, source: Any, width: Any) -> None:
    for i in range(len(target)):
        copy_bytes(target[i] + place, source + i * width, width)


@kernel
def put_texts(target: Any, place: Any, head: Any, source: Any, offsets: Any, filled: Any) -> None:
    """The text of each row behind those that are there, and where it ends."""
    for i in range(len(target)):
        size = np.int64(offsets[i + 1]) - np.int64(offsets[i])
        copy_bytes(target[i] + head + np.int64(filled[i]), source + np.int64(offsets[i]), size)
        filled[i] += size
        store32(target[i] + place, filled[i])


@kernel
def find_records(at: Any, page: Any, inside: Any, starts: Any, data: Any, records: Any) -> None:
    """The address of each record: row `inside[i]` of page `page[i]`, which lies at `at[i]`."""
    for i in range(len(at)):
        later = i + AHEAD
        if later < len(at):
            prefetch(at[later] + starts[page[later]] + 4 * np.int64(inside[later]))
        start = np.int64(load32(at[i] + starts[page[i]] + 4 * np.int64(inside[i])))
        records[i] = at[i] + data[page[i]] + start


@kernel
def take_heads(records: Any, to: Any, places: Any, widths: Any, outs: Any, texts: Any, ends: Any) -> None:
    """Copy the fixed-width values, and note how long each text is (in `ends`, one place further on)."""
    for i in range(len(records)):
        if i + AHEAD < len(records):
            prefetch(records[i + AHEAD])
        record, row = records[i], to[i]
        for c in range(len(places)):
            source = record + places[c]
            width = widths[c]
            target = outs[c] + row * width
            if width == 8:
                store64(target, load64(source))
            elif width == 4:
                store32(target, load32(source))
            elif width == 1:
                store8(target, load8(source))
            elif width == 2:
                store16(target, load16(source))
            else:
                store64(target, load64(source))
                store64(target + 8, load64(source + 8))
        for c in range(len(texts)):
            begin = np.int32(0) if texts[c, 0] < 0 else load32(record + texts[c, 0])
            ends[c, row + 1] = load32(record + texts[c, 1]) - begin


@kernel
def add_up(ends: Any) -> Any:
    """Lengths into ends, text by text; the totals as 64-bit numbers, which the ends themselves may not hold."""
    totals = np.zeros(ends.shape[0], np.int64)
    for c in range(ends.shape[0]):
        total = np.int64(0)
        for i in range(ends.shape[1]):
            total += ends[c, i]
            ends[c, i] = np.int32(total)
        totals[c] = total
    return totals


@kernel
def take_tails(records: Any, to: Any, head: Any, texts: Any, ends: Any, outs: Any) -> None:
    """Copy the texts to where `ends` says."""
    for i in range(len(records)):
        if i + AHEAD < len(records):
            prefetch(records[i + AHEAD])
            prefetch(records[i + AHEAD] + _LINE)
            prefetch(records[i + AHEAD] + 2 * _LINE)
        record, row = records[i], to[i]
        for c in range(len(texts)):
            begin = np.int64(0) if texts[c, 0] < 0 else np.int64(load32(record + texts[c, 0]))
            place = np.int64(ends[c, row])
            copy_bytes(outs[c] + place, record + head + begin, np.int64(ends[c, row + 1]) - place)


@kernel
def take_validity(records: Any, to: Any, place: Any, bit: Any, out: Any) -> Any:
    """Set the bits of rows that have a value in a bitmap of zeros; returns how many."""
    ones = 0
    for i in range(len(records)):
        if load8(records[i] + place) & np.uint8(bit) == 0:
            out[to[i] >> 3] |= np.uint8(1) << np.uint8(to[i] & 7)
            ones += 1
    return ones
