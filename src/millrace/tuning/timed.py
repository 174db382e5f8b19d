"""What a join does to itself, told apart from what it reads: a relation that times its reads, and the clock of its calls.

Only the join's own calls count. Drawing the stream and keeping the books stand outside.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.keys import KeyCodec
from millrace.core.protocols import PageRun, SemiStreamJoin, Withdrawn
from millrace.core.step import Step, StepCounts
from millrace.relations.stored import StoredRelation

Result = TypeVar("Result")


class Clock(Protocol):
    """What lets time pass while a join is called."""

    def run(self, call: Callable[[], Result]) -> Result:
        """Call the join, and let time pass."""

    def charge(self, counts: StepCounts) -> None:
        """The step just run did this."""


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


class Clocked:
    """A join whose calls let time pass; the books stand outside."""

    def __init__(self, join: SemiStreamJoin, clock: Clock) -> None:
        self._join, self._clock = join, clock

    @property
    def pending(self) -> int:
        return self._join.pending

    @property
    def longest_wait(self) -> int:
        return self._join.longest_wait

    @property
    def bytes_used(self) -> int:
        return self._join.bytes_used

    def offer(self, batch: pa.RecordBatch) -> int:
        return self._clock.run(partial(self._join.offer, batch))

    def step(self) -> Step:
        step = self._clock.run(self._join.step)
        self._clock.charge(step.counts)
        return step

    def withdraw(self, numbers: Int64Array) -> Withdrawn:
        return self._clock.run(partial(self._join.withdraw, numbers))
