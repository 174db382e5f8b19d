"""millrace joins fast streams with tables too big for memory, and answers big joins early, on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace.core.calibration import Calibration
    from millrace.core.conditions import between, expr, near, similar
    from millrace.core.errors import MillraceError
    from millrace.front.estimate import estimate
    from millrace.online.question.aggregations import avg, count, stddev_pop, stddev_samp, sum_, var_pop, var_samp
    from millrace.online.run.reports import Report
    from millrace.online.run.run import Run
    from millrace.spark.calibrate import calibrate
    from millrace.spark.enrich import enrich
    from millrace.spark.explain import Explanation, explain
    from millrace.spark.failures import task_error
    from millrace.spark.hot_keys import HotKey, HotKeys, hot_keys
    from millrace.spark.learn_costs import learn_costs
    from millrace.spark.lookups import Lookup
    from millrace.spark.master import MasterTable
    from millrace.spark.parquet import ParquetTable
    from millrace.spark.reports import BatchReport, reports

__version__ = "0.1.0"
__all__ = [
    "BatchReport",
    "Calibration",
    "Explanation",
    "HotKey",
    "HotKeys",
    "Lookup",
    "MasterTable",
    "MillraceError",
    "ParquetTable",
    "Report",
    "Run",
    "__version__",
    "avg",
    "between",
    "calibrate",
    "count",
    "enrich",
    "estimate",
    "explain",
    "expr",
    "hot_keys",
    "learn_costs",
    "near",
    "reports",
    "similar",
    "stddev_pop",
    "stddev_samp",
    "sum_",
    "task_error",
    "var_pop",
    "var_samp",
]

_HOMES = {
    "BatchReport": "millrace.spark.reports",
    "Calibration": "millrace.core.calibration",
    "Explanation": "millrace.spark.explain",
    "HotKey": "millrace.spark.hot_keys",
    "HotKeys": "millrace.spark.hot_keys",
    "Lookup": "millrace.spark.lookups",
    "MasterTable": "millrace.spark.master",
    "MillraceError": "millrace.core.errors",
    "ParquetTable": "millrace.spark.parquet",
    "Report": "millrace.online.run.reports",
    "Run": "millrace.online.run.run",
    "avg": "millrace.online.question.aggregations",
    "between": "millrace.core.conditions",
    "calibrate": "millrace.spark.calibrate",
    "count": "millrace.online.question.aggregations",
    "enrich": "millrace.spark.enrich",
    "estimate": "millrace.front.estimate",
    "explain": "millrace.spark.explain",
    "expr": "millrace.core.conditions",
    "hot_keys": "millrace.spark.hot_keys",
    "learn_costs": "millrace.spark.learn_costs",
    "near": "millrace.core.conditions",
    "reports": "millrace.spark.reports",
    "similar": "millrace.core.conditions",
    "stddev_pop": "millrace.online.question.aggregations",
    "stddev_samp": "millrace.online.question.aggregations",
    "sum_": "millrace.online.question.aggregations",
    "task_error": "millrace.spark.failures",
    "var_pop": "millrace.online.question.aggregations",
    "var_samp": "millrace.online.question.aggregations",
}


_NEEDS_SPARK = "millrace.spark."


def __getattr__(name: str) -> Any:
    """The parts that need Spark are imported on first use, so that joins in process work without it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'millrace' has no attribute {name!r}{_near(name)}", name=name)
    from importlib import import_module

    try:
        found = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as missing:
        if missing.name and missing.name.split(".")[0] in ("pyspark", "py4j"):
            raise ModuleNotFoundError(
                f"millrace.{name} needs Spark: pip install 'millrace-spark[spark]'", name=missing.name
            ) from None
        raise
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """What can be had: completion and help() look at each of these."""
    from importlib.util import find_spec

    spark = find_spec("pyspark") is not None
    missing = {name for name, home in _HOMES.items() if home.startswith(_NEEDS_SPARK) and not spark}
    own = {name for name in globals() if name.startswith("__") and name.endswith("__")}
    return sorted((own | set(__all__)) - missing)


def _near(name: str) -> str:
    """A hint at what may have been meant."""
    from difflib import get_close_matches

    public = {one.lower(): one for one in _HOMES}
    near = [public[one] for one in get_close_matches(name.lower(), public, n=2)]
    return f"; did you mean {' or '.join(near)}?" if near else ""
