"""Conditions on Spark: as Spark's own join with the same condition, from tables and from Parquet, batch and streaming."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from rapidfuzz.distance import Levenshtein
from tests.relations.parquet_folders import parquet_folder
from tests.spark.running import SPARK_HOW, every_how, frame, read_stream, run_query, same_rows, spark_join, write_files
from tests.spark.tables import built_table

import millrace as mr
from millrace.core.errors import BudgetError, ParameterError, SchemaError, StrategyError

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]

DAY = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)


def _sales(rows: int = 400) -> pa.Table:
    random = np.random.default_rng(3)
    return pa.table({
        "sale": pa.array(range(rows), pa.int64()),
        "product": pa.array([None if i % 11 == 0 else f"p{random.integers(0, 12)}" for i in range(rows)]),
        "at": pa.array([None if i % 13 == 0 else DAY + dt.timedelta(hours=int(random.integers(0, 400))) for i in range(rows)],
                       pa.timestamp("us", "UTC")),
        "ip": pa.array([None if i % 17 == 0 else int(random.integers(0, 5_000)) for i in range(rows)], pa.int64()),
        "weight": pa.array([None if i % 19 == 0 else float(random.random()) for i in range(rows)], pa.float64()),
    })  # fmt: skip


def _prices() -> pa.Table:
    """Of each product, prices one after the other; the last has no end, and one is the wrong way round."""
    rows = []
    for product in range(10):
        for number in range(4):
            start = DAY + dt.timedelta(hours=100 * number + product)
            end = None if number == 3 else start + dt.timedelta(hours=100)
            rows.append(
                {"product": f"p{product}", "since": start, "until": end, "price": product + number / 10, "limit": number / 4}
            )
    rows.append({"product": "p1", "since": DAY + dt.timedelta(hours=9), "until": DAY, "price": -1.0, "limit": None})
    times = pa.timestamp("us", "UTC")
    kinds = [("product", pa.string()), ("since", times), ("until", times), ("price", pa.float64()), ("limit", pa.float64())]
    return pa.Table.from_pylist(rows, pa.schema(kinds))


def _countries() -> pa.Table:
    starts = np.arange(0, 4_800, 40)
    return pa.table({"ip_from": starts, "ip_to": starts + 29, "country": [f"c{i % 7}" for i in range(len(starts))]})


def _lake(folder: Path, rows: pa.Table, files: int = 2) -> mr.ParquetTable:
    return mr.ParquetTable(parquet_folder(folder, rows, files=files, rows_per_group=17))


def _same_as_spark(stream: DataFrame, table: Any, rows: DataFrame, on: Any, condition: Column, **options: Any) -> None:
    columns = rows.columns
    renamed = {name: f"r_{name}" for name in columns}
    theirs = rows.select(*[F.col(name).alias(renamed[name]) for name in columns])
    ours = every_how(
        lambda how: mr.enrich(stream, table, on, how=how, columns=renamed if how in ("inner", "left") else None, **options),
        list(renamed.values()),
    )
    expected = every_how(lambda how: stream.join(theirs, condition, SPARK_HOW[how]), list(renamed.values()))
    difference = same_rows(ours, expected)
    assert difference, difference


def test_the_row_that_is_valid_at_that_time(spark: SparkSession, tmp_path: Path) -> None:
    stream, rows = frame(spark, _sales()), frame(spark, _prices())
    on = mr.between("at", "since", "until", on="product", closed="left", open_ended=True)
    valid = (F.col("at") >= F.col("r_since")) & ((F.col("at") < F.col("r_until")) | F.col("r_until").isNull())
    valid = (F.col("product") == F.col("r_product")) & valid
    _same_as_spark(stream, _lake(tmp_path / "lake", _prices()), rows, on, valid)
    table = mr.MasterTable.build(rows, "product", tmp_path / "table", page_bytes=4096)
    _same_as_spark(stream, table, rows, on, valid, memory="1m")


@pytest.mark.parametrize("strategy", ["auto", "meshjoin"])
def test_the_country_of_an_address(spark: SparkSession, tmp_path: Path, strategy: str) -> None:
    stream, rows = frame(spark, _sales()), frame(spark, _countries())
    inside = F.col("ip").between(F.col("r_ip_from"), F.col("r_ip_to"))
    on = mr.between("ip", "ip_from", "ip_to")
    _same_as_spark(stream, _lake(tmp_path / "lake", _countries()), rows, on, inside, strategy=strategy, memory="1m")


@pytest.mark.parametrize("closed", ["both", "neither"])
def test_ranges_of_a_table_that_lie_apart_are_looked_up(spark: SparkSession, tmp_path: Path, closed: str) -> None:
    stream, rows = frame(spark, _sales()), frame(spark, _countries())
    table = mr.MasterTable.build(rows, "ip_from", tmp_path / "table", page_bytes=4096)
    inside = F.col("ip").between(F.col("r_ip_from"), F.col("r_ip_to"))
    if closed == "neither":
        inside = (F.col("ip") > F.col("r_ip_from")) & (F.col("ip") < F.col("r_ip_to"))
    on = mr.between("ip", "ip_from", "ip_to", closed=closed)
    found = mr.enrich(stream, table, on, columns=["country"])
    assert "MapInArrow" not in found._jdf.queryExecution().toString()
    _same_as_spark(stream, table, rows, on, inside, partitions=2)
    scanned = mr.enrich(stream, table, on, columns=["country"], strategy="meshjoin")
    assert "MapInArrow" in scanned._jdf.queryExecution().toString()
    difference = same_rows(found, scanned)
    assert difference, difference


def test_ranges_that_overlap_in_a_later_version_end_the_query(spark: SparkSession, tmp_path: Path) -> None:
    rows = _countries()
    table = mr.MasterTable.build(frame(spark, rows), "ip_from", tmp_path / "table", page_bytes=4096)
    found = mr.enrich(frame(spark, _sales(20)), table, mr.between("ip", "ip_from", "ip_to"))
    assert found.count() > 0
    wider = rows.set_column(1, "ip_to", pc.add(rows.column("ip_to"), 50))
    mr.MasterTable.build(frame(spark, wider), "ip_from", tmp_path / "table", page_bytes=4096)
    with pytest.raises(Exception, match="ranges overlap in the version of this batch and did not before"):
        found.collect()
    again = mr.enrich(frame(spark, _sales(20)), table, mr.between("ip", "ip_from", "ip_to"))
    assert again.count() > 20  # most lie in two


def test_rows_that_a_table_lacks_are_not_forgotten(spark: SparkSession, tmp_path: Path) -> None:
    """Without a key they were left out by the build: no condition that could hold for them is tried."""
    rows = pa.table({"low": pa.array([None, 10]), "high": [5, 20]})
    table = mr.MasterTable.build(frame(spark, rows), "low", tmp_path / "table", page_bytes=4096)
    stream = frame(spark, pa.table({"x": [1, 15]}))
    for on in (mr.between("x", "low", "high", open_ended=True), mr.expr("low is null or x > low")):
        with pytest.raises(SchemaError, match="1 rows without a 'low' were left out when the table was built"):
            mr.enrich(stream, table, on)
    assert mr.enrich(stream, table, mr.between("x", "low", "high")).count() == 1
    assert mr.enrich(stream, _lake(tmp_path / "lake", rows, 1), mr.between("x", "low", "high", open_ended=True)).count() == 2


def test_bands_and_expressions(spark: SparkSession, tmp_path: Path) -> None:
    stream, rows = frame(spark, _sales(120)), frame(spark, _prices())
    lake = _lake(tmp_path / "lake", _prices())
    near = F.abs(F.col("weight") - F.col("r_limit")) <= 0.1
    _same_as_spark(stream, lake, rows, mr.near("weight", "limit", 0.1), near)
    either = (F.col("weight") * 2 > F.col("r_price")) | (F.col("product") == F.col("r_product"))
    _same_as_spark(stream, lake, rows, mr.expr("weight * 2 > price or stream.product = master.product"), either)
    arrow = (pc.field("stream.weight") * 2 > pc.field("master.price")) | (
        pc.field("stream.product") == pc.field("master.product")
    )
    _same_as_spark(stream, lake, rows, mr.expr(arrow), either)


def test_similar_names(spark: SparkSession, tmp_path: Path) -> None:
    names = ["bolt M4", "Bolt M4", "bolt M5 long", "axe", "nut", "", None]
    stream = frame(spark, pa.table({"n": range(7), "name": names}))
    lake = _lake(tmp_path / "lake", pa.table({"name": ["bolt M4", "axes", "nuts", ""], "id": range(4)}))
    found = mr.enrich(stream, lake, mr.similar("name", "name", 0.75), columns=["id"])
    theirs = lake_names = ["bolt M4", "axes", "nuts", ""]
    wanted = sorted(
        (n, i)
        for n, name in enumerate(names)
        for i, other in enumerate(theirs)
        if name is not None and Levenshtein.normalized_similarity(name, other) >= 0.75
    )
    assert sorted((row.n, row.id) for row in found.collect()) == wanted
    assert len(wanted) > len(lake_names)


def test_a_streaming_query_reports_ranges_that_are_the_wrong_way_round(spark: SparkSession, tmp_path: Path) -> None:
    stream = read_stream(spark, write_files(_sales(), tmp_path / "in", 3)).withWatermark("at", "1 hour")
    on = mr.between("at", "since", "until", on="product", open_ended=True)
    found = mr.enrich(stream, _lake(tmp_path / "lake", _prices()), on, how="left", columns=["price"], name="prices")
    done = run_query(found.select(stream["sale"], "price"), tmp_path / "run")
    rows = frame(spark, _sales())
    expected = mr.enrich(rows, mr.ParquetTable(tmp_path / "lake"), on, how="left", columns=["price"]).select("sale", "price")
    difference = same_rows(done.rows, expected)
    assert difference, difference
    reports = mr.reports(done.query)
    assert [report.reversed_ranges for report in reports] == [1, 1, 1]
    assert sum(report.rows_in for report in reports) == 400
    assert sum(report.counts.condition_false for report in reports) > 0
    for report in reports:
        report.ledger.check()


def test_rows_come_in_stream_order_when_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    watch = Observation("ranges")
    found = mr.enrich(
        frame(spark, _sales()), _lake(tmp_path / "lake", _countries()), mr.between("ip", "ip_from", "ip_to"), how="left",
        ordered=True, observation=watch,
    )  # fmt: skip
    sales = found.toArrow()["sale"].to_pylist()
    assert sales == sorted(sales)
    (report,) = mr.reports(watch)
    assert (report.rows_in, report.reversed_ranges) == (400, 0)


def test_several_tables_one_of_them_by_a_condition(spark: SparkSession, tmp_path: Path) -> None:
    names = pa.table({"product": [f"p{i}" for i in range(10)], "label": [f"label {i}" for i in range(10)]})
    table = mr.MasterTable.build(frame(spark, names), "product", tmp_path / "table", page_bytes=4096)
    lake = _lake(tmp_path / "lake", _countries())
    stream = frame(spark, _sales())
    on = mr.between("ip", "ip_from", "ip_to")
    both = mr.enrich(stream, [mr.Lookup(lake, on, columns=["country"]), mr.Lookup(table, "product")], how="left")
    inside = F.col("ip").between(F.col("ip_from"), F.col("ip_to"))
    theirs = spark_join(stream, names, "product", "left").join(frame(spark, _countries()), inside, "left")
    difference = same_rows(both, theirs.select(*stream.columns, "country", "label"))
    assert difference, difference


@pytest.mark.parametrize("zone", ["America/St_Johns", pytest.param("America/Havana", marks=pytest.mark.slow)])
def test_dates_times_and_numbers_of_different_types_are_compared_as_spark_compares_them(
    spark: SparkSession, tmp_path: Path, zone: str
) -> None:
    """In a zone that puts its clocks back from 00:01 to 23:01, and another that puts them forward at midnight."""
    spark.conf.set("spark.sql.session.timeZone", zone)
    start = dt.datetime(2010, 11, 6, 12, tzinfo=dt.UTC)
    at = [start + dt.timedelta(minutes=29 * n) for n in range(90)]
    at += [time.replace(month=3, day=time.day + 7) for time in at]
    stream = pa.table({
        "n": range(len(at)), "at": pa.array(at, pa.timestamp("us", "UTC")),
        "local": pa.array([time.replace(tzinfo=None) for time in at], pa.timestamp("us")),
        "day": pa.array([time.date() for time in at]), "whole": pa.array([n % 40 for n in range(len(at))], pa.int64()),
        "cents": pa.array([Decimal(n) / 4 for n in range(len(at))], pa.decimal128(9, 2)),
        "real": pa.array([n / 8 for n in range(len(at))]),
    })  # fmt: skip
    days = [dt.date(2010, month, first + n) for month, first in ((3, 12), (11, 5)) for n in range(7)]
    master = pa.table({
        "row": range(len(days)), "since": pa.array(days), "until": pa.array([day + dt.timedelta(days=1) for day in days]),
        "since_at": pa.array([dt.datetime(d.year, d.month, d.day, 4) for d in days], pa.timestamp("us", "UTC")),
        "until_at": pa.array([dt.datetime(d.year, d.month, d.day, 23) for d in days], pa.timestamp("us", "UTC")),
        "until_local": pa.array([dt.datetime(d.year, d.month, d.day, 23, 30) for d in days], pa.timestamp("us")),
        "from_cents": pa.array([Decimal(n * 10) / 4 for n in range(len(days))], pa.decimal128(8, 3)),
        "from_whole": pa.array([3 * n for n in range(len(days))], pa.int32()),
        "to_whole": pa.array([3 * n + 2 for n in range(len(days))], pa.int64()),
        "to_real": pa.array([n * 2.75 for n in range(len(days))]),
    })  # fmt: skip
    lake = _lake(tmp_path / "lake", master)
    sorted_by = {low: built_table(tmp_path / low, master, low) for low in ("since", "since_at", "from_whole")}
    ranges = [
        ("at", "since", "until"), ("at", "since", "until_local"), ("day", "since_at", "until_at"), ("local", "since", "until"),
        ("local", "since_at", "until_at"), ("day", "since", "until_at"), ("whole", "from_cents", "from_cents"),
        ("cents", "from_whole", "to_whole"), ("real", "from_cents", "to_whole"), ("cents", "to_real", "to_real"),
    ]  # fmt: skip
    events, rows = frame(spark, stream), frame(spark, master)
    ours, expected, looked_up = [], [], 0
    for value, low, high in ranges:
        on = mr.between(value, low, high, closed="left" if low != high else "both")
        inside = (F.col(value) >= F.col(low)) & (F.col(value) < F.col(high) if low != high else F.col(value) <= F.col(high))
        for source in [lake, *(table for name, table in sorted_by.items() if name == low)]:
            found = mr.enrich(events.select("n", value), source, on, columns=["row"], how="left")
            looked_up += "MapInArrow" not in found._jdf.queryExecution().toString()
            ours.append(found.select(F.lit(f"{value} {low} {high}").alias("which"), "n", "row"))
            joined = events.select("n", value).join(rows, inside, "left")
            expected.append(joined.select(F.lit(f"{value} {low} {high}").alias("which"), "n", "row"))
    near = mr.enrich(events.select("n", "at"), lake, mr.near("at", "since", dt.timedelta(hours=3)), columns=["row"])
    ours.append(near.select(F.lit("near").alias("which"), "n", "row"))
    apart = F.abs(F.unix_micros("at") - F.unix_micros(F.col("since").cast("timestamp"))) <= 3 * 3600 * 10**6
    expected.append(events.join(rows, apart).select(F.lit("near").alias("which"), "n", "row"))
    difference = same_rows(reduce(DataFrame.union, ours), reduce(DataFrame.union, expected))
    assert difference, difference
    assert looked_up >= 4


def test_errors_of_a_condition_name_the_columns_of_the_user(spark: SparkSession, tmp_path: Path) -> None:
    """Inside a task columns are s0, s1, k0: nobody has named them so."""
    stream = frame(spark, _sales(5))
    lake = _lake(tmp_path / "lake", _prices())
    table = built_table(tmp_path / "table", _prices(), "since")
    wrong = [
        (mr.between("ip", "since", "until"), r"columns 'ip' \(int64\) and 'since' \(timestamp"),
        (mr.between("product", "since", "until"), "column 'product' is string, and ranges"),
        (mr.between("at", "since", "price"), r"columns 'at' .* and 'price' \(double\) can't be compared"),
        (mr.between("at", "since", "until", on={"ip": "product"}), "column 'ip' is int64 and the table's key is string"),
        (mr.between("at", "since", "until", on={"ipp": "product"}), "the stream has no column 'ipp'; it has sale, product"),
        (mr.near("weight", "since", 1), r"columns 'weight' \(double\) and 'since' .* can't be compared"),
        (mr.near("at", "since", 1), r"the width of near\('at', ...\) must be a datetime.timedelta"),
        (mr.near("at", "since", dt.timedelta(1), on={"weight": "product"}), "column 'weight' is double and the table's key"),
        (mr.similar("weight", "product", 0.5), "similar compares texts; column 'weight' is double"),
        (mr.similar("wait", "product", 0.5), "the stream has no column 'wait'"),
        (mr.expr("ip < stream.nowhere"), "nowhere.*; stream has sale, product, at, ip, weight; master has product, since"),
        (mr.expr("stream.ip < since"), "Cannot compare values of type BIGINT and type TIMESTAMP.*; stream has sale"),
        (mr.expr("weight <"), "can't evaluate the expression 'weight <'.*; stream has sale"),
        (mr.expr("weight + price"), "it is DOUBLE, and a condition must be true or false"),
        (mr.expr(pc.field("stream.wait") < 3), r"FieldRef.Name\(stream.wait\); stream has sale"),
        (mr.expr(pc.field("stream.ip") < pc.field("master.since")), "no kernel matching input types .*; stream has sale"),
    ]
    for on, words in wrong:
        for source in (lake, table):
            with pytest.raises((SchemaError, ParameterError), match=words) as refused:
                mr.enrich(stream, source, on)
            assert not re.search(r"'[sk]\d'|__millrace", str(refused.value))
    failing = [
        (mr.expr("cast(stream.product as int) < master.price"), "the expression .* fails for some rows: .*Could not convert"),
        (
            mr.expr(pc.divide_checked(pc.field("stream.sale"), pc.field("stream.sale")) > 3),
            "fails for some rows: divide by zero",
        ),
    ]
    for on, words in failing:
        with pytest.raises(Exception, match="fails for some rows") as failed:
            mr.enrich(stream, lake, on).collect()
        error = mr.task_error(failed.value)
        assert isinstance(error, ParameterError)
        assert re.search(words, str(error))
        assert not re.search(r"\b[sk]\d\b|__millrace", str(error))


@pytest.mark.parametrize(
    ("on", "options", "error", "message"),
    [
        (
            mr.between("ip", "ip_from", "ip_to"),
            {"strategy": "sweepjoin"},
            StrategyError,
            "does not serve 'between'; use meshjoin, rmesh",
        ),
        (mr.between("product", "ip_from", "ip_to"), {}, SchemaError, "is string, and ranges"),
        (mr.between("ip", "ip_from", "until"), {}, SchemaError, "the table has no column 'until'"),
        (mr.between("nothing", "ip_from", "ip_to"), {}, SchemaError, "the stream has no column 'nothing'; it has sale"),
        (mr.expr("ip < nowhere"), {}, SchemaError, "nowhere.*stream has sale, product.*master has ip_from"),
        (mr.between("ip", "ip_from", "ip_to"), {"memory": "4k"}, BudgetError, "give memory="),
        (3, {}, ParameterError, "or a condition such as mr.between"),
    ],
)
def test_bad_conditions_are_refused_before_anything_runs(
    spark: SparkSession, tmp_path: Path, on: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    lake = _lake(tmp_path / "lake", _countries())
    with pytest.raises(error, match=message):
        mr.enrich(frame(spark, _sales(5)), lake, on, **options)
