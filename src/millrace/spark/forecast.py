"""What a plan is expected to take: a micro-batch of so many rows, in seconds, pages and bytes. Runs nothing.

micro-batch = batch + tables + waves x (task + rows of a task x (row + joins))

batch, task, row    Spark's own part, from calibration: `core.calibration.SparkCosts`
tables              that are read and sent to the executors: `cost.broadcast`
joins               of a task: groups of rows, each joined to its end, by the equations in `cost`
waves               tasks that a core runs one after the other
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from functools import cached_property

from millrace.core.calibration import Calibration, SparkCosts
from millrace.core.protocols import Relation
from millrace.core.unitcosts import UnitCosts
from millrace.cost.broadcast import BroadcastCosts, probe_seconds
from millrace.cost.expected import Expected, StreamShape
from millrace.spark.plan import JoinPlan

USUAL_ROWS = 200_000  # of a micro-batch, where nobody says how many come
_MOST_ROWS = 1 << 24  # of a micro-batch: more at a time hardly make a join faster
_LONGEST_SECONDS = 600.0  # of a micro-batch that somebody would wait for
_HALVINGS = 40


@dataclass(frozen=True)
class Taken:
    """What some rows take in a task: seconds of its join, pages and bytes that are read."""

    seconds: float = 0.0
    pages: float = 0.0
    bytes: float = 0.0

    def between(self, other: Taken, share: float) -> Taken:
        """Between the two: itself at 0, the other at 1."""
        return Taken(*(mine + share * (theirs - mine) for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def plus(self, other: Taken, times: float = 1.0) -> Taken:
        return Taken(self.seconds + times * other.seconds, self.pages + times * other.pages, self.bytes + times * other.bytes)


@dataclass(frozen=True)
class Tasks:
    """The tasks of a micro-batch, and the cores that they run on."""

    count: int
    cores: int

    @property
    def waves(self) -> int:
        """Tasks that a core runs one after the other."""
        return -(-self.count // max(1, self.cores))


@dataclass(frozen=True)
class JoinForecast:
    """One join of a plan, beside the table and the stream that it is for."""

    plan: JoinPlan
    relation: Relation
    stream: StreamShape
    calibration: Calibration
    sharing: float = 1.0  # times as long as reads take, because other tasks read at the same time

    def in_task(self, rows: float) -> Taken:
        """So many rows in one task."""
        if rows <= 0:
            return Taken()
        if self.plan.sent is not None:
            return Taken(probe_seconds(self._broadcast_costs, rows, self.found_bytes))
        if self.plan.access != "join":
            return self._looked_up(rows)
        most = rows if self.plan.asked.shape == "rows" and not self.plan.asked.in_order else float(self.plan.group.most)
        whole, rest = divmod(rows, most)
        taken = Taken().plus(self._joined(most), whole) if whole else Taken()
        return taken.plus(self._joined(rest)) if rest >= 1 else taken

    def in_batch(self, cores: int) -> Taken:
        """What a micro-batch takes once, however many rows it has."""
        sent = self.plan.sent
        if sent is None:
            return Taken()
        pages = 0.0 if self.relation.resident else float(self.relation.pages)
        return Taken(sent.seconds(self._broadcast_costs, cores), pages, pages * self.relation.page_bytes)

    @property
    def _broadcast_costs(self) -> BroadcastCosts:
        """Measured beside the defaults of Spark's costs, and so as far from them as Spark's costs are."""
        spark, usual = self.calibration.spark, SparkCosts()
        return BroadcastCosts().scaled(spark.batch / usual.batch, spark.row / usual.row)

    def _looked_up(self, rows: float) -> Taken:
        costs = self.calibration.look_up
        calls = max(1.0, rows / self.plan.group.most)
        row = costs.row_in(self.relation.rows) + self.found_bytes * costs.found_byte
        return Taken(calls * costs.call + rows * row)

    def _joined(self, rows: float) -> Taken:
        """A group of so many rows: between two groups that were looked at, each twice as large as the other."""
        most = max(1.0, float(self.plan.group.most))
        steps = max(0, math.floor(math.log2(max(most, rows) / max(rows, 1.0)) + 1e-9))
        high = max(most, rows) / 2**steps
        if math.isclose(high, rows, rel_tol=1e-6):
            return self._point(high)
        return self._point(high / 2).between(self._point(high), (rows - high / 2) / (high / 2))

    def _point(self, rows: float) -> Taken:
        """As the equations say. Asked for the same few groups again and again, so the answers are kept."""
        rows = float(max(1, round(rows)))
        if rows not in self._known:
            counts, costs = self.expected(rows).iteration, self.plan.costs or self._default_costs
            seconds = self.sharing * counts.read_seconds(costs) + counts.work_seconds(costs)
            self._known[rows] = Taken(seconds, counts.pages_read, counts.bytes_read)
        return self._known[rows]

    @cached_property
    def _known(self) -> dict[float, Taken]:
        return {}

    def expected(self, rows: float) -> Expected:
        """What the join does with a group of so many rows. Only where there is a join."""
        return self.plan.expect(self.relation, self.stream, rows)

    @property
    def _default_costs(self) -> UnitCosts:
        return self.calibration.costs(self.plan.asked.strategy, self.plan.read)

    @property
    def found_bytes(self) -> float:
        """Bytes that come back for a row of the stream."""
        matches = self.stream.sigma * (1 - self.stream.absent)
        return matches * self.plan.asked.sizes(self.relation).found

    def memory_split(self) -> Mapping[str, int]:
        """Where the memory of the join goes."""
        memory = self.plan.memory
        if self.plan.sent is not None:
            return {"the table, in the driver and in each executor": self.plan.sent.bytes}
        beside = {"rows being put in order": memory.ordering_bytes} if memory.ordering_bytes else {}
        if self.plan.access != "join":
            return {"rows that are looked up": memory.ordering_bytes}
        return {**self.expected(float(self.plan.group.most)).memory, **beside}


@dataclass(frozen=True)
class BatchForecast:
    """A micro-batch of a whole call, with all of its tables."""

    joins: tuple[JoinForecast, ...]
    tasks: Tasks
    calibration: Calibration

    def seconds(self, rows: float) -> float:
        """Seconds for a micro-batch of so many rows, with Spark's part."""
        spark, each = self.calibration.spark, rows / self.tasks.count
        tables = sum(join.in_batch(self.tasks.cores).seconds for join in self.joins)
        task = spark.task + each * self._row_seconds() + sum(join.in_task(each).seconds for join in self.joins)
        return spark.batch + tables + self.tasks.waves * task

    def _row_seconds(self) -> float:
        """Spark's part of a row. Keys of all tables travel together, and so do whole rows."""
        spark = self.calibration.spark
        joins = [join for join in self.joins if join.plan.sent is None]  # rows of the others stay in the JVM
        shapes = {join.plan.asked.shape == "rows" for join in joins}
        found = sum(join.found_bytes for join in joins)
        return spark.row * (False in shapes) + spark.whole_row * (True in shapes) + found * spark.found_byte

    def pages(self, rows: float) -> float:
        """Pages read for a micro-batch of so many rows."""
        tables = sum(join.in_batch(self.tasks.cores).pages for join in self.joins)
        return tables + self.tasks.count * sum(join.in_task(rows / self.tasks.count).pages for join in self.joins)

    def rate(self, rows: float) -> float:
        """Rows a second, in micro-batches of so many rows."""
        return rows / self.seconds(rows)

    @property
    def highest_rate(self) -> float:
        """Rows a second in long micro-batches: each page that is read then serves more rows."""
        return max(self.rate(rows) for rows in (1e6, 4e6, 16e6))

    def rows_for(self, arrivals_per_second: float) -> float | None:
        """Rows of the micro-batches in which a query settles when so many rows arrive: the fewest that are joined in the time
        in which as many arrive. None: it can't keep up."""
        if arrivals_per_second <= 0:
            return 0.0
        before = 0.0
        for rows in self._sizes():
            if self.rate(rows) >= arrivals_per_second:
                return self._between(before, rows, arrivals_per_second)
            before = rows
        return None

    def _between(self, low: float, high: float, arrivals_per_second: float) -> float:
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if middle > 0 and self.rate(middle) >= arrivals_per_second:
                high = middle
            else:
                low = middle
        return high

    def _sizes(self) -> list[float]:
        """Micro-batches to look at, each twice the one before."""
        found: list[float] = []
        rows = 64.0
        while rows <= _MOST_ROWS and (not found or self.seconds(rows) <= _LONGEST_SECONDS):
            found.append(rows)
            rows *= 2
        return found
