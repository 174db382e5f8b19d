"""`millrace bench joins`: every in-process join of the catalog on the same table and the same stream.

1. Rows of the table are made; for the real disk they are built into a table folder, which is read directly.
2. In each cell (rows x device x memory x exponent) every join runs by itself, from the start of the same stream: warm-up,
   full speed, a slower stream, drain (see `joinrun`). Every key is in the table once, so each tuple must come out once, with
   the row of its key; that is checked.
3. Ratios are between joins of one cell. On the disk, cells are repeated if asked, and the run with the median rate counts,
   and the median of the profiles.

On the disk, time is this machine's. On a simulated device it is by formula: the device's for reads, the default unit costs
for work.
"""

from __future__ import annotations

import inspect
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import pyarrow as pa

from millrace.bench.data import Say
from millrace.bench.joins.clock import TimedRelation
from millrace.bench.joins.run import JoinRun, Limits
from millrace.bench.joins.stores import Store, about_table, open_store
from millrace.bench.memory import machine_bytes
from millrace.bench.options import REAL_DISK, JoinOptions, auto_or_number
from millrace.bench.versions import versions_of
from millrace.catalog import ALGORITHMS, Algorithm, make_join
from millrace.core.budget import Budget
from millrace.core.errors import BudgetError, MillraceError, ParameterError
from millrace.core.protocols import JoinSpec, Relation, SemiStreamJoin
from millrace.core.unitcosts import UnitCosts
from millrace.cost.front_stage import answered_share, gain
from millrace.relations.generated import KEY, SURROGATE_KEY, check_columns
from millrace.streams import KeyDistribution, SteadyArrivals, TemporalLocalityKeys, Workload, ZipfKeys

OK = "ok"
POOLED = "inlj-pool"
_PACKAGES = ("pyarrow", "numpy", "numba")


def _silent(_: Any) -> None:
    return None


@dataclass(frozen=True)
class JoinProgress:
    """Who hears how far a run is: `say` what is being done, `finished` each result."""

    say: Say = field(default=_silent)
    finished: Callable[[dict[str, Any]], None] = field(default=_silent)


@dataclass(frozen=True)
class Contender:
    """A join of the catalog with some of its parameters."""

    name: str
    row: Algorithm
    parameters: dict[str, Any]

    def takes(self, parameter: str) -> bool:
        """Whether the join has it, or the join behind its front stage."""
        joins = [self.row.join] if self.plain is None else [self.row.join, self.plain]
        return any(parameter in inspect.signature(join).parameters for join in joins)

    @property
    def plain(self) -> Any:
        """The join behind its front stage; None if it has no front stage."""
        return getattr(self.row.join, "back_class", None)


@dataclass(frozen=True)
class Cell:
    """What all joins of a comparison have in common."""

    device: str
    rows: int
    memory: str
    memory_bytes: int
    zipf: float


def run_joins(options: JoinOptions, progress: JoinProgress | None = None) -> dict[str, Any]:
    """Run the benchmark; the returned values are plain, ready for JSON."""
    progress = progress or JoinProgress()
    chosen = chosen_contenders(options)
    check_columns(options.columns)
    results: list[dict[str, Any]] = []
    tables: list[dict[str, Any]] = []
    for rows in options.rows:
        for name in options.devices:
            with open_store(name, rows, options, progress.say) as store:
                tables.append(about_table(name, rows, store, options))
                for memory in options.memory:
                    for zipf in options.zipf:
                        cell = Cell(name, rows, memory, options.memory_bytes(memory, rows), zipf)
                        results += _run_cell(cell, store, chosen, options, progress)
    return {
        "benchmark": "joins",
        "clock": f"{REAL_DISK}: this machine's, direct reads; other devices: by formula ({options.overlap})",
        "seed": options.seed,
        "options": options.to_json(),
        **about_machine(),
        "unit_costs": vars(UnitCosts()),
        "tables": tables,
        "rows_agree": all(result["rows_right"] for result in results if result["status"] == OK),
        "checksums_agree": True,  # the sum of all rows put out is part of `rows_right`
        "results": results,
        "cells": cells(results),
    }


def contenders() -> list[Contender]:
    """One for every row of the catalog that runs in process; `inlj` without a pool, and with one where it has that."""
    found = []
    for row in ALGORITHMS:
        if "process" in row.hosts:
            contender = Contender(row.name, row, {})
            if contender.takes("tuples_per_step"):  # as many as it can: calls have nothing to do with the algorithm
                contender = replace(contender, parameters={"tuples_per_step": None})
            found.append(contender)
            if contender.takes("pool_bytes") and contender.plain is None:
                found.append(Contender(f"{row.name}-pool", row, {**contender.parameters, "pool_bytes": "rest"}))
    return found


def cells(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each cell the rates side by side, and SWEEPJOIN's against the better of MESHJOIN's and HYBRIDJOIN's."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for result in results:
        place = tuple(result[name] for name in ("device", "rows", "memory", "zipf"))
        cell = found.setdefault(
            place, {"device": place[0], "rows": place[1], "memory": place[2], "zipf": place[3], "tuples_per_second": {}}
        )
        if result["status"] == OK:
            cell["tuples_per_second"][result["join"]] = result["tuples_per_second"]
    for cell in found.values():
        rates = cell["tuples_per_second"]
        plain = [rates[name] for name in ("meshjoin", "hybridjoin") if name in rates]
        cell["sweepjoin_to_the_better"] = rates["sweepjoin"] / max(plain) if plain and "sweepjoin" in rates else None
    return list(found.values())


def chosen_contenders(options: JoinOptions) -> list[Contender]:
    every = contenders()
    known = [contender.name for contender in every]
    for name in options.joins:
        if name not in known:
            raise ParameterError(f"unknown join {name!r}; choose from {', '.join(known)}.")
    chosen = [contender for contender in every if not options.joins or contender.name in options.joins]
    return [one for contender in chosen for one in _with_fronts(contender, options)]


def _with_fronts(contender: Contender, options: JoinOptions) -> list[Contender]:
    """A cached join with every share and threshold that was asked for; named by them where they are not "auto"."""
    if contender.plain is None:
        return [contender]
    found = []
    for share, threshold in product(options.cache_share, options.threshold):
        given = {name: value for name, value in (("share", share), ("threshold", threshold)) if value != "auto"}
        parameters = {"cache_share": auto_or_number(share), "threshold": auto_or_number(threshold), **contender.parameters}
        name = " ".join((contender.name, *(f"{name}={value}" for name, value in given.items())))
        found.append(replace(contender, name=name, parameters=parameters))
    return found


def _run_cell(
    cell: Cell, store: Store, chosen: list[Contender], options: JoinOptions, progress: JoinProgress
) -> list[dict[str, Any]]:
    """Repeats are interleaved: what disturbs the machine for a while then disturbs everyone."""
    runs: dict[str, list[dict[str, Any]]] = {contender.name: [] for contender in chosen}
    for _ in range(options.repeats if store.real else 1):
        for contender in chosen:
            progress.say(f"{cell.device}, {cell.rows:,} rows, memory {cell.memory}, Zipf {cell.zipf:g}: {contender.name}")
            runs[contender.name].append(_measured(cell, store, contender, options))
    results = [_median(found) for found in runs.values()]
    for result in results:
        for other in ("inlj", POOLED):
            rate = next((one["tuples_per_second"] for one in results if one["join"] == other and one["status"] == OK), None)
            own = result.get("tuples_per_second")
            result[f"ratio_to_{other.replace('-', '_')}"] = own / rate if own and rate else None
    named = list(zip(chosen, results, strict=True))
    plain = {contender.row.join: one for contender, one in named if "pool_bytes" not in contender.parameters}
    for contender, result in named:
        rate = plain.get(contender.plain, {}).get("tuples_per_second")
        own = result.get("tuples_per_second")
        result["ratio_to_plain"] = own / rate if own and rate else None
        progress.finished(result)
    return results


def _measured(cell: Cell, store: Store, contender: Contender, options: JoinOptions) -> dict[str, Any]:
    about = {"join": contender.name, "device": cell.device, "rows": cell.rows, "memory": cell.memory}
    about |= {"memory_bytes": cell.memory_bytes, "zipf": cell.zipf}
    try:
        parameters = _tuned(cell, store, contender, options) if options.tune else contender.parameters
        return {**about, "status": OK, **_one_run(cell, store, contender, parameters, options)}
    except BudgetError as small:
        return {**about, "status": f"needs {small.needed_bytes:,} bytes"}
    except MillraceError as error:
        return {**about, "status": f"failed: {error}"}


def _one_run(
    cell: Cell, store: Store, contender: Contender, parameters: dict[str, Any], options: JoinOptions
) -> dict[str, Any]:
    run, budget, relation = start_run(cell, store, contender, parameters, options)
    limits = limits_of(run.join, store, options)
    bytes_used = run.join.bytes_used
    run.warm_up(Limits(limits.tuples, 3 * limits.seconds) if store.real else limits)
    saturated = run.saturate(Limits(seconds=limits.seconds) if store.real else limits)
    profiled = {}
    if isinstance(relation, TimedRelation):
        profiled = run.profile(Limits(seconds=limits.seconds / 2), reading=lambda: relation.reading)
    front = _front(run.join, cell, saturated["counts"])
    paced = run.pace(options.load * saturated["tuples_per_second"], limits)
    doubled = run.double(relation, limits) if options.doubling else {}
    drained = run.drain(relation.pages)
    return {
        **saturated,
        **profiled,
        "front": front,
        "paced": paced,
        **({"doubled": doubled} if doubled else {}),
        "drain": drained,
        "rows_right": run.rows_right,
        "window_tuples": _capacity(run.join),
        "buffer_pages": getattr(run.join, "buffer_pages", None),
        "bytes_used": bytes_used,
        "peak_bytes": budget.peak_bytes,
    }


def _front(join: Any, cell: Cell, counts: dict[str, int]) -> dict[str, Any] | None:
    """What the front stage of a join does, beside one with as many keys that always has those that come most often."""
    front = getattr(join, "front", None)
    if front is None:
        return None
    ideal = answered_share(front.hot.keys, cell.rows, cell.zipf)
    taken = 0.0 if join.counts_recent_keys else join.cache_share  # a back stage without a window does not miss the memory
    return {
        "cache_share": join.cache_share,
        "keys": front.hot.keys,
        "answered_share": counts["front_hits"] / counts["front_lookups"] if counts["front_lookups"] else 0.0,
        "ideal_answered_share": ideal,
        "ideal_ratio_to_plain": gain(taken, ideal) if ideal < 1 else None,
    }


def _keys(cell: Cell, options: JoinOptions) -> KeyDistribution:
    if options.intervals > 1:
        return TemporalLocalityKeys(cell.rows, options.intervals, options.interval_tuples, cell.zipf, options.seed)
    return ZipfKeys(cell.rows, cell.zipf, scatter=options.hot_keys == "scattered", seed=options.seed)


def stream_of(cell: Cell, options: JoinOptions) -> Workload:
    """The stream of a cell, from its start."""
    return Workload(_keys(cell, options), SteadyArrivals(1), key_name=KEY, seed=options.seed)


def start_run(
    cell: Cell, store: Store, contender: Contender, parameters: dict[str, Any], options: JoinOptions
) -> tuple[JoinRun, Budget, Relation]:
    relation, clock = store.open()
    stream = stream_of(cell, options)
    budget = Budget(cell.memory_bytes)
    given = parameters_of(cell, store, contender, parameters)
    join = make_join(contender.row.name, relation, spec_of(stream.schema, options), budget, **given)
    return JoinRun(join, stream, clock), budget, relation


def spec_of(schema: pa.Schema, options: JoinOptions) -> JoinSpec:
    """What is joined: the stream's key with the table's."""
    carry = tuple(schema.names) if options.carry else ()
    columns = tuple(dict.fromkeys((SURROGATE_KEY, *(name for name in options.columns if name not in carry))))
    return JoinSpec(schema, ((KEY, KEY),), "inner", carry, columns)


def parameters_of(cell: Cell, store: Store, contender: Contender, parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a join, with what is known of the device and of the stream."""
    known = {"costs": store.costs_of(contender.row.name), "zipf_exponent": cell.zipf}
    return {**parameters, **{name: value for name, value in known.items() if contender.takes(name)}}


def _tuned(cell: Cell, store: Store, contender: Contender, options: JoinOptions) -> dict[str, Any]:
    """The parameters with a disk buffer twice or half as long as the join's own choice, as often as that is faster."""
    run, _, relation = start_run(cell, store, contender, contender.parameters, options)
    best = getattr(run.join, "buffer_pages", None)
    if best is None or not contender.takes("buffer_pages"):
        return contender.parameters
    rates: dict[int, float] = {}

    def rate(pages: int) -> float:
        if pages not in rates:
            rates[pages] = _rate(cell, store, contender, {**contender.parameters, "buffer_pages": pages}, options)
        return rates[pages]

    for factor in (2.0, 0.5):
        while 1 <= best * factor <= relation.pages and rate(int(best * factor)) > rate(best):
            best = int(best * factor)
    return {**contender.parameters, "buffer_pages": best}


def _rate(cell: Cell, store: Store, contender: Contender, parameters: dict[str, Any], options: JoinOptions) -> float:
    """Tuples a second at full speed; 0 where the budget does not do."""
    try:
        run, _, _ = start_run(cell, store, contender, parameters, options)
    except BudgetError:
        return 0.0
    limits = limits_of(run.join, store, options)
    run.warm_up(limits)
    return float(run.saturate(limits)["tuples_per_second"])


def limits_of(join: SemiStreamJoin, store: Store, options: JoinOptions) -> Limits:
    """Phases end after so many windows of tuples; on the disk after some seconds too, as a slow join would take for ever."""
    tuples = max(options.tuples, int(options.windows * _capacity(join)))
    return Limits(tuples, options.seconds) if store.real else Limits(tuples)


def _capacity(join: Any) -> int:
    return int(getattr(join, "capacity", 1))


def _median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the median rate, with the rates of all, and the median profile of kernels; one that went wrong decides."""
    for run in runs:
        if run["status"] != OK or not run["rows_right"]:
            return run
    rates = [run["tuples_per_second"] for run in runs]
    profiled = sorted((run for run in runs if "kernels" in run), key=lambda run: float(run["kernel_ns_per_tuple"]))
    profile = {name: profiled[len(profiled) // 2][name] for name in ("kernel_ns_per_tuple", "kernels")} if profiled else {}
    middle = sorted(range(len(runs)), key=rates.__getitem__)[len(runs) // 2]
    return {**runs[middle], **profile, "rates": rates}


def about_machine() -> dict[str, Any]:
    machine = {"cores": os.cpu_count(), "memory_bytes": machine_bytes(), "system": platform.system()}
    return {"versions": versions_of(*_PACKAGES), "machine": machine}
