"""`ParquetTable` and the row host: matches of any number, watermark kept, nothing to build."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.relations.parquet_folders import parquet_folder
from tests.spark.running import HOWS, frame, read_stream, run_query, same_rows, spark_join, write_files

import millrace as mr
from millrace.core.errors import SchemaError, StrategyError, TableError
from millrace.relations.build import build_table

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]


@pytest.fixture
def sales() -> pa.Table:
    rng = np.random.default_rng(4)
    keys = pa.array(np.where(rng.random(600) < 0.05, None, rng.integers(0, 120, 600)), pa.int64())
    return pa.table(
        {"product": keys, "id": np.arange(600), "at": pa.array(np.arange(600) * 1_000_000, pa.timestamp("us", "UTC"))}
    )


@pytest.fixture
def products() -> pa.Table:
    """100 products, 40 rows of each: more than fit an array."""
    keys = np.repeat(np.arange(100), 40)
    return pa.table(
        {"product": keys, "price": np.arange(4_000) * 0.5, "name": [f"p{k}" for k in keys], "unused": np.arange(4_000)}
    )


@pytest.fixture
def lake(tmp_path: Path, products: pa.Table) -> Path:
    return parquet_folder(tmp_path / "lake", products, files=3, rows_per_group=400)


@pytest.mark.parametrize("how", HOWS)
def test_a_parquet_folder_gives_what_sparks_own_join_gives(spark: SparkSession, sales: pa.Table, lake: Path, how: str) -> None:
    stream = frame(spark, sales)
    expected = spark_join(stream, spark.read.parquet(str(lake)), "product", how)
    found = mr.enrich(stream, mr.ParquetTable(lake), on="product", how=how, memory="8m")
    assert found.columns == expected.columns
    assert same_rows(found, expected)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_table_with_many_rows_to_a_key_is_joined_row_by_row(
    spark: SparkSession, sales: pa.Table, products: pa.Table, tmp_path: Path, how: str
) -> None:
    table = mr.MasterTable.build(frame(spark, products), key="product", path=tmp_path / "t", page_bytes=4096)
    assert table.latest.longest_run == 40
    folder = write_files(sales, tmp_path / "in", 3)
    stream = read_stream(spark, folder)
    streamed = run_query(mr.enrich(stream, table, on="product", how=how, memory="4m", columns=["price"]), tmp_path / "run")
    assert same_rows(streamed.rows, spark_join(frame(spark, sales), products, "product", how, ["price"]))
    reports = mr.reports(streamed.query)
    assert [report.batch_id for report in reports] == [0, 1, 2]
    assert sum(report.rows_in for report in reports) == 600
    lonely = sum(key is None or key >= 100 for key in sales["product"].to_pylist())
    assert sum(report.ledger.unmatched for report in reports) == lonely


def test_a_batch_without_a_single_match_is_reported_too(spark: SparkSession, lake: Path) -> None:
    from pyspark.sql import Observation

    watch = Observation("none")
    stream = spark.range(1_000, 1_010).withColumnRenamed("id", "product")
    assert mr.enrich(stream, mr.ParquetTable(lake), on="product", observation=watch).count() == 0
    (report,) = mr.reports(watch)
    assert (report.rows_in, report.matched, report.counts.absent_keys) == (10, 0, 10)


def test_a_report_tells_what_was_read_and_no_version(spark: SparkSession, sales: pa.Table, lake: Path) -> None:
    from pyspark.sql import Observation

    watch = Observation("sales")
    mr.enrich(frame(spark, sales), mr.ParquetTable(lake), on="product", columns=["price"], observation=watch).count()
    (report,) = mr.reports(watch)
    assert 0 < report.disk_bytes <= sum(path.stat().st_size for path in lake.iterdir())
    assert report.read_seconds > 0
    assert report.table_versions == ()
    assert "version" not in str(report)


def test_the_watermark_of_the_stream_is_kept(spark: SparkSession, sales: pa.Table, lake: Path, tmp_path: Path) -> None:
    stream = read_stream(spark, write_files(sales, tmp_path / "in", 3)).withWatermark("at", "10 seconds")
    found = mr.enrich(stream, mr.ParquetTable(lake), on="product", columns=["price"])
    counted = found.groupBy(F.window(stream["at"], "60 seconds")).count()
    streamed = run_query(counted, tmp_path / "run", output_mode="append")
    # append mode puts a window out only once the watermark has passed it: rows here mean that it is alive
    assert streamed.rows.count() >= 8


def test_only_the_columns_that_are_needed_are_read(spark: SparkSession, sales: pa.Table, lake: Path) -> None:
    table = mr.ParquetTable(lake)
    planned = table.planned(frame(spark, sales), ("product",))
    assert planned.open(0, ("price",)).schema.names == ["product", "price"]


def test_a_strategy_that_needs_an_index_is_refused_before_anything_runs(
    spark: SparkSession, sales: pa.Table, lake: Path
) -> None:
    with pytest.raises(StrategyError, match="meshjoin"):
        mr.enrich(frame(spark, sales), mr.ParquetTable(lake), on="product", strategy="sweepjoin")


def test_a_key_that_is_not_in_the_files_is_named(spark: SparkSession, sales: pa.Table, lake: Path) -> None:
    with pytest.raises(SchemaError, match="has no column 'id'"):
        mr.enrich(frame(spark, sales), mr.ParquetTable(lake), on="id")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="nowhere"):
        mr.ParquetTable(tmp_path / "nowhere")


@pytest.mark.parametrize("writer", ["spark", "duckdb", "pyarrow"])
def test_a_partitioned_folder_gives_what_sparks_own_join_gives(
    spark: SparkSession, sales: pa.Table, products: pa.Table, tmp_path: Path, writer: str
) -> None:
    rows = products.append_column("shelf", pa.array([None if n % 9 == 0 else n % 4 for n in range(products.num_rows)]))
    rows = rows.append_column("tags", pa.array([[f"t{n % 3}"] * (n % 3) for n in range(products.num_rows)]))
    rows = rows.set_column(2, "name", rows["name"].dictionary_encode())
    folder = tmp_path / "parted"
    if writer == "spark":
        frame(spark, rows.set_column(2, "name", rows["name"].cast(pa.string()))).write.partitionBy("shelf").parquet(str(folder))
    elif writer == "duckdb":
        duckdb.sql(f"COPY (SELECT * FROM rows) TO '{folder}' (FORMAT parquet, PARTITION_BY (shelf))")
    else:
        parts = pds.partitioning(pa.schema([("shelf", pa.int64())]), flavor="hive")
        pds.write_dataset(rows, folder, format="parquet", partitioning=parts)
    theirs = spark.read.parquet(str(folder))
    stream = frame(spark, sales)
    for how in ("inner", "left"):
        columns = ["price", "name", "shelf", "tags"]
        found = mr.enrich(stream, mr.ParquetTable(folder), on="product", how=how, columns=columns)
        difference = same_rows(found, spark_join(stream, theirs, "product", how, columns))
        assert difference, difference


def test_files_that_come_between_micro_batches_are_seen(spark: SparkSession, lake: Path, tmp_path: Path) -> None:
    source = write_files(pa.table({"product": pa.array([500, 501, 502], pa.int64())}), tmp_path / "in", 3)
    seen: list[int] = []

    def body(rows: DataFrame, number: int) -> None:
        seen.append(rows.count())
        pq.write_table(pa.table({"product": [500, 501, 502], "price": [1.0] * 3, "name": ["new"] * 3, "unused": [1] * 3}),
                       lake / f"new-{number}.parquet")  # fmt: skip

    found = mr.enrich(read_stream(spark, source), mr.ParquetTable(lake), on="product", memory="8m")
    writer = found.writeStream.foreachBatch(body).option("checkpointLocation", str(tmp_path / "c"))
    writer.trigger(availableNow=True).start().awaitTermination(120)
    assert seen == [0, 1, 2]


def test_a_known_file_that_vanished_fails_the_batch_by_name(spark: SparkSession, sales: pa.Table, lake: Path) -> None:
    found = mr.enrich(frame(spark, sales), mr.ParquetTable(lake), on="product")
    (lake / "1.parquet").unlink()
    with pytest.raises(Exception, match=r"1\.parquet has vanished since the query was planned"):
        found.count()


def test_a_type_that_spark_does_not_read_is_named_and_not_blamed_on_the_path(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "t": pa.array([1], pa.timestamp("ns"))}), tmp_path / "x.parquet")
    with pytest.raises(TableError, match=r"PARQUET_TYPE_ILLEGAL.*NANOS") as refused:
        mr.enrich(spark.range(3), mr.ParquetTable(tmp_path), on="id")
    assert "NFS" not in str(refused.value)


def test_folders_of_other_kinds_are_refused_when_they_are_named(tmp_path: Path) -> None:
    build_table(tmp_path / "built", pa.table({"id": [1]}), "id")
    with pytest.raises(TableError, match=r"is a millrace table: open it with mr\.MasterTable\.open"):
        mr.ParquetTable(tmp_path / "built")
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "part-0.json").write_text('{"id": 1}\n')
    with pytest.raises(TableError, match=r"part-0\.json is no Parquet file"):
        mr.ParquetTable(tmp_path / "json")


def test_a_table_shows_its_folder(lake: Path) -> None:
    assert repr(mr.ParquetTable(lake)) == f"ParquetTable({str(lake)!r})"


def test_shared_folders_are_advised_only_where_spark_misses_a_file(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "x.parquet")
    table = mr.ParquetTable(tmp_path)
    good = (tmp_path / "x.parquet").read_bytes()
    (tmp_path / "x.parquet").write_bytes(good[:4] + b"?" * (len(good) - 12) + good[-8:])
    with pytest.raises(TableError, match=r"Spark can't read .*: org\.apache.*Exception") as refused:
        mr.enrich(spark.range(3), table, on="id")
    assert "NFS" not in str(refused.value)
    assert ": :" not in str(refused.value)
    table.path = str(tmp_path / "elsewhere")
    with pytest.raises(TableError, match=r"the driver sees files there: \[PATH_NOT_FOUND\].*such as an NFS mount"):
        table._columns(spark)
