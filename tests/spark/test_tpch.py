"""TPC-H at scale 0.1: orders x customer and lineitem x part, batch and streaming, against Spark's own join."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.running import run_query, spark_join

import millrace as mr

pytestmark = [pytest.mark.spark]

JOINS = {"orders": ("customer", "o_custkey", "c_custkey"), "lineitem": ("part", "l_partkey", "p_partkey")}


@pytest.fixture(scope="module")
def tpch(request: pytest.FixtureRequest) -> Path:
    """The four tables as Parquet, generated once and kept in pytest's cache."""
    folder = Path(request.config.cache.mkdir("tpch-0.1"))
    if not (folder / "complete").exists():
        generator = Path(sys.executable).with_name("tpchgen-cli")
        for name in ("orders", "customer", "lineitem", "part"):
            command = [
                generator,
                "parquet",
                "-s",
                "0.1",
                "--tables",
                name,
                "--parts",
                "4",
                "--output-dir",
                folder,
                "--overwrite",
            ]
            subprocess.run([str(part) for part in command], check=True, capture_output=True)
        (folder / "complete").touch()
    return folder


def _digest(frame: DataFrame) -> tuple[int, ...]:
    """Rows, two independent sums of row hashes, and how many columns: equal multisets have equal digests."""
    columns = [F.col(f"`{name}`") for name in frame.columns]
    one = F.xxhash64(*columns).cast("decimal(38,0)")
    other = F.hash(*reversed(columns)).cast("decimal(38,0)") * F.pmod(F.xxhash64(*columns), F.lit(1009)).cast("decimal(10,0)")
    row = frame.agg(F.count("*"), F.sum(one), F.sum(other)).collect()[0]
    return (*(int(value) for value in row), len(columns))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("name", JOINS)
def test_a_batch_join_equals_sparks_own(spark: SparkSession, tpch: Path, warehouse: Path, name: str, how: str) -> None:
    master, mine, theirs = JOINS[name]
    stream, data = spark.read.parquet(str(tpch / name)), spark.read.parquet(str(tpch / master))
    some = data.where(f"{theirs} % 3 > 0") if how == "left" else data  # so that some keys are absent
    table = mr.MasterTable.build(some, theirs, warehouse)
    expected = _digest(spark_join(stream, some, (mine, theirs), how))
    assert expected[0] == stream.count()
    for options in ({}, {"read": "direct"}, {"memory": "4m"}, {"partitions": 3}):
        ours = mr.enrich(stream, table, (mine, theirs), how=how, **options)  # type: ignore[arg-type]
        assert _digest(ours) == expected, options


@pytest.mark.parametrize("name", ["orders", pytest.param("lineitem", marks=pytest.mark.slow)])
def test_a_streaming_join_equals_sparks_own(
    spark: SparkSession, tpch: Path, warehouse: Path, tmp_path: Path, name: str
) -> None:
    master, mine, theirs = JOINS[name]
    stream, data = spark.read.parquet(str(tpch / name)), spark.read.parquet(str(tpch / master))
    some = data.where(f"{theirs} % 3 > 0")
    table = mr.MasterTable.build(some, theirs, warehouse)
    files = spark.readStream.schema(stream.schema).option("maxFilesPerTrigger", 1).parquet(str(tpch / name))
    done = run_query(mr.enrich(files, table, (mine, theirs), how="left", memory="16m"), tmp_path)
    assert done.batches == 4
    assert _digest(done.rows) == _digest(spark_join(stream, some, (mine, theirs), "left"))
    reports = mr.reports(done.query)
    assert sum(report.rows_in for report in reports) == stream.count()
    assert sum(report.matched for report in reports) == spark_join(stream, some, (mine, theirs), "semi").count()
    for report in reports:
        report.ledger.check()


@pytest.mark.slow
def test_many_rows_to_a_key(spark: SparkSession, tpch: Path, warehouse: Path) -> None:
    """The other way round: each customer meets all of its orders, each part all of its lines."""
    for name, (master, mine, theirs) in JOINS.items():
        stream, data = spark.read.parquet(str(tpch / master)), spark.read.parquet(str(tpch / name))
        table = mr.MasterTable.build(data, mine, warehouse / name)
        assert not table.latest.unique
        expected = _digest(spark_join(stream, data, (theirs, mine), "left"))
        assert _digest(mr.enrich(stream, table, (theirs, mine), how="left", memory="16m")) == expected
