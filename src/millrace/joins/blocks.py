"""The loop of SSIJ and of the partition-based join: tuples wait by block, and pages stay in memory by what they are worth.

    R      p0 p1 | p2 p3 | p4 p5 | ...     blocks of `block_pages`, fixed and non-overlapping
    tuple  waits for one page at a time: the first of its key that it has not met

A step goes through three turns. Each turn ends when nothing is at hand any more:

    look up  new tuples learn their pages; a tuple whose page is in memory is at hand, any other waits for its block
    read     the pages of the blocks that are due; the tuples that waited for them are at hand
    over     the step ends

A tuple at hand meets its page. If its key goes on, the tuple then wants the next page: it is at hand again, or waits for the
next block. If the output of a step is full, the next step goes on at the same place. So a read that is due comes before new
tuples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import pyarrow as pa

from millrace.core.arrays import BoolArray, FloatArray, Int64Array
from millrace.core.budget import Budget
from millrace.core.errors import ParameterError
from millrace.core.protocols import IndexedRelation, JoinSpec, PageRun
from millrace.core.step import Step, StepCounts
from millrace.cost.expected import Expected
from millrace.cost.iteration import IterationCost
from millrace.joins.door import Door
from millrace.joins.emit import OUTPUT_ROWS, Emitter
from millrace.joins.found_matches import Pairs
from millrace.joins.reading import Arrivals, Reader
from millrace.joins.sizing import (
    MIN_OUTPUT_ROWS,
    Sizing,
    check_at_least_one,
    memory_parts,
    open_index,
    plan_window,
    reserve,
    some_sizes,
)
from millrace.structures.counted_lists import CountedLists
from millrace.structures.page_cache import PageCache
from millrace.structures.window import Window, Windowed

MOST_CACHED = 0.9  # of the spare memory: tuples must be able to wait
_SCRATCH_BYTES = 80  # per comparison of a portion: slots, pages, first row, count, and the pairs made of them
_AT_HAND_BYTES = 16  # per tuple: its slot, among new tuples and among those at hand


@dataclass(frozen=True)
class Division:
    """What a join may use. `cache_pages` come on top of the disk buffer; `portion`: tuples compared at once."""

    sizing: Sizing
    cache_pages: int
    portion: int


class BlockJoin(Windowed):
    """A join whose tuples wait by block. Subclasses say when tuples are looked up, which blocks are due, and what pages are
    worth."""

    def __init__(
        self, relation: IndexedRelation, spec: JoinSpec, budget: Budget, division: Division, block_pages: int = 1
    ) -> None:
        sizing = division.sizing
        self.buffer_pages = sizing.buffer_pages
        self.cache_pages = division.cache_pages
        self.blocks = blocks(relation, block_pages)
        self.pending = 0
        reserve(relation, spec, budget, sizing)
        budget.reserve("tuples at hand", sizing.capacity * _AT_HAND_BYTES)
        budget.reserve("step scratch", division.portion * _SCRATCH_BYTES)
        self._relation = relation
        self._budget = budget
        self._block_pages = block_pages
        self._portion = division.portion
        self._cache: PageCache | None = None
        if not relation.resident:
            frames = sizing.buffer_pages + division.cache_pages
            budget.reserve("cached pages", division.cache_pages * relation.page_bytes)
            self._cache = PageCache(max(1, relation.pages), frames, budget)
            self._frames = relation.frames(frames)
        self._window = Window(relation, spec, budget, sizing.capacity)
        self._lists = CountedLists("block", self.blocks, sizing.capacity, budget)
        self._page = budget.array("wanted pages", sizing.capacity, np.int32)
        self._last = self._page if relation.unique else budget.array("last pages", sizing.capacity, np.int32)
        self._emitter = Emitter(relation, spec, self._window, sizing.output_rows)
        self._door = Door(self._emitter)
        self._reader = Reader(relation, open_index(relation, budget, sizing.hot_keys))
        self._arrivals = Arrivals(self._reader, self._window)
        self._turn: Literal["look up", "read", "over"] = "over"
        self._at_hand: deque[Int64Array] = deque()
        self._run: PageRun | None = None
        self._pairs: Pairs | None = None  # found in the run, and still to be put out
        self._key_pages = 1  # of one key, the most so far
        self._came = 0  # tuples since the last step
        self._quiet = True  # no tuple came before this step
        self._probes = self._lookups = self._hits = 0  # since the last step

    def offer(self, batch: pa.RecordBatch) -> int:
        """Take as many tuples as there are free slots."""
        if self._door.shut and self.pending:
            return 0
        taken, slots = self._window.admit(batch, self._window.free_slots)
        self._arrivals.add(slots)
        self._came += taken
        self.pending += taken
        return taken

    def _let_go(self, slots: Int64Array) -> Int64Array:
        """Tuples that are not looked up yet."""
        gone = self._arrivals.remove(self._window.marked(slots))
        self.pending -= len(gone)
        return gone

    def step(self) -> Step:
        step = self._emitter.go_on() if self._emitter.behind else self._loop()
        self.pending -= step.counts.removed
        return step

    @property
    def _looks_in_place(self) -> int:
        """The most portions that pages used in place are looked at for while a tuple is inside: those of the tuples before it,
        and of the tuples that are looked up with it, for each page of a key."""
        return 2 * self._key_pages * -(-self.capacity // self._portion)

    def _look_up_due(self) -> bool:
        """Whether new tuples are to be looked up now."""
        raise NotImplementedError

    def _read_due(self) -> None:
        """Read blocks that are due, with `_read`, or nothing."""
        raise NotImplementedError

    def _met(self, cache: PageCache, pages: Int64Array, tuples: Int64Array) -> None:
        """So many tuples are served by these pages of the cache."""
        raise NotImplementedError

    def _waits(self, filled: Int64Array) -> None:
        """Tuples begin to wait; for the blocks in `filled`, nobody waited before."""

    def _loop(self) -> Step:
        self._door.begin()
        self._quiet, self._came = self._came == 0, 0
        if self._turn == "over":
            self._turn = "look up"
        while self._emitter.room and self._go_on():
            pass
        counts = StepCounts(probes=self._probes, front_lookups=self._lookups, front_hits=self._hits)
        step = self._emitter.finish(counts + self._reader.counts())
        self._probes = self._lookups = self._hits = 0
        return step

    def _go_on(self) -> bool:
        """Do what comes next; False if that is the next step's."""
        if self._pairs is not None:
            self._put_out(self._pairs)
        elif self._at_hand:
            self._find()
        elif self._turn == "look up":
            if len(self._arrivals) and self._look_up_due():
                self._look_up()
            self._turn = "read"
        elif self._turn == "read":
            if self._lists.waiting:
                self._read_due()
            self._turn = "over"
        else:
            return False
        return True

    def _look_up(self) -> None:
        slots, (first, last) = self._arrivals.take(idle=self._lists.waiting == 0)
        present = last >= first
        self._emitter.leave(slots[~present])
        slots, first, last = slots[present], first[present], last[present]
        self._page[slots] = first
        if not self._relation.unique:
            self._last[slots] = last
            self._key_pages = max(self._key_pages, 1 + int((last - first).max(initial=0)))
        if self._cache is not None:
            self._lookups += len(slots)
            self._hits += int(np.count_nonzero(self._held(first) & self._held(last)))
        self._place(slots, first)

    def _place(self, slots: Int64Array, pages: Int64Array) -> None:
        """Tuples that want these pages next are at hand, or wait."""
        here = self._held(pages)
        if here.any():
            self._at_hand.append(slots[here])
        if not here.all():
            self._waits(self._lists.add(pages[~here] // self._block_pages, slots[~here]))

    def _held(self, pages: Int64Array) -> BoolArray:
        return np.ones(len(pages), np.bool_) if self._cache is None else self._cache.held(pages)

    def _read(self, wanted: Int64Array) -> None:
        """Read what is missing of these blocks, ascending. The tuples that wait for them are at hand then."""
        assert self._cache is not None
        pages = (wanted[:, None] * self._block_pages + np.arange(self._block_pages)).ravel()
        self._cache.read(pages[pages < self._relation.pages], partial(self._reader.load, self._frames))
        self._at_hand.append(self._lists.take(wanted))

    def _find(self) -> None:
        """Look the next tuples up on the pages that they want."""
        slots = self._at_hand[0][: self._portion]
        pages = self._page[slots].astype(np.int64)
        distinct, tuples = np.unique(pages, return_counts=True)
        if self._cache is None:
            self._run = self._reader.use(distinct)
        else:
            self._run = self._frames.run(distinct, self._cache.frames_of(distinct))
            self._met(self._cache, distinct, tuples)
        first, count = self._run.match(self._window.code[slots], pages)
        self._probes += len(slots)
        self._at_hand[0] = self._at_hand[0][self._portion :]
        if not len(self._at_hand[0]):
            self._at_hand.popleft()
        done = slots
        if not self._relation.unique:
            more = pages < self._last[slots]
            done, going_on, following = slots[~more], slots[more], pages[more] + 1
            self._page[going_on] = following
            self._place(going_on, following)
        self._pairs = Pairs(slots, first, count, done, unique=self._relation.unique)

    def _put_out(self, pairs: Pairs) -> None:
        assert self._run is not None
        slots, rows = pairs.next(min(self._portion, self._emitter.room))
        self._emitter.pairs(self._run, slots, rows)
        if pairs.empty:
            self._emitter.leave(pairs.done)
            self._pairs = None


def blocks(relation: IndexedRelation, block_pages: int) -> int:
    return max(1, -(-relation.pages // block_pages))


def divide_blocks(
    relation: IndexedRelation, spec: JoinSpec, budget: Budget, *,
    buffer_pages: int | None, cache_share: float, fixed_bytes: Callable[[int], int],
    rate: Callable[[FloatArray, Int64Array], FloatArray],
) -> Division:  # fmt: skip
    """Share the budget out. `fixed_bytes`: what the join's own structures take once, if so many pages are read at once.
    `rate`: of windows, with so many pages each.

    First the least that works, which is what an error speaks of. Of the spare memory, `cache_share` goes to pages that stay.
    """
    check_at_least_one("buffer_pages", buffer_pages)
    check_share("cache_share", cache_share, MOST_CACHED)
    frame_bytes = 0 if relation.resident else PageCache.bytes_per_frame
    places = 0 if relation.resident else PageCache.bytes_per_page * max(1, relation.pages)
    slot_bytes = CountedLists.bytes_per_slot + _AT_HAND_BYTES + (4 if relation.unique else 8)

    def planned(pages: int | None, portion: int, cache_bytes: int = 0) -> Sizing:
        return plan_window(
            relation, spec, budget, extra_bytes_per_slot=slot_bytes, buffer_pages=pages, extra_bytes_per_page=frame_bytes,
            fixed_bytes=fixed_bytes(pages or 1) + places + portion * _SCRATCH_BYTES + cache_bytes,
        )  # fmt: skip

    pages = buffer_pages or 1
    least = planned(pages, MIN_OUTPUT_ROWS)
    if buffer_pages is None:
        slot = Window.bytes_per_tuple(relation, spec) + slot_bytes
        sizes = some_sizes(max(1, relation.pages))
        # pages used in place cost no buffer, but a longer read still delays every result: rated as if they did
        more = (sizes - 1) * (relation.page_bytes + frame_bytes) + [fixed_bytes(int(size)) - fixed_bytes(1) for size in sizes]
        window = (least.capacity - more / slot) * (1.0 - cache_share)
        rated = np.where((window >= 1) | (sizes == 1), rate(np.maximum(window, 1.0), sizes), -np.inf)
        pages = int(sizes[np.argmax(rated)])
        least = planned(pages, MIN_OUTPUT_ROWS)
    spare = (least.capacity - 1) * (Window.bytes_per_tuple(relation, spec) + slot_bytes)
    portion = min(MIN_OUTPUT_ROWS + spare // 32 // _SCRATCH_BYTES, OUTPUT_ROWS)
    each, cache_pages = relation.page_bytes + frame_bytes, 0
    if not relation.resident:
        cache_pages = min(int(spare * cache_share) // each, max(0, relation.pages - least.buffer_pages))
    return Division(planned(pages, portion, cache_pages * each), cache_pages, portion)


def expected_of_blocks(
    relation: IndexedRelation, spec: JoinSpec, budget: Budget, division: Division, iteration: IterationCost
) -> Expected:
    """What a join is expected to do that divides its budget like this."""
    sizing = division.sizing
    slot_bytes = CountedLists.bytes_per_slot + _AT_HAND_BYTES + (4 if relation.unique else 8)
    parts = memory_parts(relation, spec, sizing, budget.memory_bytes, slot_bytes)
    parts["cached pages"] = division.cache_pages * relation.page_bytes
    settings = {"buffer_pages": sizing.buffer_pages, "cache_pages": division.cache_pages}
    return Expected(iteration, sizing.capacity, parts, settings)


def check_share(name: str, share: float, most: float) -> None:
    if not 0 <= share <= most:
        raise ParameterError(f"{name} must be from 0 to {most}; got {share}")
