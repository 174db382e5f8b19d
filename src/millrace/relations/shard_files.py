"""The shards of a table version, open for reading: pages come into memory, each checked against its checksum."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from mmap import mmap
from pathlib import Path
from typing import NoReturn

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.relations.files import ReadMode, read_into
from millrace.relations.folder import TableVersion
from millrace.relations.localcopies import LocalCopies
from millrace.relations.page_index import PageIndex, Span
from millrace.relations.shard import checksum
from millrace.relations.table_file import ReadCounts, TableFile

_COPY_BYTES = 1 << 20  # read at a time when a shard is copied; a page at least


class ShardFiles:
    """The shards of one version. A read brings pages into memory of the caller's; none goes unchecked.

    With `local`, a shard is copied there before it is first read, and the copy is used from then on; where there is no room
    for it, the shard is used where it is.
    """

    def __init__(
        self, folder: Path, version: TableVersion, index: PageIndex, mode: ReadMode, local: LocalCopies | None
    ) -> None:
        self.counts = ReadCounts()  # of all that is read by who uses these files
        self.copied = local is not None  # shards are, before they are used
        self.files: list[TableFile] = []
        self._index = index
        self._page_bytes = version.page_bytes
        try:
            for shard in version.shards:
                self.files.append(TableFile(folder / shard.file, shard.bytes, mode, local, version.index_checksum))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for file in self.files:
            file.close()

    def changed(self) -> Path | None:
        """A file in use that was written to, replaced or removed since it was opened."""
        return next((file.path for file in self.files if file.changed()), None)

    def largest(self) -> int:
        """The shard that has most bytes."""
        return max(range(len(self.files)), key=lambda shard: self.files[shard].size)

    def map(self, shard: int) -> mmap:
        return self.files[shard].map()

    def make_local(self, shard: int, *, again: bool = False) -> bool:
        """Use a local copy of a shard from now on; whether that has just begun: see `TableFile.make_local`.

        Nobody has used the shard before, so no address into it is lost. `again` is for between tasks.
        """
        return self.files[shard].make_local(self._checked_pieces(shard), again=again)

    def read_pages(self, pages: Int64Array, views: Sequence[memoryview], *, each: bool) -> None:
        """Read pages into the given places, neighbours in one read unless `each` is wanted by itself."""
        self._before_reading(pages)
        before = time.perf_counter()
        starts, ends = (np.arange(len(pages)),) * 2 if each else self._index.neighbours(pages)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            page = int(pages[start])
            self._read(int(self._index.shards[page]), int(self._index.offsets[page]), views[start : end + 1], page)
        self.counts.note(len(starts), sum(len(view) for view in views), before)
        for page, view in zip(pages.tolist(), views, strict=True):
            self._verify(page, view[: int(self._index.sizes[page])])

    def read_spans(self, spans: Sequence[Span], pages: Int64Array, view: memoryview) -> Int64Array:
        """Read spans, which have these pages, one behind the other; returns where each page then begins."""
        self._before_reading(pages)
        places = np.empty(len(pages), np.int64)
        place, filled = 0, 0
        before = time.perf_counter()
        for shard, begin, end, first, count in spans:
            self._read(shard, begin, [view[place : place + end - begin]], first)
            places[filled : filled + count] = place + (self._index.offsets[first : first + count] - begin)
            filled += count
            place += end - begin
        self.counts.note(len(spans), place, before)
        for page, start in zip(pages.tolist(), places.tolist(), strict=True):
            self._verify(page, view[start : start + int(self._index.sizes[page])])
        return places

    def refuse(self, page: int) -> NoReturn:
        """Say that a page is not what was written."""
        self.files[int(self._index.shards[page])].refuse(f"page {self._index.inside(page)}")

    def _before_reading(self, pages: Int64Array) -> None:
        if self.copied:
            for shard in self._index.shards_of(pages):
                self.make_local(shard)

    def _read(self, shard: int, begin: int, views: Sequence[memoryview], page: int) -> None:
        self.files[shard].read(begin, views, f"page {self._index.inside(page)}")

    def _verify(self, page: int, data: memoryview) -> None:
        if checksum(data) != int(self._index.checksums[page]):
            self.refuse(page)

    def _checked_pieces(self, shard: int) -> Iterator[memoryview]:
        """All bytes of a shard, to be copied: pages are checked when they are read."""
        index, path = self._index, self.files[shard].path
        pages = index.pages_of(shard)
        step = max(1, _COPY_BYTES // self._page_bytes)
        source = os.open(path, os.O_RDONLY)  # not as it is read otherwise: pieces lie anywhere in memory
        try:
            for first in range(pages.start, pages.stop, step):
                _, begin, end, _, count = index.span(first, min(first + step, pages.stop) - 1)
                data = memoryview(bytearray(end - begin))
                read_into(source, begin, [data], path, f"page {index.inside(first)}")
                for page in range(first, first + count):
                    at = int(index.offsets[page]) - begin
                    self._verify(page, data[at : at + int(index.sizes[page])])
                yield data
        finally:
            os.close(source)
