"""The loop of MESHJOIN and R-MESHJOIN: a cyclic scan of the relation meshed with a sliding window over the stream.

Tuples that enter together are a chunk. The chunk is stamped with the position of the scan, and leaves when the scan comes round
to this position again: then it has met every page once. A read is cut where the next chunk has to leave, so that no page is
joined with a tuple twice, even if the length of reads changes.

    scan of R     p0 p1 p2 p3 p4 p5 p6 p7 | p0 p1 p2 p3 ...        a lap is one pass
    chunk A       entered here ^ (lap 0, page 3)    ^ leaves here (lap 1, page 3)

If the relation knows the lowest and highest key of its pages (`zones`), pages that no waiting tuple can match are skipped.

R may grow at its end while the join runs: a lap is then longer. A tuple meets all rows that were there when it entered, and
rows that are appended before the scan passes the end. No pass ends while R grows by more pages than are read.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.protocols import JoinSpec, PageRun, Relation, Waiting, Zones
from millrace.core.step import Step, StepCounts
from millrace.cost.expected import StreamShape
from millrace.joins.door import Door
from millrace.joins.emit import Emitter
from millrace.joins.matching.matcher import make_matcher, matcher_bytes
from millrace.joins.reading import Reader
from millrace.joins.sizing import Prices, Sizing, reserve
from millrace.structures.queue import Ring
from millrace.structures.window import Windowed

_CHUNK_BYTES = 16  # stamp and size
_LAP = 1 << 32  # in stamps: more pages than a relation has


class ScanJoin(Windowed):
    """A join in which every page meets every waiting tuple. Subclasses divide the memory."""

    def __init__(
        self, relation: Relation, spec: JoinSpec, budget: Budget, sizing: Sizing, tuples_per_step: int, chunks: int
    ) -> None:
        self.buffer_pages = sizing.buffer_pages
        self.tuples_per_step = tuples_per_step
        self.pending = 0
        reserve(relation, spec, budget, sizing, matcher_bytes(relation, spec, budget.memory_bytes).per_page)
        budget.reserve("reading files", reader_bytes(relation))
        self._relation = relation
        self._spec = spec
        self._budget = budget
        self._window, self._matcher = make_matcher(relation, spec, budget, sizing.capacity)
        self._queue = Ring(sizing.capacity, budget)
        self._chunks = _Chunks(chunks, budget)
        self._zones = _WaitingZones(relation, spec, budget)
        self._emitter = Emitter(relation, spec, self._window, sizing.output_rows)
        self._door = Door(self._emitter)
        self._reader = Reader(relation)
        self._inbox: list[Int64Array] = []
        self._taken = 0  # tuples of S since the last read
        self._lap = 0
        self._page = 0  # the next to read
        self._run: PageRun | None = None  # pages whose pairs are not all put out
        self._probes = 0  # since the last step

    @property
    def reversed_ranges(self) -> int:
        """Ranges of the relation seen so far that end before they begin, and hold nothing."""
        return self._matcher.reversed_ranges

    @property
    def longest_wait(self) -> int:
        """The most reads for which a tuple stays inside, whatever else comes: one pass over R at its present length, with at
        least one page in each read."""
        return max(1, self._relation.pages)

    def offer(self, batch: pa.RecordBatch) -> int:
        """Take tuples for the next read."""
        if self._chunks.full or (self._door.shut and self.pending):
            return 0
        if not self.pending:
            self._taken = 0  # they had no key to wait with, and have left while pages before theirs were put out
        taken, slots = self._window.admit(batch, max(0, self.tuples_per_step - self._taken))
        self._taken += taken
        self.pending += taken
        self._inbox.append(slots)
        return taken

    def step(self) -> Step:
        step = self._emitter.go_on() if self._emitter.behind else self._loop()
        self.pending -= step.counts.removed
        return step

    def _let_go(self, slots: Int64Array) -> Int64Array:
        marks = self._window.marked(slots)
        new = np.concatenate((np.zeros(0, np.int64), *self._inbox))
        self._inbox = [new[~marks[new]]]
        gone = new[marks[new]]
        self._taken -= min(self._taken, len(gone))
        if self._run is None:  # otherwise the pages at hand meet all who wait
            marks[gone] = False
            waiting = self._queue.items()
            waiting = waiting[marks[waiting]]
            sizes = self._chunks.sizes
            self._queue.remove(marks, sizes)
            self._chunks.shrink_to(sizes)
            self._matcher.leave(waiting)
            self._zones.leave(self._window.code[waiting])
            gone = np.concatenate((gone, waiting))
        self.pending -= len(gone)
        return gone

    def waiting(self) -> Waiting:
        """Tuples that can be given back. Every page serves all of them: they have one place."""
        slots = np.concatenate((np.zeros(0, np.int64), *self._inbox))
        if self._run is None:
            slots = np.concatenate((self._queue.items(), slots))
        return self._window.waiting(slots, np.zeros(len(slots), np.int64))

    def _loop(self) -> Step:
        self._door.begin()
        if self._run is None:
            self._mesh()
        if self._run is not None:
            self._probe(self._run)
        step = self._emitter.finish(StepCounts(probes=self._probes) + self._reader.counts())
        self._probes = 0
        return step

    def _mesh(self) -> None:
        """Bring both inputs in, unless no tuple waits."""
        slots = np.concatenate((np.zeros(0, np.int64), *self._inbox))
        self._inbox = []
        self._taken = 0
        if self._relation.pages == 0:
            self._emitter.leave(slots)
            return
        self._matcher.enter(slots)
        self._queue.append(slots)
        self._chunks.add(self._now, len(slots))
        self._zones.enter(self._window.code[slots])
        while len(self._queue) and self._run is None:
            stop = self._stop()
            first = self._zones.next_wanted(self._page, stop)
            if first == stop:
                self._move_to(stop)  # no tuple waits for the pages between
            else:
                end = self._zones.next_unwanted(first, min(first + self.buffer_pages, stop))
                self._page = first
                self._run = self._reader.read(first, end - first)
                self._matcher.begin(self._run)
                self._probes += self._run.rows

    @property
    def _now(self) -> int:
        """Where the scan stands, as a stamp."""
        return self._lap * _LAP + self._page

    def _stop(self) -> int:
        """The page that no read goes past: the end of R, or where the next chunk leaves."""
        oldest = self._chunks.oldest
        end = self._relation.pages
        return end if oldest is None else min(end, oldest + _LAP - self._lap * _LAP)

    def _probe(self, run: PageRun) -> None:
        slots, rows, all_found = self._matcher.next(self._emitter.room)
        self._emitter.pairs(run, slots, rows)
        if not all_found:
            return
        self._run = None
        self._move_to(self._page + len(run.pages))

    def _move_to(self, page: int) -> None:
        """The scan stands here; chunks that entered here leave."""
        self._page = page
        if page >= self._relation.pages:
            self._lap, self._page = self._lap + 1, 0
        done = self._queue.take(self._chunks.take(self._now - _LAP))
        self._matcher.leave(done)
        self._zones.leave(self._window.code[done])
        self._emitter.leave(done)


class _WaitingZones:
    """How many tuples wait for a page of each zone; without zones, every page counts as wanted."""

    def __init__(self, relation: Relation, spec: JoinSpec, budget: Budget) -> None:
        self._zones = _zones(relation, spec)
        count = len(self._zones.lows) if self._zones is not None else 0
        self._waiting = budget.array("waiting zones", count, np.int64)

    @staticmethod
    def bytes_of(relation: Relation, spec: JoinSpec) -> int:
        zones = _zones(relation, spec)
        return 8 * len(zones.lows) if zones is not None else 0

    def enter(self, codes: Int64Array) -> None:
        if self._zones is not None:
            self._waiting += self._wanted(self._zones, codes)

    def leave(self, codes: Int64Array) -> None:
        if self._zones is not None:
            self._waiting -= self._wanted(self._zones, codes)

    def next_wanted(self, page: int, stop: int) -> int:
        """The first page from here that a tuple waits for, or `stop`."""
        return self._next(page, stop, wanted=True)

    def next_unwanted(self, page: int, stop: int) -> int:
        return self._next(page, stop, wanted=False)

    def _next(self, page: int, stop: int, *, wanted: bool) -> int:
        if self._zones is None:
            return page if wanted else stop
        found = np.flatnonzero((self._waiting[self._zones.of_page[page:stop]] > 0) == wanted)
        return page + int(found[0]) if len(found) else stop

    @staticmethod
    def _wanted(zones: Zones, codes: Int64Array) -> Int64Array:
        codes = np.sort(codes)
        inside = np.searchsorted(codes, zones.highs, "right") - np.searchsorted(codes, zones.lows, "left")
        return np.maximum(inside, 0)


class _Chunks:
    """Stamp and size of each chunk that waits, oldest first."""

    def __init__(self, capacity: int, budget: Budget) -> None:
        self._stamps = budget.array("chunk stamps", capacity, np.int64)
        self._sizes = budget.array("chunk sizes", capacity, np.int64)
        self._first = 0
        self._count = 0

    @property
    def full(self) -> bool:
        return self._count == len(self._stamps)

    @property
    def oldest(self) -> int | None:
        """The stamp of the chunk that leaves next."""
        return int(self._stamps[self._first]) if self._count else None

    @property
    def sizes(self) -> Int64Array:
        return self._sizes[self._places]

    @property
    def _places(self) -> Int64Array:
        return (self._first + np.arange(self._count)) % len(self._stamps)

    def shrink_to(self, sizes: Int64Array) -> None:
        """Tuples left before their time: chunks have these sizes now. Empty chunks are forgotten."""
        kept, stamps = sizes > 0, self._stamps[self._places]
        self._count = int(np.count_nonzero(kept))
        self._stamps[self._places], self._sizes[self._places] = stamps[kept], sizes[kept]

    def add(self, stamp: int, size: int) -> None:
        if size:
            place = (self._first + self._count) % len(self._stamps)
            self._stamps[place], self._sizes[place] = stamp, size
            self._count += 1

    def take(self, stamp: int) -> int:
        """Remove chunks stamped at or before `stamp`; returns how many tuples they have."""
        tuples = 0
        while self._count and self._stamps[self._first] <= stamp:
            tuples += int(self._sizes[self._first])
            self._first = (self._first + 1) % len(self._stamps)
            self._count -= 1
        return tuples


def _zones(relation: Relation, spec: JoinSpec) -> Zones | None:
    """Zones are for equal keys only: with another condition, every page counts as wanted."""
    return getattr(relation, "zones", None) if spec.condition is None else None


def reader_bytes(relation: Relation) -> int:
    """Bytes that the relation needs to read pages, beside the pages themselves."""
    taken: int = getattr(relation, "reader_bytes", 0)
    return taken


def scan_prices(relation: Relation, spec: JoinSpec, budget: Budget) -> Prices:
    """Bytes of a slot, a page and a row of the output."""
    spec.check_against(relation)
    matcher = matcher_bytes(relation, spec, budget.memory_bytes)
    return Prices.of(relation, spec, budget.memory_bytes, matcher.per_slot + Ring.bytes_per_slot, matcher.per_page)


def scan_bytes(relation: Relation, spec: JoinSpec, budget: Budget, chunks: Int64Array) -> Int64Array:
    """Bytes that a scan takes beside window, disk buffer and output, for so many chunks."""
    return (
        chunks * _CHUNK_BYTES
        + reader_bytes(relation)
        + _WaitingZones.bytes_of(relation, spec)
        + matcher_bytes(relation, spec, budget.memory_bytes).fixed
    )


def scan_parts(relation: Relation, spec: JoinSpec, budget: Budget, sizing: Sizing) -> dict[str, int]:
    """Bytes of the parts of a scan, for people and for predictions."""
    prices = scan_prices(relation, spec, budget)
    return {
        "window": sizing.capacity * prices.slot_bytes,
        "disk buffer": sizing.buffer_pages * prices.page_bytes,
        "output": prices.output_bytes(sizing.output_rows),
    }


def wanted_pages(relation: Relation, stream: StreamShape, sizing: Sizing) -> float:
    """The part of the pages that a scan reads: those that some tuple waits for, if the relation says what its pages hold."""
    if getattr(relation, "zones", None) is None:
        return 1.0
    places = stream.demand(relation.rows, relation.pages).places()
    return places.distinct(sizing.capacity) / places.total


def buffer_choices(pages: int, wanted: int | None) -> Int64Array:
    """Sizes of the disk buffer to choose from: the given size; else all sizes; for a long relation about 4,000 sizes, close
    together where they are small."""
    most = max(1, pages)
    if wanted is not None:
        return np.array([min(wanted, most)])
    if most <= 4096:
        return np.arange(1, most + 1)
    return np.unique(np.geomspace(1, most, 4096).round().astype(np.int64))
