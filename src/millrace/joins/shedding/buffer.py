"""The stream buffer: tuples that have arrived and have not entered the join yet, in order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millrace.core.arrays import BoolArray, Int64Array

_NUMBER_BYTES = 8


class Tuples(NamedTuple):
    """Rows of the stream with their numbers."""

    rows: pa.RecordBatch
    numbers: Int64Array

    def slice(self, first: int, count: int | None = None) -> Tuples:
        last = len(self.numbers) if count is None else first + count
        return Tuples(self.rows.slice(first, last - first), self.numbers[first:last])

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.numbers.nbytes


def joined(parts: list[Tuples]) -> Tuples:
    if len(parts) == 1:
        return parts[0]
    return Tuples(pa.concat_batches([part.rows for part in parts]), np.concatenate([part.numbers for part in parts]))


class StreamBuffer:
    """Tuples in the order in which they will be offered.

    >>> buffer = StreamBuffer(pa.schema([("id", pa.int64())]))
    >>> buffer.append(Tuples(pa.record_batch({"id": [5, 6, 7]}), np.array([0, 1, 2])))
    >>> buffer.remove(np.array([False, True, False])).numbers.tolist(), len(buffer)
    ([1], 2)
    """

    def __init__(self, schema: pa.Schema) -> None:
        empty = pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)
        self.nothing = Tuples(empty, np.zeros(0, np.int64))
        self._parts: list[Tuples] = []
        self._rows = 0
        self.nbytes = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def row_bytes(self) -> float:
        """Bytes of a tuple, on average."""
        return self.nbytes / self._rows if self._rows else _NUMBER_BYTES

    def append(self, tuples: Tuples) -> None:
        if len(tuples.numbers):
            self._parts.append(tuples)
            self._rows += len(tuples.numbers)
            self.nbytes += tuples.nbytes

    def insert(self, tuples: Tuples) -> None:
        """These arrived before: each takes its place by its number."""
        self.append(tuples)
        rows, numbers = self.whole()
        order = np.argsort(numbers, kind="stable")
        self._set(Tuples(rows.take(pa.array(order)), numbers[order]))

    def whole(self) -> Tuples:
        """All tuples, oldest first."""
        self._parts = [joined(self._parts)] if self._parts else []
        return self._parts[0] if self._parts else self.nothing

    def drop_front(self, count: int) -> None:
        """The first tuples have entered the join."""
        if count:
            self._set(self.whole().slice(count))

    def remove(self, marks: BoolArray) -> Tuples:
        """Take out marked tuples."""
        whole = self.whole()
        stay, gone = np.flatnonzero(~marks), np.flatnonzero(marks)
        self._set(Tuples(whole.rows.take(pa.array(stay)), whole.numbers[stay]))
        return Tuples(whole.rows.take(pa.array(gone)), whole.numbers[gone])

    def _set(self, tuples: Tuples) -> None:
        self._rows = len(tuples.numbers)
        self._parts = [tuples] if self._rows else []
        self.nbytes = tuples.nbytes
