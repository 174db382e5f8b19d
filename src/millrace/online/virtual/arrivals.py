"""Finite streams on a virtual clock: rows come when they come, and an input that is silent for long has stalled.

clock  ..|.||.|..|........................|.||.|..      rows of both streams
                 ^ nothing for more than `timeout`: a stall; the join may use the time
"""

from __future__ import annotations

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.devices import VirtualClock
from millrace.core.errors import ParameterError
from millrace.online.protocol import A, B, Batch
from millrace.online.storage.inputs import ArrayInput


class Arrivals:
    """When the rows of two streams arrive, in seconds. `patience`: a reader that finds nothing waits for so long at most, to
    take what comes in one go; it does not wait at all for a row that comes after more than `timeout`."""

    def __init__(self, clock: VirtualClock, a: FloatArray, b: FloatArray, *, timeout: float, patience: float) -> None:
        for times in (a, b):
            if len(times) and (times[0] < 0 or (np.diff(times) < 0).any()):
                raise ParameterError("rows arrive at times from 0 on, one after the other")
        if not (timeout > 0 and patience > 0):
            raise ParameterError(f"timeout and patience are seconds above 0; got {timeout} and {patience}")
        self.clock, self._times = clock, (a, b)
        self._timeout, self._patience = timeout, patience
        self._taken = [0, 0]
        merged = np.sort(np.concatenate((a, b)))
        silent = np.append(np.diff(merged) > timeout, True)[: len(merged)]
        self._last = merged[silent]  # rows before a silence

    def here(self, side: int) -> int:
        """Rows that have arrived and wait."""
        return int(np.searchsorted(self._times[side], self.clock.now, "right")) - self._taken[side]

    def take(self, side: int, rows: int) -> None:
        self._taken[side] += rows

    def next(self) -> float:
        """When the next row of either comes; infinity: none will."""
        left = [times[taken] for times, taken in zip(self._times, self._taken, strict=True) if taken < len(times)]
        return float(min(left, default=np.inf))

    def wait(self) -> None:
        """Nothing is here: wait a little, unless the streams have stalled."""
        following = self.next()
        if following > self.clock.now + self._timeout:
            return
        end_of_burst = float(self._last[np.searchsorted(self._last, following)])
        self.clock.wait_until(max(following, min(end_of_burst, self.clock.now + self._patience)))


class ArrivingInput:
    """The records of one stream."""

    def __init__(self, words: Int64Array, side: int, arrivals: Arrivals) -> None:
        self._records, self._side, self._arrivals = ArrayInput(words), side, arrivals
        self.rows, self.width = words.shape

    @property
    def ended(self) -> bool:
        return self._records.ended

    def read(self, rows: int) -> Batch:
        arrivals = self._arrivals
        if not arrivals.here(A) and not arrivals.here(B):
            arrivals.wait()
        count = min(rows, arrivals.here(self._side))
        arrivals.take(self._side, count)
        return self._records.read(count)
