"""Joins on a virtual disk, beside what the equations expect of them: the same on every machine, and no data is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millrace.bench.joins.clock import DeviceClock
from millrace.bench.joins.run import JoinRun, Limits
from millrace.catalog import make_join
from millrace.core.budget import Budget
from millrace.core.devices import VirtualClock, VirtualDevice, device
from millrace.core.protocols import JoinSpec
from millrace.core.step import StepCounts
from millrace.core.unitcosts import UnitCosts
from millrace.cost.expected import StreamShape
from millrace.cost.iteration import IterationCost
from millrace.cost.pages import Order
from millrace.relations.generated import KEY, SURROGATE_KEY, GeneratedRelation
from millrace.relations.simulated import SimulatedRelation
from millrace.streams import SteadyArrivals, Workload, ZipfKeys
from millrace.tuning.choose import Forecast, forecast, own_parameters

ROW_BYTES = 120
STREAM = Workload(ZipfKeys(domain=10), SteadyArrivals(1), key_name=KEY).schema
SPEC = JoinSpec(STREAM, ((KEY, KEY),), "inner", (), (SURROGATE_KEY,))


def costs_of_device(name: str, step: float = 0.0) -> UnitCosts:
    """What joins are told of a device."""
    model = device(name)
    return UnitCosts(seek=model.seek, read_byte=1 / model.read_rate, step=step)


class StepClock(DeviceClock):
    """The clock of a virtual device on which a step has a price of its own."""

    def __init__(self, relation: SimulatedRelation, step: float) -> None:
        super().__init__(relation, UnitCosts())
        self._step = step

    def charge(self, counts: StepCounts) -> None:
        super().charge(counts)
        self._relation.work(self._step)


@dataclass(frozen=True)
class Scene:
    """A table on a device, a budget, and a stream."""

    rows: int = 100_000
    memory_bytes: int = 1 << 20
    zipf: float = 1.0
    order: Order = "scattered"
    page_bytes: int = 16 << 10
    device: str = "hdd2008"
    step_seconds: float = 0.0

    @property
    def relation(self) -> GeneratedRelation:
        """The table alone. No data is made."""
        return GeneratedRelation(self.rows, row_bytes=ROW_BYTES, page_bytes=self.page_bytes)

    @property
    def stream(self) -> StreamShape:
        return StreamShape.zipf(self.zipf, self.rows, self.order)

    @property
    def costs(self) -> UnitCosts:
        return costs_of_device(self.device, self.step_seconds)

    def forecast(self, name: str, **parameters: Any) -> Forecast:
        return forecast(name, self.relation, SPEC, self.memory_bytes, self.stream, costs_of=lambda _: self.costs, **parameters)

    def measure(self, name: str, *, windows: float = 2.0, tuples: int = 10_000, **parameters: Any) -> Measured:
        """Run the join into its stride, and then for so many windows of tuples."""
        disk = VirtualDevice(device(self.device), VirtualClock())
        relation = SimulatedRelation(self.relation, disk)
        given = {**own_parameters(name, self.stream, self.costs), **parameters}
        join: Any = make_join(name, relation, SPEC, Budget(self.memory_bytes), **given)
        keys = ZipfKeys(self.rows, self.zipf, scatter=self.order == "scattered", seed=1)
        run = JoinRun(join, Workload(keys, SteadyArrivals(1), key_name=KEY, seed=1), StepClock(relation, self.step_seconds))
        limits = Limits(max(tuples, int(windows * join.capacity)))
        run.warm_up(limits)
        found = run.saturate(limits)
        return Measured(found["tuples_per_second"], found["counts"], join)


@dataclass(frozen=True)
class Measured:
    """What a join did."""

    tuples_per_second: float
    counts: dict[str, int]
    join: Any

    def each(self) -> dict[str, float]:
        """Every count for a tuple, as `IterationCost.each`."""
        names = vars(IterationCost())
        return {name: count / self.counts["removed"] for name, count in self.counts.items() if name in names}
