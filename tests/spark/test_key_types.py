"""Batch `enrich` equals Spark's own join, for every key type, every `how`, unique and duplicate keys, both layouts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.keytypes import KINDS, stream_rows, table_rows
from tests.spark.running import every_how, frame, same_rows, spark_join, stream_through
from tests.spark.tables import built_table

import millrace as mr
from millrace.catalog import ALGORITHMS

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]

VALUES = ["v", "w", "x"]


def _expected(stream: DataFrame, table: DataFrame, keys: list[str]) -> DataFrame:
    return every_how(lambda how: spark_join(stream, table, keys, how), VALUES)


def _enriched(stream: DataFrame, table: mr.MasterTable, keys: list[str], **options: object) -> DataFrame:
    return every_how(lambda how: mr.enrich(stream, table, keys, how=how, memory="16m", **options), VALUES)  # type: ignore[arg-type]


CASES = [(name, unique) for name in KINDS for unique in (True, False) if not (unique and " for " in name)]
QUICK = ("long", "double", "date", "string", "decimal(38,10)", "int+string")  # also without duplicates


@pytest.mark.parametrize(
    ("name", "unique"),
    [
        pytest.param(
            name,
            unique,
            id=f"{name}-{'unique' if unique else 'duplicates'}",
            marks=[pytest.mark.slow] if unique and name not in QUICK else [],
        )
        for name, unique in CASES
    ],
)
def test_every_how_equals_sparks_own_join(spark: SparkSession, warehouse: Path, name: str, unique: bool) -> None:
    kind = KINDS[name]
    rows = table_rows(kind, unique=unique)
    stream = frame(spark, stream_rows(kind))
    data = frame(spark, rows)
    built = mr.MasterTable.build(data, kind.names, warehouse / "spark", page_bytes=4096, shards=3)
    assert built.latest.unique is unique
    assert (built.latest.rows, built.latest.null_keys) == (rows.num_rows - len(kind.names), len(kind.names))
    expected = _expected(stream, data, kind.names).toArrow()
    difference = same_rows(_enriched(stream, built, kind.names), expected)
    assert difference, difference
    hashed = built_table(warehouse / "hashed", rows, kind.names, layout="hash", shards=2)
    difference = same_rows(_enriched(stream, hashed, kind.names), expected)
    assert difference, difference


@pytest.mark.parametrize("unique", [True, False], ids=["unique", "duplicates"])
@pytest.mark.parametrize("name", ["long", "string", "int+string", "double"])
def test_a_streaming_query_equals_sparks_own_join(
    spark: SparkSession, warehouse: Path, tmp_path: Path, name: str, unique: bool
) -> None:
    kind = KINDS[name]
    rows, sales = table_rows(kind, unique=unique), stream_rows(kind)
    table = built_table(warehouse, rows, kind.names, shards=2)
    done = stream_through(spark, sales, lambda stream: _enriched(stream, table, kind.names), tmp_path)
    assert done.batches == 3
    expected = _expected(frame(spark, sales), frame(spark, rows), kind.names)
    difference = same_rows(done.rows, expected)
    assert difference, difference


@pytest.mark.parametrize("strategy", [row.name for row in ALGORITHMS if "spark" in row.hosts])
@pytest.mark.parametrize("name", [pytest.param("int", marks=pytest.mark.slow), "string"])
def test_every_strategy_gives_the_same_rows(spark: SparkSession, warehouse: Path, strategy: str, name: str) -> None:
    kind = KINDS[name]
    stream = frame(spark, stream_rows(kind))
    for unique in (True, False):
        rows = table_rows(kind, unique=unique)
        table = built_table(warehouse / str(unique), rows, kind.names, shards=2)
        expected = _expected(stream, frame(spark, rows), kind.names).toArrow()
        for read in ("mmap", "buffered"):
            difference = same_rows(_enriched(stream, table, kind.names, strategy=strategy, read=read), expected)
            assert difference, difference


@pytest.mark.parametrize("read", ["mmap", "direct", "buffered", "auto"])
@pytest.mark.parametrize("unique", [True, False], ids=["unique", "duplicates"])
def test_every_way_of_reading_gives_the_same_rows(spark: SparkSession, warehouse: Path, read: str, unique: bool) -> None:
    for name in ("timestamp", "binary"):
        kind = KINDS[name]
        rows = table_rows(kind, unique=unique)
        table = built_table(warehouse / name, rows, kind.names, shards=2)
        stream = frame(spark, stream_rows(kind))
        expected = _expected(stream, frame(spark, rows), kind.names)
        difference = same_rows(_enriched(stream, table, kind.names, read=read), expected)
        assert difference, difference
