"""GRACE hash join: partition both inputs, then join partition by partition. Nothing early; the least transfers.

Kitsuregawa, Tanaka, Moto-oka: Application of Hash to Data Base Machine and Its Architecture, New Generation Computing 1983.

The loop:
    1. read the next rows of the input that is behind, put each into its partition; when memory is full, an extent goes to
       the temporary file;
    2. when both inputs have ended: join partition by partition. Partitions are alike, so those that are done estimate the rest.

Memory:

    pages  [ A0 A0 B0 | A1 B1 B1 | A2 B2 | ... ]  shared by all        table [ keys of one partition ]      buffers

Needs equal keys; nothing of the order of the inputs for the exact answer, random order of keys for the estimate.

Differs from the paper:
    - Both inputs are read together, in proportion to their sizes, as the other joins here do.
    - A partition's newest pages stay in memory until it is joined, so a part of the input is never written.
    - A partition that turns out larger than the table is joined in parts by key, not partitioned again.
"""

from __future__ import annotations

from functools import partial

from millrace.core.budget import Budget
from millrace.online.pair_functions import Functions
from millrace.online.protocol import A, B, Counters, Input, Pieces, Progress
from millrace.online.storage.memory_plan import Layout, Plan, divide_with_pieces
from millrace.online.storage.paired_reading import Readers
from millrace.online.storage.partitions import Partitions
from millrace.online.storage.sizing import Shape, divided
from millrace.online.storage.spill import Spill, count_transfers


class Grace:
    """One partition a step in the end; `pieces` are samples of the partitions."""

    def __init__(
        self, a: Input, b: Input, functions: Functions, budget: Budget, spill: Spill, *, layout: Layout | None = None
    ) -> None:
        shape = Shape.of(a, b, functions, spill)
        plan = divided(partial(self.divide, shape, layout=layout), shape, budget)
        self.counters = Counters()
        self._readers = Readers((a, b), self.counters)
        self._partitions = Partitions(shape, plan, budget, spill)
        self.pieces = Pieces("samples", self._partitions.count, functions.functions, functions.groups, budget)
        self.memory_rows = plan.pool_pages * (plan.page_words // max(a.width, b.width))
        self._spill = spill
        self._next = 0

    @staticmethod
    def divide(shape: Shape, budget: Budget, *, layout: Layout | None = None) -> Plan:
        """Set aside what the join takes."""
        return divide_with_pieces(shape, budget, layout)

    def step(self) -> Progress:
        if not self._readers.ended:
            return self._read()  # step 1
        if self._next == 0:
            self.pieces.total_a[:], self.pieces.total_b[:] = self._partitions.rows(A), self._partitions.rows(B)
        if self._next < self._partitions.count:
            self._join(self._next)  # step 2
            self._next += 1
            return self._progress(reported=True)
        return self._progress()

    def _read(self) -> Progress:
        taken = self._readers.next(self._partitions.plan.batch_rows)
        if taken is not None:
            self._partitions.add(*taken)
        return self._progress(stalled=taken is None and not self._readers.ended)

    def _join(self, partition: int) -> None:
        self.pieces.finish(partition, self._partitions.join(partition), self._readers.read)
        self._partitions.forget(partition)
        self.counters.joins += 1
        self.counters.results += int(self.pieces.pairs[partition].sum())

    def _progress(self, *, reported: bool = False, stalled: bool = False) -> Progress:
        count_transfers(self.counters, self._spill)
        ended = self._readers.ended
        return Progress(self.counters, self.pieces, reported, stalled, ended, ended and self._next == self._partitions.count)

    def close(self) -> None:
        self._partitions.close()
