"""`millrace bench cost`: the rate that is expected of every join, beside the rate that it has.

1. The cells (device x rows x memory x exponent) and the runs are those of `bench joins`: warm-up, then full speed.
2. Each join is asked what it expects to do, with the same budget and the same stream (`Algorithm.expect`). Unit costs are those
   of the device. On the disk they are measured first, as `millrace tune --calibrate` does.
3. The error of a cell is |expected / measured - 1|. A join that had no time to learn the keys of its front stage does not
   count. The speed of a disk changes from minute to minute: the error "at speed" is that of a forecast that knows how long a
   page took to read in the run itself. Counts are compared too, term by term: pages, seeks and probes of a tuple.
4. In each cell the time of the join that `strategy="auto"` takes is divided by that of the best join.

On a simulated device work takes what the unit costs say, so an error there is one of the equations alone.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from statistics import median
from typing import Any

from millrace.bench.joins.joins import (
    OK,
    Cell,
    Contender,
    JoinProgress,
    about_machine,
    chosen_contenders,
    limits_of,
    parameters_of,
    spec_of,
    start_run,
    stream_of,
)
from millrace.bench.joins.run import Limits
from millrace.bench.joins.stores import Store, about_table, open_store
from millrace.bench.options import JoinOptions
from millrace.core.budget import Budget
from millrace.core.errors import BudgetError, MillraceError
from millrace.core.unitcosts import UnitCosts
from millrace.cost.expected import Expected, StreamShape
from millrace.tuning.calibrate import calibrate_machine
from millrace.tuning.choose import choose

_LEARNING = 12  # times the keys of a front stage
_MOST_LEARNING = 1_000_000  # tuples: more take too long, and the join then counts as still learning
_WINDOWS, _LONGEST = 8, 5  # windows measured on a disk, where that does not take more than so many times the seconds
_TRIES = 4
TERMS = ("pages_read", "seeks", "probes")


def run_cost(options: JoinOptions, progress: JoinProgress | None = None) -> dict[str, Any]:
    """Run the benchmark; the returned values are plain, ready for JSON."""
    progress = progress or JoinProgress()
    chosen = chosen_contenders(options)
    results: list[dict[str, Any]] = []
    tables: list[dict[str, Any]] = []
    choices: list[dict[str, Any]] = []
    for rows in options.rows:
        for name in options.devices:
            with open_store(name, rows, options, progress.say) as store:
                tables.append(about_table(name, rows, store, options))
                store = _calibrated(store, progress)
                for memory in options.memory:
                    for zipf in options.zipf:
                        cell = Cell(name, rows, memory, options.memory_bytes(memory, rows), zipf)
                        found = []
                        for contender in chosen:
                            progress.say(f"{name}, {rows:,} rows, memory {memory}, Zipf {zipf:g}: {contender.name}")
                            found.append(_compared(cell, store, contender, options))
                            progress.finished(found[-1])
                        results += found
                        choices += _choice(cell, store, chosen, found, options)
    return {
        "benchmark": "cost",
        "seed": options.seed,
        "options": options.to_json(),
        **about_machine(),
        "tables": tables,
        "rows_agree": all(result["rows_right"] for result in results if result["status"] == OK),
        "checksums_agree": True,  # the sum of all rows put out is part of `rows_right`
        "results": results,
        "errors": errors(results),
        "choices": choices,
    }


def errors(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Median and worst error for each device and join, and for each device in all."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for result in results:
        if result["status"] == OK and result["in_stride"]:
            for join in (result["join"], "all"):
                found.setdefault((result["device"], join), []).append((result["error"], result["error_at_speed"]))
    errors = []
    for (device, join), pairs in sorted(found.items(), key=lambda one: (one[0][0], one[0][1] == "all")):
        each, at_speed = zip(*pairs, strict=True)
        errors.append(
            {
                "device": device, "join": join, "cells": len(each), "median": median(each), "worst": max(each),
                "median_at_speed": median(at_speed), "worst_at_speed": max(at_speed),
            }
        )  # fmt: skip
    return errors


def _choice(
    cell: Cell, store: Store, chosen: list[Contender], found: list[dict[str, Any]], options: JoinOptions
) -> list[dict[str, Any]]:
    """What `strategy="auto"` takes in this cell, and how many times the time of the best join it needs."""
    rates = {one["join"]: one["tuples_per_second"] for one in found if one["status"] == OK}
    if not rates:
        return []
    relation, _ = store.open()
    spec, names = spec_of(stream_of(cell, options).schema, options), list(dict.fromkeys(one.row.name for one in chosen))
    taken = choose(
        relation, spec, cell.memory_bytes, _shape(cell, options), costs_of=store.costs_of, strategies=names
    ).strategy  # fmt: skip
    best = max(rates, key=rates.__getitem__)
    about = {"device": cell.device, "rows": cell.rows, "memory": cell.memory, "zipf": cell.zipf}
    return [{**about, "auto": taken, "best": best, "ratio": rates[best] / rates[taken]}]


def _calibrated(store: Store, progress: JoinProgress) -> Store:
    """On the disk: with costs that are measured now. What was measured another day may be of another speed."""
    if store.folder is None:
        return store
    calibration, remarks = calibrate_machine(store.folder, say=progress.say)
    for remark in remarks:
        progress.say(remark)
    return replace(store, calibration=calibration)


def _compared(cell: Cell, store: Store, contender: Contender, options: JoinOptions) -> dict[str, Any]:
    about: dict[str, Any] = {"join": contender.name, "device": cell.device, "rows": cell.rows, "memory": cell.memory}
    about |= {"memory_bytes": cell.memory_bytes, "zipf": cell.zipf}
    try:
        expected = _expected(cell, store, contender, options)
        measured = [_measured(cell, store, contender, options, expected) for _ in range(options.repeats if store.real else 1)]
    except BudgetError as small:
        return {**about, "status": f"needs {small.needed_bytes:,} bytes"}
    except MillraceError as error:
        return {**about, "status": f"failed: {error}"}
    finally:
        gc.collect()
    middle = sorted(measured, key=lambda one: one["tuples_per_second"])[len(measured) // 2]
    costs, each = store.costs_of(contender.row.name), expected.iteration.each()
    at_speed = expected.rate(_at_speed(costs, expected, middle))
    return {
        **about,
        "status": OK,
        **middle,
        "rates": [one["tuples_per_second"] for one in measured],
        "rows_right": all(one["rows_right"] for one in measured),
        "expected_tuples_per_second": expected.rate(costs),
        "expected_at_speed": at_speed,
        "error": abs(expected.rate(costs) / middle["tuples_per_second"] - 1),
        "error_at_speed": abs(at_speed / middle["tuples_per_second"] - 1),
        "expected_each": {name: each[name] for name in TERMS},
        "expected_answered_share": expected.answered,
        "settings": dict(expected.settings),
    }


def _at_speed(costs: UnitCosts, expected: Expected, measured: dict[str, Any]) -> UnitCosts:
    """Costs with reads as fast as they were in the run: the seconds of a page, beside those expected of a page."""
    pages, seconds = expected.iteration.pages_read, expected.iteration.read_seconds(costs)
    if not measured["read_seconds_each"] or not pages or not seconds:
        return costs
    slower = measured["read_seconds_each"] / measured["each"]["pages_read"] / (seconds / pages)
    return replace(costs, **{name: slower * getattr(costs, name) for name in ("seek", "read_byte", "request")})


def _measured(cell: Cell, store: Store, contender: Contender, options: JoinOptions, expected: Expected) -> dict[str, Any]:
    """The join at full speed, once in its stride."""
    run, _, relation = start_run(cell, store, contender, contender.parameters, options)
    limits, learning = limits_of(run.join, store, options), _learning(contender, expected)
    limits = replace(limits, tuples=max(limits.tuples, learning if learning <= _MOST_LEARNING else 0))
    if store.real:
        windows = _WINDOWS * limits.tuples / max(1.0, options.windows) / expected.rate(store.costs_of(contender.row.name))
        limits = replace(limits, seconds=min(max(options.seconds, windows), _LONGEST * options.seconds))
    run.warm_up(Limits(limits.tuples, 3 * limits.seconds) if store.real else limits)
    for _ in range(_TRIES):
        share, reading = getattr(run.join, "cache_share", None), getattr(relation, "seconds", 0.0)
        found = run.saturate(Limits(seconds=limits.seconds) if store.real else limits)
        if getattr(run.join, "settled", True) and getattr(run.join, "cache_share", None) == share:
            break  # otherwise it shared its memory out anew meanwhile, for which it drains
    reading = getattr(relation, "seconds", 0.0) - reading if store.real else 0.0
    in_stride = run.ledger.totals.tuples_in >= learning
    run.drain(relation.pages)
    counts, tuples = found["counts"], max(1, found["tuples"])
    looked_up = counts["front_lookups"]
    return {
        "tuples": found["tuples"],
        "seconds": found["seconds"],
        "tuples_per_second": found["tuples_per_second"],
        "cpu_ns_per_tuple": found["cpu_ns_per_tuple"],
        "each": {name: counts[name] / tuples for name in TERMS},
        "answered_share": counts["front_hits"] / looked_up if looked_up else 0.0,
        "read_seconds_each": reading / tuples,
        "in_stride": in_stride,
        "rows_right": run.rows_right,
    }


def _learning(contender: Contender, expected: Expected) -> float:
    """Tuples behind which a front stage without a window of its own knows the keys that come often."""
    recent = getattr(contender.row.join, "counts_recent_keys", False)
    return _LEARNING * expected.settings.get("cached_keys", 0.0) if recent else 0.0


def _expected(cell: Cell, store: Store, contender: Contender, options: JoinOptions) -> Expected:
    relation, _ = store.open()
    given = parameters_of(cell, store, contender, contender.parameters)
    spec = spec_of(stream_of(cell, options).schema, options)
    return contender.row.expect(relation, spec, Budget(cell.memory_bytes), _shape(cell, options), **given)


def _shape(cell: Cell, options: JoinOptions) -> StreamShape:
    return StreamShape.zipf(cell.zipf, cell.rows, "sorted" if options.hot_keys == "sorted" else "scattered")
