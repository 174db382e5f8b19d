"""Pages of a table version used in place: shards are mapped, and a page is checked when it is first used."""

from __future__ import annotations

import mmap
import time
from typing import Any

import numpy as np

from millrace.core.arrays import BoolArray, Int32Array, Int64Array
from millrace.relations import search
from millrace.relations.page_index import PageIndex
from millrace.relations.shard import ALIGNMENT, checksum
from millrace.relations.shard_files import ShardFiles


class MappedPages:
    """Every page of a version at an address, which nobody may look at before the page was touched.

    What is written into a mapped file after its pages were touched is not seen here: see `StoredRelation.changed`.
    """

    def __init__(self, index: PageIndex, files: ShardFiles) -> None:
        self._index = index
        self._files = files
        self.addresses = np.empty(len(index), np.int64)
        self.cards = search.make_cards(index.arrays, index.rows)  # for kernels that look keys up
        self.checked = np.zeros(len(index), np.bool_)  # pages that need no check any more
        self.maps = [mmap.mmap(-1, ALIGNMENT) for _ in files.files]  # what addresses point into
        self._ahead = 0  # pages before this one have been looked at
        for shard in range(len(self.maps)):
            self._map(shard)

    def close(self) -> None:
        """Give the maps up; runs that hold them keep them."""
        self.maps = []

    def first_pages(self, codes: Int64Array, valid: Any) -> tuple[Int32Array, int]:
        """The first page that may hold each code, -1 where none may or it isn't valid, checked; and how many pages that are."""
        pages, used = self._index.first_pages(codes, valid)
        return pages, self._touch_used(used)

    def preceding_pages(self, codes: Int64Array, valid: Any) -> tuple[Int32Array, int]:
        """As `first_pages`, but the last page that begins at or before each code."""
        pages, used = self._index.preceding_pages(codes, valid)
        return pages, self._touch_used(used)

    def _touch_used(self, used: BoolArray) -> int:
        if (used > self.checked).any():
            self.touch(np.flatnonzero(used))
        return int(np.count_nonzero(used))

    def touch(self, pages: Int64Array) -> None:
        """Check pages that were not used before, and as many that nobody has asked for yet."""
        fresh = pages[~self.checked[pages]]
        if len(fresh) == 0:
            return
        fresh = np.unique(fresh)
        if self._files.copied:
            for shard in self._index.shards_of(fresh):
                self.make_local(shard)
        before = time.perf_counter()
        damaged = self._check(fresh)
        if damaged:
            self._files.refuse(damaged[0])
        self._files.counts.note(len(fresh), int(self._index.sizes[fresh].sum()), before)
        if not self._files.copied:
            self._check_ahead(len(fresh))

    def make_local(self, shard: int, *, again: bool = False) -> None:
        """Map a local copy of a shard instead: see `ShardFiles.make_local`."""
        if self._files.make_local(shard, again=again):
            self._map(shard)
            self.checked[self._index.pages_of(shard)] = False  # the pages are other bytes now

    def _map(self, shard: int) -> None:
        if self._files.files[shard].size:
            self.maps[shard] = self._files.map(shard)
        base = np.frombuffer(self.maps[shard], np.uint8).ctypes.data
        pages = self._index.pages_of(shard)
        self.addresses[pages] = base + self._index.offsets[pages]  # in place: whoever has the arrays sees it
        self.cards["codes"][pages] = self.addresses[pages] + self._index.arrays[2][pages]

    def _check_ahead(self, count: int) -> None:
        """Check the next pages in their order. Rare keys would bring a few new ones into every micro-batch for a long time; so
        all are through after some. It counts as nobody's read, and a damaged page is left for whoever needs it."""
        left = np.flatnonzero(~self.checked[self._ahead :])[:count] + self._ahead
        if len(left):
            self._ahead = int(left[-1]) + 1
            self._check(left)

    def _check(self, pages: Int64Array) -> list[int]:
        """Which of these pages, in order, are not what was written; the others need no check from now on."""
        self._read_ahead(pages)
        shards, begins = self._index.shards[pages], self._index.offsets[pages]
        views = {shard: memoryview(self.maps[shard]) for shard in np.unique(shards).tolist()}
        places = zip(shards.tolist(), begins.tolist(), (begins + self._index.sizes[pages]).tolist(), strict=True)
        found = np.array([checksum(views[shard][begin:end]) for shard, begin, end in places], np.int64)
        right = found == self._index.checksums[pages]
        self.checked[pages[right]] = True
        return [int(page) for page in pages[~right]]

    def _read_ahead(self, pages: Int64Array) -> None:
        """Ask the system for these pages, neighbours at once."""
        for shard, begin, length in self._index.ranges(pages):
            self.maps[shard].madvise(mmap.MADV_WILLNEED, begin, length)
