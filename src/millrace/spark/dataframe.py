"""A plan as a DataFrame: what travels to the workers, what comes back, and which columns it becomes.

by key   keys and the time of the batch --> workers --> matches beside the rows, which never leave the JVM
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
    rows = _by_key(stream, plan.by_key, observation) if plan.by_key else stream
    return _by_row(rows, stream, plan, observation) if plan.by_row else rows


def _by_key(stream: DataFrame, joins: Sequence[JoinPlan], observation: Observation | None) -> DataFrame:
    """Keys go to the workers; structs come back, or plain values if there is only one. The stream's own columns stay in the
    JVM.

    The place of the time is computed in a projection of its own, which the optimizer can't merge into the call. Without this
    projection a columnar source feeds the call directly. Spark 4.3 then turns every row into columns once more, only to read
    rows from the columns again.
    """
    kinds = [_returned(join) for join in joins]
    fields = list(itertools.chain(*kinds))
    starts = [0, *itertools.accumulate(len(some) for some in kinds)]
    added = [name for join in joins for _, name in join.asked.columns]
    beside, zero, *matches = free_names([*stream.columns, *added], 2 + len(joins))
    if len(fields) == 1:
        found, places = _called(joins, fields[0]), [beside]
    else:
        found = _called(joins, StructType([StructField(f"c{i}", kind) for i, kind in enumerate(fields)]))
        places = [f"{beside}.c{i}" for i in range(len(fields))]
    keys = [named_column(stream, mine) for join in joins for mine in join.asked.key_columns]
    joined = stream.withColumn(zero, _zero()).withColumn(beside, found(*keys, _batch_time(F.col(zero))))
    for join, end in zip(joins, starts[1:], strict=True):
        if join.counters is None:
            joined = observed(joined, observation or join.asked.label, places[end - 1])
    theirs: list[Column] = []
    for join, match, start in zip(joins, matches, starts, strict=False):
        joined, columns = _matched(joined, join.asked, places[start:], match)
        theirs += columns
    mine = [named_column(stream, name) for name in stream.columns] if _unambiguous(stream) else [F.col("*")]
    selected = joined.select(*mine, *theirs)
    return selected if _unambiguous(stream) else selected.drop(beside, zero, *matches)


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


def _added(asked: Asked, places: Sequence[str]) -> list[Column]:
    """The columns of the output, made of the columns that came back."""
    where = dict(zip(asked.fetched, places, strict=False))
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
    plain = again.frame.select("*", _batch_time(_zero())).toDF(*[f"s{i}" for i in range(len(carried) + 1)])
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


def _zero() -> Column:
    """The number 0, as an expression that Spark can't compute before a task runs."""
    return F.spark_partition_id().bitwiseAND(0)


def _batch_time(place: Column) -> Column:
    """The time of the micro-batch; `place` is `_zero()` or a column of it.

    Spark writes a plain timestamp into the code that it generates. It then has to compile and warm up this code in every
    micro-batch, which takes longer than the join of a small micro-batch. The function of a `zip_with` is interpreted, so its
    timestamp stays out of the code. Of all interpreted functions, `zip_with` costs least for each row. The place in the array
    is not known beforehand, so Spark can't fold the time into a constant.
    """
    one = F.array(F.lit(0))
    return F.zip_with(one, one, lambda _, __: F.current_timestamp())[place]


def _unambiguous(frame: DataFrame) -> bool:
    names = [name.lower() for name in frame.columns]
    return len(set(names)) == len(names)
