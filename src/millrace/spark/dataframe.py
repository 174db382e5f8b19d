"""A plan as a DataFrame: what travels to the workers, what comes back, and which columns it becomes.

by key   keys and the time of the batch --> workers --> matches beside the rows, which never leave the JVM
sent     rows --> Spark's own join with the whole table
by row   whole rows --> workers --> joined rows
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import cast

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, BooleanType, DataType, StringType, StructField, StructType

from millrace.spark.batch_time import batch_time, zero
from millrace.spark.broadcast import broadcast_joined, sent_columns
from millrace.spark.broadcast_counts import check_counted
from millrace.spark.countscolumn import fields_beside_rows, observed
from millrace.spark.plan import Asked, JoinPlan, Plan
from millrace.spark.references import Renumbered
from millrace.spark.schema import free_names, named_column, with_collation
from millrace.spark.spread import spread_rows
from millrace.spark.task import KeysPass, RowsPass


def joined_frame(stream: DataFrame, plan: Plan, observation: Observation | None) -> DataFrame:
    """The stream, joined as the plan says."""
    if plan.partitions is not None:
        stream = spread_rows(stream, plan.joins[0].asked.on, plan.partitions)
    rows = _beside(stream, plan, observation) if plan.by_key or plan.broadcast else stream
    return _by_row(rows, stream, plan, observation) if plan.by_row else rows


def _beside(stream: DataFrame, plan: Plan, observation: Observation | None) -> DataFrame:
    """The columns of the stream, then those of all tables but the ones that whole rows travel for, in the order of the call."""
    joins = [join for join in plan.joins if join.asked.shape != "rows"]
    added = [name for join in joins for _, name in join.asked.columns]
    free = (name for name in free_names([*stream.columns, *added], 2 + sum(1 + len(sent_columns(j.asked)) for j in joins)))
    rows, hidden, by_key = stream, list[str](), list[list[Column]]()
    if plan.by_key:
        hidden += itertools.islice(free, 2 + len(plan.by_key))
        rows, by_key = _by_key(stream, plan.by_key, observation, hidden)
    sent = list[list[Column]]()
    for join in plan.broadcast:
        if observation is not None:
            check_counted(join)
        names = list(itertools.islice(free, len(sent_columns(join.asked))))
        rows = broadcast_joined(rows, stream, join, names, observation)
        hidden += names
        sent.append(_added(join.asked, names, sent_columns(join.asked)))
    found = {True: iter(sent), False: iter(by_key)}
    theirs = [column for join in joins for column in next(found[join.access == "broadcast"])]
    if _unambiguous(stream):
        return rows.select(*[named_column(stream, name) for name in stream.columns], *theirs)
    return rows.select("*", *theirs).drop(*hidden)


def _by_key(
    stream: DataFrame, joins: Sequence[JoinPlan], observation: Observation | None, names: Sequence[str]
) -> tuple[DataFrame, list[list[Column]]]:
    """Keys go to the workers; structs come back, or plain values if there is only one. The stream's own columns stay in the
    JVM. Returns the rows, with columns of these names beside them, and the columns that each table adds.

    The place of the time is computed in a projection of its own, which the optimizer can't merge into the call. Without this
    projection a columnar source feeds the call directly. Spark 4.3 then turns every row into columns once more, only to read
    rows from the columns again.
    """
    kinds = [_returned(join) for join in joins]
    fields = list(itertools.chain(*kinds))
    starts = [0, *itertools.accumulate(len(some) for some in kinds)]
    beside, place, *matches = names
    if len(fields) == 1:
        found, places = _called(joins, fields[0]), [beside]
    else:
        found = _called(joins, StructType([StructField(f"c{i}", kind) for i, kind in enumerate(fields)]))
        places = [f"{beside}.c{i}" for i in range(len(fields))]
    keys = [named_column(stream, mine) for join in joins for mine in join.asked.key_columns]
    joined = stream.withColumn(place, zero()).withColumn(beside, found(*keys, batch_time(F.col(place))))
    for join, end in zip(joins, starts[1:], strict=True):
        if join.counters is None:
            joined = observed(joined, observation or join.asked.label, places[end - 1])
    theirs: list[list[Column]] = []
    for join, match, start in zip(joins, matches, starts, strict=False):
        joined, columns = _matched(joined, join.asked, places[start:], match)
        theirs.append(columns)
    return joined, theirs


def _returned(join: JoinPlan) -> list[DataType]:
    """Types of what comes back for a row."""
    asked = join.asked
    kinds = [from_arrow_type(asked.table.schema.field(name).type) for name in asked.fetched]
    if asked.shape == "array":
        kinds = [ArrayType(StructType([StructField(f"c{i}", kind) for i, kind in enumerate(kinds)]))]
    elif asked.flagged:
        kinds = [BooleanType(), *kinds]
    return kinds if join.counters is not None else [*kinds, StringType()]


def _called(joins: Sequence[JoinPlan], returned: DataType) -> Callable[..., Column]:
    """The function that runs in the workers: keys and the time of the batch in, `returned` out."""
    return cast(Callable[..., Column], F.arrow_udf(KeysPass(tuple(joins)).keys_in, returned).asNondeterministic())


def _matched(joined: DataFrame, asked: Asked, places: Sequence[str], match: str) -> tuple[DataFrame, list[Column]]:
    """Rows with their matches, as `how` says, and the columns that the table adds. What came back begins at the first place."""
    first = F.col(places[0])
    if asked.shape == "array":
        explode = F.explode if asked.how == "inner" else F.explode_outer
        joined = joined.withColumn(match, explode(first))
        return joined, _added(asked, [f"{match}.c{i}" for i in range(len(asked.fetched))])
    if asked.how != "left":
        joined = joined.where(~first if asked.how == "anti" else first)
    return joined, _added(asked, places[int(asked.flagged) :])


def _added(asked: Asked, places: Sequence[str], columns: Sequence[str] | None = None) -> list[Column]:
    """The columns of the output, made of what came back: at these places the fetched columns, or those that are named."""
    where = dict(zip(columns or asked.fetched, places, strict=False))
    schema = asked.table.schema
    return [with_collation(F.col(where[column]), schema.field(column)).alias(name) for column, name in asked.columns]


def _by_row(rows: DataFrame, stream: DataFrame, plan: Plan, observation: Observation | None) -> DataFrame:
    """Whole rows go to the workers, joined rows come back. Columns go by position, under names of our own until the end.

    `rows` has the columns of the stream, then the columns that the joins by key have added. Columns of tables come out in the
    order of the call, whatever their names.
    """
    carried, own = rows.schema.fields, len(stream.columns)
    fields = list(carried)
    for join in plan.by_row:
        kinds = [join.asked.table.schema.field(column).type for column in join.asked.fetched]
        fields += [StructField("", from_arrow_type(kind)) for kind in kinds]
    watched = [join for join in plan.by_row if join.counters is None]
    real = f"c{len(fields)}"
    if watched:
        fields += fields_beside_rows(len(watched))
    inside = [StructField(f"c{i}", f.dataType, True, f.metadata) for i, f in enumerate(fields)]
    again = Renumbered(rows)
    plain = again.frame.select("*", batch_time(zero())).toDF(*[f"s{i}" for i in range(len(carried) + 1)])
    joined = plain.mapInArrow(RowsPass(plan.by_row).rows_in, StructType(inside))  # it takes no odd or repeated names
    for join, field in zip(watched, inside[len(inside) - len(watched) :], strict=True):
        joined = observed(joined, observation or join.asked.label, field.name)
    if watched:
        joined = joined.where(F.col(real))
    mine = iter(again.restore(joined, [f"c{i}" for i in range(len(carried))]))
    theirs = iter(f"c{i}" for i in range(len(carried), len(fields)))
    columns = list(itertools.islice(mine, own))
    for join in plan.joins:
        if join.asked.shape == "rows":
            columns += _added(join.asked, list(itertools.islice(theirs, len(join.asked.fetched))))
        else:
            columns += itertools.islice(mine, len(join.asked.columns))
    return joined.select(*columns)


def _unambiguous(frame: DataFrame) -> bool:
    names = [name.lower() for name in frame.columns]
    return len(set(names)) == len(names)
