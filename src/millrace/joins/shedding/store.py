"""Where tuples go that are shed: a temporary file, or any sink that takes record batches and gives them back in order.

    put --> [ batches in memory ] --> file: message | message | message | ...   --> [ batch being taken ] --> take

A message is a whole Arrow IPC stream, so that any schema can be written. Files have no name from the moment they are made: the
system takes their space back when the process ends, however it ends. A file is closed once all of it was taken.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

import pyarrow as pa

from millrace.core.errors import SpillError

SEGMENT_BYTES = 64 << 20  # of a file: its space is free again when all of it was taken
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Sink(Protocol):
    """Keeps tuples that were shed."""

    def put(self, batch: pa.RecordBatch) -> None:
        """Keep these rows. After an error none of them is kept."""

    def take(self, rows: int) -> pa.RecordBatch | None:
        """At most so many of the rows that were put first. None if there are none."""

    def close(self) -> None: ...


class Nowhere:
    """Keeps nothing: what is shed is lost."""

    def put(self, batch: pa.RecordBatch) -> None:
        """Forget these rows."""

    def take(self, rows: int) -> pa.RecordBatch | None:
        return None

    def close(self) -> None:
        """Nothing to close."""


@dataclass
class _Segment:
    file: BinaryIO
    size: int = 0
    messages: deque[tuple[int, int]] = field(default_factory=deque)  # offset, length


class ShedFile:
    """A temporary file in `folder`. Holds `buffer_bytes` in memory: half for batches to be written, half for a batch read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = ShedFile(folder, buffer_bytes=64)
    ...     for number in range(4):
    ...         store.put(pa.record_batch({"id": [number, number]}))
    ...     taken = store.take(1), store.take(9)
    ...     store.close()
    >>> [batch["id"].to_pylist() for batch in taken], store.written_bytes > 0
    ([[0], [0, 1, 1, 2, 2]], True)
    """

    def __init__(
        self, folder: Path | str | None = None, *, buffer_bytes: int = 1 << 20,
        watch: Callable[[Literal["read", "write"], int, int], None] | None = None,
    ) -> None:  # fmt: skip
        self._folder = Path(folder) if folder is not None else Path(tempfile.gettempdir())
        self._limit = max(1, buffer_bytes // 2)
        self._watch = watch  # is told of every transfer: offset and bytes
        self._tail: list[pa.RecordBatch] = []
        self._tail_bytes = 0
        self._head: pa.RecordBatch | None = None
        self.written_bytes = self.read_bytes = 0
        self._segments: deque[_Segment] = deque([self._new_segment()])

    @property
    def mode(self) -> int:
        """Who may read the file."""
        return os.fstat(self._segments[0].file.fileno()).st_mode & 0o777

    def put(self, batch: pa.RecordBatch) -> None:
        if self._tail_bytes + batch.nbytes > self._limit:
            self._write([*self._tail, batch])
            self._tail, self._tail_bytes = [], 0
        else:
            self._tail.append(batch)
            self._tail_bytes += batch.nbytes

    def take(self, rows: int) -> pa.RecordBatch | None:
        if self._head is None:
            self._head = self._next()
        if self._head is None:
            return None
        taken, rest = self._head.slice(0, rows), self._head.slice(rows)
        self._head = rest if rest.num_rows else None
        return taken

    def close(self) -> None:
        for segment in self._segments:
            segment.file.close()
        self._segments.clear()

    def _new_segment(self) -> _Segment:
        try:
            return _Segment(tempfile.TemporaryFile(prefix="millrace-shed-", dir=self._folder, buffering=0))
        except OSError as error:
            raise SpillError(
                f"can't write into the folder {self._folder} for tuples that are shed: {error.strerror}; give another folder"
            ) from error

    def _write(self, batches: list[pa.RecordBatch]) -> None:
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, batches[0].schema) as stream:
            stream.write_batch(pa.concat_batches(batches))
        message = memoryview(buffer.getvalue())
        segment = self._segments[-1]
        if segment.size > SEGMENT_BYTES:
            segment = self._new_segment()
            self._segments.append(segment)
        try:
            self._write_all(segment, message)
        except OSError as error:
            why = "the disk is full" if error.errno in _FULL else str(error.strerror)
            raise SpillError(f"tuples that are shed can't be written into {self._folder}: {why}") from error
        segment.messages.append((segment.size, len(message)))
        if self._watch is not None:
            self._watch("write", segment.size, len(message))
        segment.size += len(message)
        self.written_bytes += len(message)

    def _write_all(self, segment: _Segment, message: memoryview) -> None:
        done = 0
        while done < len(message):
            done += os.pwrite(segment.file.fileno(), message[done:], segment.size + done)

    def _next(self) -> pa.RecordBatch | None:
        """The next message of the file, or what was not written yet."""
        segment = self._segments[0]
        if not segment.messages:
            tail, self._tail, self._tail_bytes = self._tail, [], 0
            return pa.concat_batches(tail) if tail else None
        offset, length = segment.messages[0]
        batch = self._read(segment, offset, length)
        segment.messages.popleft()
        if not segment.messages:
            self._give_back_space(segment)
        return batch

    def _read(self, segment: _Segment, offset: int, length: int) -> pa.RecordBatch:
        try:
            message = os.pread(segment.file.fileno(), length, offset)
            batch = pa.ipc.open_stream(message).read_next_batch()
        except (OSError, pa.ArrowInvalid) as error:
            raise SpillError(f"tuples that were shed can't be read back from {self._folder}: {error}") from error
        if self._watch is not None:
            self._watch("read", offset, length)
        self.read_bytes += length
        return batch

    def _give_back_space(self, segment: _Segment) -> None:
        if len(self._segments) > 1:
            self._segments.popleft().file.close()
        else:
            segment.file.truncate(0)
            segment.size = 0
