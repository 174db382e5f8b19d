"""The two clocks that a join is driven by: this machine's, and a simulated device's.

Only the join's own calls count. Drawing the stream, checking the output and keeping the books stand outside, and a pause of
the stream is skipped, not waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.keys import KeyCodec
from millrace.core.protocols import PageRun
from millrace.core.step import StepCounts
from millrace.core.unitcosts import UnitCosts
from millrace.relations.simulated import SimulatedRelation
from millrace.relations.stored import StoredRelation

Result = TypeVar("Result")


class HostClock(Protocol):
    """Seconds of a join's work so far."""

    @property
    def now(self) -> float: ...

    @property
    def cpu(self) -> float:
        """Seconds of processor that the join took beside reading."""

    def run(self, call: Callable[[], Result]) -> Result:
        """Call the join, and let time pass."""

    def charge(self, counts: StepCounts) -> None:
        """The step just run did this."""

    def skip_to(self, moment: float) -> None:
        """Nothing happens until then."""


class TimedRelation:
    """A stored relation that knows what its reads took, in time and in processor: checksums are part of reading."""

    schema: pa.Schema
    key: tuple[str, ...]
    codec: KeyCodec
    rows: int
    pages: int
    page_bytes: int
    resident: bool

    def __init__(self, relation: StoredRelation) -> None:
        self._relation: Any = relation
        self.seconds = 0.0
        self.cpu = 0.0
        self.reading = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._relation, name)

    def read(self, first: int, count: int) -> PageRun:
        return self.timed(lambda: self._relation.read(first, count))

    def read_many(self, firsts: Int64Array, counts: Int64Array) -> PageRun:
        return self.timed(lambda: self._relation.read_many(firsts, counts))

    def frames(self, count: int) -> TimedFrames:
        return TimedFrames(self._relation.frames(count), self)

    def timed(self, read: Callable[[], Result]) -> Result:
        before, cpu = time.perf_counter(), time.thread_time()
        self.reading = True
        try:
            result = read()
        finally:
            self.reading = False
        self.cpu += time.thread_time() - cpu
        self.seconds += time.perf_counter() - before
        return result


class TimedFrames:
    """Pages that stay: loading them is a read."""

    def __init__(self, frames: Any, relation: TimedRelation) -> None:
        self._frames = frames
        self._relation = relation

    def load(self, pages: Int64Array, frames: Int64Array, *, each: bool = False) -> None:
        self._relation.timed(lambda: self._frames.load(pages, frames, each=each))

    def run(self, pages: Int64Array, frames: Int64Array) -> PageRun:
        run: PageRun = self._frames.run(pages, frames)
        return run


class WallClock:
    """What calls of the join take here."""

    def __init__(self, relation: TimedRelation) -> None:
        self.now = 0.0
        self._relation = relation
        self._cpu = 0.0

    @property
    def cpu(self) -> float:
        return self._cpu - self._relation.cpu

    def run(self, call: Callable[[], Result]) -> Result:
        before, cpu = time.perf_counter(), time.thread_time()
        result = call()
        self._cpu += time.thread_time() - cpu
        self.now += time.perf_counter() - before
        return result

    def charge(self, counts: StepCounts) -> None:
        """Nothing: it was measured."""

    def skip_to(self, moment: float) -> None:
        self.now = max(self.now, moment)


class DeviceClock:
    """What calls of the join would take on a simulated device: reads by its formula, work by unit costs."""

    def __init__(self, relation: SimulatedRelation, costs: UnitCosts) -> None:
        self._relation = relation
        self._costs = costs
        self.cpu = 0.0

    @property
    def now(self) -> float:
        return self._relation.now

    def run(self, call: Callable[[], Result]) -> Result:
        return call()

    def charge(self, counts: StepCounts) -> None:
        seconds = self._costs.work(counts)
        self.cpu += seconds
        self._relation.work(seconds)

    def skip_to(self, moment: float) -> None:
        self._relation.settle()
        self._relation.device.clock.wait_until(moment)
