"""Reads of pages and of the index, counted in the terms of the cost model; and whether a relation has an index."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa

from millrace.core.arrays import BoolArray, Int64Array
from millrace.core.errors import StrategyError
from millrace.core.protocols import (
    NO_PLACE,
    DiskIndex,
    IndexedRelation,
    KeyLookup,
    PageFrames,
    PageRun,
    PageRuns,
    Relation,
    ResidentRelation,
)
from millrace.core.step import StepCounts
from millrace.structures.window import Window


def has_index(relation: Relation) -> bool:
    """Whether the relation can say on which pages a key lives."""
    return callable(getattr(relation, "locate", None)) and bool(getattr(relation, "indexed", True))


def disk_index(relation: Relation) -> DiskIndex | None:
    """The relation's index, if it lies on disk."""
    index: DiskIndex | None = getattr(relation, "disk_index", None)
    return index


def pages_of(relation: IndexedRelation, window: Window, rows: pa.RecordBatch) -> Int64Array | None:
    """The first page of each row's key; `NO_PLACE` if it has none. None if the index is not in memory."""
    if disk_index(relation) is not None:
        return None
    encoded = window.encode(rows)
    first, last = relation.locate(encoded.codes)
    return np.where(encoded.valid & (last >= first), first, NO_PLACE)


def check_index(relation: Relation, name: str) -> None:
    if not has_index(relation):
        raise StrategyError(
            f"{name} needs an index on the key, and this table has none: use meshjoin, which needs none, "
            "or build a master table from it"
        )


class Reader:
    """Reads pages, and the index if it lies on disk, and counts these reads until `counts` takes the numbers.

    A read that fails is not counted. If the relation allows it, pages go into a buffer of this reader's own, so that several
    joins may take turns with one relation.
    """

    def __init__(self, relation: Relation, index: KeyLookup | None = None) -> None:
        self._relation = relation
        self._reads: Any = relation
        if hasattr(type(relation), "reads_apart"):
            self._reads = cast(Any, relation).reads_apart()
        self._index = index
        self._head = -1  # the page after the last one read
        self._counts = StepCounts()

    def locate(self, codes: Int64Array) -> PageRuns:
        """Where keys live, by the index in memory or on disk."""
        if self._index is None:
            return cast(IndexedRelation, self._relation).locate(codes)
        runs = self._index.locate(codes)
        self._count_index(self._index)
        return runs

    def known(self, codes: Int64Array) -> BoolArray | None:
        """Which keys cost no read of the index; None if no key costs one."""
        if self._index is None:
            return None
        known = self._index.known(codes)
        self._count_index(self._index)
        return known

    def read(self, first: int, count: int) -> PageRun:
        """Pages from `first` on. Fewer than `count` if these pages take more bytes than were planned for so many."""
        run: PageRun = self._reads.read(first, count)
        self._count(len(run.pages), int(first != self._head), first + len(run.pages))
        return run

    def read_many(self, firsts: Int64Array, counts: Int64Array) -> PageRun:
        """Several reads at once, as of an `IndexedRelation`."""
        run: PageRun = self._reads.read_many(firsts, counts)
        seeks = int(np.count_nonzero(firsts != np.concatenate(([self._head], (firsts + counts)[:-1]))))
        self._count(int(counts.sum()), seeks, int(firsts[-1] + counts[-1]))
        return run

    def load(self, frames: PageFrames, pages: Int64Array, places: Int64Array, *, each: bool = False) -> None:
        """Put pages into frames, where they stay."""
        if len(pages):
            frames.load(pages, places, each=each)
            self._count_each(pages)

    def use(self, pages: Int64Array) -> PageRun:
        """Use pages in place, all at once; the run is the whole relation."""
        relation = cast(ResidentRelation, self._relation)
        relation.touch(pages)
        self._counts += StepCounts(pages_read=len(pages), bytes_read=len(pages) * relation.page_bytes)
        return relation.whole()

    def use_each(self, pages: Int64Array) -> PageRun:
        """Use pages in place, each counted as a read of its own, in this order; the run is the whole relation."""
        relation = cast(ResidentRelation, self._relation)
        relation.touch(pages)
        self._count_each(pages)
        return relation.whole()

    def counts(self) -> StepCounts:
        """What was read since the last call."""
        counts, self._counts = self._counts, StepCounts()
        return counts

    def _count_index(self, index: KeyLookup) -> None:
        counts = index.counts()
        self._counts += counts
        if counts.index_reads:
            self._head = -1

    def _count_each(self, pages: Int64Array) -> None:
        seeks = int(np.count_nonzero(np.diff(pages, prepend=self._head - 1) != 1))
        self._count(len(pages), seeks, int(pages[-1]) + 1)

    def _count(self, pages: int, seeks: int, head: int) -> None:
        self._counts += StepCounts(pages_read=pages, bytes_read=pages * self._relation.page_bytes, seeks=seeks)
        self._head = head


COLD_STEPS = 256  # a look-up of the index in that many steps, each of which mostly reads pages, hardly adds to the reads


class Arrivals:
    """New tuples, by their slots, whose pages are not known yet.

    An index on disk is asked for many keys at a time, because one block serves all of its keys. Tuples whose keys are not in
    memory stay here until one of three things happens: they are a quarter of what the window holds, no other tuple waits, or
    the oldest of them came `COLD_STEPS` steps ago. Then all of them are looked up at once. So a stream of keys in memory
    delays no tuple for ever, and the index is asked once in so many steps.
    """

    def __init__(self, reader: Reader, window: Window) -> None:
        self._reader = reader
        self._window = window
        self._new: list[Int64Array] = []
        self._cold = np.zeros(0, np.int64)

    def add(self, slots: Int64Array) -> None:
        if len(slots):
            self._new.append(slots)

    def __len__(self) -> int:
        return len(self._cold) + sum(len(slots) for slots in self._new)

    @property
    def slots(self) -> Int64Array:
        return np.concatenate((self._cold, *self._new))

    def remove(self, marks: BoolArray) -> Int64Array:
        """Marked slots leave; returns them."""
        slots = self.slots
        new = slots[len(self._cold) :]
        self._cold, self._new = self._cold[~marks[self._cold]], [new[~marks[new]]]
        return slots[marks[slots]]

    def take(self, *, idle: bool) -> tuple[Int64Array, PageRuns]:
        """Slots that may wait for their pages now, and these pages. After an error all slots are still here."""
        slots = self.slots
        later = self._cold[:0]
        known = None if idle or self._overdue else self._reader.known(self._window.code[slots])
        if known is not None and 4 * np.count_nonzero(~known) < self._window.capacity:
            slots, later = slots[known], slots[~known]
        runs = self._reader.locate(self._window.code[slots])
        self._new, self._cold = [], later
        return slots, runs

    @property
    def _overdue(self) -> bool:
        """Whether the oldest tuple whose key is not in memory (the first) has been here long enough."""
        return len(self._cold) > 0 and self._window.steps - int(self._window.entered[self._cold[0]]) >= COLD_STEPS
