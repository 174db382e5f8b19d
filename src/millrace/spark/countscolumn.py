"""Counts that travel with the rows, as a column of text: for batch DataFrames with an `Observation`, and under Spark Connect.

Streams of a classic session need no such column: their counts go through an accumulator (see `counters`).

    by key   the last row of a group has the counts of the group
    by row   a row behind all others has the counts of the task, and is dropped on the driver's side
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkAssertionError
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StringType, StructField

from millrace.core.errors import ParameterError

# --- in a worker


def with_last_row(rows: int, counts: str | None) -> pa.Array:
    """The column for rows of a group. It holds counts only if the last row of the group is among the rows."""
    return pa.concat_arrays([pa.nulls(rows - 1, pa.utf8()), pa.array([counts], pa.utf8())])


def beside_rows(rows: int, tables: int) -> list[pa.Array]:
    """The columns beside whole rows, for so many tables: each row is a real row and has no counts."""
    return [pa.array(np.ones(rows, np.bool_)), *[pa.nulls(rows, pa.utf8())] * tables]


def counts_row(schema: pa.Schema, counts: Sequence[str]) -> list[pa.Array]:
    """The columns of a row that is no real row: it carries the counts of the tables."""
    return [*(pa.nulls(1, field.type) for field in schema), pa.array([False]), *(pa.array([text]) for text in counts)]


# --- on the driver


def fields_beside_rows(tables: int) -> list[StructField]:
    """Fields of the columns that `beside_rows` makes."""
    return [StructField("", BooleanType()), *(StructField("", StringType()) for _ in range(tables))]


def observed(rows: DataFrame, by: Observation | str, column: str) -> DataFrame:
    """Rows whose counts, in `column`, are collected on the side."""
    try:
        return rows.observe(by, F.collect_list(F.col(column)).alias("stats"))
    except PySparkAssertionError:
        raise ParameterError("this observation is in use already: make a new Observation for each call of enrich") from None
