"""`enrich` inside `foreachBatch`: the version of a batch is chosen once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.running import frame, read_stream, write_files

import millrace as mr
from millrace.spark.pins import pinned_version

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]


def build(spark: SparkSession, path: Path, value: str) -> mr.MasterTable:
    rows = pa.table({"id": pa.array(range(50), pa.int64()), "v": [value] * 50})
    return mr.MasterTable.build(frame(spark, rows), key="id", path=path)


def test_a_batch_that_failed_sees_the_same_version_again(spark: SparkSession, tmp_path: Path) -> None:
    build(spark, tmp_path / "t", "old")
    folder = write_files(pa.table({"id": pa.array(range(60), pa.int64())}), tmp_path / "in", 1)
    seen: list[set[str | None]] = []

    def body(rows: DataFrame, number: int) -> None:
        opened = mr.MasterTable.open(tmp_path / "t")
        found = mr.enrich(rows, opened, on="id", how="left").toArrow()
        seen.append(set(found["v"].to_pylist()))
        if len(seen) == 1:
            raise RuntimeError("the sink is down")

    def run() -> None:
        writer = read_stream(spark, folder).writeStream.foreachBatch(body)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination(120)

    with pytest.raises(Exception, match="the sink is down"):
        run()
    newer = build(spark, tmp_path / "t", "new")
    assert newer.latest.number == 2
    run()
    assert seen == [{"old", None}, {"old", None}]


def test_a_table_opened_once_gives_each_batch_the_newest_version(spark: SparkSession, tmp_path: Path) -> None:
    table = build(spark, tmp_path / "t", "old")
    folder = write_files(pa.table({"id": pa.array(range(60), pa.int64())}), tmp_path / "in", 2)
    seen: list[set[str | None]] = []

    def body(rows: DataFrame, number: int) -> None:
        found = mr.enrich(rows, table, on="id", how="left").toArrow()
        seen.append(set(found["v"].to_pylist()) - {None})
        build(spark, tmp_path / "t", f"version {number}")

    stream = read_stream(spark, folder).writeStream.foreachBatch(body).option("checkpointLocation", str(tmp_path / "c"))
    stream.trigger(availableNow=True).start().awaitTermination(120)
    assert seen == [{"old"}, {"version 0"}]


def test_whoever_pins_first_wins(tmp_path: Path) -> None:
    assert pinned_version(tmp_path, ("query", 7), 1) == 1
    assert pinned_version(tmp_path, ("query", 7), 2) == 1
    assert pinned_version(tmp_path, ("query", 8), 2) == 2
    assert sorted(path.name for path in (tmp_path / "pins" / "query").iterdir()) == ["000000000007", "000000000008"]


def test_old_pins_are_removed(tmp_path: Path) -> None:
    for batch in range(130):
        pinned_version(tmp_path, ("query", batch), 1)
    kept = sorted(path.name for path in (tmp_path / "pins" / "query").iterdir())
    assert len(kept) == 100
    assert kept[-1] == f"{129:012d}"
