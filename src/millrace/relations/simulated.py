"""A relation on a device with a virtual clock: any other relation, whose reads take what they would take there.

Joins read no clock, and so they run on it as on any other. Whoever drives them tells what their own work took:

    synchronous     | read 1 | work 1 | read 2 | work 2 |
    overlapped      | read 1 | read 2 | read 3 |               as with a second disk buffer: the next pages are read
                             | work 1 | work 2 | work 3 |      while the join works on those at hand

Time is by formula, the same on every machine: the device's for reads, unit costs for work (`UnitCosts.work`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.arrays import BoolArray, Int64Array
from millrace.core.devices import Transfer, VirtualDevice
from millrace.core.keys import KeyCodec
from millrace.core.protocols import PageRun, PageRuns, Relation
from millrace.core.step import StepCounts


class SimulatedRelation:
    """A relation whose pages lie one behind the other in one file of `device`. All but reading is the wrapped relation's.

    A read that fails takes no time. Reads of one call are started together, so that a device with several streams does
    them at a time.

    >>> from millrace.core.devices import VirtualClock, device
    >>> from millrace.relations.generated import GeneratedRelation
    >>> disk = VirtualDevice(device("hdd2008"), VirtualClock())
    >>> relation = SimulatedRelation(GeneratedRelation(10_000, row_bytes=100, page_bytes=70_000), disk)
    >>> _ = relation.read(0, 1), relation.read(1, 1)  # 8 ms to get there, then 1 ms a page
    >>> relation.work(0.005)
    >>> round(relation.now, 6)
    0.015
    """

    resident = False  # even if the wrapped relation is: pages come from the device
    # of the wrapped relation, see __getattr__
    schema: pa.Schema
    key: tuple[str, ...]
    codec: KeyCodec
    rows: int
    pages: int
    page_bytes: int

    def __init__(self, relation: Relation, device: VirtualDevice, *, overlapped: bool = False, file: object = "R") -> None:
        self._relation: Any = relation
        self.device = device
        self.overlapped = overlapped
        self._file = file
        self._owed = 0.0  # work on the pages at hand, to be done while the next are read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._relation, name)

    @property
    def now(self) -> float:
        """The time at which all work so far is done."""
        return self.device.clock.now + self._owed

    def work(self, seconds: float) -> None:
        """The join was busy for so long since the last call."""
        if self.overlapped:
            self._owed += seconds
        else:
            self.device.clock.work(seconds)

    def settle(self) -> None:
        """Do the work that is left; nothing is read meanwhile."""
        owed, self._owed = self._owed, 0.0
        self.device.clock.work(owed)

    def read(self, first: int, count: int) -> PageRun:
        run: PageRun = self._relation.read(first, count)
        self.charge(np.array([first]), np.array([count]))
        return run

    def read_many(self, firsts: Int64Array, counts: Int64Array) -> PageRun:
        run: PageRun = self._relation.read_many(firsts, counts)
        self.charge(firsts, counts)
        return run

    def frames(self, count: int) -> SimulatedFrames:
        """Room for pages that stay."""
        return SimulatedFrames(self._relation.frames(count), self)

    @property
    def disk_index(self) -> SimulatedIndex | None:
        """The wrapped relation's index, if that lies on disk: then it lies on the device."""
        index = getattr(self._relation, "disk_index", None)
        return SimulatedIndex(index, self) if index is not None else None

    def charge_beside(self, reads: int, total_bytes: int) -> None:
        """So many reads of something beside the pages, each in a place of its own, of so many bytes in all."""
        sizes = [total_bytes // reads + (number < total_bytes % reads) for number in range(reads)]
        self._wait([self.device.start("read", object(), 0, size) for size in sizes])

    def charge(self, firsts: Int64Array, counts: Int64Array) -> None:
        """Reads of `counts[i]` pages from `firsts[i]`."""
        size = int(self.page_bytes)
        self._wait(
            [
                self.device.start("read", self._file, first * size, count * size)
                for first, count in zip(firsts.tolist(), counts.tolist(), strict=True)
            ]
        )

    def _wait(self, transfers: list[Transfer]) -> None:
        self.settle()
        for transfer in transfers:
            self.device.wait(transfer)


class SimulatedFrames:
    """Pages that stay: loading them is a read."""

    def __init__(self, frames: Any, relation: SimulatedRelation) -> None:
        self._frames = frames
        self._relation = relation

    def load(self, pages: Int64Array, frames: Int64Array, *, each: bool = False) -> None:
        self._frames.load(pages, frames, each=each)
        if each:
            for page in pages:  # one after the other, even where more could be read at a time
                self._relation.charge(np.array([page]), np.array([1]))
        else:
            starts = np.flatnonzero(np.diff(pages, prepend=-2) != 1)
            self._relation.charge(pages[starts], np.diff(starts, append=len(pages)))

    def run(self, pages: Int64Array, frames: Int64Array) -> PageRun:
        run: PageRun = self._frames.run(pages, frames)
        return run


class SimulatedIndex:
    """An index on the device. Every read of it is in a place of its own."""

    def __init__(self, index: Any, relation: SimulatedRelation) -> None:
        self._index = index
        self._relation = relation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def lookup(self, budget: Any, hot_keys: int) -> SimulatedLookup:
        return SimulatedLookup(self._index.lookup(budget, hot_keys), self._relation)


class SimulatedLookup:
    """Look-ups of one join."""

    def __init__(self, lookup: Any, relation: SimulatedRelation) -> None:
        self._lookup = lookup
        self._relation = relation
        self._counts = StepCounts()

    def locate(self, codes: Int64Array) -> PageRuns:
        runs: PageRuns = self._lookup.locate(codes)
        self._charge()
        return runs

    def known(self, codes: Int64Array) -> BoolArray:
        known: BoolArray = self._lookup.known(codes)
        self._charge()
        return known

    def _charge(self) -> None:
        """What was read by now; blocks side by side came in one read."""
        counts: StepCounts = self._lookup.counts()
        self._counts += counts
        reads = counts.seeks or counts.index_reads
        if reads:
            self._relation.charge_beside(reads, counts.bytes_read)

    def counts(self) -> StepCounts:
        counts, self._counts = self._counts, StepCounts()
        return counts
