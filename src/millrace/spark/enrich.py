"""`enrich`: a DataFrame, streaming or not, with the columns of a table too big for memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pyspark.sql import DataFrame, Observation

from millrace.spark.arguments import check_observation
from millrace.spark.call import Call
from millrace.spark.counters import counters_for
from millrace.spark.dataframe import joined_frame
from millrace.spark.labels import note_observation
from millrace.spark.lookups import Lookup, On
from millrace.spark.master import MasterTable
from millrace.spark.parquet import ParquetTable
from millrace.spark.plan import Plan
from millrace.spark.workers import use_this_python


def enrich(
    stream: DataFrame,
    table: MasterTable | ParquetTable | Sequence[Lookup],
    on: On | None = None,
    how: str = "inner",
    *,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    memory: int | str = "256m",
    strategy: str = "auto",
    read: str = "auto",
    partitions: int | None = None,
    ordered: bool = False,
    cache_share: float | Literal["auto"] = "auto",
    threshold: float | Literal["auto"] = "auto",
    name: str | None = None,
    hot_keys: int | None = None,
    observation: Observation | None = None,
    skew: Any = None,
    arrivals_per_second: float | None = None,
) -> DataFrame:
    """Join `stream` with `table` and return the result as a DataFrame.

    table       a `MasterTable`, a `ParquetTable`, or a list of `Lookup` for several tables. All tables share one trip to
                Python; tables that need whole rows there, as most conditions do, share a second trip
    on          a column of both sides, a list of columns, a pair (stream column, table column), a dict stream -> table, or a
                condition: mr.between, mr.near, mr.similar, mr.expr
    how         inner, left, semi (rows whose key is in the table) or anti (rows whose key is not in the table); Spark's names
                such as left_outer work too
    columns     table columns to add; a dict gives new names. Default: all, but a key of the same name only once. The columns
                come after the columns of the stream, table by table in the order given
    memory      memory that one task may use, such as "256m", or a number of bytes; several tables share the memory
    strategy    auto, the name of a join (see `millrace.catalog`), or broadcast: Spark's own join, for small tables
    read        auto, mmap (pages used in place), direct (past the page cache) or buffered
    partitions  shuffle the stream into this many tasks first; useful when the source has too few partitions
    ordered     rows of a partition come in the order of the stream; with at most 16 table rows to a key they always do
    cache_share share of the join's memory for table rows that are wanted often, 0 to less than 1, where pages are read (not
                mmap); for cinlj, cmeshjoin, chybridjoin and csweepjoin. "auto": 0.5, for cmeshjoin 0.15
    threshold   rows of the stream that must wait for a key at once before its table rows are kept there. "auto": begins with 2
    name        name of this call in reports
    hot_keys    count the most frequent keys of the stream, for `mr.hot_keys`: how many keys a report keeps, such as 100; at
                most 1,000. Only for equal keys
    observation a Spark `Observation` that takes the counts of a batch DataFrame
    skew        for strategy="auto": how unevenly keys come. A Zipf exponent such as 1.0, or what `mr.hot_keys` returned for an
                earlier query. Default: all keys count as wanted alike
    arrivals_per_second  for strategy="auto": rows that arrive in a second

    Every error that can be seen beforehand is raised here, before anything runs.
    """
    call = Call.checked(
        stream, table, on, how, columns=columns, memory=memory, strategy=strategy, read=read, partitions=partitions,
        ordered=ordered, cache_share=cache_share, threshold=threshold, name=name, hot_keys=hot_keys, skew=skew,
        arrivals_per_second=arrivals_per_second,
    )  # fmt: skip
    check_observation(observation, stream, len(call.lookups))
    use_this_python(stream.sparkSession)
    plan, _ = call.plan()
    return enriched(stream, plan, observation)


def enriched(stream: DataFrame, plan: Plan, observation: Observation | None = None) -> DataFrame:
    """The DataFrame of a plan. Its counts go to reports, or to the observation."""
    labels = [join.asked.label for join in plan.joins]
    if observation is not None:
        note_observation(observation, labels[0])
    else:
        plan = plan.counted_by(tuple(counters_for(stream, label) for label in labels))
    return joined_frame(stream, plan, observation)
