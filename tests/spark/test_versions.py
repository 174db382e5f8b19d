"""Versions of a table on Spark: a batch sees one version, a later batch the newer one, and no worker remembers what is gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.running import add_file, frame, read_stream, run_query, started_query, wait_until, write_files

import millrace as mr
from millrace.relations.build import build_table
from millrace.relations.folder import now_us

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]

IDS = pa.table({"id": pa.array(range(20), pa.int64())})


def _rows(value: str, copies: int = 1) -> pa.Table:
    return pa.table({"id": pa.array(list(range(20)) * copies, pa.int64()), "v": [value] * 20 * copies})


def _in_effect(path: Path) -> mr.MasterTable:
    newest = mr.MasterTable.open(path).versions[-1].effective_at_us
    wait_until(lambda: now_us() > newest, seconds=20, what="the new version to take effect")
    return mr.MasterTable.open(path)


def _values(spark: SparkSession, table: mr.MasterTable) -> set[str]:
    return {row["v"] for row in mr.enrich(frame(spark, IDS), table, "id").collect()}


def test_a_table_that_was_removed_and_built_again_gives_its_new_rows(spark: SparkSession, warehouse: Path) -> None:
    for value in ("first", "second", "third"):  # the same path, the same version number, the same workers
        shutil.rmtree(warehouse, ignore_errors=True)
        build_table(warehouse, _rows(value), "id")
        for _ in range(3):
            assert _values(spark, mr.MasterTable.open(warehouse)) == {value}


def test_a_table_that_was_moved_away_is_missed_at_once(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    build_table(warehouse, _rows("here"), "id")
    table = mr.MasterTable.open(warehouse)
    enriched = mr.enrich(frame(spark, IDS), table, "id")
    assert enriched.count() == 20
    warehouse.rename(tmp_path / "elsewhere")
    with pytest.raises(Exception, match="there is no table at"):
        enriched.collect()


def test_whoever_builds_a_version_sees_it_in_the_next_batch_query(spark: SparkSession, warehouse: Path) -> None:
    for value in ("old", "new"):
        table = mr.MasterTable.build(frame(spark, _rows(value)), "id", warehouse, shards=1)
        assert _values(spark, table) == {value}


def test_a_running_query_takes_up_a_new_version_with_a_later_batch(
    spark: SparkSession, warehouse: Path, tmp_path: Path
) -> None:
    build_table(warehouse, _rows("old"), "id")
    source = tmp_path / "source"
    write_files(IDS.append_column("n", pa.array([1] * 20)), source, 1)
    enriched = mr.enrich(read_stream(spark, source), mr.MasterTable.open(warehouse), "id")
    query = started_query(enriched, tmp_path)
    query.processAllAvailable()
    build_table(warehouse, _rows("new"), "id")
    _in_effect(warehouse)
    add_file(IDS.append_column("n", pa.array([2] * 20)), source)
    query.processAllAvailable()
    query.stop()
    seen = {(row["n"], row["v"]) for row in spark.read.parquet(str(tmp_path / "out")).collect()}
    assert seen == {(1, "old"), (2, "new")}
    assert [report.table_versions for report in mr.reports(query) if report.rows_in] == [(1,), (2,)]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (_rows("new").drop_columns(["v"]), "'v' is not string any more"),
        (pa.table({"id": range(20), "v": range(20)}), "'v' is not string any more"),
        (_rows("new", copies=2), "at most 1 rows in the table when this query was planned and has 2"),
        (pa.table({"id": [str(n) for n in range(20)], "v": ["x"] * 20}), "'id' is not int64 any more"),
    ],
    ids=["column gone", "other type", "duplicates", "other key type"],
)
def test_a_version_that_does_not_fit_the_query_is_an_error_and_not_a_miss(
    spark: SparkSession, warehouse: Path, tmp_path: Path, rows: pa.Table, words: str
) -> None:
    build_table(warehouse, _rows("old"), "id")
    table = mr.MasterTable.open(warehouse)
    enriched = mr.enrich(read_stream(spark, write_files(IDS, tmp_path / "source", 1)), table, "id", how="left")
    build_table(warehouse, rows, "id")
    _in_effect(warehouse)
    with pytest.raises(Exception, match=words):
        run_query(enriched, tmp_path)
    assert not list((tmp_path / "out").glob("*.parquet"))
    assert not list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))


def test_more_columns_in_a_new_version_do_no_harm(spark: SparkSession, warehouse: Path) -> None:
    build_table(warehouse, _rows("old"), "id")
    enriched = mr.enrich(frame(spark, IDS), mr.MasterTable.open(warehouse), "id")
    wider = pa.table({"w": range(20), "v": ["new"] * 20, "id": range(20)})
    build_table(warehouse, wider, "id")
    _in_effect(warehouse)
    assert {tuple(row) for row in enriched.collect()} == {(n, "new") for n in range(20)}


def test_another_layout_and_other_pages_in_a_new_version_do_no_harm(spark: SparkSession, warehouse: Path) -> None:
    build_table(warehouse, _rows("old"), "id", layout="key")
    enriched = mr.enrich(frame(spark, IDS), mr.MasterTable.open(warehouse), "id")
    assert enriched.count() == 20
    build_table(warehouse, _rows("new"), "id", layout="hash", page_bytes=4096, shards=4)
    _in_effect(warehouse)
    assert {row["v"] for row in enriched.collect()} == {"new"}
