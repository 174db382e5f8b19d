"""`millrace bench shedding`: every policy on the same table and stream, while tuples arrive faster than the join serves them.

1. In each cell (device x rows x memory x place of hot keys x join) the join runs at full speed, without shedding: its rate.
2. Each policy gets tuples at `overload` times this rate, and serves what it can. The stream then ends, and everything that was
   shed comes back. Each tuple must come out once, with the row of its key.
3. Ratios are to the policy `keep` of the same cell.

What is shed goes to a file: a real one, or one on the simulated device of the table, whose time it takes.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

from millrace.bench.joins.clock import HostClock
from millrace.bench.joins.joins import OK, Contender, JoinProgress, about_machine, contenders
from millrace.bench.joins.run import JoinRun, Limits
from millrace.bench.joins.stores import Store, about_table, open_store
from millrace.bench.options import SheddingOptions
from millrace.bench.shedding.run import OverloadRun
from millrace.catalog import make_join
from millrace.core.budget import Budget
from millrace.core.errors import BudgetError, MillraceError, ParameterError
from millrace.core.protocols import JoinSpec, Relation
from millrace.joins.shedding.overloaded import Overloaded
from millrace.joins.shedding.store import ShedFile
from millrace.relations.generated import KEY, SURROGATE_KEY
from millrace.relations.simulated import SimulatedRelation
from millrace.streams import SteadyArrivals, Workload, ZipfKeys

OURS = "selective"
GOOD = 0.95
_FILE_BYTES = 128 << 10  # small, so that short runs write too


@dataclass(frozen=True)
class Cell:
    """What all policies of a comparison have in common."""

    device: str
    rows: int
    memory: str
    memory_bytes: int
    hot_keys: str
    contender: Contender

    @property
    def about(self) -> dict[str, Any]:
        return {
            "device": self.device, "rows": self.rows, "memory": self.memory, "memory_bytes": self.memory_bytes,
            "hot_keys": self.hot_keys, "join": self.contender.name,
        }  # fmt: skip


def run_shedding(options: SheddingOptions, progress: JoinProgress | None = None) -> dict[str, Any]:
    """Run the benchmark; the returned values are plain, ready for JSON."""
    progress = progress or JoinProgress()
    chosen = _chosen(options)
    results: list[dict[str, Any]] = []
    tables: list[dict[str, Any]] = []
    for rows in options.rows:
        for device in options.devices:
            with open_store(device, rows, options.table, progress.say) as store:
                tables.append(about_table(device, rows, store, options.table))
                for memory in options.memory:
                    for hot_keys in options.hot_keys:
                        for contender in chosen:
                            given = options.table.memory_bytes(memory, rows)
                            results += _run_cell(
                                Cell(device, rows, memory, given, hot_keys, contender), store, options, progress
                            )
    compared = cells(results)
    return {
        "benchmark": "shedding",
        "seed": options.seed,
        "options": options.to_json(),
        **about_machine(),
        "tables": tables,
        "rows_agree": all(result["rows_right"] for result in results if result["status"] == OK),
        "checksums_agree": True,  # the sum of all rows put out is part of `rows_right`
        "results": results,
        "cells": compared,
        "ours_to_best_median": median(ratios) if (ratios := _ours(compared)) else None,
        "ours_at_least_0_95": sum(ratio >= GOOD for ratio in ratios),
        "cells_with_ours": len(ratios),
    }


def cells(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each cell the rates side by side, and our policy's against the best other that loses nothing."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    names = ("device", "rows", "memory", "hot_keys", "join")
    for result in results:
        place = tuple(result[name] for name in names)
        cell = found.setdefault(place, {**dict(zip(names, place, strict=True)), "tuples_per_second": {}})
        if result["status"] == OK:
            cell["tuples_per_second"][result["policy"]] = result["tuples_per_second"]
    for cell in found.values():
        rates = cell["tuples_per_second"]
        others = [rate for name, rate in rates.items() if name not in (OURS, "drop")]
        cell["ours_to_best"] = rates[OURS] / max(others) if others and OURS in rates else None
        cell["ours_is_good"] = cell["ours_to_best"] is None or cell["ours_to_best"] >= GOOD
    return list(found.values())


def _ours(compared: list[dict[str, Any]]) -> list[float]:
    return [cell["ours_to_best"] for cell in compared if cell["ours_to_best"] is not None]


def _chosen(options: SheddingOptions) -> list[Contender]:
    every = {contender.name: contender for contender in contenders()}
    for name in options.joins:
        if name not in every:
            raise ParameterError(f"unknown join {name!r}; choose from {', '.join(every)}.")
    return [every[name] for name in options.joins]


def _run_cell(cell: Cell, store: Store, options: SheddingOptions, progress: JoinProgress) -> list[dict[str, Any]]:
    where = f"{cell.device}, {cell.rows:,} rows, {cell.memory}, hot keys {cell.hot_keys}: {cell.contender.name}"
    results = []
    try:
        progress.say(f"{where}, full speed")
        rate = _full_speed(cell, store, options)
    except MillraceError as error:
        results = [{**cell.about, "policy": policy, "status": _status(error)} for policy in options.policies]
    else:
        for policy in options.policies:
            progress.say(f"{where}, {policy}")
            results.append(
                {**cell.about, "policy": policy, "full_speed": rate, **_measured(cell, store, policy, rate, options)}
            )
    keep = next((one["tuples_per_second"] for one in results if one["policy"] == "keep" and one["status"] == OK), None)
    for result in results:
        own = result.get("tuples_per_second")
        result["ratio_to_keep"] = own / keep if own and keep else None
        progress.finished(result)
    return results


def _status(error: MillraceError) -> str:
    return f"needs {error.needed_bytes:,} bytes" if isinstance(error, BudgetError) else f"failed: {error}"


def _full_speed(cell: Cell, store: Store, options: SheddingOptions) -> float:
    """Tuples a second that the join serves if there are always more."""
    join, stream, clock, _ = _start(cell, store, options)
    run = JoinRun(join, stream, clock)
    limits = _limits(join, store, options)
    run.warm_up(limits)
    return float(run.saturate(limits)["tuples_per_second"])


def _measured(cell: Cell, store: Store, policy: str, rate: float, options: SheddingOptions) -> dict[str, Any]:
    try:
        with tempfile.TemporaryDirectory(prefix="millrace-shed-", dir=options.data) as folder:
            return {"status": OK, **_one_run(cell, store, policy, rate, options, Path(folder))}
    except MillraceError as error:
        return {"status": _status(error)}


def _one_run(
    cell: Cell, store: Store, policy: str, rate: float, options: SheddingOptions, folder: Path
) -> dict[str, Any]:  # fmt: skip
    join, stream, clock, relation = _start(cell, store, options)
    file = _file(folder, relation)
    with Overloaded(
        join, policy=policy, sink=file, position=options.position, age_limit=options.age_limit or None, seed=options.seed
    ) as shedding:
        run = OverloadRun(shedding, stream, clock)
        once = _limits(join, store, options)
        overload = run.overload(options.overload * rate, Limits(2 * options.overload * once.tuples, 2 * once.seconds))
        drained = run.empty()
        return {
            **overload,
            "drain": drained,
            "written_bytes": file.written_bytes,
            "read_bytes": file.read_bytes,
            "longest_age_seconds": run.longest_age,
            "steps": run.ledger.steps,
            "counts": run.ledger.totals.as_dict(),
            "share_lost": shedding.share_lost,
            "rows_right": run.joined_once,
            "bytes_used": shedding.bytes_used,
        }


def _file(folder: Path, relation: Relation) -> ShedFile:
    """On a simulated device the file takes the device's time too."""
    if not isinstance(relation, SimulatedRelation):
        return ShedFile(folder, buffer_bytes=_FILE_BYTES)
    device = relation.device

    def transfer(kind: Any, offset: int, count: int) -> None:
        device.wait(device.start(kind, "shed", offset, count))

    return ShedFile(folder, buffer_bytes=_FILE_BYTES, watch=transfer)


def _start(cell: Cell, store: Store, options: SheddingOptions) -> tuple[Any, Workload, HostClock, Relation]:
    relation, clock = store.open()
    keys = ZipfKeys(cell.rows, options.zipf, scatter=cell.hot_keys == "scattered", seed=options.seed)
    stream = Workload(keys, SteadyArrivals(1), key_name=KEY, seed=options.seed)
    spec = JoinSpec(stream.schema, ((KEY, KEY),), "inner", (), (SURROGATE_KEY,), returnable=True)
    given = dict(cell.contender.parameters)
    if cell.contender.takes("costs"):
        given["costs"] = store.costs
    if cell.contender.takes("zipf_exponent"):
        given["zipf_exponent"] = options.zipf
    join = make_join(cell.contender.row.name, relation, spec, Budget(cell.memory_bytes), **given)
    return cast(Any, join), stream, clock, relation


def _limits(join: Any, store: Store, options: SheddingOptions) -> Limits:
    tuples = max(options.tuples, int(options.windows * join.capacity))
    return Limits(tuples, options.seconds) if store.real else Limits(tuples)
