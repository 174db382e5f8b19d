"""Tables in the order of counts, built by Spark, and every join that needs an index on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.spark.keytypes import KINDS, stream_rows, table_rows
from tests.spark.running import every_how, frame, same_rows, spark_join, stream_through

import millrace as mr
from millrace.catalog import ALGORITHMS
from millrace.core.errors import ParameterError, SchemaError
from millrace.relations.stored import StoredRelation

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]

VALUES = ["v", "w", "x"]
INDEXED = [row.name for row in ALGORITHMS if row.needs_index and "spark" in row.hosts]


@pytest.mark.parametrize(
    ("name", "unique"),
    [
        ("string", True),
        ("int+string", False),
        pytest.param("long", False, marks=pytest.mark.slow),
        pytest.param("double", True, marks=pytest.mark.slow),
    ],
)
def test_every_join_gives_the_rows_of_sparks_own(spark: SparkSession, warehouse: Path, name: str, unique: bool) -> None:
    kind = KINDS[name]
    stream, data = frame(spark, stream_rows(kind)), frame(spark, table_rows(kind, unique=unique))
    counts = stream.groupBy(*kind.names).count()
    table = mr.MasterTable.build(data, kind.names, warehouse, layout="frequency", page_bytes=4096, shards=3, counts=counts)
    assert table.latest.unique is unique
    assert table.latest.rows == data.count() - len(kind.names)  # rows without a key are left out
    joined = every_how(lambda how: spark_join(stream, data, kind.names, how), VALUES).toArrow()
    for strategy, read in [*((strategy, "direct") for strategy in INDEXED), ("auto", "mmap"), ("xhybridjoin", "mmap")]:
        ours = every_how(
            lambda how, s=strategy, r=read: mr.enrich(  # type: ignore[misc]
                stream, table, kind.names, how=how, memory="16m", strategy=s, read=r
            ),
            VALUES,
        )
        difference = same_rows(ours, joined)
        assert difference, (strategy, read, difference)


def test_rows_that_are_wanted_more_come_first_and_equal_keys_stay_together(spark: SparkSession, warehouse: Path) -> None:
    data = spark.range(6000).select((F.col("id") % 2500).alias("key"), F.col("id").alias("row"))
    counts = spark.range(0, 4000, 2).select(F.col("id").alias("KEY"), ((F.col("id") * 7) % 1009).alias("seen"))
    table = mr.MasterTable.build(data, "key", warehouse, layout="frequency", page_bytes=4096, shards=4, counts=counts)
    relation = table.relation("mmap")
    assert isinstance(relation, StoredRelation)
    assert (relation.rows, table.latest.longest_run) == (6000, 3)
    wanted = {key: (7 * key) % 1009 if key % 2 == 0 else 0 for key in range(2500)}
    lowest = float("inf")
    for page in range(relation.pages):
        numbers = [wanted[code] for code in relation.read(page, 1).codes.tolist()]
        assert max(numbers) <= lowest
        lowest = min(numbers)
    runs = relation.locate(np.arange(2500))
    assert (runs.last >= runs.first).all()
    assert (runs.last - runs.first <= 1).all()
    assert "index of 2,500 keys in" in str(table.describe())


def test_a_stream_is_answered_from_pinned_pages_and_says_so(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    rows = pa.table({"id": range(20_000), "name": [f"name {n}" for n in range(20_000)]})
    keys = ((np.random.default_rng(1).zipf(1.2, 4000) * 7919) % 21_000).tolist()
    sales = pa.table({"sale": range(len(keys)), "id": keys})
    counts = frame(spark, sales).groupBy("id").count()
    table = mr.MasterTable.build(frame(spark, rows), "id", warehouse, layout="frequency", page_bytes=4096, counts=counts)
    options: dict[str, Any] = {"how": "left", "strategy": "xhybridjoin", "read": "direct", "memory": "1m"}
    done = stream_through(spark, sales, lambda s: mr.enrich(s, table, "id", **options), tmp_path)
    difference = same_rows(done.rows, spark_join(frame(spark, sales), rows, "id", "left"))
    assert difference, difference
    reports = mr.reports(done.query)
    assert sum(report.rows_in for report in reports) == len(keys)
    assert sum(report.counts.pinned_matches for report in reports) > len(keys) // 2
    assert sum(report.counts.index_reads for report in reports) > 0


def test_counts_that_make_no_sense_are_refused(spark: SparkSession, warehouse: Path) -> None:
    data = spark.range(10)
    build = mr.MasterTable.build
    with pytest.raises(ParameterError, match="layout='frequency' needs counts="):
        build(data, "id", warehouse, layout="frequency")
    with pytest.raises(ParameterError, match="counts= are for layout='frequency'; the layout is 'auto'"):
        build(data, "id", warehouse, counts=data)
    with pytest.raises(SchemaError, match="the table of counts has no column 'id'; it has other"):
        build(data, "id", warehouse, layout="frequency", counts=data.toDF("other"))
    with pytest.raises(SchemaError, match="must have one column beside the key"):
        build(data, "id", warehouse, layout="frequency", counts=data)
    with pytest.raises(SchemaError, match="'count' of the table of counts must be a number; it is string"):
        build(data, "id", warehouse, layout="frequency", counts=data.selectExpr("id", "string(id) AS count"))
    with pytest.raises(SchemaError, match="'id' is string and the table's key is int64"):
        build(data, "id", warehouse, layout="frequency", counts=data.selectExpr("string(id) AS id", "1 AS count"))
    assert not warehouse.exists()
