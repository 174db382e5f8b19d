"""Stream rows waiting in a window: Arrow chunks, addressed by window slot, compacted as rows leave."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.rowbytes import fitting, has_fixed_width, sizes_of

MAX_CHUNKS = 8  # more chunks than this make `take` slow: the smallest are merged


class RowStore:
    """The rows behind the slots of a window.

    A chunk is kept until none of its rows is wanted; when more than half of what is held is dead, or there are too many
    chunks, the live rows are copied together. So at most twice the live bytes are held, three times while copying.
    """

    def __init__(self, schema: pa.Schema, capacity: int) -> None:
        self.schema = schema
        self._chunk = np.zeros(capacity, np.int32)
        self._row = np.zeros(capacity, np.int32)
        self._sizes = None if all_fixed(schema) else np.zeros(capacity, np.int32)  # bytes of each row
        self._chunks: dict[int, pa.RecordBatch] = {}
        self._slots: dict[int, Int64Array] = {}  # per chunk: slot of each row, -1 when it left
        self._live: dict[int, int] = {}
        self._next = 0

    @staticmethod
    def bytes_per_slot(schema: pa.Schema) -> int:
        """Bytes to plan for one row, its addresses and the copying included."""
        width = sum(type_bytes(field.type) for field in schema)
        return 8 + 8 + (0 if all_fixed(schema) else 4) + 3 * width

    @property
    def bytes_held(self) -> int:
        return sum(chunk.nbytes for chunk in self._chunks.values())

    def add(self, batch: pa.RecordBatch, slots: Int64Array) -> None:
        """Row i of `batch` waits in slot `slots[i]`."""
        if self._sizes is not None:
            self._sizes[slots] = self.sizes(batch)
        self._insert(batch.select(self.schema.names), slots)
        if len(self._chunks) > MAX_CHUNKS:
            smallest = sorted(self._chunks, key=lambda number: self._live[number])[: MAX_CHUNKS // 2 + 1]
            self._merge(smallest)

    def sizes(self, batch: pa.RecordBatch) -> Int64Array:
        """Bytes that each row of a batch will take here."""
        return sizes_of([batch.column(name) for name in self.schema.names], batch.num_rows)

    def fitting(self, slots: Int64Array, limit_bytes: int) -> int:
        """How many rows of the given slots, from the first on, take no more than `limit_bytes`."""
        if self._sizes is None:
            return min(len(slots), limit_bytes // max(1, sum(type_bytes(kind) for kind in self.schema.types)))
        return fitting(self._sizes[slots].astype(np.int64), limit_bytes)

    def take(self, slots: Int64Array) -> pa.RecordBatch:
        """The rows of the given slots, in that order."""
        chunks = self._chunk[slots]
        rows = self._row[slots]
        numbers = np.unique(chunks)
        if len(numbers) == 0:
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        if len(numbers) == 1:
            return self._chunks[int(numbers[0])].take(pa.array(rows))
        order = np.argsort(chunks, kind="stable")
        parts = [self._chunks[int(n)].take(pa.array(rows[order][chunks[order] == n])) for n in numbers]
        inverse = np.empty(len(slots), np.int64)
        inverse[order] = np.arange(len(slots))
        return pa.concat_batches(parts).take(pa.array(inverse))

    def drop(self, slots: Int64Array) -> None:
        """The rows of these slots are not wanted any more."""
        chunks = self._chunk[slots]
        for number in np.unique(chunks).tolist():
            gone = slots[chunks == number]
            self._slots[number][self._row[gone]] = -1
            self._live[number] -= len(gone)
            if self._live[number] == 0:
                del self._chunks[number], self._slots[number], self._live[number]
            elif self._live[number] * 2 < len(self._slots[number]):
                self._merge([number])

    def _insert(self, batch: pa.RecordBatch, slots: Int64Array) -> None:
        number = self._next
        self._next += 1
        self._chunks[number] = batch
        self._slots[number] = slots.astype(np.int64, copy=True)
        self._live[number] = len(slots)
        self._chunk[slots] = number
        self._row[slots] = np.arange(len(slots))

    def _merge(self, numbers: list[int]) -> None:
        parts = []
        slots = []
        for number in numbers:
            kept = np.flatnonzero(self._slots[number] >= 0)
            parts.append(self._chunks.pop(number).take(pa.array(kept)))
            slots.append(self._slots.pop(number)[kept])
            del self._live[number]
        self._insert(pa.concat_batches(parts), np.concatenate(slots))


def all_fixed(schema: pa.Schema) -> bool:
    """Whether all rows of a schema take the same number of bytes."""
    return all(has_fixed_width(kind) for kind in schema.types)


def type_bytes(kind: pa.DataType) -> int:
    """Bytes to plan for one value; 32 for what has no fixed width."""
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return 32
