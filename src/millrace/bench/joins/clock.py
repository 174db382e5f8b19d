"""What a join is driven by: this machine's clock, `tuning.timed.WallClock`, or the clock of a simulated device.

Only the join's own calls count. Drawing the stream, checking the output and keeping the books stand outside, and a pause of
the stream is skipped, not waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from millrace.core.step import StepCounts
from millrace.core.unitcosts import UnitCosts
from millrace.relations.simulated import SimulatedRelation
from millrace.tuning.timed import TimedRelation as TimedRelation

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
