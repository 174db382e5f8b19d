"""Sorted runs of both inputs in the temporary file, and the merge that makes rectangles shrink: what SMS and DBO share.

    run A1 [ 3 5 9 | 12 17 ... ]      x = 9: every run has all of its rows with keys below it at hand
    run A2 [ 1 4 7 |  8 11 ... ]      rows with keys below x of all runs are joined: certain from now on;
    run B1 [ 2 5 6 |  9 10 ... ]      the same rows of the runs of a rectangle are taken out of its sums

One extent of each run is at hand; what was at hand before waits until there is enough to be joined at once. A key that fills
all of that is followed through the extents of each run.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.errors import BudgetError
from millrace.online.pair_functions import Functions
from millrace.online.protocol import A, B, Counters, Input, Pieces, Progress
from millrace.online.statistics.totals import Sums
from millrace.online.storage.held_rows import Block, Blocks, StoredRows, block_rows, divide_transfers
from millrace.online.storage.paired_reading import Readers
from millrace.online.storage.rectangles import Chunk, Rectangle, join_all, make_rectangle
from millrace.online.storage.sizing import Shape, divided
from millrace.online.storage.spill import Spill, count_transfers

_LEAST_ROOM = 4  # rows that wait to be joined while runs are merged, by plan
_AT_ONCE = 16  # runs that become one


class Run:
    """One sorted run: an extent at hand, and where it stands."""

    def __init__(self, side: int, stored: StoredRows) -> None:
        self.side, self.stored = side, stored
        self.extent = -1  # the one at hand
        self.words: Int64Array = np.zeros((0, stored.width), np.int64)
        self.position = 0

    def refill(self) -> None:
        """Have rows at hand, if there are any left."""
        while self.position == len(self.words) and self.more:
            self.extent += 1
            self.words = next(iter(self.stored.chunks(self.extent, self.extent + 1))).copy()
            self.position = 0

    @property
    def more(self) -> bool:
        """Whether extents follow the one at hand."""
        return self.extent + 1 < self.stored.extents

    @property
    def last(self) -> int:
        return int(self.words[-1, 0])

    def take(self, rows: int | None = None) -> Int64Array:
        """Move on, over so many rows or all at hand."""
        start = self.position
        self.position = len(self.words) if rows is None else start + rows
        return self.words[start : self.position]

    def below(self, code: int) -> int:
        """How many rows at hand have a smaller code."""
        return int(np.searchsorted(self.words[self.position :, 0], code, "left"))

    def upto(self, code: int) -> int:
        """How many rows at hand have this code or a smaller one."""
        return int(np.searchsorted(self.words[self.position :, 0], code, "right"))

    def of(self, code: int) -> Iterator[Int64Array]:
        """All rows with a code, which no row left is below; from the extents that follow too, without moving on."""
        end = self.position + self.upto(code)
        yield self.words[self.position : end]
        if end == len(self.words) and self.more:
            for words in self.stored.chunks(self.extent + 1):
                count = int(np.searchsorted(words[:, 0], code, "right"))
                yield words[:count]
                if count < len(words):
                    return


def in_order(runs: Sequence[Run]) -> Iterator[Int64Array]:
    """All rows of some runs by their keys, a portion at a time."""
    for run in runs:
        run.refill()
    while left := [run for run in runs if run.position < len(run.words)]:
        bound = min((run.last for run in left if run.more), default=None)
        words = np.concatenate([run.take(None if bound is None else run.upto(bound)) for run in left])
        yield words[np.argsort(words[:, 0], kind="stable")]
        for run in left:
            run.refill()


class MergeShrink:
    """The runs of both sides, and for each piece the runs that it is made of."""

    def __init__(
        self, runs: Sequence[Run], made_of: Sequence[tuple[int, int]], pieces: Pieces, rectangle: Rectangle, room: int
    ) -> None:
        """`made_of[i]`: the run of A and the run of B, by their place in `runs`, whose pairs are in piece i. `room`: rows
        beside those at hand that may be held until they are joined."""
        self._runs, self._made_of, self._pieces, self._rectangle, self._room = runs, made_of, pieces, rectangle, room
        self._taken: list[list[Int64Array]] = [[] for _ in runs]
        for run in runs:
            run.refill()
        self._heap = [(run.last, number) for number, run in enumerate(runs) if run.more]
        heapq.heapify(self._heap)
        self.done = False

    def step(self) -> None:
        """Join all rows up to some key."""
        self._read_on()
        bound = self._heap[0][0] if self._heap else None
        parts = [self._up_to(number, bound) for number in range(len(self._runs))]
        if any(len(part) for part in parts):
            self._settle(lambda number: iter((parts[number],)), [len(part) for part in parts])
        elif bound is not None:
            self._join_key(bound)
        else:
            self._end()

    def _read_on(self) -> None:
        """The run whose extent ends with the smallest key gives it up and gets its next one, until there is no more room."""
        held = sum(len(words) for taken in self._taken for words in taken)
        while self._heap and held < self._room:
            _, number = self._heap[0]
            run = self._runs[number]
            words = run.take()
            held += len(words)
            self._taken[number].append(words)
            run.refill()
            if run.more:
                heapq.heapreplace(self._heap, (run.last, number))
            else:
                heapq.heappop(self._heap)

    def _up_to(self, number: int, bound: int | None) -> Int64Array:
        """Rows of a run whose keys are complete: all of them that are below the bound."""
        run, taken = self._runs[number], self._taken[number]
        held = np.concatenate(taken) if taken else run.words[:0]
        cut = len(held) if bound is None else int(np.searchsorted(held[:, 0], bound, "left"))
        self._taken[number] = [held[cut:]] if cut < len(held) else []
        at_hand = run.take(None if bound is None else run.below(bound)) if cut == len(held) else run.words[:0]
        return np.concatenate([held[:cut], at_hand]) if len(at_hand) else held[:cut]

    def _join_key(self, code: int) -> None:
        """One key, which may fill several extents of a run: all rows that are held have it."""

        def rows_of(number: int) -> Iterator[Int64Array]:
            yield from self._taken[number]
            yield from self._runs[number].of(code)

        counts = [sum(len(words) for words in rows_of(number)) for number in range(len(self._runs))]
        self._settle(rows_of, counts)
        for number, run in enumerate(self._runs):
            left = counts[number] - sum(len(words) for words in self._taken[number])
            self._taken[number] = []
            while left:
                run.refill()
                left -= len(run.take(min(left, len(run.words) - run.position)))
            run.refill()
        self._heap = [(run.last, number) for number, run in enumerate(self._runs) if run.more]
        heapq.heapify(self._heap)

    def _settle(self, rows_of: Callable[[int], Iterator[Int64Array]], counts: list[int]) -> None:
        def joined(chosen: Sequence[int], *, new: bool) -> Sums:
            def source(side: int) -> Iterator[Chunk]:
                for number in chosen:
                    if self._runs[number].side == side:
                        for words in rows_of(number):
                            yield words, 0 if new else len(words)

            a, b = (sum(counts[number] for number in chosen if self._runs[number].side == side) for side in (A, B))
            return join_all(self._rectangle, source, (a, b))

        pieces = self._pieces
        pieces.certain += joined(range(len(self._runs)), new=True)
        for piece, made_of in enumerate(self._made_of):
            if all(counts[number] for number in made_of):
                gone = joined(made_of, new=False)
                pieces.t[piece] -= gone.t
                pieces.sx[piece] -= gone.sx
                pieces.sy[piece] -= gone.sy
                pieces.q[piece] -= gone.q
                pieces.pairs[piece] -= gone.pairs

    def _end(self) -> None:
        pieces = self._pieces
        for sums in (pieces.t, pieces.sx, pieces.sy, pieces.q):
            sums[:] = 0.0  # what differences of doubles may have left
        pieces.exact[:] = True
        self.done = True


def _table_rows(a: int, b: int) -> int:
    """The smaller side of a block is built on. Not too few, as sizes of inputs may be estimates."""
    return max(min(a, b), max(a, b) // 4)


def _waiting_bytes(shape: Shape) -> int:
    """While runs are merged: of a row that waits, and of its copy when it is joined."""
    return 2 * 8 * shape.widest


@dataclass(frozen=True)
class RunDivision:
    """How a join of sorted runs divides its memory."""

    blocks: Blocks
    runs: int  # by plan
    run_extent_bytes: int


def divide_runs(shape: Shape, budget: Budget, *, extent_bytes: int | None = None) -> RunDivision:
    """Set aside what a join of sorted runs takes.

    One extent of each run is at hand in the end, in half of what the block takes. Where runs turn out to be twice as many, the
    extents of further ones are half as large, and so on.
    """
    extent, batch_rows = divide_transfers(shape, budget, extent_bytes)
    rows = block_rows(shape, budget, per_block=2 * shape.piece_bytes, per_row=16, table_for=_table_rows)
    budget.reserve_all(shape.table_sizes(_table_rows(*rows)))
    block = Block.sizes(shape.widths, rows)
    order, held = 16 * sum(rows), sum(block.values())
    budget.reserve_all({**block, "sums": 0, "order of a block": order})
    count = 2 + max(shape.rows[side] // rows[side] for side in (A, B))
    run_extent = max(8 * shape.widest, min(extent, held // (4 * count + 4)))
    if 2 * 2 * count * run_extent + _LEAST_ROOM * _waiting_bytes(shape) > held + order + budget.free_bytes:
        raise BudgetError(f"{2 * count} runs can't be merged in the memory of a block", 2 * budget.memory_bytes)
    return RunDivision(Blocks(extent, batch_rows, rows), 2 * count, run_extent)


class RunStage:
    """Blocks of rows that meet, are sorted and put away as runs, and in the end are merged."""

    def __init__(
        self, inputs: tuple[Input, Input], functions: Functions, budget: Budget, spill: Spill, extent_bytes: int | None
    ) -> None:
        shape = Shape.of(*inputs, functions, spill)
        division = divided(partial(divide_runs, shape, extent_bytes=extent_bytes), shape, budget)
        self.counters = Counters()
        self.readers = Readers(inputs, self.counters)
        self._spill, self._budget = spill, budget
        spill.open(division.blocks.extent_bytes, budget)
        self.batch_rows = division.blocks.batch_rows
        self.pieces = Pieces("rectangles", 0, functions.functions, functions.groups, budget)
        self._each, self._piece_bytes = _waiting_bytes(shape), shape.piece_bytes
        self.block_rows = division.blocks.rows
        self._rectangle = make_rectangle(functions, shape.widths, _table_rows(*self.block_rows), budget)
        self.block = Block(shape.widths, self.block_rows, budget)
        self._planned, self._extent = division.runs, division.run_extent_bytes
        self._runs: list[Run] = []
        self._made_of: list[tuple[int, int]] = []
        self._block_runs = [0, 1]  # where the runs of the block's two sides will stand among the runs
        self._merge: MergeShrink | None = None

    def meet(self) -> None:
        """Join the block's rows of A and B: one more piece, if there is room for it. All pairs are put out by the merge."""
        block, pieces = self.block, self.pieces
        if self._budget.free_bytes < self._piece_bytes:
            return

        def source(side: int) -> Iterator[Chunk]:
            words = block.words(side)
            yield words, len(words)

        piece = pieces.append(join_all(self._rectangle, source, (block.kept[A], block.kept[B])))
        pieces.own_a[piece], pieces.own_b[piece] = block.read
        pieces.first_a[piece], pieces.first_b[piece] = (self.readers.read[side] - block.read[side] for side in (A, B))
        pieces.rows_a[piece], pieces.rows_b[piece] = self.readers.read
        self._made_of.append((self._block_runs[A], self._block_runs[B]))
        self.counters.joins += 1
        self.counters.results = pieces.pairs_joined()

    def put_away(self, side: int) -> None:
        """Sort the block's rows of a side into a run, and make room for the next ones."""
        words = self.block.words(side)
        if len(self._runs) >= self._planned:
            self._planned *= 2
            self._extent = max(8 * max(self.block.widths), self._extent // 2)
        stored = StoredRows(self._spill, self.block.widths[side], self._extent)
        stored.append(words, np.argsort(words[:, 0], kind="stable"))
        while len(self._runs) <= self._block_runs[side]:
            # the place of the other side, until it comes
            self._runs.append(Run(A, StoredRows(self._spill, self.block.widths[A], self._extent)))
        self._runs[self._block_runs[side]] = Run(side, stored)
        self._block_runs[side] = max(len(self._runs), 1 + max(self._block_runs))
        self.block.clear(side)

    def merge(self) -> bool:
        """Merge one stretch of keys; whether it was the last."""
        if self._merge is None:
            self._budget.release("block A")
            self._budget.release("block B")
            self._budget.release("order of a block")
            self.block = Block(self.block.widths, (0, 0), self._budget)
            extents = sum(run.stored.largest_bytes for run in self._runs)
            if self._budget.free_bytes < extents + self._each:  # runs are many more than planned: no estimate until the end
                self.pieces.drop()
                self._made_of.clear()
                extents = self._merge_some(extents)
            room = max(1, (self._budget.free_bytes - extents) // (2 * self._each))
            self._budget.reserve("runs at hand", extents + room * self._each)
            self._merge = MergeShrink(self._runs, self._made_of, self.pieces, self._rectangle, room)
        self._merge.step()
        self.counters.joins += 1
        self.counters.results = self.pieces.pairs_joined()
        return self._merge.done

    def _merge_some(self, extents: int) -> int:
        """Until an extent of each run fits, some runs of a side become one. Returns what the extents take."""
        while self._budget.free_bytes < extents + _LEAST_ROOM * self._each:
            of_side = [[run for run in self._runs if run.side == side and run.stored.rows] for side in (A, B)]
            each = 4 * max(run.stored.largest_bytes for run in self._runs)  # an extent, its rows in order, and what is between
            chosen = max(of_side, key=len)[: max(2, min(_AT_ONCE, self._budget.free_bytes // each))]
            if len(chosen) < 2:
                break
            self._budget.reserve("runs that become one", each * len(chosen))
            side = chosen[0].side
            stored = StoredRows(self._spill, self.block.widths[side], self._extent)
            for words in in_order(chosen):
                stored.append(words)
            self._budget.release("runs that become one")
            self._runs = [run for run in self._runs if run not in chosen] + [Run(side, stored)]
            extents = sum(run.stored.largest_bytes for run in self._runs)
        return extents

    def progress(self, *, reported: bool = False, stalled: bool = False) -> Progress:
        count_transfers(self.counters, self._spill)
        done = self._merge is not None and self._merge.done
        return Progress(self.counters, self.pieces, reported, stalled, self.readers.ended, done)

    def close(self) -> None:
        self._spill.close()


class RunJoin:
    """What SMS and DBO have in common beside their stage."""

    _stage: RunStage
    divide = staticmethod(divide_runs)

    @property
    def pieces(self) -> Pieces:
        return self._stage.pieces

    @property
    def counters(self) -> Counters:
        return self._stage.counters

    @property
    def memory_rows(self) -> int:
        """Of both inputs, in a block."""
        return sum(self._stage.block_rows)

    def close(self) -> None:
        self._stage.close()
