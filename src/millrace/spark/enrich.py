"""`enrich`: a DataFrame, streaming or not, with the columns of a table too big for memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pyspark.sql import DataFrame, Observation

from millrace.spark.arguments import (
    check_choices,
    check_frame,
    check_observation,
    checked_front,
    checked_memory,
    checked_partitions,
)
from millrace.spark.counters import counters_for
from millrace.spark.dataframe import joined_frame
from millrace.spark.labels import note_observation
from millrace.spark.lookups import Lookup, On, as_lookups
from millrace.spark.master import MasterTable
from millrace.spark.parquet import ParquetTable
from millrace.spark.planning import make_plan
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
    strategy    auto, or the name of a join: see `millrace.catalog`
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

    Every error that can be seen beforehand is raised here, before anything runs.
    """
    check_frame(stream, "stream")
    lookups = as_lookups(table, on, how, columns, name, hot_keys)
    check_choices(strategy, read, ordered)
    front = checked_front(strategy, cache_share, threshold)
    check_observation(observation, stream, len(lookups))
    tasks = None if partitions is None else checked_partitions(partitions)
    given = checked_memory(memory)
    use_this_python(stream.sparkSession)
    plan = make_plan(stream, lookups, given, strategy=strategy, read=read, ordered=ordered, partitions=tasks, front=front)
    labels = [join.asked.label for join in plan.joins]
    if observation is not None:
        note_observation(observation, labels[0])
    else:
        plan = plan.counted_by(tuple(counters_for(stream, label) for label in labels))
    return joined_frame(stream, plan, observation)
