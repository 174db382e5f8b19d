"""Columns of the result: as Spark's own join gives them, whatever they are called and whatever they hold."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.spark.running import (
    every_how,
    frame,
    read_stream,
    run_query,
    same_rows,
    spark_join,
    stream_through,
    write_files,
)
from tests.spark.tables import built_table

import millrace as mr
from millrace.core.errors import SchemaError
from millrace.spark.references import Renumbered

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]

PRODUCTS = pa.table({"id": [1, 2, 3], "name": ["ax", "bolt", None], "price": [1.5, 2.5, 3.5]})
TWICE = pa.concat_tables([PRODUCTS, PRODUCTS.slice(1)])
MANY = pa.concat_tables([PRODUCTS, *[PRODUCTS.slice(1, 1)] * 20])  # more rows to a key than travel in an array
SALES = pa.table({"sale": [10, 11, 12, 13, 14], "id": [2, 9, None, 3, 2], "price": [100, 101, 102, 103, 104]})
SHAPES = {"unique": PRODUCTS, "few": TWICE, "many": MANY}


@pytest.mark.parametrize("shape", SHAPES)
def test_all_columns_come_behind_the_streams_and_a_common_key_comes_once(
    spark: SparkSession, warehouse: Path, shape: str
) -> None:
    stream, data = frame(spark, SALES), frame(spark, SHAPES[shape])
    table = built_table(warehouse, SHAPES[shape])
    for how in ("inner", "left"):
        ours = mr.enrich(stream, table, "id", how=how)
        theirs = spark_join(stream, data, "id", how)
        assert ours.columns == theirs.columns == ["sale", "id", "price", "name", "price"]
        assert [field.dataType for field in ours.schema] == [field.dataType for field in theirs.schema]
        difference = same_rows(ours, theirs)
        assert difference, difference
    for how in ("semi", "anti"):
        ours = mr.enrich(stream, table, "id", how=how)
        assert ours.schema == stream.schema
        difference = same_rows(ours, spark_join(stream, data, "id", how))
        assert difference, difference


@pytest.mark.parametrize("shape", SHAPES)
def test_ordered_rows_come_in_the_order_of_the_stream(spark: SparkSession, warehouse: Path, shape: str) -> None:
    table = built_table(warehouse, SHAPES[shape])
    ids = [None if n % 7 == 0 else (n * 5) % 5 for n in range(3000)]
    stream = frame(spark, pa.table({"sale": range(3000), "id": pa.array(ids, pa.int64())}))
    for strategy in ("auto", "meshjoin"):
        for how in ("inner", "left", "anti"):
            rows = mr.enrich(stream, table, "id", how=how, ordered=True, strategy=strategy, memory="8m")
            sales = rows.toArrow()["sale"].to_pylist()
            assert sales == sorted(sales)
            difference = same_rows(rows, mr.enrich(stream, table, "id", how=how))
            assert difference, difference


@pytest.mark.parametrize("shape", SHAPES)
def test_a_name_on_both_sides_is_resolved_through_the_stream(spark: SparkSession, warehouse: Path, shape: str) -> None:
    stream = frame(spark, SALES)
    enriched = mr.enrich(stream, built_table(warehouse, SHAPES[shape]), "id", how="inner")
    prices = {row[0] for row in enriched.select(stream["price"]).collect()}
    assert prices == {100, 103, 104}
    assert {row[0] for row in enriched.where(stream["price"] > 103).select(stream.sale).collect()} == {14}
    assert enriched.drop(stream["price"]).columns == ["sale", "id", "name", "price"]
    with pytest.raises(Exception, match="AMBIGUOUS"):
        enriched.select("price").collect()


@pytest.mark.parametrize("shape", SHAPES)
def test_an_alias_of_the_stream_still_names_its_columns(spark: SparkSession, warehouse: Path, shape: str) -> None:
    stream = frame(spark, SALES).alias("s")
    enriched = mr.enrich(stream, built_table(warehouse, SHAPES[shape]), "id", columns=["name"])
    assert {row[0] for row in enriched.select("s.price").collect()} == {100, 103, 104}


@pytest.mark.parametrize("shape", SHAPES)
def test_references_reach_through_several_calls_and_joins(spark: SparkSession, warehouse: Path, shape: str) -> None:
    stream = frame(spark, SALES).withColumn("both", F.struct("sale", "price"))
    table = built_table(warehouse, SHAPES[shape])
    once = mr.enrich(stream, table, "id", columns=["name"])
    twice = mr.enrich(once.observe("rows", F.count(F.lit(1))), table, "id", columns={"price": "list price"}, partitions=2)
    by_reference = twice.select(stream["sale"], stream["both.price"], once["name"]).where(stream["price"] > 100)
    by_name = twice.select("sale", "both.price", "name").where(F.col("price") > 100)
    difference = same_rows(by_reference, by_name)
    assert difference, difference
    assert by_name.count()
    # beside the stream itself, and beside itself
    distinct = twice.select(stream["sale"]).distinct()
    assert distinct.join(stream, distinct["sale"] == stream["sale"]).count() == distinct.count()
    assert twice.alias("a").join(twice.alias("b"), F.col("a.sale") == F.col("b.sale")).select("a.name", "b.both").count()


def test_names_serve_where_spark_lacks_what_references_take(
    spark: SparkSession, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, table = frame(spark, SALES), built_table(warehouse, SHAPES["many"])
    expected = mr.enrich(stream, table, "id")
    monkeypatch.setattr(Renumbered, "_renumber", lambda self, spark: spark.no.such.Thing())
    ours = mr.enrich(stream, table, "id")
    assert ours.columns == expected.columns
    difference = same_rows(ours, expected)
    assert difference, difference


@pytest.mark.parametrize("shape", SHAPES)
def test_columns_are_chosen_in_order_and_renamed(spark: SparkSession, warehouse: Path, shape: str) -> None:
    stream = frame(spark, SALES)
    table = built_table(warehouse, SHAPES[shape])
    chosen = mr.enrich(stream, table, "id", columns=["price", "name"], how="left")
    assert chosen.columns == ["sale", "id", "price", "price", "name"]
    names = {"price": "list price", "id": "product.id"}
    renamed = mr.enrich(stream, table, "id", columns=names, how="left")
    assert renamed.columns == ["sale", "id", "price", "list price", "product.id"]
    difference = same_rows(renamed, spark_join(stream, SHAPES[shape], "id", "left", names))
    assert difference, difference


@pytest.mark.parametrize("shape", SHAPES)
def test_a_column_that_is_asked_for_twice_comes_twice(spark: SparkSession, warehouse: Path, shape: str) -> None:
    stream, data = frame(spark, SALES.select(["sale", "id"])), frame(spark, SHAPES[shape])
    table = built_table(warehouse, SHAPES[shape])
    right = data.select("id", F.col("name").alias("a"), "price", F.col("name").alias("b"))
    theirs = stream.join(right, "id", "left").select("sale", stream["id"], "a", "price", "b")
    for columns, names in (
        (["name", "price", "name"], ["name", "price", "name"]),
        (["name", "price", "NAME"], ["name", "price", "NAME"]),
        ({"name": "a", "price": "sale", "NAME": "b"}, ["a", "sale", "b"]),
    ):
        ours = mr.enrich(stream, table, "id", how="left", columns=columns)  # type: ignore[arg-type]
        assert ours.columns == ["sale", "id", *names]
        difference = same_rows(ours.toDF(*theirs.columns), theirs)
        assert difference, difference


@pytest.mark.parametrize("shape", SHAPES)
def test_names_that_differ_in_case_only_are_told_apart_as_spark_does(spark: SparkSession, warehouse: Path, shape: str) -> None:
    rows = SHAPES[shape].rename_columns(["id", "name", "NAME"])
    table = built_table(warehouse, rows)
    plain = frame(spark, SALES.select(["id", "sale"]))
    assert mr.enrich(plain, table, "id").columns == ["id", "sale", "name", "NAME"]
    with pytest.raises(SchemaError, match="column 'Name' may be each of name, NAME"):
        mr.enrich(plain, table, "id", columns=["Name"])
    both = plain.selectExpr("id", "sale AS x", "sale + 1 AS X")
    assert all(row[1] + 1 == row[2] for row in mr.enrich(both, table, "id").collect())
    with pytest.raises(SchemaError, match="the stream has 2 columns 'X'"):
        mr.enrich(both, table, ("X", "id"))
    spark.conf.set("spark.sql.caseSensitive", "true")
    stream = plain.selectExpr("id", "id + 100 AS ID", "sale AS x", "sale + 1 AS X")
    for on, found in (("id", 3), (("ID", "id"), 0)):
        ours = mr.enrich(stream, table, on, columns={"NAME": "n", "name": "N"}, partitions=2)
        assert ours.columns == ["id", "ID", "x", "X", "n", "N"]
        matches = ours.where("n IS NOT NULL").select("x", "X", "n").distinct().collect()
        assert len(matches) == found
        assert all(row["X"] == row["x"] + 1 and isinstance(row["n"], float) for row in matches)
    with pytest.raises(SchemaError, match="no column 'Name'; it has id, name, NAME"):
        mr.enrich(stream, table, "id", columns=["Name"])


def test_names_of_parquet_files_are_found_whatever_their_case(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(PRODUCTS, tmp_path / "lake.parquet")
    lake, stream = mr.ParquetTable(tmp_path / "lake.parquet"), frame(spark, SALES.select(["id", "sale"]))
    assert mr.enrich(stream, lake, "ID", columns=["NAME"]).count() == 3
    spark.conf.set("spark.sql.caseSensitive", "true")
    with pytest.raises(SchemaError, match="no column 'ID'"):
        mr.enrich(stream, lake, ("id", "ID"))


@pytest.mark.parametrize("shape", SHAPES)
def test_no_columns_at_all_still_gives_a_row_for_every_match(spark: SparkSession, warehouse: Path, shape: str) -> None:
    stream = frame(spark, SALES)
    keys_only = SHAPES[shape].select(["id"])
    for path, rows, columns in (("all", SHAPES[shape], []), ("keys", keys_only, None)):
        for how in ("inner", "left"):
            ours = mr.enrich(stream, built_table(warehouse / path / how, rows), "id", columns=columns, how=how)
            difference = same_rows(ours, spark_join(stream, keys_only, "id", how))
            assert difference, difference


def test_a_key_of_another_name_keeps_both_columns(spark: SparkSession, warehouse: Path) -> None:
    stream = frame(spark, SALES.rename_columns(["sale", "product", "amount"]))
    table = built_table(warehouse, PRODUCTS)
    theirs = spark_join(stream, PRODUCTS, ("product", "id"), "left")
    for on in (("product", "id"), {"product": "id"}, [("product", "id")]):
        ours = mr.enrich(stream, table, on, how="left")
        assert ours.columns == theirs.columns == ["sale", "product", "amount", "id", "name", "price"]
        difference = same_rows(ours, theirs)
        assert difference, difference


def test_parts_of_a_composite_key_may_be_given_in_any_order(spark: SparkSession, warehouse: Path) -> None:
    rows = pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"], "v": [1, 2, 3]})
    stream = frame(spark, pa.table({"b": ["x", "y", "y", None], "a": [1, 1, 2, 1]}))
    table = built_table(warehouse, rows, ["a", "b"])
    theirs = spark_join(stream, rows, ["b", "a"], "left")
    for on in (["a", "b"], ["b", "a"], {"b": "b", "a": "a"}, [("b", "b"), ("a", "a")]):
        difference = same_rows(mr.enrich(stream, table, on, how="left"), theirs)
        assert difference, difference
    swapped = stream.select(F.col("a").alias("first"), F.col("b").alias("second"))
    ours = mr.enrich(swapped, table, {"second": "b", "first": "a"}, columns=["v"])
    assert sorted(ours.collect()) == [(1, "x", 1), (1, "y", 2)]


def test_names_are_found_as_spark_finds_them_whatever_their_case(spark: SparkSession, warehouse: Path) -> None:
    stream = frame(spark, SALES.select(["sale", "id"]).rename_columns(["Sale", "ID"]))
    table = built_table(warehouse, PRODUCTS)
    for on in ("id", "ID", "Id", ("ID", "id"), {"id": "ID"}):
        ours = mr.enrich(stream, table, on, columns=["NAME"])
        assert [name.lower() for name in ours.columns] == ["sale", "id", "name"]
        assert sorted(row["Sale"] for row in ours.collect()) == [10, 13, 14]
    assert [name.lower() for name in mr.enrich(stream, table, "iD").columns] == ["sale", "id", "name", "price"]


@pytest.mark.parametrize("shape", ["unique", "few", "many"])
def test_odd_names_are_taken_as_they_are(spark: SparkSession, warehouse: Path, shape: str) -> None:
    odd = ["the.key", "a `tick`", "with space", "ü/[x]"]
    rows = SHAPES[shape].append_column("x", SHAPES[shape]["price"]).rename_columns(odd)
    stream = frame(spark, pa.table({"the.key": [2, 3, 7, None], "a.b": [1, 2, 3, 4], "c `d`": [5, 6, 7, 8]}))
    data = frame(spark, rows)
    table = mr.MasterTable.build(data, "the.key", warehouse, page_bytes=4096, shards=2)
    theirs = spark_join(stream, data, "the.key", "left")
    ours = mr.enrich(stream, table, "the.key", how="left")
    assert ours.columns == theirs.columns == ["the.key", "a.b", "c `d`", *odd[1:]]
    difference = same_rows(ours, theirs)
    assert difference, difference
    picked = mr.enrich(stream, table, "the.key", columns={"a `tick`": "x.y"}, how="inner", partitions=3)
    assert picked.columns == ["the.key", "a.b", "c `d`", "x.y"]


@pytest.mark.parametrize("shape", ["unique", "few", "many"])
def test_a_stream_with_two_columns_of_one_name_keeps_both(spark: SparkSession, warehouse: Path, shape: str) -> None:
    stream = frame(spark, SALES).select("id", F.col("sale").alias("x"), F.col("price").alias("x"))
    table = built_table(warehouse, SHAPES[shape])
    for options in ({}, {"partitions": 2}):
        ours = mr.enrich(stream, table, "id", columns={"name": "__millrace"}, **options)  # type: ignore[arg-type]
        assert ours.columns == ["id", "x", "x", "__millrace"]
        difference = same_rows(ours, spark_join(stream, SHAPES[shape], "id", columns={"name": "__millrace"}))
        assert difference, difference


@pytest.mark.parametrize(
    ("shape", "name"), [*((shape, "__millrace") for shape in SHAPES), ("many", "stats"), ("unique", "c0"), ("many", "real")]
)
def test_no_name_of_the_stream_or_the_table_is_swallowed(spark: SparkSession, warehouse: Path, name: str, shape: str) -> None:
    rows = SHAPES[shape].select(["id", "name"]).rename_columns(["id", name])
    stream = frame(spark, SALES.select(["id", "sale"]).rename_columns(["id", name]))
    ours = mr.enrich(stream, built_table(warehouse, rows), "id", how="left")
    assert ours.columns == ["id", name, name]
    difference = same_rows(ours, spark_join(stream, rows, "id", "left"))
    assert difference, difference


NESTED = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int32()),
        "list": pa.array([[1, None], [], None, [3]], pa.list_(pa.int64())),
        "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}, {"a": 4, "b": ""}]),
        "map": pa.array([[("k", 1)], [], None, [("k", None), ("l", 2)]], pa.map_(pa.string(), pa.int64())),
        "deep": pa.array([[{"p": [1, 2]}], None, [None], [{"p": None}]], pa.list_(pa.struct([("p", pa.list_(pa.int32()))]))),
        "none": pa.nulls(4, pa.string()),
        "no number": pa.nulls(4, pa.int64()),
        "flag": pa.array([True, None, False, True]),
        "tiny": pa.array([1, -1, None, 127], pa.int8()),
        "short": pa.array([1, -1, None, 127], pa.int16()),
        "amount": pa.array([None, 2, 3, 4], pa.decimal128(38, 18)),
        "day": pa.array([dt.date(2024, 1, 1), None, dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
        "moment": pa.array([0, None, -1, 10**15], pa.timestamp("us", "UTC")),
        "clock": pa.array([0, None, -1, 10**15], pa.timestamp("us")),
        "span": pa.array([0, None, -1, 10**12], pa.duration("us")),
        "bytes": pa.array([b"", None, b"\xff\0", b"x" * 3000]),
        "ratio": pa.array([float("nan"), None, -0.0, float("inf")], pa.float32()),
    }
)  # fmt: skip


@pytest.mark.parametrize(("copies", "read"), [(1, "mmap"), (1, "buffered"), (3, "mmap"), (20, "buffered")])
def test_values_of_every_type_come_back_as_they_were(spark: SparkSession, warehouse: Path, copies: int, read: str) -> None:
    rows = pa.concat_tables([NESTED] * copies)
    data = frame(spark, rows)
    table = mr.MasterTable.build(data, "id", warehouse, page_bytes=4096, shards=2)
    stream = frame(spark, pa.table({"n": [1, 2, 3, 4, 5, 6], "id": pa.array([4, 2, 9, 3, None, 1], pa.int32())}))
    for how in ("inner", "left"):
        ours = mr.enrich(stream, table, "id", how=how, read=read)
        theirs = spark_join(stream, data, "id", how)
        assert [f.dataType.simpleString() for f in ours.schema] == [f.dataType.simpleString() for f in theirs.schema]
        difference = same_rows(ours, theirs)
        assert difference, difference


@pytest.mark.parametrize(("copies", "zone"), [(1, "America/New_York"), (3, "Asia/Kolkata"), (20, "America/New_York")])
def test_times_are_the_same_in_any_session_time_zone(spark: SparkSession, warehouse: Path, zone: str, copies: int) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    moments = pa.array([0, 1_711_846_800_000_000, 1_700_000_000_123_456, None], pa.timestamp("us", "UTC"))
    rows = pa.table({"k": moments, "seen": moments, "local": moments.cast(pa.timestamp("us"))})
    data = frame(spark, pa.concat_tables([rows] * copies))
    stream = frame(spark, pa.table({"k": moments, "at": moments}))
    table = mr.MasterTable.build(data, "k", warehouse, page_bytes=4096, shards=2)
    for options in ({}, {"partitions": 2}):
        ours = mr.enrich(stream, table, "k", how="left", **options)  # type: ignore[arg-type]
        difference = same_rows(ours, spark_join(stream, data, "k", "left"))
        assert difference, difference


@pytest.mark.parametrize("shape", SHAPES)
def test_wide_strings_in_arrow_make_no_difference(spark: SparkSession, warehouse: Path, shape: str) -> None:
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    rows = SHAPES[shape].append_column("k", pa.array([f"k{i}" for i in SHAPES[shape]["id"].to_pylist()]))
    data = frame(spark, rows)
    table = mr.MasterTable.build(data, "k", warehouse, page_bytes=4096, shards=2)
    stream = frame(spark, pa.table({"k": ["k1", "k2", "", None], "t": ["a", None, "", "d"]}))
    ours = mr.enrich(stream, table, "k", how="left")
    difference = same_rows(ours, spark_join(stream, data, "k", "left"))
    assert difference, difference


@pytest.mark.parametrize(
    ("shape", "rows_per_batch"), [("unique", 1), ("few", 1), ("many", 1), ("unique", 7), ("many", 7), ("few", 0)]
)
def test_the_size_of_arrow_batches_makes_no_difference(
    spark: SparkSession, warehouse: Path, rows_per_batch: int, shape: str
) -> None:
    sales = pa.table({"n": range(60), "id": [None if n % 11 == 5 else n % 5 for n in range(60)]})
    stream, data = frame(spark, sales), frame(spark, SHAPES[shape])
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(rows_per_batch))
    table = built_table(warehouse, SHAPES[shape])
    ours = every_how(lambda how: mr.enrich(stream, table, "id", how=how, memory="2m"), ["name", "price"])
    theirs = every_how(lambda how: spark_join(stream, data, "id", how), ["name", "price"])
    difference = same_rows(ours, theirs)
    assert difference, difference


@pytest.mark.parametrize("shape", ["unique", "few"])
def test_the_order_of_rows_in_a_partition_is_kept(spark: SparkSession, warehouse: Path, shape: str) -> None:
    sales = pa.table({"n": range(3000), "id": [n * 7919 % 5 for n in range(3000)]})
    stream = frame(spark, sales)
    table = built_table(warehouse, SHAPES[shape])
    for how in ("inner", "left", "semi", "anti"):
        numbers = [row["n"] for row in mr.enrich(stream, table, "id", how=how, memory="2m").collect()]
        assert numbers == sorted(numbers)
        assert numbers


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_an_empty_table_and_an_empty_stream(spark: SparkSession, warehouse: Path, how: str) -> None:
    stream, data = frame(spark, SALES), frame(spark, PRODUCTS)
    nothing = mr.MasterTable.build(data.limit(0), "id", warehouse / "empty")
    null_keys = mr.MasterTable.build(data.withColumn("id", F.lit(None).cast("long")), "id", warehouse / "nulls")
    assert (null_keys.latest.rows, null_keys.latest.null_keys) == (0, 3)
    for table, right in ((nothing, data.limit(0)), (null_keys, data.limit(0))):
        ours = mr.enrich(stream, table, "id", how=how)
        difference = same_rows(ours, spark_join(stream, right, "id", how))
        assert difference, difference
    full = built_table(warehouse / "full", PRODUCTS)
    ours = mr.enrich(stream.limit(0), full, "id", how=how)
    assert ours.count() == 0
    assert ours.columns == mr.enrich(stream, full, "id", how=how).columns


@pytest.mark.parametrize("shape", SHAPES)
def test_a_stream_whose_keys_are_all_absent_or_null(spark: SparkSession, warehouse: Path, shape: str) -> None:
    table = built_table(warehouse, SHAPES[shape])
    for keys in ([7, 8, 9], [None, None, None]):
        stream = frame(spark, pa.table({"id": pa.array(keys, pa.int64()), "n": [1, 2, 3]}))
        left = mr.enrich(stream, table, "id", how="left", columns=["name"]).collect()
        assert sorted(row["n"] for row in left) == [1, 2, 3]
        assert all(row["name"] is None for row in left)
        assert mr.enrich(stream, table, "id").count() == 0
        assert mr.enrich(stream, table, "id", how="anti").count() == 3


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shuffle_spreads_rows_without_a_key_and_changes_nothing(spark: SparkSession, warehouse: Path, shape: str) -> None:
    sales = pa.table(
        {
            "n": range(400),
            "id": pa.array([None if n % 2 else n % 6 for n in range(400)], pa.int64()),
            "tags": pa.array([[("a", n)] for n in range(400)], pa.map_(pa.string(), pa.int64())),
            "inside": pa.array([{"m": [("a", n)]} for n in range(400)], pa.struct([("m", pa.map_(pa.string(), pa.int64()))])),
        }
    )  # fmt: skip
    stream, data = frame(spark, sales), frame(spark, SHAPES[shape])
    table = built_table(warehouse, SHAPES[shape])
    for how in ("inner", "left"):
        ours = mr.enrich(stream, table, "id", how=how, partitions=4)
        theirs = spark_join(stream, data, "id", how)
        difference = same_rows(ours, theirs)
        assert difference, difference
    spread = mr.enrich(stream, table, "id", how="anti", partitions=4).where("id is null")
    sizes = [row["count"] for row in spread.groupBy(F.spark_partition_id()).count().collect()]
    assert len(sizes) == 4
    assert max(sizes) < 100


@pytest.mark.parametrize(
    "columns", [["map('a', id) AS m"], ["id AS x", "id AS x"], ["parse_json(string(id)) AS v"], ["array(map(id, id)) AS a"]]
)
def test_rows_that_spark_has_no_hash_for_are_spread_too(spark: SparkSession, warehouse: Path, columns: list[str]) -> None:
    table = built_table(warehouse, PRODUCTS)
    stream = spark.range(0, 400, 1, 1).selectExpr(*columns)
    rows = mr.enrich(stream, table, mr.expr("master.id = 1"), columns=["name"], partitions=4)
    assert rows.columns == [*stream.columns, "name"]
    sizes = [row["count"] for row in rows.groupBy(F.spark_partition_id()).count().collect()]
    assert sum(sizes) == 400
    assert len(sizes) == 4
    assert max(sizes) < 160


def test_two_tables_one_after_the_other(spark: SparkSession, warehouse: Path) -> None:
    stores = pa.table({"store": ["n", "s"], "city": ["Oslo", "Rome"]})
    stream = frame(spark, SALES.append_column("store", pa.array(["n", "s", "n", "x", None])))
    once = mr.enrich(stream, built_table(warehouse / "p", PRODUCTS), "id", columns=["name"], how="left")
    twice = mr.enrich(once, built_table(warehouse / "s", stores, "store"), "store", how="left")
    theirs = spark_join(spark_join(stream, PRODUCTS, "id", "left", ["name"]), stores, "store", "left")
    difference = same_rows(twice, theirs)
    assert difference, difference
    assert twice.select(stream["price"]).count() == 5


def test_a_result_may_be_used_twice_in_one_query(spark: SparkSession, warehouse: Path) -> None:
    enriched = mr.enrich(frame(spark, SALES), built_table(warehouse, PRODUCTS), "id", columns=["name"])
    assert enriched.union(enriched).count() == 6
    assert enriched.alias("a").join(enriched.alias("b"), "sale").count() == 3
    assert enriched.where("name = 'bolt'").count() == 2
    assert enriched.groupBy("name").count().count() == 2
    assert enriched.limit(1).count() == 1
    assert enriched.persist().count() == enriched.count() == 3


@pytest.mark.parametrize("shape", ["unique", "many"])
def test_a_watermark_survives_and_old_windows_are_closed(
    spark: SparkSession, warehouse: Path, tmp_path: Path, shape: str
) -> None:
    start = 1_700_000_000_000_000
    minutes = [0, 1, 30, 60, 90, 2]  # the last one is far too late
    sales = pa.table(
        {"id": [2] * len(minutes), "at": pa.array([start + m * 60_000_000 for m in minutes], pa.timestamp("us", "UTC"))}
    )
    table = built_table(warehouse, SHAPES[shape])
    source = write_files(sales, tmp_path / "source", len(minutes))
    stream = read_stream(spark, source).withWatermark("at", "5 minutes")
    enriched = mr.enrich(stream, table, "id", columns=["name"])
    assert enriched.schema["at"].metadata == stream.schema["at"].metadata
    counts = enriched.groupBy(F.window("at", "10 minutes"), "name").count()
    done = run_query(counts.select("window.start", "name", "count"), tmp_path)
    copies = SHAPES[shape]["id"].to_pylist().count(2)
    closed = sorted((row["start"].timestamp(), row["count"]) for row in done.rows.collect())
    assert [count for _, count in closed] == [2 * copies, copies, copies]  # the window of minute 90 is still open
    last = [p for p in done.query.recentProgress if p.stateOperators][-1]
    assert last.stateOperators[0].numRowsTotal == 1
    assert sum(p.stateOperators[0].numRowsDroppedByWatermark for p in done.query.recentProgress if p.stateOperators) >= 1


@pytest.mark.parametrize("sink", ["parquet", "memory", "noop"])
def test_any_sink_takes_the_rows(spark: SparkSession, warehouse: Path, tmp_path: Path, sink: str) -> None:
    table = built_table(warehouse, PRODUCTS)
    done = stream_through(
        spark, SALES, lambda s: mr.enrich(s, table, "id", columns=["name"], how="left"), tmp_path, files=2, sink=sink
    )
    assert done.batches == 2
    assert sum(report.rows_in for report in mr.reports(done.query)) == 5
    if sink != "noop":
        difference = same_rows(done.rows, spark_join(frame(spark, SALES), PRODUCTS, "id", "left", ["name"]))
        assert difference, difference


@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_composes_with_foreach_batch(spark: SparkSession, warehouse: Path, tmp_path: Path, where: str, shape: str) -> None:
    table = built_table(warehouse, SHAPES[shape])
    stream = read_stream(spark, write_files(SALES, tmp_path / "source", 2))
    if where == "outside":
        stream = mr.enrich(stream, table, "id", columns=["name"], how="left")

    def write(batch: object, number: int) -> None:
        if where == "inside":
            batch = mr.enrich(batch, table, "id", columns=["name"], how="left")  # type: ignore[arg-type]
        batch.write.mode("overwrite").parquet(str(tmp_path / "out" / f"batch={number}"))  # type: ignore[attr-defined]

    checkpoint = str(tmp_path / "checkpoint")
    query = stream.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination(120)
    done = spark.read.parquet(str(tmp_path / "out")).drop("batch")
    difference = same_rows(done, spark_join(frame(spark, SALES), SHAPES[shape], "id", "left", ["name"]))
    assert difference, difference
