"""Memory that pages of a stored relation are read into; none where pages are used in place."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.errors import ParameterError
from millrace.relations.shard import ALIGNMENT
from millrace.relations.stored_run import StoredRun

if TYPE_CHECKING:
    from millrace.relations.stored import StoredRelation


class StoredReads:
    """Reads of a relation into one buffer: a run is good until the next read."""

    def __init__(self, relation: StoredRelation) -> None:
        self._relation = relation
        self._buffer: mmap.mmap | None = None

    def read(self, first: int, count: int) -> StoredRun:
        pages = self._relation.pages
        if first < 0 or count < 1 or first + count > pages:
            raise ParameterError(f"pages {first} to {first + count - 1} do not exist: the table has {pages} pages")
        return self.read_many(np.array([first]), np.array([count]))

    def read_many(self, firsts: Int64Array, counts: Int64Array) -> StoredRun:
        relation = self._relation
        pages = np.concatenate([np.arange(first, first + count) for first, count in zip(firsts, counts, strict=True)])
        if relation.resident:
            relation.touch(pages)
            return relation.run_in_place(pages)
        spans = relation.page_index.spans(firsts, counts)
        buffer = self._buffer_of(sum(span.end - span.begin for span in spans))
        base = np.frombuffer(buffer, np.uint8).ctypes.data
        places = relation.shard_files.read_spans(spans, pages, memoryview(buffer))
        return relation.run_at(pages, base + places, buffer)

    def _buffer_of(self, size: int) -> mmap.mmap:
        if self._buffer is None or len(self._buffer) < size:
            self._buffer = mmap.mmap(-1, max(size, ALIGNMENT), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return self._buffer


class StoredFrames:
    """Frames of `page_bytes` each: pages stay there until others are read in their place."""

    def __init__(self, relation: StoredRelation, count: int) -> None:
        self._relation = relation
        if not relation.resident:
            size = max(ALIGNMENT, count * relation.page_bytes)
            self._buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._address = np.frombuffer(self._buffer, np.uint8).ctypes.data

    def load(self, pages: Int64Array, frames: Int64Array, *, each: bool = False) -> None:
        relation = self._relation
        if relation.resident:
            relation.touch(pages)
            return
        buffer, places = memoryview(self._buffer), zip(pages.tolist(), (frames * relation.page_bytes).tolist(), strict=True)
        views = [buffer[start : start + relation.page_index.padded_bytes(page)] for page, start in places]
        relation.shard_files.read_pages(pages, views, each=each)

    def run(self, pages: Int64Array, frames: Int64Array) -> StoredRun:
        if self._relation.resident:
            return self._relation.run_in_place(pages)
        return self._relation.run_at(pages, self._address + frames * self._relation.page_bytes, self._buffer)
