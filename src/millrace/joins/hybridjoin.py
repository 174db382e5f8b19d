"""HYBRIDJOIN: the oldest waiting tuple picks the pages to read, and they serve every waiting tuple.

Naeem, Dobbie, Weber: HYBRIDJOIN for Near-Real-Time Data Warehousing, International Journal of Data Warehousing and
Mining 7(4), 2011.

The loop:
    1. load stream tuples into the free slots: look each up in the index, add it to the hash table, the queue and the
       list of its partition; a key that the index knows to be absent leaves at once;
    2. take the oldest waiting tuple; with none, read nothing;
    3. read its partition: `buffer_pages` neighbouring pages, fixed and non-overlapping;
    4. probe the hash table with every row of it, and put out the matches;
    5. every tuple whose key could only be there has met all there is for it: take it from hash table, queue and list.

Memory:

    stream --> [ slots ]  queue       oldest <-> . <-> . <-> newest       any tuple may leave it
                          hash table  key code  --> slots                 probed with every row read
                          lists       partition --> slots                 who leaves after a read
                                         |
                          disk buffer [ one partition ] <-- index <-- R   p0 p1 p2 | p3 p4 p5 | p6 ...

Needs an index on the join key, and R sorted by it. Serves equality.

Differs from the paper:
    - Free slots are counted, not kept in w, which the paper resets to zero even if it loaded fewer than w tuples.
    - Tuples are loaded before the read, not after it, so that a first step has something to do.
    - An absent key would stay at the head of the paper's queue for ever. Here it leaves unmatched: at loading if it
      falls between pages, otherwise after the first read of its partition, whoever that read was for. The lists of
      tuples by partition (8 bytes a slot) are there for this: without them each absent key would cost its own read.
    - Duplicate keys in R: rows of a key may go on in the next partition. The oldest tuple's key is then read from its
      first page on, in pieces of `buffer_pages` over consecutive steps if one read can't hold it. Any other tuple whose
      rows are not all in the pages at hand is left alone, neither joined nor removed, until another read has them all.
    - More matches than fit into the output of a step: the next steps go on with the same pages, without reading. Tuples
      offered meanwhile are loaded afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.core.budget import Budget
from millrace.core.protocols import IndexedRelation, JoinSpec, PageRun
from millrace.core.step import Int64Array, Step, StepCounts
from millrace.joins.emit import Emitter
from millrace.joins.reading import Reader, check_index
from millrace.joins.sizing import Sizing, check_at_least_one, code_bytes_per_page, plan_window, reserve
from millrace.structures.chains import Chains
from millrace.structures.hashtable import START, Cursor, HashTable
from millrace.structures.queue import Queue
from millrace.structures.window import Window, Windowed

SLOT_BYTES = HashTable.bytes_per_slot + Queue.bytes_per_slot + Chains.bytes_per_slot


@dataclass(frozen=True)
class _Wanted:
    """The key that is being read: the oldest tuple's, on pages `first` to `last`."""

    code: int
    first: int
    last: int


@dataclass
class _Reading:
    """Pages `first` to `last` in the disk buffer; rows `skipped` and after, by code, are probed up to `cursor`."""

    run: PageRun
    first: int
    last: int
    skipped: int
    codes: Int64Array
    cursor: Cursor = START


class HybridJoin(Windowed):
    """Reads only pages somebody waits for, in the order of waiting.

    >>> from millrace.relations.memory import MemoryRelation
    >>> products = MemoryRelation(pa.table({"id": [1, 2, 3], "price": [10, 20, 30]}), "id", rows_per_page=1)
    >>> sales = pa.record_batch({"product": [3, 1, 3]})
    >>> spec = JoinSpec(sales.schema, (("product", "id"),), "inner", ("product",), ("price",))
    >>> join = HybridJoin(products, spec, Budget("64k"), buffer_pages=1)
    >>> join.offer(sales), join.step().output.to_pydict(), join.step().output.to_pydict(), products.reads
    (3, {'product': [3, 3], 'price': [30, 30]}, {'product': [1], 'price': [10]}, [(2, 1), (0, 1)])
    """

    def __init__(self, relation: IndexedRelation, spec: JoinSpec, budget: Budget, *, buffer_pages: int | None = None) -> None:
        check_index(relation, "hybridjoin")
        sizing = _plan(relation, spec, budget, buffer_pages)
        self.buffer_pages = sizing.buffer_pages
        self.partitions = _partitions(relation, sizing.buffer_pages)
        reserve(relation, spec, budget, sizing, code_bytes_per_page(relation))
        self.pending = 0
        self._relation = relation
        self._budget = budget
        self._window = Window(relation, spec, budget, sizing.capacity)
        self._table = HashTable(sizing.capacity, budget)
        self._queue = Queue(sizing.capacity, budget)
        self._lists = Chains("partition", self.partitions, sizing.capacity, budget)
        self._emitter = Emitter(relation, spec, self._window, sizing.output_rows)
        self._reader = Reader(relation)
        self._inbox: list[Int64Array] = []
        self._wanted: _Wanted | None = None
        self._reading: _Reading | None = None
        self._next_page = 0  # where the wanted key goes on
        self._look_ups = self._probes = 0  # since the last step

    def offer(self, batch: pa.RecordBatch) -> int:
        """Take as many tuples as there are free slots."""
        taken, slots = self._window.admit(batch, self._window.free_slots)
        self._inbox.append(slots)
        self.pending += taken
        return taken

    def step(self) -> Step:
        self._emitter.begin()
        if self._wanted is None:
            self._load()
            self._wanted = self._oldest()
        if self._wanted is not None:
            if self._reading is None:
                self._reading = self._read(self._wanted)
            self._probe(self._wanted, self._reading)
        counts = StepCounts(index_reads=self._look_ups, probes=self._probes)
        step = self._emitter.finish(counts + self._reader.counts())
        self._look_ups = self._probes = 0
        self.pending -= step.counts.removed
        return step

    def _load(self) -> None:
        """Step 1."""
        slots = np.concatenate((np.zeros(0, np.int64), *self._inbox))
        self._inbox = []
        if len(slots) == 0:
            return
        first, last = self._relation.locate(self._window.code[slots])
        self._look_ups += len(slots)
        present = last >= first
        self._emitter.leave(slots[~present])
        slots, first = slots[present], first[present]
        self._table.add(self._window.code[slots], slots)
        self._queue.append(slots)
        self._lists.add(first // self.buffer_pages, slots)

    def _oldest(self) -> _Wanted | None:
        """Step 2."""
        slot = self._queue.oldest
        if slot is None:
            return None
        code = self._window.code[slot : slot + 1].copy()
        first, last = self._relation.locate(code)
        wanted = _Wanted(int(code[0]), int(first[0]), int(last[0]))
        partition = wanted.first // self.buffer_pages
        inside = partition == wanted.last // self.buffer_pages
        self._next_page = partition * self.buffer_pages if inside else wanted.first
        return wanted

    def _read(self, wanted: _Wanted) -> _Reading:
        """Step 3."""
        first = self._next_page
        count = min(self.buffer_pages, self._relation.pages - first)
        run = self._reader.read(first, count)
        codes = run.codes
        begin, end = self._complete_rows(wanted, codes, first, first + count - 1)
        self._probes += end - begin
        return _Reading(run, first, first + count - 1, begin, codes[begin:end])

    def _complete_rows(self, wanted: _Wanted, codes: Int64Array, first: int, last: int) -> tuple[int, int]:
        """Rows to probe: all but those of a first or last key with rows on other pages too that is not the wanted."""
        begin, end = 0, len(codes)
        if self._relation.unique or end == 0:
            return begin, end
        edges = self._relation.locate(codes[[0, -1]])
        if edges.first[0] < first and codes[0] != wanted.code:
            begin = int(np.searchsorted(codes, codes[0], "right"))
        if edges.last[1] > last and codes[-1] != wanted.code:
            end = int(np.searchsorted(codes, codes[-1], "left"))
        return begin, max(begin, end)

    def _probe(self, wanted: _Wanted, reading: _Reading) -> None:
        slots, rows, cursor = self._table.probe(reading.codes, reading.cursor, self._emitter.room)  # step 4
        self._emitter.pairs(reading.run, slots, rows + reading.skipped)
        if cursor is not None:
            reading.cursor = cursor
            return
        done = self._finished(wanted, reading)  # step 5
        self._table.remove(done)
        self._queue.remove(done)
        self._lists.remove(done)
        self._emitter.leave(done)
        self._reading = None
        self._next_page = reading.last + 1
        if reading.last >= wanted.last:
            self._wanted = None

    def _finished(self, wanted: _Wanted, reading: _Reading) -> Int64Array:
        """Tuples whose keys can only be on the pages just read, and the wanted ones once their last page is there."""
        slots = self._lists.members(reading.first // self.buffer_pages, reading.last // self.buffer_pages)
        if self._relation.unique:
            return slots
        code = self._window.code[slots]
        first, last = self._relation.locate(code)
        inside = (first >= reading.first) & (last <= reading.last)
        if wanted.first >= reading.first or wanted.last > reading.last:
            return slots[inside]
        # the wanted key began on pages read before: its tuples are in the list of that partition
        started = self._lists.members(wanted.first // self.buffer_pages, wanted.first // self.buffer_pages)
        started = started[self._window.code[started] == wanted.code]
        return np.concatenate((slots[inside], started))


def _plan(relation: IndexedRelation, spec: JoinSpec, budget: Budget, buffer_pages: int | None) -> Sizing:
    """Each list by partition has a head, so the buffer is chosen first, as if every page were a partition."""
    check_at_least_one("buffer_pages", buffer_pages)

    def planned(pages: int | None) -> Sizing:
        heads_bytes = _partitions(relation, pages or 1) * Chains.bytes_per_head
        return plan_window(
            relation, spec, budget, extra_bytes_per_slot=SLOT_BYTES, buffer_pages=pages,
            extra_bytes_per_page=code_bytes_per_page(relation), fixed_bytes=Queue.fixed_bytes + heads_bytes,
        )  # fmt: skip

    return planned(buffer_pages or planned(None).buffer_pages)


def _partitions(relation: IndexedRelation, buffer_pages: int) -> int:
    return max(1, -(-relation.pages // buffer_pages))
