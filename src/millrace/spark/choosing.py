"""The join for a table of an `enrich` call with `strategy="auto"`: all that can serve are planned, and the fastest is taken.

Fastest means: the least seconds for the rows of a task, beside the fastest join for as many rows, over micro-batches of several
sizes. What Spark takes beside the join is the same for all but a broadcast, which is compared by whole micro-batches. A
broadcast makes small micro-batches slower, so it is taken only where somebody says how many rows arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

from millrace.catalog import ALGORITHMS
from millrace.core.calibration import Calibration, ReadCosts, load_calibration
from millrace.core.errors import BudgetError, ParameterError
from millrace.core.protocols import Relation
from millrace.core.unitcosts import UnitCosts
from millrace.cost.pages import Order
from millrace.joins.reading import has_index
from millrace.relations.stored import StoredRelation
from millrace.spark.forecast import USUAL_ROWS, BatchForecast, JoinForecast, Tasks
from millrace.spark.plan import Asked, JoinPlan
from millrace.spark.registry import unit_costs
from millrace.spark.workers import local_context
from millrace.tuning.skew import Skew

CLEARLY = 0.95  # of the time of the table's usual join: what another join must promise to be taken instead
ROUGHLY = 0.8  # the same, where nobody measured what the joins take of the processor here
_FASTER = 0.8  # of the time of a micro-batch: what broadcasts must promise to be taken
_BURST = 8  # times as many rows as usual in one micro-batch
_FEW_CORES = 2  # where Spark does not say


@dataclass(frozen=True)
class Hints:
    """What is known beside the call: the stream's keys, how fast rows arrive, and where the tasks run."""

    skew: Skew
    arrivals_per_second: float | None
    tasks: Tasks
    workers_here: bool  # workers run on this machine, so its disk is theirs

    @staticmethod
    def of(session: SparkSession, skew: Skew, arrivals_per_second: float | None, partitions: int | None) -> Hints:
        cores = cores_of(session)
        return Hints(skew, arrivals_per_second, Tasks(partitions or cores, cores), local_context(session) is not None)

    @property
    def rows_of_task(self) -> float:
        """Rows of a task in a micro-batch: as many as arrive in a second, where somebody says how many do."""
        return max(1.0, (self.arrivals_per_second or USUAL_ROWS) / self.tasks.count)

    @property
    def sizes(self) -> list[float]:
        """Rows of a task for which joins are compared: the usual number and a burst. Where nobody says how many rows arrive,
        few rows count as much, so that no join is taken which is bad at them."""
        shares = (1.0, _BURST) if self.arrivals_per_second else (0.01, 0.1, 1.0, _BURST)
        return [max(1.0, share * self.rows_of_task) for share in shares]


@dataclass(frozen=True)
class Ranked:
    """All joins that can serve one table, the fastest first, and why the others can't."""

    forecasts: tuple[JoinForecast, ...]
    refused: tuple[tuple[str, str], ...]
    rows: float  # of a task, for which they were compared

    @property
    def chosen(self) -> JoinForecast:
        return self.forecasts[0]

    @property
    def runner_up(self) -> JoinForecast | None:
        """The best join that would do something else: look-ups at once are the same under any name."""
        way = _way(self.chosen)
        return next((one for one in self.forecasts[1:] if _way(one) != way), None)


def _way(forecast: JoinForecast) -> str:
    plan = forecast.plan
    return plan.asked.strategy if plan.access == "join" else plan.access


def ranked(
    asked: Asked, relation: Relation, made: Callable[[Asked, Relation], JoinPlan], hints: Hints, names: Sequence[str]
) -> Ranked:
    """Plan the table with each of these joins. If the budget is too small for all of them, the error names the least memory
    that is enough for one."""
    forecasts, refused, small = [], [], []
    for name in names:
        try:
            forecasts.append(forecast_of(made(replace(asked, strategy=name), relation), relation, hints))
        except BudgetError as error:
            small.append(error)
            refused.append((name, f"needs memory={error.needed_bytes}"))
    if not forecasts:
        raise min(small, key=lambda error: error.needed_bytes)
    usual = asked.table.strategy
    losses = [0.0] * len(forecasts)
    for rows in hints.sizes:
        seconds = [one.in_task(rows).seconds for one in forecasts]
        least = max(min(seconds), 1e-12)
        losses = [loss + one / least for loss, one in zip(losses, seconds, strict=True)]
    weights = [_advantage(one) if one.plan.asked.strategy == usual else 1.0 for one in forecasts]
    order = sorted(range(len(forecasts)), key=lambda place: weights[place] * losses[place])
    return Ranked(tuple(forecasts[place] for place in order), tuple(refused), hints.rows_of_task)


def _advantage(usual: JoinForecast) -> float:
    return CLEARLY if usual.plan.asked.strategy in usual.calibration.work else ROUGHLY


def clearly_faster(these: Sequence[Ranked], those: Sequence[Ranked], hints: Hints) -> bool:
    """Whether a call with the joins chosen first has clearly shorter micro-batches than with those chosen second, where each
    has the micro-batches in which it settles. If the second does not keep up: whether the first has a clearly higher rate."""
    first, second = (
        BatchForecast(tuple(one.chosen for one in chosen), hints.tasks, chosen[0].chosen.calibration)
        for chosen in (these, those)
    )
    arrivals = hints.arrivals_per_second or 0.0
    mine, theirs = first.rows_for(arrivals), second.rows_for(arrivals)
    if theirs is None:
        return second.highest_rate < _FASTER * first.highest_rate
    return mine is not None and first.seconds(mine) < _FASTER * second.seconds(theirs)


def forecast_of(plan: JoinPlan, relation: Relation, hints: Hints) -> JoinForecast:
    """What is expected of a plan."""
    order: Order = "sorted" if getattr(getattr(relation, "version", None), "layout", None) == "frequency" else "scattered"
    stream = hints.skew.stream(relation.rows, order, rows_to_a_key(relation))
    calibration, tasks = calibration_of(plan.asked.table.path, hints), hints.tasks
    reads = calibration.reads.get(plan.read or "buffered", ReadCosts())
    return JoinForecast(plan, relation, stream, calibration, reads.sharing(min(tasks.count, tasks.cores), tasks.cores))


def candidates(asked: Asked, relation: Relation) -> list[str]:
    """Joins to compare: those that serve equal keys on Spark, with an index or without."""
    indexed = has_index(relation)
    if relation.resident and indexed:
        usual = asked.table.strategy
        return [usual] if replace(asked, strategy=usual).access(relation) != "join" else [usual, "hybridjoin", "xhybridjoin"]
    return [row.name for row in ALGORITHMS if "spark" in row.hosts and (indexed or not row.needs_index)]


def costs_of_plan(strategy: str, relation: Relation, path: str, hints: Hints) -> UnitCosts | None:
    """Unit costs that a join chooses its sizes by: calibrated, or those of a disk that nobody calibrated but that is here, as
    workers are. None: each worker finds them out."""
    calibration, mode = calibration_of(path, hints), getattr(relation, "mode", None)
    costs = calibration.costs(strategy, mode)
    if (mode or "buffered") in calibration.reads:
        return costs
    if hints.workers_here and isinstance(relation, StoredRelation) and not relation.resident:
        disk = unit_costs(relation)
        return replace(costs, seek=disk.seek, read_byte=disk.read_byte, request=disk.request)
    return None


def calibration_of(path: str, hints: Hints) -> Calibration:
    """What was measured for the disk of a table, where the workers are; read again when it was measured anew."""
    return load_calibration(Path(path), cluster=not hints.workers_here)


def rows_to_a_key(relation: Relation) -> float:
    """sigma: rows of the table to a key, on average. Where keys may have several, one page tells."""
    if getattr(relation, "unique", True) or not isinstance(relation, StoredRelation) or not relation.pages:
        return 1.0
    return _rows_to_a_key(str(relation.largest_shard()), relation.version.number, relation)


_known: dict[tuple[str, int], float] = {}


def _rows_to_a_key(shard: str, version: int, relation: StoredRelation) -> float:
    name = (shard, version)
    if name not in _known:
        codes = relation.reads_apart().read(relation.pages // 2, 1).codes
        _known[name] = len(codes) / max(1, len(np.unique(codes)))
    return _known[name]


def cores_of(session: SparkSession) -> int:
    """Cores that tasks run on at the same time."""
    if hasattr(session, "_jsparkSession"):
        return max(1, int(session.sparkContext.defaultParallelism))
    try:
        return max(1, int(session.conf.get("spark.default.parallelism", str(_FEW_CORES)) or _FEW_CORES))
    except (TypeError, ValueError):
        raise ParameterError("spark.default.parallelism is not a number") from None
