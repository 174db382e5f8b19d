"""The page directory of a table version: which pages there are, where each lies, and which codes it holds.

page        0        1        2        3        4          numbered through all shards, in their order
shard       0        0        0        1        1
inside      0        1        2        0        1          its number in its own file, as errors tell it
codes    1 .. 9  10 .. 30 30 .. 42 50 .. 51 52 .. 90       sorted, unless an index of keys says where they are
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from millrace.core.arrays import BoolArray, Int32Array, Int64Array
from millrace.core.protocols import PageRuns
from millrace.relations import search
from millrace.relations.shard import aligned


class Span(NamedTuple):
    """Bytes of a shard that one read brings, and the pages in them."""

    shard: int
    begin: int
    end: int
    first: int
    pages: int


@dataclass(frozen=True, eq=False)
class PageIndex:
    """One entry for each page of a version. Nothing of it changes: all who read the version share it."""

    shards: Int32Array  # ascending
    offsets: Int64Array  # in the file of the shard
    sizes: Int32Array  # bytes, without what fills the page up
    rows: Int32Array
    rows_per_page: int  # as it was planned: most pages have so many, none has more
    checksums: Int64Array
    firsts: Int64Array  # codes
    lasts: Int64Array
    arrays: tuple[Any, ...]  # what kernels take as `index`: see `search`
    null_flags: int  # which columns have a null on any page: see `PackedColumn.null_flag`
    guide: Int32Array
    guide_shift: np.uint64

    @classmethod
    def of(cls, columns: Mapping[str, Any], rows_per_page: int, *, sorted_codes: bool) -> PageIndex:
        """From the columns of `index.arrow`. Only pages whose codes are sorted have a guide, and can be located."""
        firsts, lasts = columns["first"], columns["last"]
        guide, shift = _guide(firsts, lasts) if sorted_codes and len(firsts) else (np.zeros(1, np.int32), np.uint64(0))
        return cls(
            columns["shard"], columns["offset"], columns["bytes"], columns["rows"], rows_per_page, columns["checksum"],
            firsts, lasts, (firsts, lasts, columns["codes"], columns["starts"], columns["data"]),
            int(np.bitwise_or.reduce(columns["nulls"])) if len(firsts) else 0, guide, shift,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.shards)

    def locate(self, codes: Int64Array) -> PageRuns:
        """The pages that may hold each code."""
        first = np.empty(len(codes), np.int64)
        last = np.empty(len(codes), np.int64)
        search.locate_pages(codes, self.firsts, self.lasts, self.guide, self.guide_shift, first, last)
        return PageRuns(first, last)

    def first_pages(self, codes: Int64Array, valid: Any) -> tuple[Int32Array, BoolArray]:
        """The first page that may hold each code, -1 where none may or it isn't valid; and of every page whether it is one."""
        pages = np.empty(len(codes), np.int32)
        used = np.zeros(len(self.shards), np.bool_)
        search.locate_first(codes, valid, self.arrays, self.guide, self.guide_shift, used, pages)
        return pages, used

    def preceding_pages(self, codes: Int64Array, valid: Any) -> tuple[Int32Array, BoolArray]:
        """As `first_pages`, but the last page that begins at or before each code."""
        first = np.empty(len(codes), np.int32)
        pages = np.empty(len(codes), np.int32)
        search.locate_pages(codes, self.firsts, self.lasts, self.guide, self.guide_shift, first, pages)
        pages[~valid] = -1
        used = np.zeros(len(self.shards), np.bool_)
        used[pages[pages >= 0]] = True
        return pages, used

    def pages_of(self, shard: int) -> slice:
        """The pages that lie in a shard."""
        first, last = np.searchsorted(self.shards, [shard, shard + 1]).tolist()
        return slice(first, last)

    def shards_of(self, pages: Int64Array) -> list[int]:
        """The shards that these pages lie in, each once."""
        shards: list[int] = np.unique(self.shards[pages]).tolist()
        return shards

    def inside(self, page: int) -> int:
        """The number of a page in its file."""
        return page - int(np.searchsorted(self.shards, self.shards[page]))

    def end(self, page: int) -> int:
        """Where a page ends in its file, with what fills it up."""
        return aligned(int(self.offsets[page]) + int(self.sizes[page]))

    def padded_bytes(self, page: int) -> int:
        """What a page takes in its file."""
        return self.end(page) - int(self.offsets[page])

    def ranges(self, pages: Int64Array) -> Iterator[tuple[int, int, int]]:
        """Where these pages lie: shard, first byte and bytes, in as few ranges as there are."""
        starts, ends = self.neighbours(pages)
        firsts, lasts = pages[starts], pages[ends]
        begins = self.offsets[firsts]
        lengths = aligned(self.offsets[lasts] + self.sizes[lasts]) - begins
        return zip(self.shards[firsts].tolist(), begins.tolist(), lengths.tolist(), strict=True)

    def span(self, first: int, last: int) -> Span:
        """Pages that lie side by side in one shard, both ends inside."""
        return Span(int(self.shards[first]), int(self.offsets[first]), self.end(last), first, last - first + 1)

    def spans(self, firsts: Int64Array, counts: Int64Array) -> list[Span]:
        """Reads of `counts[i]` pages from `firsts[i]`, cut where a shard ends."""
        spans = []
        for first, count in zip(firsts.tolist(), counts.tolist(), strict=True):
            stop = first + count
            while first < stop:
                end = min(stop, int(np.searchsorted(self.shards, self.shards[first], "right")))
                spans.append(self.span(first, end - 1))
                first = end
        return spans

    def neighbours(self, pages: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Where in `pages` those begin and end, both inside, that follow each other in one file."""
        breaks = np.flatnonzero((np.diff(pages) != 1) | (np.diff(self.shards[pages]) != 0))
        return np.concatenate(([0], breaks + 1)), np.concatenate((breaks, [len(pages) - 1]))


def _guide(firsts: Int64Array, lasts: Int64Array) -> tuple[Int32Array, np.uint64]:
    """About one page to a bucket of equally many codes, so that most keys are located without a search."""
    span = int(lasts[-1]) - int(firsts[0])
    shift = max(0, span.bit_length() - (2 * len(firsts)).bit_length())
    guide = np.zeros((span >> shift) + 1, np.int32)
    search.fill_guide(lasts, firsts[0], np.uint64(shift), guide)
    return guide, np.uint64(shift)
