"""Bad input: a clear error that says what to do, before anything is written; a damaged page is never a missing row."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from tests.relations.stored_tables import flip_bit
from tests.spark.running import frame, read_stream, run_query, same_rows, spark_join, wait_until, write_files
from tests.spark.tables import built_table

import millrace as mr
from millrace.catalog import ALGORITHMS
from millrace.core.errors import (
    BudgetError,
    DamagedTableError,
    MillraceError,
    ParameterError,
    SchemaError,
    StrategyError,
    TableError,
    TableVersionError,
)
from millrace.relations.build import build_table

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]

COUNT = 4000
PRODUCTS = pa.table({"id": pa.array(range(COUNT), pa.int64()), "name": [f"product {n}" for n in range(COUNT)]})
IDS = [n * 37 % (COUNT + 500) for n in range(300)]
KNOWN = sum(key < COUNT for key in IDS)
SALES = pa.table({"sale": range(300), "id": pa.array(IDS, pa.int64())})


@pytest.fixture
def products(warehouse: Path) -> mr.MasterTable:
    return built_table(warehouse, PRODUCTS, shards=2)


def _files(path: Path) -> set[str]:
    return {str(one.relative_to(path)) for one in path.rglob("*") if one.is_file()}


def test_wrong_arguments_of_enrich_are_named(spark: SparkSession, products: mr.MasterTable, tmp_path: Path) -> None:
    stream = frame(spark, SALES)
    cases: list[tuple[dict[str, Any], type[MillraceError], str]] = [
        ({"on": "nope"}, SchemaError, "the stream has no column 'nope'; it has sale, id"),
        ({"on": "sale"}, SchemaError, r"\(id\); got sale -> sale: write on=\('sale', 'id'\)"),
        ({"on": {}}, ParameterError, "on must be a column"),
        ({"on": F.col("id")}, ParameterError, "on takes names of columns, not Column objects.*write on='name'"),
        ({"on": [("id", F.col("id"))]}, ParameterError, "on must be a column"),
        ({"on": mr.near(3, "id", 1)}, SchemaError, "columns of the stream are given by name; got 3; it has sale, id"),  # type: ignore[arg-type]
        ({"on": ("nope", "id")}, SchemaError, "the stream has no column 'nope'; it has sale, id"),
        ({"on": ("id", "nope")}, SchemaError, r"key column of the table \(id\); got id -> nope"),
        ({"on": ("id", "name")}, SchemaError, r"key column of the table \(id\); got id -> name"),
        ({"on": ["id", "sale"]}, SchemaError, r"key column of the table \(id\)"),
        ({"on": []}, ParameterError, "on must be a column"),
        ({"on": None}, ParameterError, "on must be a column"),
        ({"on": 7}, ParameterError, "on must be a column"),
        ({"on": [7]}, MillraceError, "on must be a column"),
        ({"on": [("id", "id", "id")]}, ParameterError, "on must be a column"),
        ({"on": "id", "how": "outer"}, ParameterError, "how must be one of inner, left, semi, anti; got 'outer'"),
        ({"on": "id", "how": None}, ParameterError, "how must be one of inner, left, semi, anti; got None"),
        ({"on": "id", "how": ["left"]}, ParameterError, r"how must be one of inner, left, semi, anti; got \['left'\]"),
        ({"on": "id", "strategy": "hash"}, StrategyError, "no strategy 'hash'; choose one of auto, .*sweepjoin"),
        ({"on": "id", "strategy": "ssij"}, StrategyError, "'ssij' does not run on Spark; choose one of auto, .*, broadcast$"),
        ({"on": "id", "strategy": None}, StrategyError, "no strategy None; choose one of auto"),
        ({"on": "id", "strategy": []}, StrategyError, r"no strategy \[\]; choose one of auto"),
        ({"on": "id", "ordered": "yes"}, ParameterError, "ordered must be True or False; got 'yes'"),
        ({"on": "id", "name": 7}, ParameterError, "name must be a text, for the reports; got 7"),
        ({"on": "id", "name": ""}, ParameterError, "name must be a text, for the reports; got ''"),
        ({"on": "id", "observation": "counts"}, ParameterError, "observation must be an Observation.*got 'counts'"),
        ({"on": "id", "read": "fast"}, ParameterError, "read must be one of auto.*got 'fast'"),
        ({"on": "id", "memory": "much"}, ParameterError, "can't read 'much' as a size"),
        ({"on": "id", "memory": 0}, ParameterError, "more than zero"),
        ({"on": "id", "memory": -5}, ParameterError, "more than zero"),
        ({"on": "id", "memory": "0"}, ParameterError, "memory: a size must be more than zero bytes; got '0'"),
        ({"on": "id", "memory": "-1m"}, ParameterError, "memory: can't read '-1m' as a size"),
        ({"on": "id", "memory": "12 parsecs"}, ParameterError, "memory: can't read '12 parsecs' as a size; write a number"),
        ({"on": "id", "memory": "9" * 400}, ParameterError, "memory: no machine has so much"),
        ({"on": "id", "memory": True}, ParameterError, "memory: a size is a number of bytes.*got True"),
        ({"on": "id", "partitions": 0}, ParameterError, "partitions must be at least 1; got 0"),
        ({"on": "id", "partitions": 1 << 40}, ParameterError, "partitions must be at most 2147483647; got 1099511627776"),
        ({"on": "id", "partitions": "x"}, ParameterError, "partitions must be a whole number; got 'x'"),
        ({"on": "id", "partitions": 2.0}, ParameterError, "partitions must be a whole number; got 2.0"),
        ({"on": "id", "partitions": True}, ParameterError, "partitions must be a whole number; got True"),
        ({"on": "id", "columns": ["price"]}, SchemaError, "the table has no column 'price'; it has id, name"),
        ({"on": "id", "columns": {"n": "name"}}, SchemaError, "no column 'n'; it has id, name; a dict goes from table"),
        ({"on": "id", "columns": "name"}, ParameterError, r"write \['name'\]"),
        ({"on": "id", "columns": "*"}, ParameterError, "leave columns= out"),
        ({"on": "id", "columns": 7}, ParameterError, "columns must be a list of names, or a dict.*; got 7"),
        ({"on": "id", "columns": {"name"}}, ParameterError, "columns must be a list of names, or a dict.*; got {'name'}"),
        ({"on": "id", "columns": b"name"}, ParameterError, "columns must be a list of names"),
        ({"on": "id", "columns": [7]}, ParameterError, "columns are given by name.*; got 7"),
        ({"on": "id", "columns": [F.col("name")]}, ParameterError, "columns are given by name.*; got Column"),
        ({"on": "id", "columns": {"name": None}}, ParameterError, "columns are given by name.*; got None"),
        ({"on": "id", "how": "semi", "columns": ["name"]}, ParameterError, "a semi join puts out stream columns only"),
        ({"on": "id", "how": "anti", "columns": {"name": "n"}}, ParameterError, "an? anti join puts out stream columns only"),
    ]  # fmt: skip
    for options, error, words in cases:
        with pytest.raises(error, match=words):
            mr.enrich(stream, products, **options)
    lake = mr.ParquetTable(write_files(PRODUCTS.slice(0, 10), tmp_path / "lake", 1))
    with pytest.raises(ParameterError, match=r"read must be one of auto.*got 'fast'"):
        mr.enrich(stream, lake, "id", read="fast")
    pairs = pa.table({"id": [1], "sale": [2], "name": ["x"]})
    build_table(tmp_path / "pairs", pairs, ["id", "sale"])
    with pytest.raises(SchemaError, match=r"two columns of both sides are a list, \['id', 'sale'\]"):
        mr.enrich(stream, mr.MasterTable.open(tmp_path / "pairs"), ("id", "sale"))


def test_what_is_no_stream_or_no_table_is_told_the_way_to_one(spark: SparkSession, products: mr.MasterTable) -> None:
    stream = frame(spark, SALES)
    cases: list[tuple[Any, str]] = [
        (None, "got NoneType"),
        (SALES.to_pandas(), r"got pandas.DataFrame: make one with spark.createDataFrame\(stream\)"),
        (SALES, r"got pyarrow.Table: make one with spark.createDataFrame\(stream\)"),
        (stream.rdd, r"got RDD: give stream.toDF\(\)"),
        ("sales.parquet", r"got str: read it first, for instance spark.read.parquet\('sales.parquet'\)"),
        (Path("sales"), r"got PosixPath: read it first"),
        (stream.groupBy("id"), "got GroupedData: grouped rows make one"),
        (spark.readStream, "got DataStreamReader: a reader makes one"),
        (products, "got MasterTable: the stream comes first, then the table"),
    ]
    for wrong, words in cases:
        with pytest.raises(ParameterError, match=f"the stream must be a Spark DataFrame; {words}"):
            mr.enrich(wrong, products, "id")
    with pytest.raises(ParameterError, match=r"the data must be a Spark DataFrame; got pandas.DataFrame"):
        mr.MasterTable.build(SALES.to_pandas(), "id", "nowhere")
    tables: list[tuple[Any, str]] = [
        ("w/p", r"got str: write mr.MasterTable.open\('w/p'\), or mr.ParquetTable\('w/p'\) for Parquet files"),
        (Path("w/p"), r"got PosixPath: write mr.MasterTable.open\('w/p'\)"),
        (stream, r"got DataFrame: build a table from it once, with mr.MasterTable.build\(frame, key, path\)"),
        (SALES.to_pandas(), "got pandas.DataFrame: make one with mr.MasterTable.build"),
        (None, "got NoneType: make one with mr.MasterTable.build"),
        (mr.MasterTable, "got the class MasterTable"),
    ]
    for wrong, words in tables:
        with pytest.raises(ParameterError, match=f"must be a MasterTable or a ParquetTable; {words}"):
            mr.enrich(stream, wrong, "id")


def test_sparks_own_names_of_the_joins_serve_too(spark: SparkSession, products: mr.MasterTable) -> None:
    stream = frame(spark, SALES)
    for name in ("LEFT", "left_outer", "leftouter", "Inner", "left_semi", "LeftSemi", "left_anti", "LEFTANTI"):
        ours = mr.enrich(stream, products, "id", how=name)
        assert ours.count() == stream.join(frame(spark, PRODUCTS), "id", name.lower()).count()
    for name in ("outer", "full", "right", "cross"):
        with pytest.raises(ParameterError, match=f"how must be one of inner, left, semi, anti; got '{name}'"):
            mr.enrich(stream, products, "id", how=name)


def test_an_observation_that_can_not_count_is_refused_at_the_call(
    spark: SparkSession, products: mr.MasterTable, tmp_path: Path
) -> None:
    stream = read_stream(spark, write_files(SALES, tmp_path / "source", 1))
    with pytest.raises(ParameterError, match=r"for a stream, leave it out and use mr.reports\(query\)"):
        mr.enrich(stream, products, "id", observation=Observation("counts"))
    used = Observation("counts")
    mr.enrich(frame(spark, SALES), products, "id", observation=used)
    with pytest.raises(ParameterError, match="make a new Observation for each call"):
        mr.enrich(frame(spark, SALES), products, "id", observation=used)


@pytest.mark.parametrize("empty", ["array()", "map()", "array(array())", "named_struct('a', array())"])
def test_lists_of_no_type_stay_in_spark_or_are_refused_with_the_cast_to_use(
    spark: SparkSession, products: mr.MasterTable, warehouse: Path, empty: str
) -> None:
    stream = frame(spark, SALES).selectExpr("*", f"{empty} AS e")
    assert mr.enrich(stream, products, "id").select("e").count() == KNOWN  # only the key goes to Python
    build_table(warehouse / "many", pa.concat_tables([PRODUCTS.slice(0, 10)] * 20), "id")
    with pytest.raises(SchemaError, match=r"column 'e' of type .*void.* can't go through Arrow.*such as .*<string"):
        mr.enrich(stream, mr.MasterTable.open(warehouse / "many"), "id")
    with pytest.raises(SchemaError, match=r"column 'e' of type .*void"):
        mr.MasterTable.build(stream, "id", warehouse / "t")
    assert not (warehouse / "t").exists()


@pytest.mark.parametrize("kind", ["string", "double", "boolean", "date", "timestamp", "decimal(10,2)", "binary"])
def test_a_key_of_another_type_is_refused_with_the_cast_to_use(
    spark: SparkSession, products: mr.MasterTable, kind: str
) -> None:
    stream = frame(spark, SALES).select(F.lit(None).cast(kind).alias("id"))
    with pytest.raises(SchemaError, match=r"column 'id' is .* and the table's key is int64.*give both the same type"):
        mr.enrich(stream, products, "id")


@pytest.mark.parametrize("kind", ["array<int>", "struct<a:int>", "map<string,int>", "variant", "void"])
def test_a_type_that_can_be_no_key_is_refused_on_both_sides(
    spark: SparkSession, products: mr.MasterTable, warehouse: Path, kind: str
) -> None:
    odd = spark.range(3).select(F.expr(f"cast(null as {kind})").alias("id"), F.lit(1).alias("v"))
    with pytest.raises(SchemaError, match=r"id|key"):
        mr.enrich(odd, products, "id")
    with pytest.raises(SchemaError, match=r"id|key"):
        mr.MasterTable.build(odd, "id", warehouse / "odd")
    assert not (warehouse / "odd").exists()


def test_collated_strings_can_be_no_key(spark: SparkSession, warehouse: Path) -> None:
    names = spark.sql("select 'a' collate UTF8_LCASE as k, 1 as v")
    with pytest.raises(SchemaError, match="collation UTF8_LCASE"):
        mr.MasterTable.build(names, "k", warehouse / "t")
    assert not (warehouse / "t").exists()
    table = mr.MasterTable.build(spark.sql("select 'a' as k, 1 as v"), "k", warehouse / "plain", shards=1)
    with pytest.raises(SchemaError, match="collation UTF8_LCASE"):
        mr.enrich(names.select("k"), table, "k")


def test_wrong_arguments_of_build_write_nothing(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    data = frame(spark, PRODUCTS.slice(0, 10))
    stream = read_stream(spark, write_files(PRODUCTS.slice(0, 10), tmp_path / "source", 1))
    cases: list[tuple[Any, dict[str, Any], type[MillraceError], str]] = [
        (data, {"key": "nope"}, SchemaError, "the table has no column 'nope'; it has id, name"),
        (data, {"key": []}, ParameterError, "at least one column"),
        (data, {"key": ["id", "nope"]}, SchemaError, "no column 'nope'"),
        (data, {"key": "id", "layout": "sorted"}, ParameterError, "layout must be one of"),
        (data, {"key": "name", "layout": "key"}, ParameterError, "use layout='hash'"),
        (data, {"key": "id", "page_bytes": 10}, ParameterError, "page_bytes must be at least 4096"),
        (data, {"key": "id", "shards": 0}, ParameterError, "shards must be at least 1; got 0"),
        (stream, {"key": "id"}, ParameterError, "this one is streaming"),
        (data.select("id", "name", "name"), {"key": "id"}, SchemaError, "name"),
        (data.withColumn("__millrace_code", F.lit(1)), {"key": "id"}, SchemaError, "__millrace_code"),
        (data.withColumn("m", F.expr("interval '1' month")), {"key": "id"}, SchemaError, "'m' of type interval"),
    ]
    for frame_, options, error, words in cases:
        with pytest.raises(error, match=words):
            mr.MasterTable.build(frame_, path=warehouse / "t", **options)
        assert not warehouse.exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(TableError, match="is a file"):
        mr.MasterTable.build(data, "id", tmp_path / "file")
    with pytest.raises(TableError, match="can't be written"):
        mr.MasterTable.build(data, "id", tmp_path / "file" / "below")


def test_columns_that_a_table_can_not_keep_are_named_before_anything_runs(spark: SparkSession, warehouse: Path) -> None:
    points = spark.createDataFrame([(1, Vectors.dense(2.0))], ["id", "x"])
    ids = spark.range(3)
    cases: list[tuple[DataFrame, str]] = [
        (points, "column 'x' has the user-defined type VectorUDT"),
        (points.select("id", F.array("x").alias("x")), "column 'x' has the user-defined type VectorUDT"),
        (ids.selectExpr("id", "array() AS x"), "column 'x' of type array<void> can't go through Arrow"),
        (ids.selectExpr("id", "map('a', array()) AS x"), "column 'x' of type map<string,array<void>>"),
        (ids.selectExpr("id", "interval '1' month AS x"), "column 'x' of type interval month"),
        (ids.selectExpr("id", "array(struct(1 AS a, 2 AS a)) AS x"), r"column 'x' holds a struct with two fields .*a, a"),
        (ids.selectExpr("id", "id AS x", "id AS X"), "columns 'x' and 'X' differ only in upper and lower case"),
    ]
    for data, words in cases:
        with pytest.raises(SchemaError, match=words):
            mr.MasterTable.build(data, "id", warehouse / "t")
    assert not warehouse.exists()


def test_columns_of_any_other_type_come_back_as_they_were(spark: SparkSession, warehouse: Path) -> None:
    odd = [
        "null",
        "parse_json('[1]')",
        "array(null)",
        "map(1, 2)",
        "named_struct()",
        "struct(1 AS a, 2 AS A)",
        "time'12:00:00'",
    ]
    data = spark.range(3).select("id", *[F.expr(text).alias(f"x{n}") for n, text in enumerate(odd)])
    table = mr.MasterTable.build(data, "id", warehouse, shards=1)
    ours, theirs = mr.enrich(spark.range(4), table, "id"), spark.range(4).join(data, "id")
    assert [field.dataType.simpleString() for field in ours.schema] == [
        field.dataType.simpleString() for field in theirs.schema
    ]
    assert sorted(map(str, ours.collect())) == sorted(map(str, theirs.collect()))


def test_a_padded_key_is_refused_since_spark_compares_it_without_its_blanks(
    spark: SparkSession, warehouse: Path, tmp_path: Path
) -> None:
    spark.sql(f"CREATE TABLE padded (id LONG, c CHAR(5), v VARCHAR(5)) USING parquet LOCATION '{tmp_path / 'padded'}'")
    try:
        spark.sql("INSERT INTO padded VALUES (1, 'ab', 'cd')")
        data = spark.table("padded")
        with pytest.raises(SchemaError, match=r"key column 'c' is CHAR, which Spark pads.*rtrim"):
            mr.MasterTable.build(data, "c", warehouse)
        table = mr.MasterTable.build(data.withColumn("c", F.rtrim("c")), "c", warehouse, shards=1)
        assert mr.enrich(spark.sql("SELECT 'ab' AS c"), table, "c").count() == 1
    finally:
        spark.sql("DROP TABLE padded")


def test_what_a_newcomer_may_give_instead_is_told_what_to_give(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    data = frame(spark, PRODUCTS.slice(0, 10))
    nested = data.select(F.struct("id").alias("s"), "name")
    here = str(warehouse)
    cases: list[tuple[Any, Any, Any, dict[str, Any], type[MillraceError], str]] = [
        (PRODUCTS, "id", here, {}, ParameterError, r"data must be a Spark DataFrame; got pyarrow\.Table.*createDataFrame"),
        (data.toPandas(), "id", here, {}, ParameterError, r"data must be a Spark DataFrame; got pandas\.DataFrame"),
        ("products.parquet", "id", here, {}, ParameterError, r"got str: read it first, for instance spark\.read\.parquet"),
        (None, "id", here, {}, ParameterError, "data must be a Spark DataFrame"),
        (data, None, here, {}, ParameterError, "key must be the name of a column or a list of names.*got NoneType"),
        (data, F.col("id"), here, {}, ParameterError, "key must be the name of a column"),
        (data, [F.col("id")], here, {}, ParameterError, "key must be the name of a column"),
        (data, ["id", "id"], here, {}, ParameterError, "key names column 'id' more than once"),
        (data, ["id", "ID"], here, {}, ParameterError, "key names column 'id' more than once"),
        (data, "id,name", here, {}, SchemaError, r"give a list: key=\['id', 'name'\]"),
        (nested, "s.id", here, {}, SchemaError, r"can't lie inside a struct.*withColumn\('key', col\('s.id'\)\)"),
        (nested, "s", here, {}, SchemaError, "column 's' can't be the key"),
        (data, "id", None, {}, ParameterError, "path must be the folder of a table"),
        (data, "id", "", {}, ParameterError, "path must be the folder of a table"),
        (data, "id", 5, {}, ParameterError, "path must be the folder of a table"),
        (data, "id", here, {"shards": "8"}, ParameterError, "shards must be a whole number; got '8'"),
        (data, "id", here, {"shards": 2.0}, ParameterError, "shards must be a whole number"),
        (data, "id", here, {"page_bytes": "big"}, ParameterError, "can't read 'big' as a size"),
        (data, "id", here, {"page_bytes": "1g"}, ParameterError, "page_bytes must be at most"),
        (data, "id", here, {"layout": "frequency", "counts": PRODUCTS}, ParameterError, "counts must be a Spark DataFrame"),
    ]
    for frame_, key, path, options, error, words in cases:
        with pytest.raises(error, match=words):
            mr.MasterTable.build(frame_, key, path, **options)
        assert not warehouse.exists()
    data.write.parquet(str(tmp_path / "files"))
    with pytest.raises(TableError, match=r"files holds something else, such as .*give a folder of its own"):
        mr.MasterTable.build(data, "id", tmp_path / "files")
    with pytest.raises(TableError, match=r"is not a millrace table \(no manifest.json\) but a folder of Parquet files"):
        mr.MasterTable.open(tmp_path / "files")


def test_a_build_that_fails_does_not_leave_the_folder_it_made(spark: SparkSession, warehouse: Path) -> None:
    data = spark.range(10).withColumn("x", F.expr("assert_true(id < 5)"))
    with pytest.raises(TableError, match="could not be built"):
        mr.MasterTable.build(data, "id", warehouse / "new", shards=1)
    assert not (warehouse / "new").exists()
    (warehouse / "mine").mkdir(parents=True)
    with pytest.raises(TableError, match="could not be built"):
        mr.MasterTable.build(data, "id", warehouse / "mine", shards=1)
    assert (warehouse / "mine").is_dir()


@pytest.mark.parametrize(
    ("strategy", "read"),
    [
        ("sweepjoin", "mmap"),
        ("sweepjoin", "buffered"),
        ("meshjoin", "buffered"),
        *(
            pytest.param(row.name, "buffered", marks=pytest.mark.slow)
            for row in ALGORITHMS
            if "spark" in row.hosts and row.name not in ("sweepjoin", "meshjoin")
        ),
    ],
)
def test_a_budget_that_is_too_small_says_how_much_would_do_and_that_does(
    spark: SparkSession, warehouse: Path, strategy: str, read: str
) -> None:
    stream = frame(spark, SALES)
    for copies, how in ((1, "left"), (3, "inner"), (20, "left"), (1, "anti")):
        path = warehouse / str(copies)
        if not path.exists():
            build_table(path, pa.concat_tables([PRODUCTS] * copies), "id", shards=2)
        table = mr.MasterTable.open(path)
        for memory in (1, 4096, 100_000, 400_000):
            options: dict[str, Any] = {"how": how, "strategy": strategy, "read": read}
            needed = _needed(stream, table, memory, options)
            if needed is not None:
                assert needed > memory
                enough = mr.enrich(stream, table, "id", memory=needed, **options)
                if memory == 4096:
                    difference = same_rows(enough, mr.enrich(stream, table, "id", **options))
                    assert difference, difference


def _needed(stream: DataFrame, table: mr.MasterTable, memory: int, options: dict[str, Any]) -> int | None:
    """What the error says that it needs; None where there is no error."""
    try:
        mr.enrich(stream, table, "id", memory=memory, **options)
    except BudgetError as small:
        return small.needed_bytes if f"memory={small.needed_bytes}" in str(small) else -1
    return None


def test_a_limit_on_address_space_means_direct_reads(products: mr.MasterTable, monkeypatch: pytest.MonkeyPatch) -> None:
    from millrace.spark import registry

    assert registry.read_choice(products.latest, "auto", workers_here=True) == ("mmap", "direct")
    limit = products.latest.bytes
    monkeypatch.setattr(registry.resource, "getrlimit", lambda _: (limit, limit))
    assert registry.read_choice(products.latest, "auto", workers_here=True) == ("direct", None)
    assert registry.read_choice(products.latest, "auto", workers_here=False) == ("mmap", "direct")
    assert registry.read_choice(products.latest, "mmap", workers_here=True) == ("mmap", None)


def test_a_folder_that_is_no_table_is_told_apart(warehouse: Path, tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"there is no table at .*MasterTable\.build"):
        mr.MasterTable.open(warehouse)
    warehouse.mkdir()
    with pytest.raises(TableError, match="is not a millrace table"):
        mr.MasterTable.open(warehouse)
    (warehouse / "v000001").mkdir()
    with pytest.raises(TableError, match="never finished"):
        mr.MasterTable.open(warehouse)


def test_a_table_that_is_damaged_or_too_new_is_not_opened_and_not_built_over(
    spark: SparkSession, products: mr.MasterTable, warehouse: Path
) -> None:
    manifest, version = warehouse / "manifest.json", warehouse / "v000001"
    shard = sorted(version.glob("shard-*"))[0]
    for path, error, change in (
        (manifest, DamagedTableError, lambda data: data[:50]),
        (manifest, DamagedTableError, lambda data: data.replace(b'"rows": 4000', b'"rows": 4001')),
        (manifest, TableVersionError, lambda data: json.dumps(json.loads(data) | {"format": 99}).encode()),
        (version / "index.arrow", DamagedTableError, lambda data: data[:-10]),
        (version / "index.arrow", DamagedTableError, lambda data: data[:500] + b"?" + data[501:]),
        (shard, DamagedTableError, lambda data: data[:-4096]),
        (shard, DamagedTableError, lambda data: b""),
    ):
        data = path.read_bytes()
        path.write_bytes(change(data))
        with pytest.raises(error, match=path.name):
            mr.MasterTable.open(warehouse)
        if path == manifest:
            with pytest.raises(error, match=path.name):
                mr.MasterTable.build(frame(spark, PRODUCTS.slice(0, 3)), "id", warehouse, shards=1)
        path.write_bytes(data)
    for path in (version / "index.arrow", shard):
        path.rename(warehouse / "aside")
        with pytest.raises(TableError, match=f"{path.name} is missing"):
            mr.MasterTable.open(warehouse)
        (warehouse / "aside").rename(path)
    assert mr.enrich(frame(spark, SALES), mr.MasterTable.open(warehouse), "id").count() == KNOWN


@pytest.mark.parametrize(
    ("copies", "how", "read"),
    [(1, "left", "mmap"), (1, "left", "direct"), (1, "left", "buffered"), (1, "anti", "mmap"), (3, "inner", "mmap"),
     (20, "left", "mmap"), (20, "left", "direct")],
)  # fmt: skip
def test_a_damaged_page_stops_a_batch_query_and_names_file_and_page(
    spark: SparkSession, warehouse: Path, read: str, how: str, copies: int
) -> None:
    table = built_table(warehouse, pa.concat_tables([PRODUCTS] * copies), shards=2)
    relation = table.relation("buffered")
    page = int(relation.locate(np.array([3700])).first[0])  # of a key that the stream has
    relation.close()
    before = table.latest.shards[0].pages
    path, place = warehouse / "v000001" / table.latest.shards[1].file, int(relation.page_index.offsets[page]) + 300
    enriched = mr.enrich(frame(spark, SALES), table, "id", how=how, read=read)
    flip_bit(path, place)
    with pytest.raises(Exception, match=rf"page {page - before} of .*{path.name} is damaged"):
        enriched.collect()
    flip_bit(path, place)
    assert enriched.count() > 0


@pytest.mark.parametrize("read", ["mmap", "direct", "buffered"])
def test_a_damaged_page_stops_a_running_query_and_no_row_is_lost(
    spark: SparkSession, products: mr.MasterTable, warehouse: Path, tmp_path: Path, read: str
) -> None:
    half = COUNT // 2  # the first batch needs the first shard only, the second the second
    ids = [*range(0, half, 10), *range(half, COUNT, 10)]
    source = write_files(pa.table({"id": pa.array(ids, pa.int64())}), tmp_path / "source", 2)
    path = warehouse / "v000001" / products.latest.shards[1].file
    flip_bit(path, 4096 * 3 + 100)
    enriched = mr.enrich(read_stream(spark, source), products, "id", how="left", read=read)
    with pytest.raises(Exception, match=rf"page 3 of .*{path.name} is damaged"):
        run_query(enriched, tmp_path)
    assert [one.name for one in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")] == ["0"]
    flip_bit(path, 4096 * 3 + 100)
    done = run_query(enriched, tmp_path)
    difference = same_rows(done.rows, spark_join(frame(spark, pa.table({"id": ids})), PRODUCTS, "id", "left"))
    assert difference, difference


@pytest.mark.parametrize("read", ["mmap", "direct", "buffered"])
def test_a_shard_that_is_cut_under_a_running_query_is_an_error_and_not_a_miss(
    spark: SparkSession, warehouse: Path, read: str
) -> None:
    table = built_table(warehouse, PRODUCTS)
    few = mr.enrich(frame(spark, pa.table({"id": [1, 2]})), table, "id", how="left", read=read)
    assert few.count() == 2  # the workers hold the table open now
    path = warehouse / "v000001" / table.latest.shards[0].file
    whole = path.read_bytes()
    many = mr.enrich(frame(spark, SALES), table, "id", how="left", read=read)
    os.truncate(path, 8192)
    with pytest.raises(Exception, match=rf"{path.name}|crashed|exited unexpectedly"):
        many.collect()
    path.write_bytes(whole)


def test_a_task_that_fails_while_building_leaves_no_trace(
    spark: SparkSession, products: mr.MasterTable, warehouse: Path
) -> None:
    before = _files(warehouse)

    @F.udf("string")
    def broken(key: int) -> str:
        if key == 3500:
            raise ValueError("a bad row")
        return str(key)

    data = frame(spark, PRODUCTS).withColumn("extra", broken("id"))
    with pytest.raises(TableError, match=r"could not be built and stays as it was.*a bad row"):
        mr.MasterTable.build(data, "id", warehouse, shards=2)
    assert _files(warehouse) == before
    assert not list(warehouse.glob("v000002*"))
    assert mr.enrich(frame(spark, SALES), mr.MasterTable.open(warehouse), "id").count() == KNOWN


def test_a_build_that_is_cancelled_leaves_no_trace(
    spark: SparkSession, products: mr.MasterTable, warehouse: Path, tmp_path: Path
) -> None:
    before = _files(warehouse)
    started = tmp_path / "started"
    mark = str(started)

    @F.udf("long")
    def slow(key: int) -> int:
        import time
        from pathlib import Path

        if key == 1:
            Path(mark).touch()
            time.sleep(20)
        return key

    def cancel() -> None:
        wait_until(started.exists, what="the build to start")
        spark.sparkContext.cancelAllJobs()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    data = frame(spark, PRODUCTS).where("id >= 0").withColumn("id", slow("id"))
    with pytest.raises(TableError, match="could not be built and stays as it was"):
        mr.MasterTable.build(data, "id", warehouse, shards=2)
    canceller.join()
    assert _files(warehouse) == before
    assert not list(warehouse.glob("v000002*"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def test_a_full_disk_leaves_the_old_version_in_use(spark: SparkSession, small_disk: Path) -> None:
    table = mr.MasterTable.build(frame(spark, PRODUCTS), "id", small_disk / "t", shards=2)
    before = _files(small_disk)
    noise = pa.array([np.random.default_rng(n).bytes(400).hex() for n in range(COUNT * 2)])
    big = frame(spark, pa.table({"id": range(COUNT * 2), "name": noise}))
    with pytest.raises(TableError, match=r"the disk is full: .*stays as it was; free some space"):
        mr.MasterTable.build(big, "id", small_disk / "t", shards=2)
    assert _files(small_disk) == before
    assert [version.number for version in mr.MasterTable.open(small_disk / "t").versions] == [1]
    assert mr.enrich(frame(spark, SALES), table, "id", read="buffered").count() == KNOWN


def test_a_disk_that_is_full_at_the_very_end_leaves_the_old_version_in_use(spark: SparkSession, small_disk: Path) -> None:
    mr.MasterTable.build(frame(spark, PRODUCTS), "id", small_disk / "t", shards=1)
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    before = _files(small_disk)
    pages = sum(shard.bytes for shard in mr.MasterTable.open(small_disk / "t").latest.shards)
    (small_disk / "ballast").write_bytes(b"x" * (free - pages - 4096))  # room for the shard, not for the index
    with pytest.raises(TableError, match="the disk is full"):
        mr.MasterTable.build(frame(spark, PRODUCTS), "id", small_disk / "t", shards=1)
    (small_disk / "ballast").unlink()
    assert _files(small_disk) == before
    assert [version.number for version in mr.MasterTable.open(small_disk / "t").versions] == [1]


def test_how_may_stand_third_as_in_spark_and_small_numbers_are_no_megabytes(spark: SparkSession, warehouse: Path) -> None:
    table = mr.MasterTable.build(frame(spark, PRODUCTS.slice(0, 10)), "id", warehouse / "t")
    stream = spark.range(20)
    assert mr.enrich(stream, table, "id", "anti").count() == mr.enrich(stream, table, "id", how="anti").count()
    with pytest.raises(BudgetError, match=r"64 B is too small for this join; .*memory=64 means bytes: write memory='64m'"):
        mr.enrich(spark.range(3), table, "id", memory=64)
    with pytest.raises(ParameterError, match=r"how must be one of .*got 'right'.*never match shows only when a stream"):
        mr.enrich(spark.range(3), table, "id", "right")
