"""Inputs of a join: records that are in memory, and Arrow batches that are made into records ahead of the join."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.errors import ParameterError
from millrace.online.protocol import Batch

NOTHING = 0  # rows: the input has none now


class ArrayInput:
    """Records in memory, in the order given. `keep` marks rows that join; others are read and counted, and go no further."""

    def __init__(self, words: Int64Array, keep: np.ndarray[tuple[int], np.dtype[np.bool_]] | None = None) -> None:
        if words.ndim != 2 or words.dtype != np.int64 or words.shape[1] < 1:
            raise ParameterError(f"records are an int64 array of rows and words; got {words.dtype} of shape {words.shape}")
        self._words, self._keep = np.ascontiguousarray(words), keep
        self.rows, self.width = words.shape
        self._position = 0

    @property
    def ended(self) -> bool:
        return self._position == self.rows

    def read(self, rows: int) -> Batch:
        start, self._position = self._position, min(self.rows, self._position + rows)
        words = self._words[start : self._position]
        count = len(words)
        if self._keep is not None:
            words = words[self._keep[start : self._position]]
        return Batch(words, count, count * self.width * 8)


Numbered = tuple[Int64Array, "Int64Array | None"]  # records, and which row of the batch each is (None: all are there)


class BatchInput:
    """Any iterator of Arrow batches, made into records by `numbered`, up to `ahead` of them ahead in a thread of its own.

    `rows`: how many there will be, known or estimated. Batches should be small: `ahead` + 1 of them are held, and one more is
    being made.
    """

    def __init__(
        self, batches: Iterator[pa.RecordBatch], numbered: Callable[[pa.RecordBatch], Numbered], rows: int, width: int,
        *, ahead: int = 2,
    ) -> None:  # fmt: skip
        self.rows, self.width = rows, width
        self._batches, self._numbered = batches, numbered
        self._thread = ThreadPoolExecutor(1, "millrace-input")
        self._coming: deque[Future[tuple[pa.RecordBatch, Numbered] | None]] = deque()
        for _ in range(ahead):
            self._coming.append(self._thread.submit(self._next))
        self._batch: pa.RecordBatch | None = None
        self._ended = False

    def _next(self) -> tuple[pa.RecordBatch, Numbered] | None:
        for batch in self._batches:
            if batch.num_rows:
                return batch, self._numbered(batch)
        return None

    @property
    def ended(self) -> bool:
        """Waits for the next batch, if there is none at hand."""
        if self._batch is None and not self._ended:
            found = self._coming.popleft().result()
            if found is None:
                self._ended = True
                self.close()
            else:
                self._batch, (self._words, self._places) = found
                self._row = self._kept = 0
                self._coming.append(self._thread.submit(self._next))
        return self._ended

    def read(self, rows: int) -> Batch:
        if self.ended or self._batch is None:
            return Batch(np.zeros((0, self.width), np.int64), NOTHING, 0)
        count = min(rows, self._batch.num_rows - self._row)
        self._row += count
        end = self._row if self._places is None else int(np.searchsorted(self._places, self._row))
        words, self._kept = self._words[self._kept : end], end
        size = self._batch.nbytes * count // self._batch.num_rows
        if self._row == self._batch.num_rows:
            self._batch = None
        return Batch(words, count, size)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
