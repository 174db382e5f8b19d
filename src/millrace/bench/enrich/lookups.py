"""`millrace bench enrich-lookups`: two tables looked up in one pass, against two `enrich` calls one behind the other.

Both are the same table under two keys of the stream, so that they differ in nothing but the number of trips to Python.
Functions that look nothing up go the same ways, to tell how much there is to save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.bench.enrich.contenders import Contender, IdentityMap, Plain, Ready, Workload, constants_for, open_master_table
from millrace.bench.enrich.enrich import run_contest
from millrace.bench.enrich.measure import Progress
from millrace.bench.enrich.results import FLOOR, ratio
from millrace.bench.options import EnrichOptions

FIRST = ("surrogate_key", "price", "supplier_id")
SECOND = ("product_name", "category", "description")
_STRIDE = 7_919  # another key of the same table


def run_lookups(options: EnrichOptions, progress: Progress | None = None) -> dict[str, Any]:
    """Run the benchmark; the returned values are plain, ready for JSON."""
    every: list[Contender] = [
        IdentityMap(FLOOR),
        Twice("identity-chained", enriched=chained_constants, joins=False),
        Twice("identity-one-pass", enriched=one_pass_constants, joins=False),
        Twice("millrace-chained", enriched=chained),
        Twice("millrace-auto", enriched=one_pass),
    ]
    report = run_contest("enrich-lookups", options, every, progress or Progress())
    pairs = {"millrace": ("millrace-auto", "millrace-chained"), "identity": ("identity-one-pass", "identity-chained")}
    report["one_pass_to_chained"] = {
        name: {str(rows): _of_two(report["results"], rows, *pair) for rows in options.batch_rows}
        for name, pair in pairs.items()
    }
    return report


def _of_two(results: list[dict[str, Any]], batch_rows: int, one: str, other: str) -> float | None:
    seconds = {result["contender"]: result["median_seconds"] for result in results if result["batch_rows"] == batch_rows}
    return ratio(seconds[one], seconds[other])


def two_keys(stream: DataFrame, rows: int) -> DataFrame:
    return stream.withColumn("other_key", F.col("key") * _STRIDE % rows + 1)


@dataclass(frozen=True)
class Twice(Plain):
    """Both look-ups, as `enriched` does them with stream, table and options."""

    enriched: Callable[[DataFrame, Any, EnrichOptions], DataFrame] = field(kw_only=True)
    joins: bool = field(default=True, kw_only=True)

    @contextmanager
    def ready(self, work: Workload) -> Iterator[Ready]:
        table = open_master_table(work)

        def transform(stream: DataFrame) -> DataFrame:
            enriched = self.enriched(two_keys(stream, work.options.rows), table, work.options)
            return enriched.select(*stream.columns, *work.options.columns)

        yield Ready(transform, work.store("millrace"), joins=self.joins)


def chained(stream: DataFrame, table: Any, options: EnrichOptions) -> DataFrame:
    """Two calls, one behind the other, each with the memory."""
    import millrace as mr

    once: DataFrame = mr.enrich(stream, table, "key", how=options.how, columns=FIRST, memory=options.memory)
    twice: DataFrame = mr.enrich(once, table, ("other_key", "key"), how=options.how, columns=SECOND, memory=options.memory)
    return twice


def one_pass(stream: DataFrame, table: Any, options: EnrichOptions) -> DataFrame:
    """One call with two look-ups."""
    import millrace as mr

    lookups = [mr.Lookup(table, "key", columns=FIRST), mr.Lookup(table, ("other_key", "key"), columns=SECOND)]
    enriched: DataFrame = mr.enrich(stream, lookups, how=options.how, memory=options.memory)
    return enriched


def chained_constants(stream: DataFrame, table: Any, options: EnrichOptions) -> DataFrame:
    """Two trips to Python, as two calls make them, for constants."""
    return _with_constants(_with_constants(stream, ["key"], FIRST), ["other_key"], SECOND)


def one_pass_constants(stream: DataFrame, table: Any, options: EnrichOptions) -> DataFrame:
    """One trip with both keys, for constants."""
    return _with_constants(stream, ["key", "other_key"], FIRST + SECOND)


def _with_constants(stream: DataFrame, keys: list[str], columns: tuple[str, ...]) -> DataFrame:
    """What is computed in front of the call makes Spark send rows into it, as `enrich` does; columns would take longer."""
    placed = stream.withColumn("__zero", F.spark_partition_id().bitwiseAND(0))
    found = placed.withColumn("__found", constants_for(columns)(*keys, "__zero"))
    return found.select(*stream.columns, *(F.col(f"__found.{name}") for name in columns))
