"""Counts of a broadcast join. No Python sees the rows, so Spark counts them, by `observe`.

Two counts make one: rows that come to the join, and rows behind the join. Each is a text as tasks send it, and reports add the
texts up. So a number may be negative in one of them.

    how           before the join               behind the join
    semi          matched 0, absent n - z       m rows: matched m, absent -m
    other         matched n, absent -z          u rows without a match: matched -u, absent u

    n  rows that come     z  rows with a null key

Where the table is empty, Spark may leave the stream of a semi join unread. Then no rows are counted.

Spark calls an aggregate for each row: both take 0.1 to 0.2 microseconds. A batch DataFrame is counted only for an
`Observation`, which can be used once. Then the counts are taken behind the join alone, which is enough where no key has several
rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace.core.errors import ParameterError
from millrace.spark.plan import Asked, JoinPlan
from millrace.spark.schema import named_column


def counts_before(stream: DataFrame, asked: Asked) -> Column:
    """Of the rows that come to a join."""
    rows, keyed = F.count(F.lit(1)), _keyed(stream, asked)
    semi = asked.how == "semi"
    return _told({
        "tuples_in": rows,
        "removed": rows,
        "null_keys": rows - keyed,
        "matched": F.lit(0) if semi else rows,
        "absent_keys": keyed if semi else keyed - rows,
    })  # fmt: skip


def counts_behind(asked: Asked, found: str) -> Column:
    """Of the rows behind a join. `found`: a column of the table that is null where there is no match."""
    rows = F.count(F.lit(1))
    if asked.how == "semi":
        return _told({"matches": rows, "matched": rows, "absent_keys": -rows})
    matches = F.lit(0) if asked.how == "anti" else F.count(F.col(found))
    return _told({"matches": matches, "matched": matches - rows, "absent_keys": rows - matches})


def counts_of_one_row(stream: DataFrame, asked: Asked, found: str) -> Column:
    """Of the rows behind a left join, each of which is one row of the stream."""
    rows, matched, keyed = F.count(F.lit(1)), F.count(F.col(found)), _keyed(stream, asked)
    return _told({
        "tuples_in": rows,
        "removed": rows,
        "null_keys": rows - keyed,
        "matched": matched,
        "matches": matched,
        "absent_keys": keyed - matched,
    })  # fmt: skip


def check_counted(join: JoinPlan) -> None:
    """An error if an `Observation` can't count the rows of this join."""
    if not join.asked.table.unique:
        raise ParameterError(
            f"an observation can't count a broadcast join with {join.asked.table.name}, which may have several rows to a key: "
            "leave observation out, or choose another strategy"
        )


def fixed_part() -> dict[str, str | int | None]:
    """What reports need beside counts."""
    return {
        "groups": 0, "waiting": 0, "memory_bytes": 0, "table_version": None, "strategy": "broadcast", "access": "broadcast",
        "read": None, "group_rows": None, "plan_changes": 0,
    }  # fmt: skip


def _keyed(stream: DataFrame, asked: Asked) -> Column:
    """Rows whose whole key is there."""
    named = [named_column(stream, mine).isNotNull() for mine, _ in asked.on]
    return F.count_if(reduce(Column.__and__, named))


def _told(counts: Mapping[str, Column]) -> Column:
    fixed = {name: F.lit(value) if value is not None else F.lit(None).cast("int") for name, value in fixed_part().items()}
    fields = F.struct(*[value.alias(name) for name, value in {**fixed, **counts}.items()])
    return F.array(F.to_json(fields, {"ignoreNullFields": "false"})).alias("stats")
