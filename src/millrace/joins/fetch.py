"""The loop of HYBRIDJOIN and X-HYBRIDJOIN: the oldest waiting tuple picks the pages to fetch, which serve all waiting tuples.

    R      p0 p1 p2 | p3 p4 | p5 p6 | p7 p8 | ...
           pinned   | partitions of `buffer_pages`, fixed and non-overlapping, behind the pinned pages

A tuple whose rows all lie on pinned pages is answered when it is loaded. If the rows of a tuple begin on pinned pages and go on
behind them, the tuple meets the pinned rows at loading and waits only for the others. HYBRIDJOIN pins no page.

The queue of partitions is a round. The rows of one key may begin on a partition and go on behind it. Such a partition takes two
turns when it comes first in the queue: one for this key and one for all others. Tuples that come after the first turn wait for
the next round. So no partition keeps the others waiting, however fast its tuples come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.arrays import BoolArray, Int64Array
from millrace.core.budget import Budget
from millrace.core.protocols import NO_PLACE, IndexedRelation, JoinSpec, PageRun, Waiting
from millrace.core.step import Step, StepCounts
from millrace.joins.door import Door
from millrace.joins.emit import OUTPUT_ROWS, Emitter
from millrace.joins.found_matches import Pairs
from millrace.joins.reading import COLD_STEPS, Arrivals, Reader, disk_index, pages_of
from millrace.joins.sizing import Sizing, bits_between_codes, code_bytes_per_page, open_index, reserve
from millrace.structures.hashtable import START, Cursor, HashTable, codes_in, slot_records
from millrace.structures.lists import Lists
from millrace.structures.queue import Queue
from millrace.structures.window import Window, Windowed

_PAGE_NUMBER_BYTES = 4


@dataclass(frozen=True)
class _Wanted:
    """The key that is being read: the oldest tuple's, on pages `first` to `last`."""

    code: int
    first: int
    last: int


@dataclass
class _Reading:
    """Pages `first` to `last` in the disk buffer, whose rows are probed up to `cursor`."""

    run: PageRun
    first: int
    last: int
    codes: Int64Array
    cursor: Cursor = START


class FetchJoin(Windowed):
    """A join that reads the pages of the oldest waiting tuple. Subclasses divide the memory."""

    def __init__(
        self, relation: IndexedRelation, spec: JoinSpec, budget: Budget, sizing: Sizing, pinned_pages: int = 0
    ) -> None:
        self.buffer_pages = sizing.buffer_pages
        self.pinned_pages = pinned_pages
        self.partitions = partitions(relation, sizing.buffer_pages, pinned_pages)
        self.pending = 0
        reserve(relation, spec, budget, sizing, code_bytes_per_page(relation))
        if pinned_pages and not relation.resident:
            budget.reserve("pinned pages", pinned_pages * relation.page_bytes)
        self._relation = relation
        self._budget = budget
        records = slot_records(sizing.capacity, budget)
        self._window = Window(relation, spec, budget, sizing.capacity, codes_in(records))
        self._table = HashTable(records, budget, apart=bits_between_codes(relation))
        self._lists = Lists("partition", self.partitions, sizing.capacity, budget)
        self._queue = Queue(self.partitions, budget)  # of partitions, in the order of the oldest tuple that waits for each
        self._first = budget.array("first pages", sizing.capacity, np.int32)
        self._last = self._first if relation.unique else budget.array("last pages", sizing.capacity, np.int32)
        self._emitter = Emitter(relation, spec, self._window, sizing.output_rows)
        self._door = Door(self._emitter)
        self._reader = Reader(relation, open_index(relation, budget, sizing.hot_keys))
        self._arrivals = Arrivals(self._reader, self._window)
        self._pinned: PageRun | None = None  # read when the first tuple comes
        self._pairs: Pairs | None = None  # found on pinned pages, and still to be put out
        self._wanted: _Wanted | None = None
        self._reading: _Reading | None = None
        self._next_page = 0  # where the wanted key goes on
        self._key_pages = 1  # of one key, the most so far, pinned pages left out
        self._again: int | None = None  # a partition that had a turn, and has another
        self.lookup_position = 0.0  # which partition of the queue comes next: 0 the oldest, 1 the newest
        self._probes = self._pinned_matches = 0  # since the last step

    @property
    def longest_wait(self) -> int:
        """The most reads for which a tuple stays inside, whatever else comes: one round of the queue, and one more turn of the
        partition that is being read. If the index lies on disk, also the steps that a tuple may wait for a look-up."""
        turns = 1 if self._relation.unique else 1 + -(-self._key_pages // self.buffer_pages)  # of a partition, as reads
        look_up = COLD_STEPS + turns if disk_index(self._relation) is not None else 0
        return look_up + (self.partitions + 1) * turns + (1 if self.pinned_pages else 0)

    def offer(self, batch: pa.RecordBatch) -> int:
        """Take as many tuples as there are free slots."""
        if self._door.shut and self.pending:
            return 0
        taken, slots = self._window.admit(batch, self._window.free_slots)
        self._arrivals.add(slots)
        self.pending += taken
        return taken

    def _let_go(self, slots: Int64Array) -> Int64Array:
        gone = self._arrivals.remove(self._window.marked(slots))
        if not self._busy:
            waiting = slots[self._table.links_before[slots] != 0]
            self._take_out(waiting)
            gone = np.concatenate((gone, waiting))
        self.pending -= len(gone)
        return gone

    @property
    def _busy(self) -> bool:
        """Whether rows are being read, or put out, for tuples in the hash table. The table must not change then."""
        return self._wanted is not None or self._pairs is not None

    def _take_out(self, slots: Int64Array) -> None:
        """Tuples leave hash table and lists, and partitions that nobody waits for leave the queue. If the tuple that stands for
        its key in a list leaves, another one does so."""
        firsts = slots[self._table.links_before[slots] < 0]
        lists = np.unique(self._partition(self._first[firsts].astype(np.int64)))
        self._table.remove(slots)
        self._first[firsts] = self._table.firsts(self._window.code[firsts])
        emptied = self._lists.replace(lists, self._table.links_before, self._first)
        self._queue.remove(emptied)
        if self._again is not None and not len(self._lists.filled(self._again, self._again)):
            self._again = None

    def waiting(self) -> Waiting:
        """Tuples that can be given back, and the partitions that they wait for."""
        new = self._arrivals.slots
        slots = self._table.present.nonzero()[0] if not self._busy else new[:0]
        places = np.concatenate((self._partition(self._first[slots].astype(np.int64)), np.full(len(new), NO_PLACE)))
        return self._window.waiting(np.concatenate((slots, new)), places)

    @property
    def places(self) -> int:
        """Partitions: a read serves all who wait for one of them."""
        return self.partitions

    def place_of(self, rows: pa.RecordBatch) -> Int64Array | None:
        """The partition that each of these tuples will wait for. None if telling costs a read."""
        pages = pages_of(self._relation, self._window, rows)
        if pages is None:
            return None
        places: Int64Array = self._partition(pages)
        return np.where(pages >= self.pinned_pages, places, NO_PLACE)

    def step(self) -> Step:
        step = self._emitter.go_on() if self._emitter.behind else self._loop()
        self.pending -= step.counts.removed
        return step

    def _loop(self) -> Step:
        self._door.begin()
        if self._wanted is None and self._pairs is None:
            self._load()
        if self._pairs is not None:
            self._answer(self._pairs)
        if self._wanted is None and self._pairs is None:
            self._wanted = self._oldest()
        if self._wanted is not None:
            if self._reading is None:
                self._reading = self._read()
            self._probe(self._wanted, self._reading)
        counts = StepCounts(probes=self._probes, pinned_matches=self._pinned_matches)
        step = self._emitter.finish(counts + self._reader.counts())
        self._probes = self._pinned_matches = 0
        return step

    def _load(self) -> None:
        """Let new tuples wait for their pages, or answer them from pinned pages."""
        if len(self._arrivals):
            self._pin()
            slots, (first, last) = self._arrivals.take(idle=self._queue.oldest is None)
            present = last >= first
            self._emitter.leave(slots[~present])
            self._place(slots[present], first[present], last[present])

    def _pin(self) -> None:
        """Read the pinned pages, once and for all."""
        if self._pinned is None and self.pinned_pages:
            pages = np.arange(self.pinned_pages)
            if self._relation.resident:
                self._pinned = self._reader.use(pages)
                return
            frames = self._relation.frames(self.pinned_pages)
            self._reader.load(frames, pages, pages)
            self._pinned = frames.run(pages, pages)

    def _place(self, slots: Int64Array, first: Int64Array, last: Int64Array) -> None:
        """Tuples whose keys are on these pages: rows on pinned pages are found at once; tuples wait for the other rows."""
        waits = last >= self.pinned_pages
        if not waits.all() or (first < self.pinned_pages).any():
            self._find(slots, first, np.minimum(last, self.pinned_pages - 1), slots[~waits])
            slots, first, last = slots[waits], np.maximum(first[waits], self.pinned_pages), last[waits]
        self._first[slots] = first
        if not self._relation.unique:
            self._last[slots] = last
            self._key_pages = max(self._key_pages, 1 + int((last - first).max(initial=0)))
        is_first = self._table.add(slots)  # of the tuples that wait for its key: the others leave with it
        self._queue.append(self._lists.add(self._partition(first[is_first]), slots[is_first]))

    def _find(self, slots: Int64Array, first: Int64Array, last: Int64Array, done: Int64Array) -> None:
        """Look tuples up on pinned pages `first` to `last`."""
        assert self._pinned is not None
        counts = np.maximum(last - first + 1, 0)
        tuples = np.repeat(np.arange(len(slots)), counts)
        pages = first[tuples] + np.arange(len(tuples)) - (np.cumsum(counts) - counts)[tuples]
        wanted = slots[tuples]
        rows, found = self._pinned.match(self._window.code[wanted], pages)
        self._probes += len(wanted)
        self._pairs = Pairs(wanted, rows, found, done, unique=self._relation.unique)

    def _answer(self, pairs: Pairs) -> None:
        """Put out what was found on pinned pages, as far as it fits into a step."""
        assert self._pinned is not None
        slots, rows = pairs.next(min(self._emitter.room, OUTPUT_ROWS))
        self._pinned_matches += self._emitter.pairs(self._pinned, slots, rows)
        if pairs.empty:
            self._emitter.leave(pairs.done)
            self._pairs = None

    def _oldest(self) -> _Wanted | None:
        """The key that has waited longest, and where reading it begins."""
        partition = self._again if self._again is not None else self._next_partition()
        if partition is None:
            return None
        slot = self._lists.oldest(partition)
        wanted = _Wanted(int(self._window.code[slot]), int(self._first[slot]), int(self._last[slot]))
        inside = partition == self._partition(wanted.last)
        self._next_page = self.pinned_pages + partition * self.buffer_pages if inside else wanted.first
        return wanted

    def _next_partition(self) -> int | None:
        if not self.lookup_position:
            return self._queue.oldest
        return self._queue.at(int(self.lookup_position * (len(self._queue) - 1)))

    def _read(self) -> _Reading:
        """Read the pages of the wanted key, or the next of these pages."""
        first = self._next_page
        count = min(self.buffer_pages, self._relation.pages - first)
        run = self._reader.read(first, count)
        codes = run.codes
        self._probes += len(codes)
        return _Reading(run, first, first + count - 1, codes)

    def _probe(self, wanted: _Wanted, reading: _Reading) -> None:
        at_once = reading.cursor is START
        slots, rows, cursor = self._table.probe(reading.codes, reading.cursor, self._emitter.room)
        if not self._relation.unique:
            here = self._complete(slots, reading) | (self._window.code[slots] == wanted.code)
            slots, rows = slots[here], rows[here]
        self._emitter.pairs(reading.run, slots, rows)
        if cursor is not None:
            reading.cursor = cursor
            return
        finished = self._finished(wanted, reading)
        found = None
        if self._relation.unique:
            # a key was found once, and all who wait for it with it; it can only be in what was read
            found = slots if at_once else self._found_before()
        self._emitter.leave(self._table.take(finished, found))
        self._reading = None
        self._next_page = reading.last + 1
        if reading.last >= wanted.last:
            self._wanted = None
            self._go_round(self._partition(wanted.first))

    def _go_round(self, partition: int) -> None:
        """A partition had a turn. If tuples still wait for it, it has another turn, and then goes to the end of the queue."""
        waited_for = len(self._lists.filled(partition, partition)) > 0
        if waited_for and self._again == partition:
            self._queue.remove(np.array([partition]))
            self._queue.append(np.array([partition]))
            waited_for = False
        self._again = partition if waited_for else None

    def _found_before(self) -> Int64Array | None:
        """Where keys are unique: tuples that met a row in any portion of one probe and are still there. None if this is not
        known, because tuples have found a row with their code and another key."""
        if not self._relation.codec.exact:
            return None
        return np.flatnonzero(self._window.matched & self._table.present)

    def _complete(self, slots: Int64Array, reading: _Reading) -> BoolArray:
        """Which of these tuples wait only for the pages just read."""
        first, last = self._first[slots], self._last[slots]
        return np.asarray((first >= reading.first) & (last <= reading.last))

    def _finished(self, wanted: _Wanted, reading: _Reading) -> Int64Array:
        """The first tuple of each key that can only be on the pages just read, and of the wanted key once its last page is
        there. These tuples leave the lists. Partitions that no tuple waits for leave the queue."""
        first, last = self._partition(reading.first), self._partition(reading.last)
        emptied = self._lists.filled(first, last)
        slots = self._lists.take(first, last)
        if not self._relation.unique:
            if wanted.first < reading.first and wanted.last <= reading.last:
                # the wanted key began on pages read before: its tuple is in the list of that partition
                begun = self._partition(wanted.first)
                emptied = np.append(emptied, self._lists.filled(begun, begun))
                slots = np.concatenate((slots, self._lists.take(begun, begun)))
                done = self._complete(slots, reading) | (self._window.code[slots] == wanted.code)
            else:
                done = self._complete(slots, reading)
            stay = slots[~done]
            places = self._partition(self._first[stay].astype(np.int64))
            self._lists.add(places, stay)
            emptied = np.setdiff1d(emptied, places)  # a partition that some still wait for keeps its place in the queue
            slots = slots[done]
        self._queue.remove(emptied)
        return slots

    def _partition(self, page: int | Int64Array) -> Any:
        return (page - self.pinned_pages) // self.buffer_pages


def slot_bytes(relation: IndexedRelation) -> int:
    """Bytes that a waiting tuple takes beside the window."""
    page_numbers = _PAGE_NUMBER_BYTES if relation.unique else 2 * _PAGE_NUMBER_BYTES
    return HashTable.bytes_per_slot + Lists.bytes_per_slot + page_numbers


def partitions(relation: IndexedRelation, buffer_pages: int, pinned_pages: int = 0) -> int:
    return max(1, -(-(relation.pages - pinned_pages) // buffer_pages))


def fixed_bytes(relation: IndexedRelation, buffer_pages: Any, pinned_pages: Any = 0) -> Any:
    """Bytes that the queue and the lists by partition take once; for numbers or arrays of numbers."""
    lists = np.maximum(1, -(-(relation.pages - pinned_pages) // buffer_pages))
    return Queue.fixed_bytes + Lists.fixed_bytes + lists * (Lists.bytes_per_head + Queue.bytes_each)
