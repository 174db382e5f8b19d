"""Test doubles of relations: one that fails, one without an index, one with its index on disk, one whose pages expire, one
whose key codes collide.

A double that wraps another relation, such as a `MemoryRelation`, may also wrap another double.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from millrace.core.arrays import BoolArray, Int64Array
from millrace.core.budget import Budget
from millrace.core.keys import Codes, KeyCodec
from millrace.core.protocols import IndexedRelation, PageFrames, PageRun, PageRuns, Relation
from millrace.core.step import StepCounts
from millrace.relations.memory import MemoryRelation, MemoryRun


class ReadFailed(OSError):
    """What a `FailingRelation` raises: the disk said no."""


class IndexFree:
    """The pages of another relation and nothing else: no `locate`, no `read_many`, no promise of uniqueness."""

    def __init__(self, relation: Relation) -> None:
        self.schema = relation.schema
        self.key = relation.key
        self.codec = relation.codec
        self.rows = relation.rows
        self.pages = relation.pages
        self.page_bytes = relation.page_bytes
        self.resident = relation.resident
        self._relation = relation

    def read(self, first: int, count: int) -> PageRun:
        return self._relation.read(first, count)


class FailingRelation(IndexFree):
    """Raises `ReadFailed` on the given reads, counted from 1; all other reads reach the wrapped relation.

    With `fail_on=None` every read fails. `failures` says how many reads failed so far.
    """

    def __init__(self, relation: IndexedRelation, fail_on: Collection[int] | None) -> None:
        super().__init__(relation)
        self.unique = relation.unique
        self.calls = 0
        self.failures = 0
        self._indexed = relation
        self._fail_on = fail_on

    def locate(self, codes: Int64Array) -> PageRuns:
        return self._indexed.locate(codes)

    def read(self, first: int, count: int) -> PageRun:
        self._count(f"page {first}")
        return self._indexed.read(first, count)

    def read_many(self, firsts: Int64Array, counts: Int64Array) -> PageRun:
        self._count(f"pages from {int(firsts[0])}")
        return self._indexed.read_many(firsts, counts)

    def frames(self, count: int) -> PageFrames:
        return _WatchedFrames(self._indexed.frames(count), count, self._count)

    def _count(self, what: str) -> None:
        self.calls += 1
        if self._fail_on is None or self.calls in self._fail_on:
            self.failures += 1
            raise ReadFailed(f"read {self.calls} ({what}) failed, as it was told to")


class _WatchedFrames:
    """Frames whose loads are counted as reads. A run can't be used once another page is in one of its frames."""

    def __init__(self, frames: PageFrames, count: int, note: Callable[[str], None]) -> None:
        self._frames = frames
        self._note = note
        self._loads = np.zeros(count, np.int64)  # of each frame

    def load(self, pages: Int64Array, frames: Int64Array, *, each: bool = False) -> None:
        self._loads[frames] += 1
        self._note(f"pages from {int(pages[0])}")
        self._frames.load(pages, frames, each=each)

    def run(self, pages: Int64Array, frames: Int64Array) -> PageRun:
        then = self._loads[frames].copy()
        return ExpiringRun(self._frames.run(pages, frames), lambda: _unchanged(self._loads[frames], then, pages))


def _unchanged(now: Int64Array, then: Int64Array, pages: Int64Array) -> None:
    if not np.array_equal(now, then):
        raise AssertionError(f"pages {pages[now != then].tolist()} were used after others were read in their place")


class Expiring(FailingRelation):
    """A relation whose runs of pages really can't be used after the next read."""

    def __init__(self, relation: IndexedRelation) -> None:
        super().__init__(relation, ())

    def read(self, first: int, count: int) -> PageRun:
        return self._expiring(super().read(first, count))

    def read_many(self, firsts: Int64Array, counts: Int64Array) -> PageRun:
        return self._expiring(super().read_many(firsts, counts))

    def _expiring(self, run: PageRun) -> PageRun:
        read = self.calls
        return ExpiringRun(run, lambda: self._unread(read))

    def _unread(self, read: int) -> None:
        if self.calls != read:
            raise AssertionError(f"pages of read {read} were used after read {self.calls}")


class ExpiringRun:
    """A run that checks, before each use, whether it is still valid."""

    def __init__(self, run: PageRun, check: Callable[[], None]) -> None:
        self.pages = run.pages
        self.rows = run.rows
        self._run = run
        self._check = check

    @property
    def codes(self) -> Int64Array:
        return self._fresh().codes

    def match(self, codes: Int64Array, pages: Int64Array) -> tuple[Int64Array, Int64Array]:
        return self._fresh().match(codes, pages)

    def take(self, rows: Int64Array, columns: Sequence[str], limit_bytes: int | None = None) -> pa.RecordBatch:
        return self._fresh().take(rows, columns, limit_bytes)

    def _fresh(self) -> PageRun:
        self._check()
        return self._run


class DiskIndexed(MemoryRelation):
    """A relation in the order of `counts` whose index counts as an index on disk. At most `hot_keys` keys, those of the first
    pages, can be held in memory; any other key costs a read."""

    def __init__(
        self, rows: pa.Table, key: str | Sequence[str], rows_per_page: int, counts: Sequence[float], *, hot_keys: int
    ) -> None:
        super().__init__(rows, key, rows_per_page, counts=counts)
        self.disk_index = _CountedIndex(self, hot_keys)


class _CountedIndex:
    least_bytes = 64
    hot_key_bytes = 8

    def __init__(self, relation: MemoryRelation, hot_keys: int) -> None:
        self.hot_keys = hot_keys
        self._relation = relation

    def lookup(self, budget: Budget, hot_keys: int) -> _CountedLookup:
        budget.reserve("index", self.least_bytes + hot_keys * self.hot_key_bytes)
        return _CountedLookup(self._relation, hot_keys)


class _CountedLookup:
    def __init__(self, relation: MemoryRelation, hot_keys: int) -> None:
        self._relation = relation
        self._hot = np.array(list(dict.fromkeys(relation.codes.tolist()))[:hot_keys], np.int64)
        self._reads = 0

    def known(self, codes: Int64Array) -> BoolArray:
        return np.isin(codes, self._hot)

    def locate(self, codes: Int64Array) -> PageRuns:
        self._reads += len(np.unique(codes[~self.known(codes)]))
        return self._relation.locate(codes)

    def counts(self) -> StepCounts:
        reads, self._reads = self._reads, 0
        return StepCounts(index_reads=reads, seeks=reads)


class InPlace(MemoryRelation):
    """A relation whose pages are used in place. A look-up on a page that was never touched is an error."""

    resident = True

    def __init__(self, rows: pa.Table, key: str | Sequence[str], rows_per_page: int = 8) -> None:
        super().__init__(rows, key, rows_per_page)
        self.touched: set[int] = set()

    def touch(self, pages: Int64Array) -> None:
        self.touched.update(pages.tolist())

    def whole(self) -> MemoryRun:
        return _TouchedRun(self)


class _TouchedRun(MemoryRun):
    def __init__(self, relation: InPlace) -> None:
        super().__init__(relation, np.arange(relation.pages))
        self._touched = relation.touched

    def match(self, codes: Int64Array, pages: Int64Array) -> tuple[Int64Array, Int64Array]:
        untouched = set(pages.tolist()) - self._touched
        if untouched:
            raise AssertionError(f"pages {sorted(untouched)} were used and never touched")
        return super().match(codes, pages)


@dataclass(frozen=True)
class CollidingCodec(KeyCodec):
    """A codec with 2 ** `bits` different codes, so that unequal keys share codes all the time."""

    bits: int = 2

    @cached_property
    def exact(self) -> bool:
        return False

    @cached_property
    def ordered(self) -> bool:
        return False

    def encode(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> Codes:
        codes, valid, nulls = super().encode(columns)
        return Codes(codes & ((1 << self.bits) - 1), valid, nulls)


def colliding(
    rows: pa.Table, key: str | Sequence[str], rows_per_page: int = 8, *, bits: int = 2, indexed: bool = True
) -> MemoryRelation:
    """A `MemoryRelation` in which only 2 ** `bits` codes stand for all keys."""
    names = (key,) if isinstance(key, str) else tuple(key)
    codec = CollidingCodec(tuple(rows.schema.field(name).type for name in names), bits=bits)
    return MemoryRelation(rows, names, rows_per_page, indexed=indexed, codec=codec)
