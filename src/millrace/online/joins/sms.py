"""SMS, the sort-merge-shrink join: each run of rows meets itself when it is sorted; the merge then makes all of it certain.

Jermaine, Dobra, Arumugam, Joshi, Pol: A Disk-Based Join With Probabilistic Guarantees, SIGMOD 2005; as analysed by Chen,
Gibbons, Nath (PR-Join).

The loop:
    1. read rows of both inputs, in proportion to their sizes, until the block is full;
    2. join the block's rows of A with its rows of B: one more rectangle; report;
    3. sort both, write them to the temporary file as runs, and begin the next block;
    4. when both inputs have ended, merge all runs: pairs of the keys passed are certain, and the rectangles lose them; report.

Memory:

    sort phase   block [ A | B ]   order of the rows   table of one side   buffers
    merge        an extent of every run                table               buffers

Needs keys that can be sorted by code. Transfers are those of GRACE. What one run covers is small: a block of A by a block of B.

Differs from the paper:
    - Within a block, and between the rows of a stretch of keys, rows are joined through a table, not by merging.
    - Pairs are put out by the merge, each of them once; the rectangles of the sort phase serve the estimate.
    - Where the runs are so many more than planned that an extent of each does not fit (inputs much longer than they were said
      to be), some become one first, and there is no estimate until the end.
"""

from __future__ import annotations

from millrace.core.budget import Budget
from millrace.online.pair_functions import Functions
from millrace.online.protocol import A, B, Input, Progress
from millrace.online.storage.sorted_runs import RunJoin, RunStage
from millrace.online.storage.spill import Spill


class SMS(RunJoin):
    """`pieces`: one rectangle per run; `pieces.certain` grows while the runs are merged."""

    def __init__(
        self, a: Input, b: Input, functions: Functions, budget: Budget, spill: Spill, *, extent_bytes: int | None = None
    ) -> None:
        self._stage = RunStage((a, b), functions, budget, spill, extent_bytes)

    def step(self) -> Progress:
        stage = self._stage
        ended = stage.readers.ended
        if ended and not any(stage.block.read):
            stage.merge()  # step 4
            return stage.progress(reported=True)
        if ended or stage.block.full:
            stage.meet()  # step 2
            for side in (A, B):
                stage.put_away(side)  # step 3
            return stage.progress(reported=True)
        if not stage.block.fill(stage.readers, stage.batch_rows):  # step 1
            return stage.progress(stalled=not stage.readers.ended)
        return stage.progress()
