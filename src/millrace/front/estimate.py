"""`mr.estimate`: an aggregate over the join of two tables, early with an interval, exact in the end.

arguments, checked --> Asked, Options --> an engine of `ENGINES` --> Run
"""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from millrace.core.budget import parse_bytes
from millrace.core.errors import ParameterError
from millrace.online.question.aggregations import Aggregation, aggregation
from millrace.online.run.opening import open_run
from millrace.online.run.options import Asked, Options
from millrace.online.run.run import Run
from millrace.online.sampling.row_order import ORDERS, Chosen
from millrace.online.statistics.intervals import IntervalRule


def _open_on_spark(asked: Asked, options: Options) -> Run:
    raise ParameterError('estimates on Spark are not there yet; use engine="local" with Parquet folders')


ENGINES: dict[str, Callable[[Asked, Options], Run]] = {
    "auto": open_run,
    "local": open_run,
    "spark": _open_on_spark,
}


def estimate(
    left: Any,
    right: Any,
    *,
    on: Any,
    group_by: Any = None,
    where: Any = None,
    memory: int | str = "500m",
    seed: int = 0,
    confidence: float = 0.95,
    interval: Literal["each", "always"] = "each",
    together: bool = False,
    order: Chosen = "auto",
    engine: Literal["auto", "local", "spark"] = "auto",
    target: float = 0.01,
    every: float = 0.1,
    threads: int | None = None,
    spill: str | Path | None = None,
    spill_limit: int | str | None = None,
    **aggregates: Aggregation | str,
) -> Run:
    """Begin to answer aggregates over the join of two tables; see docs/estimate.md.

    `left`, `right`: Parquet folders or files, pyarrow tables or readers, DuckDB relations. `on`: columns with equal values.
    `together`: the intervals of all groups hold at once, not each by itself.
    `memory`: what the run may hold. `target`: the relative half-width that forecasts are about. `every`: seconds between
    reports, at least (0: all).
    `threads`: with 2, one thread joins while the other reads. `spill`: folder for temporary data.
    """
    if engine not in ENGINES:
        raise ParameterError(f"engine must be one of {', '.join(ENGINES)}; got {engine!r}")
    if order not in ORDERS:
        raise ParameterError(f"order must be one of {', '.join(ORDERS)}; got {order!r}")
    if threads not in (None, 1, 2):
        raise ParameterError(f"threads must be 1 or 2; got {threads!r}")
    if type(together) is not bool:
        raise ParameterError(f"together must be True or False; got {together!r}")
    if type(seed) is not int or seed < 0:
        raise ParameterError(f"seed must be a whole number from 0 on; got {seed!r}")
    rule = IntervalRule(confidence, interval, together=together)
    if not target > 0 or not every >= 0:
        raise ParameterError(f"target must be above 0 and every 0 or more; got {target!r} and {every!r}")
    _check_names(aggregates)
    asked = Asked(left, right, on, {label: aggregation(label, given) for label, given in aggregates.items()}, group_by, where)
    options = Options(
        parse_bytes(memory), seed, rule, order, target, every, threads or min(2, os.cpu_count() or 1), spill,
        None if spill_limit is None else parse_bytes(spill_limit),
    )  # fmt: skip
    return ENGINES[engine](asked, options)


def _check_names(aggregates: Mapping[str, object]) -> None:
    """A misspelt option would pass for an aggregate: what is no aggregate, and has nearly the name of an option, is one."""
    options = [name for name in inspect.signature(estimate).parameters if name != "aggregates"]
    for label, given in aggregates.items():
        near = difflib.get_close_matches(label, options, 1, 0.8)
        if near and not isinstance(given, Aggregation) and "(" not in str(given):
            raise ParameterError(f"estimate has no option {label!r}; did you mean {near[0]}={given!r}?")
