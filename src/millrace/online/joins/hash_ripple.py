"""Hash ripple join: rows of B stay in memory until it is full; from then on only rows of A find early results.

Luo, Ellmann, Haas, Naughton: A Scalable Hash Ripple Join Algorithm, SIGMOD 2002; as analysed by Chen, Gibbons, Nath (PR-Join).

The loop:
    1. read both inputs, in proportion to their sizes. Rows of A go to their partitions; rows of B are held;
    2. until B is held up to its limit: join what has been read whenever it has grown by `growth`, and report;
    3. then: further rows of A probe the table of the held rows of B before they go to their partitions (report), further
       rows of B go to their partitions only;
    4. when both inputs have ended, the held rows of B have met all of A: forget them, and join partition by partition.

Memory:

    while reading   held [ B ]   table [ keys of held B ]      pages [ A0 A0 | A1 B1 | ... ]   buffers
    in the end      table [ keys of one partition ]            the same                        the same

Needs equal keys. No spilled row is read before the end, so transfers are those of GRACE; early results are few.

Differs from the paper:
    - Rows of A are in pages of their partitions from the start; the symmetric hash join of the first phase is done in steps
      that make the table of B anew.
    - Memory is divided between held rows and pages once, half and half. What was held makes room for the table in which
      partitions are joined, so these fit whole and nothing is read twice.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.errors import ParameterError
from millrace.online.pair_functions import Functions
from millrace.online.protocol import A, B, Counters, Input, Pieces, Progress
from millrace.online.storage.memory_plan import Layout, Plan, divide_partitions
from millrace.online.storage.paired_reading import Readers
from millrace.online.storage.partitions import Partitions
from millrace.online.storage.rectangles import make_rectangle, rectangle_rows
from millrace.online.storage.sizing import Shape, divided
from millrace.online.storage.spill import Spill, count_transfers


class HashRipple:
    """`pieces`: one rectangle, all rows of A read x the held rows of B; in the end, partitions as samples of the rest."""

    def __init__(
        self, a: Input, b: Input, functions: Functions, budget: Budget, spill: Spill, *, layout: Layout | None = None,
        growth: float = 2.0,
    ) -> None:  # fmt: skip
        if not growth > 1:
            raise ParameterError(f"the held rows are joined again when they have grown by a factor above 1; got {growth}")
        shape = Shape.of(a, b, functions, spill)
        self.held_rows, plan = divided(partial(self.divide, shape, layout=layout), shape, budget)
        self.counters = Counters()
        self._readers = Readers((a, b), self.counters)
        self._spill, self._functions, self._budget, self._growth = spill, functions, budget, growth
        self.pieces = Pieces("rectangles", 1, functions.functions, functions.groups, budget, "rectangle")
        self._rectangle = make_rectangle(functions, shape.widths, self.held_rows, budget, "held join", sure=True)
        self._held: Int64Array = budget.array("held rows of B", self.held_rows * b.width, np.int64).reshape(-1, b.width)
        self._partitions = Partitions(shape, plan, budget, spill, tables_later=True)
        self.memory_rows = self.held_rows * (a.rows + b.rows) // max(1, b.rows)  # read until then
        self._kept = self._read_b = 0  # rows of B held, and read for them
        self._old_a: Int64Array = np.zeros(self._partitions.count, np.int64)  # rows of A that have met the first `_old_b` held
        self._old_b = 0
        self._due = min(self.held_rows, max(16, self.held_rows // 64))
        self._open = False  # the table holds all of B that will be held
        self._next: int | None = None  # partition to join in the end

    @staticmethod
    def divide(shape: Shape, budget: Budget, *, layout: Layout | None = None) -> tuple[int, Plan]:
        """Set aside what the join takes: half for held rows and their table, half for partitions."""
        budget.reserve("rectangle", shape.piece_bytes)
        before = budget.free_bytes
        half, width = before // 2, shape.widths[B]
        each = half / max(1, rectangle_rows(shape.functions, shape.widths, half, sure=True)) + 8 * width
        held_rows = max(1, min(shape.rows[B], int(half / each * 0.95)))
        budget.reserve_all(shape.table_sizes(held_rows, "held join", sure=True))
        budget.reserve("held rows of B", 8 * held_rows * width)
        return held_rows, divide_partitions(shape, budget, layout, later=before - budget.free_bytes)

    def step(self) -> Progress:
        if self._next is not None:
            return self._join_next()  # step 4
        if self._readers.ended:
            return self._end()
        room = None if self._open else self.held_rows - self._kept
        taken = self._readers.next(self._partitions.plan.batch_rows, room)  # step 1
        if taken is None:
            return self._stalled()
        side, words = taken
        return self._add_a(words) if side == A else self._add_b(words)

    def _add_a(self, words: Int64Array) -> Progress:
        self._partitions.add(A, words)
        if not self._open:
            if not self._readers.ended_side(B):
                return self._progress()
            self._rejoin()  # no more of B will come
            return self._progress(reported=True)
        self._rectangle.add(A, words)  # step 3
        self._report()
        return self._progress(reported=True)

    def _add_b(self, words: Int64Array) -> Progress:
        if self._open:
            self._partitions.add(B, words)
            return self._progress()
        self._held[self._kept : self._kept + len(words)] = words
        self._kept += len(words)
        self._read_b = self._readers.read[B]
        if self._kept < self._due:
            return self._progress()
        self._rejoin()  # step 2
        return self._progress(reported=True)

    def _rejoin(self) -> None:
        """All rows of A with the held rows of B: the table is made anew. Once B is held up to its limit it stays."""
        rectangle = self._rectangle
        rectangle.start(B, max(1, self._kept))
        rectangle.add(B, self._held[: self._kept], self._old_b)
        old = self._old_a.copy()
        for partition, words in self._partitions.scan(A):
            rectangle.add(A, words, int(min(old[partition], len(words))))
            old[partition] -= min(old[partition], len(words))
        self._old_a, self._old_b = self._partitions.rows(A), self._kept
        self._due = min(self.held_rows, int(self._kept * self._growth) + 1)
        self._open = self._kept == self.held_rows or self._readers.ended_side(B)
        self._report()

    def _report(self) -> None:
        pieces = self.pieces
        pieces.put(0, self._rectangle.finish())
        pieces.own_a[0], pieces.own_b[0] = self._readers.read[A], self._read_b
        pieces.rows_a[0], pieces.rows_b[0] = self._readers.read
        self.counters.joins += 1
        self.counters.results = pieces.pairs_joined()

    def _stalled(self) -> Progress:
        if self._readers.ended:
            return self._progress()
        if not self._open and (self._old_b < self._kept or self._old_a.sum() < self._partitions.rows(A).sum()):
            self._rejoin()
            return self._progress(reported=True)
        return self._progress(stalled=True)

    def _end(self) -> Progress:
        """The held rows of B have met all of A: that part is certain. What is left lies in the partitions."""
        if not self._open:
            self._rejoin()
        certain = self._rectangle.finish()
        self._rectangle.release()
        self._budget.release("held rows of B")
        del self._rectangle, self._held  # their memory is the table's from here on
        self._partitions.make_tables()
        f = self._functions
        self.pieces = Pieces("samples", self._partitions.count, f.functions, f.groups, self._budget)
        self.pieces.certain = certain
        self.pieces.total_a[:], self.pieces.total_b[:] = self._partitions.rows(A), self._partitions.rows(B)
        self._next = 0
        return self._progress()

    def _join_next(self) -> Progress:
        partition, pieces = self._next, self.pieces
        assert partition is not None
        if partition < len(pieces):
            pieces.finish(partition, self._partitions.join(partition), self._readers.read)
            self._partitions.forget(partition)
            self.counters.joins += 1
            self.counters.results = pieces.pairs_joined()
            self._next = partition + 1
        return self._progress(reported=True)

    def _progress(self, *, reported: bool = False, stalled: bool = False) -> Progress:
        count_transfers(self.counters, self._spill)
        done = self._next is not None and self._next == len(self.pieces)
        return Progress(self.counters, self.pieces, reported, stalled, self._readers.ended, done)

    def close(self) -> None:
        self._partitions.close()
