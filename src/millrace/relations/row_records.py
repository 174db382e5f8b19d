"""Rows into records and records into columns, by compiled kernels. See `layout` for what a record looks like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.arrays import Int32Array, Int64Array
from millrace.core.compiled import kernel
from millrace.core.errors import TableError
from millrace.core.memoryaccess import (
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
from millrace.relations.layout import PackedColumn, PageLayout

AHEAD = 32  # rows: enough to hide a miss, few enough to stay in the nearest cache
LINE = 64
_FIRST_TEXT_BYTES = 32.0
_SPARE = 1.05
_LITTLE_BYTES = 1 << 16
_MOST_TEXT_BYTES = 2**31 - 1  # Arrow's offsets


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


class Sink(NamedTuple):
    """Where the columns of some rows go. What a kernel needs, and nothing else."""

    head_bytes: int
    places: Int64Array  # of each fixed-width column: where in a record it stands, its bytes, the address it goes to
    widths: Int64Array
    outs: Int64Array
    texts: Int64Array  # of each text: where in a record the end of the one before it stands (-1: none), and its own end
    ends: Int32Array  # one row per text, Arrow's offsets
    tails: Int64Array  # of each text: the address of its bytes, and how many there is room for
    room: Int64Array
    lacking: Int64Array  # when room was missing: which text, and how many bytes it needs up to here


class Unpacker:
    """Copies columns out of records. One is used for many batches, and learns from them how long texts are."""

    def __init__(self, columns: Sequence[PackedColumn], layout: PageLayout, may_be_null: set[str]) -> None:
        self._columns = tuple(columns)
        self._may_be_null = may_be_null
        self._head_bytes = layout.head_bytes
        self._fixed = [column for column in columns if column.kind != "bytes"]
        self._texts = [column for column in columns if column.kind == "bytes"]
        self._places = _array(column.place for column in self._fixed)
        self._widths = _array(column.width for column in self._fixed)
        self._text_places = _text_places(self._texts, layout)
        self._text_bytes = [_FIRST_TEXT_BYTES] * len(self._texts)  # per row
        self._values: list[npt.NDArray[np.uint8]] = []
        self._tails: list[pa.Buffer] = []
        self._limit_bytes: int | None = None

    def begin(self, rows: int, limit_bytes: int | None = None) -> Sink:
        """Room for so many rows. With a limit, their texts take no more, unless those of the first row alone do."""
        self._limit_bytes = limit_bytes
        self._values = [np.empty(rows * column.width, np.uint8) for column in self._fixed]
        most = (_MOST_TEXT_BYTES if limit_bytes is None else limit_bytes) // max(1, len(self._texts))
        room = [min(int(rows * each), most) + 1 for each in self._text_bytes]
        self._tails = [pa.allocate_buffer(size, resizable=True) for size in room]
        ends = np.empty((len(self._texts), rows + 1), np.int32)
        ends[:, 0] = 0
        return Sink(
            self._head_bytes, self._places, self._widths, _array(out.ctypes.data for out in self._values), self._text_places,
            ends, _array(tail.address for tail in self._tails), np.array(room, np.int64), np.zeros(2, np.int64),
        )  # fmt: skip

    def grow(self, sink: Sink, done: int) -> bool:
        """Make room for the text that did not fit; False if that would be too much, and the first `done` rows have to do."""
        text, needed = sink.lacking.tolist()
        left = _MOST_TEXT_BYTES
        if self._limit_bytes is not None:
            left = min(left, self._limit_bytes - int(sink.ends[:, done].sum()) + int(sink.ends[text, done]))
        if needed > left and done and self._limit_bytes is not None:
            return False
        if needed > _MOST_TEXT_BYTES:
            raise TableError(
                f"column {self._texts[text].name!r} has values too long to put out {sink.ends.shape[1] - 1} of them at once; "
                "leave the column out with columns="
            )
        room = max(needed, min(2 * int(sink.room[text]), left))
        self._tails[text].resize(room)
        sink.tails[text], sink.room[text] = self._tails[text].address, room
        return True

    def finish(self, records: Int64Array, sink: Sink, *, all_found: bool = False) -> dict[str, pa.Array]:
        """The columns of rows that were copied, by name; null where a record is 0, which none is if all were found."""
        rows = len(records)
        found = {column.name: [_plain(column, out)] for column, out in zip(self._fixed, self._values, strict=True)}
        for number, (column, tail) in enumerate(zip(self._texts, self._tails, strict=True)):
            used = int(sink.ends[number, rows])
            if tail.size > 2 * used + _LITTLE_BYTES:
                tail.resize(used, shrink_to_fit=True)  # whoever holds the rows must not hold much more
            found[column.name] = [pa.py_buffer(sink.ends[number, : rows + 1]), tail.slice(0, used)]
            before, now = self._text_bytes[number], _SPARE * used / max(1, rows)
            self._text_bytes[number] = now if now > before else (3 * before + now) / 4
        bitmap_bytes = -(-rows // 8)
        shared, missing = None, 0
        if not all_found:
            present = np.zeros(bitmap_bytes, np.uint8)
            missing = rows - mark_present(records, present)
            shared = pa.py_buffer(present) if missing else None
        arrays = {}
        for column in self._columns:
            validity, nulls = shared, missing
            if column.name in self._may_be_null:
                bits = np.zeros(bitmap_bytes, np.uint8)
                nulls = rows - mark_valid(records, column.number >> 3, 1 << (column.number & 7), bits)
                validity = pa.py_buffer(bits) if nulls else None
            arrays[column.name] = pa.Array.from_buffers(column.type, rows, [validity, *found[column.name]], nulls)
        self._values, self._tails = [], []
        return arrays

    def unpack(
        self, records: Int64Array, limit_bytes: int | None = None, *, all_found: bool = False
    ) -> tuple[dict[str, pa.Array], int]:
        """Columns by name, whose row i comes from the record at address `records[i]`, and is null where that is 0; and how many
        rows. These are fewer than all, but one at least, where their texts take more than `limit_bytes`."""
        sink = self.begin(len(records), limit_bytes)
        done = 0
        while (done := copy_records(records, done, len(records), tuple(sink))) < len(records):
            if not self.grow(sink, done):
                break
        return self.finish(records[:done], sink, all_found=all_found), done


def _text(values: pa.Array) -> tuple[Int32Array, pa.Buffer | None]:
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
def copy_records(records: Any, begin: Any, end: Any, sink: Any) -> Any:
    """Copy rows `begin` to `end`, and return the row to go on with: `end`, or one whose text had no room."""
    head_bytes, places, widths, outs, texts, ends, tails, room, lacking = sink
    for i in range(begin, end):
        if i + AHEAD < end:
            prefetch(records[i + AHEAD])
            prefetch(records[i + AHEAD] + LINE)
        record = records[i]
        if record == 0:
            for c in range(len(places)):
                for byte in range(widths[c]):
                    store8(outs[c] + i * widths[c] + byte, np.uint8(0))
            for c in range(len(texts)):
                ends[c, i + 1] = ends[c, i]
            continue
        for c in range(len(places)):
            source = record + places[c]
            width = widths[c]
            target = outs[c] + i * width
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
            before = texts[c, 0]
            start = np.int64(load32(record + before)) if before >= 0 else np.int64(0)
            size = np.int64(load32(record + texts[c, 1])) - start
            place = np.int64(ends[c, i])
            if place + size > room[c]:
                lacking[0] = c
                lacking[1] = place + size
                return np.int64(i)
            copy_bytes(tails[c] + place, record + head_bytes + start, size)
            ends[c, i + 1] = place + size
    return np.int64(end)


@kernel
def mark_present(records: Any, out: Any) -> Any:
    """Set the bits of rows that have a record in a bitmap of zeros; returns how many."""
    ones = 0
    for i in range(len(records)):
        if records[i] != 0:
            out[i >> 3] |= np.uint8(1) << np.uint8(i & 7)
            ones += 1
    return ones


@kernel
def mark_valid(records: Any, place: Any, bit: Any, out: Any) -> Any:
    """Set the bits of rows that have a record with a value in a bitmap of zeros; returns how many."""
    ones = 0
    for i in range(len(records)):
        if records[i] != 0 and load8(records[i] + place) & np.uint8(bit) == 0:
            out[i >> 3] |= np.uint8(1) << np.uint8(i & 7)
            ones += 1
    return ones
