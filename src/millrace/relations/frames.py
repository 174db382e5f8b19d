"""Pages of a stored relation that stay in memory until others are read in their place."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.relations.shard import ALIGNMENT

if TYPE_CHECKING:
    from millrace.relations.stored import StoredRelation, StoredRun


class StoredFrames:
    """Frames of `page_bytes` each, in memory of their own; none where pages are used in place."""

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
        views = [buffer[start : start + relation.padded_bytes(page)] for page, start in places]
        relation.read_into(pages, views, each=each)

    def run(self, pages: Int64Array, frames: Int64Array) -> StoredRun:
        if self._relation.resident:
            return self._relation.run_in_place(pages)
        return self._relation.run_at(pages, self._address + frames * self._relation.page_bytes, self._buffer)
