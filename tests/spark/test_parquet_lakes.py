"""Folders as Spark, Hive, DuckDB and pyarrow leave them: `ParquetTable` has the rows that `spark.read.parquet` has."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.spark.running import frame, same_rows

import millrace as mr
from millrace.core.errors import DamagedTableError, ParameterError, SchemaError, TableError

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]


def put(path: Path, number: int, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": [number], **columns}), path)


def rows(spark: SparkSession, folder: Path, key: str = "id", columns: list[str] | None = None) -> pa.Table:
    """All rows of the table, as a join scans them."""
    planned = mr.ParquetTable(folder).planned(spark.range(1), (key,))
    names = columns or planned.schema.names
    relation: Any = planned.open(0, tuple(names))
    pages = [relation.read(page, 1) for page in range(relation.pages)]
    if relation.zones is not None:  # no row lies outside of what the statistics say
        for page, zone in zip(pages, relation.zones.of_page, strict=True):
            assert all(relation.zones.lows[zone] <= code <= relation.zones.highs[zone] for code in page.codes)
    return pa.Table.from_batches([page.take(np.arange(page.rows), names) for page in pages])


def assert_as_spark(spark: SparkSession, folder: Path, key: str = "id") -> pa.Table:
    found = rows(spark, folder, key)
    expected = spark.read.parquet(str(folder)).dropna(subset=[key]).toArrow()  # a null key is in no relation
    assert found.schema.names == expected.schema.names
    assert found.schema.types == [field.type for field in _utc(expected).schema], folder.name
    difference = same_rows(found, _utc(expected))
    assert difference, (folder.name, difference)
    return found


def _utc(table: pa.Table) -> pa.Table:
    """`toArrow` has timestamps in the session's zone; workers have them in UTC."""
    kinds = [pa.timestamp("us", "UTC") if pa.types.is_timestamp(f.type) and f.type.tz else f.type for f in table.schema]
    return table.cast(pa.schema([pa.field(f.name, kind) for f, kind in zip(table.schema, kinds, strict=True)]))


def test_files_of_any_name_hidden_ones_and_links_are_as_spark_takes_them(spark: SparkSession, tmp_path: Path) -> None:
    names = ["000001_0", "part-0", "a=b", "_a=1", "_x", ".x.parquet", "x._COPYING_", "_metadata", "x.parquet"]
    for number, name in enumerate(names):
        put(tmp_path / "names" / name, number)
    (tmp_path / "names" / "nothing").write_bytes(b"")
    assert sorted(assert_as_spark(spark, tmp_path / "names")["id"].to_pylist()) == [0, 1, 2, 3, 8]

    for number in range(3):
        put(tmp_path / "linked" / f"_k={number}" / "000000_0", number)
    put(tmp_path / "elsewhere" / "a", 7)
    os.symlink(tmp_path / "elsewhere", tmp_path / "linked" / "_k=8")
    os.symlink(tmp_path / "elsewhere" / "a", tmp_path / "linked" / "_k=1" / "link")
    found = assert_as_spark(spark, tmp_path / "linked")
    assert sorted(found["_k"].to_pylist()) == [0, 1, 1, 2, 8]

    put(tmp_path / "odd [x]*{a,b}?" / "k=1" / "a", 1)  # a path that Spark would take as a pattern
    assert rows(spark, tmp_path / "odd [x]*{a,b}?").to_pylist() == [{"id": 1, "k": 1}]


VALUES = {
    "timestamps": ["2024-01-01 10:00:00", "2024-07-01 10%3A00%3A00.5", "__HIVE_DEFAULT_PARTITION__", "1850-01-01 00:00:00"],
    "hours that come twice or never": ["2024-03-10 02:30:00", "2024-11-03 01:30:00"],
    "timestamps and dates": ["2024-01-01", "2024-01-02 00:00:00"],
    "more digits than Spark takes": ["2024-01-01", "2024-07-01 10:00:00.123456789"],
    "dates": ["2024-02-29", "0001-01-01", "9999-12-31"],
    "no dates": ["2024-02-30", "2024-01-01"],
    "signs and zeros": ["+5", "05", "-0"],
    "exponents": ["1e3", "5"],
    "integers and text": ["05", "x", "+1"],
    "long": ["3000000000", "-1"],
    "decimal": ["12345678901234567890", "1", "-7"],
    "double": ["1.5", "2", "-0.0", "NaN", "Infinity", "1e400"],
    "decimal and double": ["12345678901234567890", "1.5"],
    "booleans": ["true", "false"],
    "escapes": ["a%2Fb", "100%25", "%zz", "x%2", "Köln", "a b", "a%3Db", "__HIVE_DEFAULT_PARTITION__"],
    "underscores": ["1_0", "2"],
    "nulls and numbers": ["__HIVE_DEFAULT_PARTITION__", "4"],
}


def test_partition_values_have_sparks_types_and_values(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    for name, values in VALUES.items():
        for number, value in enumerate(values):
            put(tmp_path / name / f"k={value}" / "a", number)
        assert_as_spark(spark, tmp_path / name)
    spark.conf.set("spark.sql.session.timeZone", "+05:30")
    assert_as_spark(spark, tmp_path / "timestamps")
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    assert_as_spark(spark, tmp_path / "timestamps and dates")
    spark.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    for name in ("timestamps", "signs and zeros", "escapes"):
        assert_as_spark(spark, tmp_path / name)


def test_a_partition_value_that_spark_reads_in_ways_of_java_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for value in ("5d", "0x1p3", " 5"):
        put(tmp_path / value / f"k={value}" / "a", 1)
        put(tmp_path / value / "k=2.5" / "a", 1)
        with pytest.raises(SchemaError, match=r"in its path is no double \(not written the way Spark writes it\)"):
            rows(spark, tmp_path / value)


def test_names_of_partition_columns_and_of_columns_in_files_agree_as_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "case" / "Day=1" / "a", 1)
    put(tmp_path / "case" / "day=2" / "sub" / "a", 2)
    put(tmp_path / "both" / "Day=1" / "a", 1, day=["in the file"], v=[2])
    put(tmp_path / "below" / "sub" / "k=1" / "a", 1)
    pq.write_table(pa.table({"ID": [3], "V": [1]}), tmp_path / "upper.parquet")
    (tmp_path / "mixed").mkdir()
    pq.write_table(pa.table({"id": [3], "v": [1]}), tmp_path / "mixed" / "a")
    pq.write_table(pa.table({"ID": [4], "V": [1]}), tmp_path / "mixed" / "b")
    for name in ("case", "both", "below", "mixed"):
        assert_as_spark(spark, tmp_path / name)
    found = mr.enrich(spark.range(5), mr.ParquetTable(tmp_path / "upper.parquet"), on=("id", "id"), columns=["v"])
    assert [tuple(row) for row in found.collect()] == [(3, 1)]
    spark.conf.set("spark.sql.caseSensitive", "true")
    with pytest.raises(SchemaError, match=r"b has no column 'id'"):
        rows(spark, tmp_path / "mixed")


def test_folders_that_spark_reads_in_part_or_not_at_all_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "beside" / "k=1" / "a", 1)
    put(tmp_path / "beside" / "b", 2)
    put(tmp_path / "deeper" / "a", 1)
    put(tmp_path / "deeper" / "sub" / "b", 2)
    for name in ("beside", "deeper"):
        assert spark.read.parquet(str(tmp_path / name)).count() == 1
        with pytest.raises(TableError, match=r"/b lies .* where Spark leaves it out silently"):
            rows(spark, tmp_path / name)
    put(tmp_path / "conflict" / "a=1" / "a", 1)
    put(tmp_path / "conflict" / "b=1" / "a", 1)
    with pytest.raises(TableError, match=r"Spark can't read .*conflict: \[CONFLICTING_PARTITION_COLUMN_NAMES\]"):
        rows(spark, tmp_path / "conflict")
    put(tmp_path / "junk" / "a", 1)
    (tmp_path / "junk" / "README.md").write_text("not Parquet, and not hidden")
    with pytest.raises((DamagedTableError, TableError), match=r"README\.md"):
        rows(spark, tmp_path / "junk")
    frame(spark, pa.table({"id": [1]})).write.parquet(str(tmp_path / "delta"))
    (tmp_path / "delta" / "_delta_log").mkdir()
    with pytest.raises(TableError, match="format Delta"):
        mr.ParquetTable(tmp_path / "delta")


def test_object_stores_are_refused_before_anything_runs_and_file_urls_are_taken(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    products = frame(spark, pa.table({"id": [1]}))
    put(tmp_path / "lake" / "a", 1)
    before = sorted(os.listdir())
    for url in ("s3a://bucket/t", Path("hdfs://host/t"), "dbfs:/t"):
        for refused in (
            lambda url=url: mr.MasterTable.build(products, "id", url),
            lambda url=url: mr.MasterTable.open(url),
            lambda url=url: mr.ParquetTable(url),
            lambda url=url: mr.ParquetTable(tmp_path / "lake", pins=url),
        ):
            with pytest.raises(ParameterError, match="driver and executors see under one path"):
                refused()
    assert sorted(os.listdir()) == before
    built = mr.MasterTable.build(products, "id", f"file://{tmp_path}/built")
    assert built.path == f"{tmp_path}/built"
    assert mr.MasterTable.open(f"file:{tmp_path}/built").latest.rows == 1
    assert mr.ParquetTable(f"file:{tmp_path}/lake").path == f"{tmp_path}/lake"


def test_a_column_with_a_dot_in_its_name_is_not_the_field_of_a_struct(spark: SparkSession, tmp_path: Path) -> None:
    numbers = np.arange(50)
    inner = pa.array([{"b": int(n) + 1_000, "c": "x"} for n in numbers])
    pq.write_table(pa.table({"a": inner, "a.b": numbers, "a.c": numbers * 2, "v": numbers}), tmp_path / "t", row_group_size=10)
    table = mr.ParquetTable(tmp_path / "t")
    stream = spark.range(0, 100).withColumnRenamed("id", "k")
    found = mr.enrich(stream, table, on=("k", "a.b"), columns=["v", "a", "a.c"]).toArrow()
    assert sorted(found["k"].to_pylist()) == list(range(50))
    assert found["k"].to_pylist() == found["v"].to_pylist()
    assert [row["b"] for row in found["a"].to_pylist()] == [k + 1_000 for k in found["k"].to_pylist()]
    assert found["a.c"].to_pylist() == [k * 2 for k in found["k"].to_pylist()]


OLD = [dt.date(1582, 10, 4), dt.date(1582, 10, 15), dt.date(1500, 2, 28), dt.date(1500, 3, 1), dt.date(2, 1, 1), None]


def test_old_dates_of_any_spark_are_read_as_spark_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    dates = frame(spark, pa.table({"id": list(range(len(OLD))), "d": pa.array(OLD, pa.date32())}))
    for mode in ("LEGACY", "CORRECTED"):
        spark.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", mode)
        dates.write.parquet(str(tmp_path / mode))
        assert assert_as_spark(spark, tmp_path / mode)["d"].to_pylist() == OLD
        assert_as_spark(spark, tmp_path / mode, key="d")
    (part,) = (tmp_path / "LEGACY").glob("*.parquet")
    (tmp_path / "nobody").mkdir()
    pq.write_table(pq.read_table(part).replace_schema_metadata(None), tmp_path / "nobody" / "a.parquet")
    for mode in ("LEGACY", "CORRECTED"):  # what the session says, where the file does not
        spark.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", mode)
        assert_as_spark(spark, tmp_path / "nobody")
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", "EXCEPTION")
    with pytest.raises(SchemaError, match=r"a\.parquet, column 'd': dates before 1582-10-15 .* says by which calendar"):
        rows(spark, tmp_path / "nobody")
    assert rows(spark, tmp_path / "nobody", columns=["id"]).num_rows == len(OLD)  # only columns that are read


def test_timestamps_of_any_kind_are_read_as_spark_reads_them_or_refused(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY")
    spark.conf.set("spark.sql.parquet.int96RebaseModeInWrite", "LEGACY")
    times = [dt.datetime(9999, 12, 31, 23, 59, 59, 999_999), dt.datetime(1900, 1, 1), dt.datetime(2024, 5, 1, 1, 2, 3, 4), None]
    for kind in ("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"):
        spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
        table = pa.table({"id": list(range(4)), "t": pa.array(times, pa.timestamp("us", "UTC")), "n": [times] * 4})
        frame(spark, table).write.parquet(str(tmp_path / kind))
        assert_as_spark(spark, tmp_path / kind)
        assert_as_spark(spark, tmp_path / kind, key="t")
        for name, old in (("t", dt.datetime(1899, 12, 31)), ("n", [dt.datetime(1500, 1, 1)])):
            field = pa.array([old], pa.timestamp("us", "UTC") if name == "t" else pa.list_(pa.timestamp("us", "UTC")))
            frame(spark, pa.table({"id": [1], name: field})).write.parquet(str(tmp_path / f"{kind} {name}"))
            with pytest.raises(SchemaError, match=rf"column '{name}': .* before 1900 .*LEGACY.*build a MasterTable"):
                rows(spark, tmp_path / f"{kind} {name}")
    spark.conf.set("spark.sql.parquet.int96RebaseModeInWrite", "CORRECTED")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    old = [dt.datetime(1, 1, 1), dt.datetime(1500, 2, 28, 1), dt.datetime(1899, 1, 1)]
    frame(spark, pa.table({"id": [1, 2, 3], "t": pa.array(old, pa.timestamp("us", "UTC"))})).write.parquet(
        str(tmp_path / "old")
    )
    assert_as_spark(spark, tmp_path / "old")


def test_a_collation_stays_with_its_column(spark: SparkSession, tmp_path: Path) -> None:
    sql = "SELECT id, 'A' COLLATE UTF8_LCASE AS c, array('B' COLLATE UTF8_LCASE) AS l, 'x' AS s FROM range(3)"
    spark.sql(sql).write.parquet(str(tmp_path / "lake"))
    spark.sql(f"{sql} UNION ALL {sql}").write.parquet(str(tmp_path / "twice"))
    tables = [
        mr.ParquetTable(tmp_path / "lake"),
        mr.MasterTable.build(spark.read.parquet(str(tmp_path / "lake")), "id", tmp_path / "t"),
        mr.MasterTable.build(spark.read.parquet(str(tmp_path / "twice")), "id", tmp_path / "t2"),
    ]
    expected = spark.read.parquet(str(tmp_path / "lake")).schema
    for table in tables:
        found = mr.enrich(spark.range(2), table, on="id")
        assert [found.schema[name].dataType for name in "cls"] == [expected[name].dataType for name in "cls"]
        assert found.where("c = 'a' AND l = array('b')").select("c", "s").distinct().collect() == [("A", "x")]
    with pytest.raises(SchemaError, match="key column 'c' has collation UTF8_LCASE"):
        mr.enrich(spark.sql("SELECT 'A' AS c"), tables[0], on="c")
