"""Two-way DBO: runs overlap, each block of one input meets the block of the other that came before it and the one after it.

Jermaine, Arumugam, Pol, Dobra: Scalable Approximate Query Processing With The DBO Engine, SIGMOD 2007; its scan phase for two
inputs as analysed by Chen, Gibbons, Nath (PR-Join).

The loop:
    1. read a block of A;
    2. read a block of B, join it with the block of A at hand (report), sort that of A and write it as a run;
    3. read a block of A, join it with the block of B at hand (report), sort that of B and write it as a run; go to 2;
    4. when both inputs have ended, write what is at hand, and merge all runs as SMS does.

Memory: as in `sms`.

    block of A     A1 ........ A2 ............ A3
                   \\         /    \\        /
    block of B        B1 ......      B2 ......         each line is a rectangle

Needs keys that can be sorted by code. Twice the early results of SMS, for the same transfers.

Differs from the paper: as `sms`.
"""

from __future__ import annotations

from millrace.core.budget import Budget
from millrace.online.pair_functions import Functions
from millrace.online.protocol import A, B, Input, Progress
from millrace.online.storage.sorted_runs import RunJoin, RunStage
from millrace.online.storage.spill import Spill


class DBO(RunJoin):
    """`pieces`: two rectangles per pair of blocks."""

    def __init__(
        self, a: Input, b: Input, functions: Functions, budget: Budget, spill: Spill, *, extent_bytes: int | None = None
    ) -> None:
        self._stage = RunStage((a, b), functions, budget, spill, extent_bytes)
        self._side = A  # whose block is being filled
        self._put_away = False  # all runs are written

    def step(self) -> Progress:
        stage, side = self._stage, self._side
        block, readers = stage.block, stage.readers
        if readers.ended_side(side) or block.kept[side] == block.rows[side]:
            return self._turn()
        if not block.fill(readers, stage.batch_rows, side):  # steps 1 to 3
            return stage.progress(stalled=not readers.ended_side(side))
        return stage.progress()

    def _turn(self) -> Progress:
        """The block of one side is full, or its input has ended: it meets the other one, which then makes room."""
        stage, side, other = self._stage, self._side, 1 - self._side
        block = stage.block
        if self._put_away:
            stage.merge()  # step 4
            return stage.progress(reported=True)
        met = bool(block.read[side] and block.read[other])
        if met:
            stage.meet()
        if stage.readers.ended:
            for one in (A, B):
                if block.read[one]:
                    stage.put_away(one)
            self._put_away = True
            return stage.progress(reported=met)
        if block.read[other]:
            stage.put_away(other)
        self._side = other
        return stage.progress(reported=met)
