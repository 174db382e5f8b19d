"""Inputs of online aggregation: records at hand, Arrow and Parquet, on a virtual device, and in fits and starts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.core.devices import Transfer, VirtualDevice
from millrace.core.errors import ParameterError, SchemaError
from millrace.core.step import Int64Array
from millrace.online.protocol import Batch, Input
from millrace.online.records import Records
from millrace.relations.parquet_files import list_files

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


def parquet_input(folder: str | Path, records: Records, *, batch_rows: int = 1 << 16, seed: int | None = None) -> BatchInput:
    """The rows of Parquet files; with a seed, row groups come in random order."""
    files = [pq.ParquetFile(source.path) for source in list_files(folder)]
    groups = [(file, group) for file in files for group in range(file.metadata.num_row_groups)]
    if seed is not None:
        groups = [groups[i] for i in np.random.default_rng(seed).permutation(len(groups))]
    wanted = list(dict.fromkeys([*records.key, *records.doubles, *records.present, *(f.name for f in records.columns)]))
    for file in files:
        for name in wanted:
            if name not in file.schema_arrow.names:
                names = ", ".join(file.schema_arrow.names)
                raise SchemaError(f"the files of {folder} have no column {name!r}; they have {names}")

    def batches() -> Iterator[pa.RecordBatch]:
        for file, group in groups:
            yield from file.iter_batches(batch_rows, row_groups=[group], columns=wanted, use_threads=False)

    return BatchInput(batches(), records.numbered, sum(file.metadata.num_rows for file in files), records.width)


class StallingInput:
    """Another input that gives at most `portions[k]` rows at its k-th read (0: it has none then), and all it has after that."""

    def __init__(self, wrapped: Input, portions: Iterator[int]) -> None:
        self._wrapped, self._portions = wrapped, portions
        self.rows, self.width = wrapped.rows, wrapped.width

    @property
    def ended(self) -> bool:
        return self._wrapped.ended

    def read(self, rows: int) -> Batch:
        portion = min(rows, next(self._portions, rows))
        return self._wrapped.read(portion) if portion else Batch(np.zeros((0, self.width), np.int64), NOTHING, 0)


@dataclass
class Track:
    """Where reading stands on a device. Inputs that share one lie interleaved, as they are read, and so cost no seeks."""

    place: int = 0


class VirtualInput:
    """Another input whose reads take what they would take on a virtual device; one byte stands for `scale` bytes.

    It is read in units of `unit_bytes` of the device; `overlapped`: the next unit is read while the join works on this one.
    """

    def __init__(
        self, wrapped: Input, device: VirtualDevice, track: Track, *, scale: float = 1.0, overlapped: bool = True,
        unit_bytes: int = 1_000_000,
    ) -> None:  # fmt: skip
        self._wrapped, self._device, self._track = wrapped, device, track
        self.rows, self.width = wrapped.rows, wrapped.width
        self.scale, self.overlapped = scale, overlapped
        self._unit_rows = max(1, round(unit_bytes / scale / (8 * self.width)))
        self._to_start = wrapped.rows
        self._ahead: Transfer | None = None
        self._left = 0  # rows of the unit at hand

    @property
    def ended(self) -> bool:
        return self._wrapped.ended

    def _start(self) -> Transfer:
        rows = min(self._unit_rows, self._to_start)
        self._to_start -= rows
        size = round(rows * self.width * 8 * self.scale)
        transfer = self._device.start("read", "input", self._track.place, size)
        self._track.place += size
        return transfer

    def read(self, rows: int) -> Batch:
        """At most one unit; waits for it on the clock."""
        if self._left == 0:
            self._device.wait(self._ahead or self._start())
            self._ahead = self._start() if self.overlapped and self._to_start else None
            self._left = self._unit_rows
        batch = self._wrapped.read(min(rows, self._left))
        self._left -= batch.rows
        return batch
