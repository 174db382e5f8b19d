"""`millrace bench follow`: a stream whose skew changes, and whose hot keys move, and a join whose settings follow.

In each phase, on the same table and with the same memory:

    before      a join with the settings that are best for the phase before, which stay as they are
    at first    the join that follows, as soon as the stream has changed
    followed    the same join, once it has found its settings
    fresh       a new join with the settings that are best for this phase, told its skew

Rates are tuples a second at full speed. Every run must join every tuple, with the row of its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from millrace.bench.joins.joins import OK, JoinProgress, about_machine
from millrace.bench.joins.run import JoinRun, Limits
from millrace.bench.joins.stores import Store, about_table, open_store
from millrace.bench.options import FollowOptions
from millrace.core.budget import Budget
from millrace.core.errors import BudgetError, MillraceError
from millrace.core.protocols import JoinSpec, Relation
from millrace.core.unitcosts import UnitCosts
from millrace.relations.generated import KEY, SURROGATE_KEY
from millrace.streams import SteadyArrivals, Workload, ZipfKeys
from millrace.tuning.follow import FollowingJoin
from millrace.tuning.settings import Setting, Tuner
from millrace.tuning.skew import Skew

_QUIET = 6  # looks without a change: the join has found its settings
_ROUNDS = 24


@dataclass(frozen=True)
class Phase:
    """What the stream is like for a while. Each phase has hot keys of its own."""

    number: int
    zipf: float

    def keys(self, rows: int, options: FollowOptions) -> Workload:
        keys = ZipfKeys(rows, self.zipf, scatter=options.hot_keys == "scattered", seed=options.seed + self.number)
        return Workload(keys, SteadyArrivals(1), key_name=KEY, seed=options.seed)


class _Changing:
    """A stream that can become another one."""

    def __init__(self, now: Workload) -> None:
        self.now = now
        self.schema = now.schema

    def draw(self, rows: int) -> pa.RecordBatch:
        return self.now.draw(rows)


@dataclass
class _Bench:
    """One table, one memory and one strategy."""

    store: Store
    rows: int
    memory_bytes: int
    strategy: str
    options: FollowOptions
    _rates: dict[str, float] = field(default_factory=dict)

    def run(self) -> list[dict[str, Any]]:
        phases = [Phase(number, zipf) for number, zipf in enumerate(self.options.zipf)]
        best = [self._best(phase) for phase in phases]
        fresh = [self._fixed(setting, phase) for setting, phase in zip(best, phases, strict=True)]
        stream = _Changing(phases[0].keys(self.rows, self.options))
        relation, clock = self.store.open()
        join = FollowingJoin(
            relation, _spec(stream.now), Budget(self.memory_bytes), self.strategy,
            stream=Skew.zipf(phases[0].zipf).stream(self.rows, _order(self.options)), costs_of=self._costs,
        )  # fmt: skip
        run = JoinRun(join, stream, clock)  # type: ignore[arg-type]
        found = []
        for phase in phases:
            stream.now = phase.keys(self.rows, self.options)
            changes = len(join.changes)
            at_first = self._rate(run, join)
            self._settle(run, join)
            followed = self._rate(run, join)
            before = best[max(0, phase.number - 1)]
            rates = {
                "before": self._fixed(before, phase), "at_first": at_first, "followed": followed, "fresh": fresh[phase.number],
            }  # fmt: skip
            found.append(
                {
                    "phase": phase.number, "zipf": phase.zipf, "status": OK, **rates,
                    "followed_to_fresh": followed / rates["fresh"], "followed_to_before": followed / rates["before"],
                    "settings": str(join.setting), "best_settings": str(best[phase.number]),
                    "changes": [str(change) for change in join.changes[changes:]], "bytes_used": join.bytes_used,
                }
            )  # fmt: skip
        run.drain(relation.pages)
        return [{**one, "rows_right": run.rows_right} for one in found]

    def _best(self, phase: Phase) -> Setting:
        relation, _ = self.store.open()
        stream = Skew.zipf(phase.zipf).stream(self.rows, _order(self.options))
        return self._tuner(relation, phase.keys(self.rows, self.options)).best(stream)

    def _fixed(self, setting: Setting, phase: Phase) -> float:
        """The rate of a join with these settings, in this phase alone."""
        name = f"{setting} {phase.number}"
        if name not in self._rates:
            relation, clock = self.store.open()
            stream = phase.keys(self.rows, self.options)
            join: Any = self._tuner(relation, stream).make(setting, Budget(self.memory_bytes))
            run = JoinRun(join, stream, clock)
            run.warm_up(self._limits(join))
            self._rates[name] = self._rate(run, join)
        return self._rates[name]

    def _settle(self, run: JoinRun, join: FollowingJoin) -> None:
        """Until the join has not changed in several looks."""
        quiet = run.feed.taken
        for _ in range(_ROUNDS):
            if run.feed.taken >= quiet + _QUIET * join.look_tuples:
                return
            changes = len(join.changes)
            run.warm_up(self._limits(join))
            if len(join.changes) != changes:
                quiet = run.feed.taken

    def _rate(self, run: JoinRun, join: Any) -> float:
        return float(run.saturate(self._limits(join))["tuples_per_second"])

    def _limits(self, join: Any) -> Limits:
        tuples = max(self.options.tuples, int(self.options.windows * join.capacity))
        return Limits(tuples, self.options.seconds)

    def _tuner(self, relation: Relation, stream: Workload) -> Tuner:
        strategies = None if self.strategy == "auto" else (self.strategy,)
        return Tuner(relation, _spec(stream), self.memory_bytes, strategies, self._costs)

    def _costs(self, _: str) -> UnitCosts:
        return self.store.costs


def run_follow(options: FollowOptions, progress: JoinProgress | None = None) -> dict[str, Any]:
    """Run the benchmark; the returned values are plain, ready for JSON."""
    progress = progress or JoinProgress()
    results: list[dict[str, Any]] = []
    tables: list[dict[str, Any]] = []
    for device in options.devices:
        with open_store(device, options.rows, options.table, progress.say) as store:
            tables.append(about_table(device, options.rows, store, options.table))
            for strategy in options.strategies:
                about = {"device": device, "strategy": strategy}
                progress.say(f"{device}: {strategy}")
                given = options.table.memory_bytes(options.memory, options.rows)
                try:
                    found = _Bench(store, options.rows, given, strategy, options).run()
                except MillraceError as error:
                    found = [{"status": _status(error)}]
                for one in found:
                    results.append({**about, **one})
                    progress.finished(results[-1])
    return {
        "benchmark": "follow",
        "seed": options.seed,
        "options": options.to_json(),
        **about_machine(),
        "tables": tables,
        "rows_agree": all(one["rows_right"] for one in results if one["status"] == OK),
        "checksums_agree": True,  # the sum of all rows put out is part of `rows_right`
        "results": results,
        "least_followed_to_fresh": min((one["followed_to_fresh"] for one in results if one["status"] == OK), default=None),
    }


def changes_of(results: Sequence[dict[str, Any]]) -> list[str]:
    """All changes of settings, in words."""
    return [change for one in results for change in one.get("changes", [])]


def _status(error: MillraceError) -> str:
    return f"needs {error.needed_bytes:,} bytes" if isinstance(error, BudgetError) else f"failed: {error}"


def _order(options: FollowOptions) -> Any:
    return "sorted" if options.hot_keys == "sorted" else "scattered"


def _spec(stream: Workload) -> JoinSpec:
    return JoinSpec(stream.schema, ((KEY, KEY),), "inner", (), (SURROGATE_KEY,))
