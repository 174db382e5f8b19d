"""Ripple join: everything read so far has met; when memory is full, each further block meets all that was read before it.

Haas, Hellerstein: Ripple Joins for Online Aggregation, SIGMOD 1999; its block form as analysed by Chen, Gibbons, Nath.

The loop:
    1. read rows of both inputs into the block, in proportion to their sizes;
    2. while the first block is filling: join it with itself whenever it has grown by `growth`, and report;
    3. when a later block is full, or the inputs have ended: its rows of A meet all rows of B, new and spilled; then
       its rows of B meet the spilled rows of A; report;
    4. write the block to the temporary file, if there is more to read, and begin the next.

Memory:

    block [ A new | B new ]     table [ keys of A new, then of B new ]     buffers to write and to scan with

Needs any condition that a table can serve; here equal keys. Reads the spilled rows once per block: quadratic transfers.

Differs from the paper:
    - The symmetric hash join of the first block is done in steps, each of which makes its table anew: no table is kept
      beside the rows between reports.
    - A block's two strips are reported as rectangles with sums of their own, since sums over the spilled rows of A would
      have to be kept with each row. Where there is no room for more rectangles (the inputs are much longer than they were
      said to be), all become one, without sums of squares and so without an interval.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from millrace.core.budget import Budget
from millrace.core.errors import ParameterError
from millrace.online.pair_functions import Functions
from millrace.online.protocol import A, B, Counters, Input, Pieces, Progress
from millrace.online.storage.held_rows import Block, Blocks, StoredRows, block_rows, divide_transfers
from millrace.online.storage.paired_reading import Readers
from millrace.online.storage.rectangles import Chunk, join_all, make_rectangle
from millrace.online.storage.sizing import Shape, divided
from millrace.online.storage.spill import Spill, count_transfers


class Ripple:
    """`pieces`: the first block's rectangle, then two strips per block."""

    def __init__(
        self, a: Input, b: Input, functions: Functions, budget: Budget, spill: Spill, *, extent_bytes: int | None = None,
        growth: float = 2.0,
    ) -> None:  # fmt: skip
        if not growth > 1:
            raise ParameterError(f"the first block is joined again when it has grown by a factor above 1; got {growth}")
        shape = Shape.of(a, b, functions, spill)
        blocks = divided(partial(self.divide, shape, extent_bytes=extent_bytes), shape, budget)
        self.counters = Counters()
        self._readers = Readers((a, b), self.counters)
        self._spill, self._functions, self._budget, self._growth = spill, functions, budget, growth
        spill.open(blocks.extent_bytes, budget)
        self._batch_rows = blocks.batch_rows
        self.pieces = Pieces("rectangles", 1, functions.functions, functions.groups, budget)
        self._strips_bytes = 2 * shape.piece_bytes
        self.block_rows = blocks.rows
        self.memory_rows = sum(self.block_rows)
        self._rectangle = make_rectangle(functions, shape.widths, max(self.block_rows), budget)
        self._block = Block(shape.widths, self.block_rows, budget)
        self._stored = tuple(StoredRows(spill, width, blocks.extent_bytes) for width in shape.widths)
        self._before = [0, 0]  # rows read before this block
        self._joined = [0, 0]  # rows of the first block that have met
        self._due = sum(self.block_rows) / 64
        self._strip: int | None = None  # the next strip of a block to join
        self._done = False

    @staticmethod
    def divide(shape: Shape, budget: Budget, *, extent_bytes: int | None = None) -> Blocks:
        """Set aside what the join takes."""
        extent, batch_rows = divide_transfers(shape, budget, extent_bytes)
        budget.reserve("sums", shape.piece_bytes)
        rows = block_rows(shape, budget, per_block=2 * shape.piece_bytes)
        budget.reserve_all(shape.table_sizes(max(rows)))
        budget.reserve_all(Block.sizes(shape.widths, rows))
        return Blocks(extent, batch_rows, rows)

    @property
    def _first(self) -> bool:
        return not any(self._before)

    def step(self) -> Progress:
        if self._done:
            return self._progress()
        if self._strip is not None:
            return self._join_strip()  # step 3
        ended = self._readers.ended
        if self._block.full or ended:
            if self._first:
                self._join_first()
                return self._next_block()
            self._strip = A
            return self._join_strip()
        if not self._block.fill(self._readers, self._batch_rows):  # step 1
            return self._stalled()
        if self._first and sum(self._block.kept) >= self._due:  # step 2
            self._join_first()
            return self._progress(reported=True)
        return self._progress()

    def _stalled(self) -> Progress:
        if self._readers.ended:
            return self._progress()
        if self._first and self._joined != self._block.kept:
            self._join_first()
            return self._progress(reported=True)
        return self._progress(stalled=True)

    def _join_first(self) -> None:
        block, pieces = self._block, self.pieces
        old = tuple(self._joined)

        def source(side: int) -> Iterator[Chunk]:
            yield block.words(side), old[side]

        before = pieces.pairs_joined()
        pieces.put(0, join_all(self._rectangle, source, (block.kept[A], block.kept[B])))
        pieces.own_a[0], pieces.own_b[0] = block.read
        pieces.rows_a[0], pieces.rows_b[0] = self._readers.read
        self._joined = list(block.kept)
        self._due = sum(block.kept) * self._growth
        self._count(before)

    def _join_strip(self) -> Progress:
        """A new x (B spilled and new), then A spilled x B new."""
        side, block, pieces = self._strip, self._block, self.pieces
        assert side is not None
        other = 1 - side

        def source(of: int) -> Iterator[Chunk]:
            if of == side:
                yield block.words(side), 0
                return
            for words in self._stored[other].chunks():
                yield words, 0
            if side == A:
                yield block.words(B), 0

        met = self._stored[other].rows + (block.kept[B] if side == A else 0)
        rows = (block.kept[A], met) if side == A else (met, block.kept[B])
        before = pieces.pairs_joined()
        piece = pieces.append(join_all(self._rectangle, source, rows, build=side))
        a, b = self._before
        if side == A:
            pieces.first_a[piece], pieces.own_a[piece], pieces.own_b[piece] = a, block.read[A], b + block.read[B]
        else:
            pieces.own_a[piece], pieces.first_b[piece], pieces.own_b[piece] = a, b, block.read[B]
        pieces.rows_a[piece], pieces.rows_b[piece] = self._readers.read
        self._count(before)
        if side == A:
            self._strip = B
            return self._progress()
        self._strip = None
        return self._next_block()

    def _next_block(self) -> Progress:  # step 4
        self._before = list(self._readers.read)
        if self._readers.ended:
            self._done = True
            self.pieces.exact[:] = True
        else:
            for side in (A, B):
                self._stored[side].append(self._block.words(side))
            self._block.clear()
            if self._budget.free_bytes < self._strips_bytes and len(self.pieces) > 1:
                self.pieces.fold(*self._readers.read)
        return self._progress(reported=True)

    def _count(self, before: int) -> None:
        self.counters.joins += 1
        self.counters.results += self.pieces.pairs_joined() - before

    def _progress(self, *, reported: bool = False, stalled: bool = False) -> Progress:
        count_transfers(self.counters, self._spill)
        return Progress(self.counters, self.pieces, reported, stalled, self._readers.ended, self._done)

    def close(self) -> None:
        self._spill.close()
