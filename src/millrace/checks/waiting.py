"""How long tuples wait while others keep coming: an endless stream, and a watch on the tuple that has been inside longest.

    stream   hot hot hot ... hot  cold  hot hot hot ... hot  cold  hot hot ...

After every step the join is offered as many hot tuples as it takes, so that its window is always full. Now and then a cold
tuple comes. Two numbers are checked, for the oldest tuple inside:

    reads     steps that read pages while the tuple is inside: at most `longest_wait` of the join
    steps     since the last read, or since the tuple came: at most what the matches of a full window need
"""

from __future__ import annotations

import pyarrow as pa

from millrace.checks.run import BrokenLaw, require
from millrace.core.protocols import SemiStreamJoin
from millrace.core.step import Step
from millrace.joins.sizing import MIN_OUTPUT_ROWS

_HOT_ROWS = 512  # offered at once
_FEW_STEPS = 8


class Waits:
    """Steps a join, and knows which tuples are inside and for how long."""

    def __init__(self, join: SemiStreamJoin, key_rows: int) -> None:
        self.join = join
        self._key_rows = key_rows
        self._reads = self._steps = self._last_read = self._most = 0
        self._came: list[tuple[int, int]] = []  # per tuple: reads and steps by then
        self._gone = bytearray()
        self._first = 0  # of those inside

    def offer(self, batch: pa.RecordBatch) -> int:
        taken = self.join.offer(batch)
        require(taken or self.join.pending, "the join is empty and still takes no row: the stream would wait for ever")
        self._came += [(self._reads, self._steps)] * taken
        self._gone += bytes(taken)
        self._most = max(self._most, self.join.pending)
        return taken

    def step(self) -> Step:
        step = self.join.step()
        self._steps += 1
        if step.counts.pages_read:
            self._reads += 1
            self._last_read = self._steps
        if self._first < len(self._came):
            self._check(min([self._first, *step.sequence[:1].tolist()]))
        for number in step.left.tolist():
            self._gone[number] = True
        self._first = self._gone.find(False, self._first) if False in self._gone[self._first :] else len(self._gone)
        return step

    def inside(self, number: int) -> bool:
        return not self._gone[number]

    @property
    def offered(self) -> int:
        return len(self._came)

    def _check(self, number: int) -> None:
        reads, steps = self._came[number]
        waited, longest = self._reads - reads, self.join.longest_wait
        require(waited <= longest, f"tuple {number} is inside after {waited} reads; the join says {longest} at most")
        silent = self._steps - max(steps, self._last_read)
        most = _FEW_STEPS + longest + 4 * self._most * (1 + self._key_rows) // MIN_OUTPUT_ROWS
        require(silent <= most, f"tuple {number} is inside, and for {silent} steps no page was read, though {most} put out all")


def check_waits(join: SemiStreamJoin, hot: pa.RecordBatch, cold: pa.RecordBatch, key_rows: int) -> None:
    """No tuple waits too long: not the rows of `cold`, which come one by one, nor those of `hot`, which come all the time."""
    if not hasattr(join, "longest_wait"):
        raise BrokenLaw("it does not say how long a tuple waits at most: give it a number of reads as `longest_wait`")
    waits = Waits(join, key_rows)
    crowd = _Crowd(hot)
    crowd.fill(waits)
    waiting: list[int] = []
    while cold.num_rows or waiting:
        waits.step()
        waiting = [number for number in waiting if waits.inside(number)]
        if cold.num_rows:
            if not waits.offer(cold.slice(0, 1)):
                continue  # it is next in the stream, and hot ones come behind it
            waiting.append(waits.offered - 1)
            cold = cold.slice(1)
        crowd.fill(waits)
    while join.pending:
        waits.step()


class _Crowd:
    """A stream without an end: these rows, over and over."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._many = pa.concat_batches([rows] * (1 + _HOT_ROWS // rows.num_rows))
        self._period = rows.num_rows
        self._at = 0

    def fill(self, waits: Waits) -> None:
        """Offer the next tuples until there is no more room."""
        while True:
            rows = self._many.slice(self._at)
            taken = waits.offer(rows)
            self._at = (self._at + taken) % self._period
            if taken < rows.num_rows:
                return
