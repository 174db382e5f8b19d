"""Files of a table that are damaged while a query runs: the next micro-batch fails and says which, in the worker that has
read the sound file before."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.running import add_file, read_stream, started_query, write_files
from tests.spark.tables import built_table

import millrace as mr
from millrace.core.errors import DamagedTableError
from millrace.relations.build import build_table

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]

slow = pytest.mark.slow
KEYS = 3000
IDS = pa.table({"id": pa.array(range(KEYS), pa.int64())})
ROWS = IDS.append_column("v", pa.array([f"value {n}" for n in range(KEYS)]))


def _overwrite(file: Path) -> None:
    """4,096 bytes, and nothing that the size or the time of the file would tell."""
    before = file.stat()
    with open(file, "r+b") as opened:
        opened.write(b"\xa5" * 4096)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def _cut(file: Path) -> None:
    os.truncate(file, 4096)


def _told_in_the_next_batch(
    spark: SparkSession, folder: Path, table: mr.MasterTable, read: str, damage: Callable[[], Any]
) -> DamagedTableError:
    """What a query fails with that joins all keys, then all keys once more after the damage."""
    source = write_files(IDS, folder / "source", 1)
    enriched = mr.enrich(read_stream(spark, source), table, "id", how="left", read=read)
    query = started_query(enriched, folder)
    query.processAllAvailable()
    damage()
    add_file(IDS, source)
    with pytest.raises(Exception, match=r"damaged|bytes and should have") as failed:
        query.processAllAvailable()
    query.stop()
    written = spark.read.parquet(str(folder / "out"))
    assert (written.count(), written.where("v is null").count()) == (KEYS, 0)
    error = mr.task_error(failed.value)
    assert isinstance(error, DamagedTableError)
    return error


@pytest.mark.parametrize("read", ["mmap", pytest.param("buffered", marks=slow), pytest.param("direct", marks=slow)])
def test_a_shard_that_is_damaged_between_batches_is_named(spark: SparkSession, tmp_path: Path, read: str) -> None:
    for damage, words in ((_overwrite, "page 0 of {} is damaged"), (_cut, "{} has 4096 bytes and should have {}")):
        folder = tmp_path / damage.__name__
        version = build_table(folder / "table", ROWS, "id", page_bytes=4096, shards=2)
        shard = folder / "table" / version.folder / version.shards[1].file
        table = mr.MasterTable.open(folder / "table")
        error = _told_in_the_next_batch(spark, folder, table, read, lambda shard=shard, damage=damage: damage(shard))
        assert words.format(shard, version.shards[1].bytes) in str(error)


@pytest.mark.parametrize("read", ["mmap", pytest.param("buffered", marks=slow)])
def test_a_key_index_that_is_damaged_between_batches_is_named(spark: SparkSession, tmp_path: Path, read: str) -> None:
    counts = IDS.append_column("count", pa.array(range(KEYS), pa.int64()))
    version = build_table(tmp_path / "table", ROWS, "id", page_bytes=4096, layout="frequency", counts=counts)
    index = tmp_path / "table" / version.folder / "keys.index"
    table = mr.MasterTable.open(tmp_path / "table")
    error = _told_in_the_next_batch(spark, tmp_path, table, read, lambda: _overwrite(index))
    assert f"block 0 of {index} is damaged" in str(error)


@slow
def test_a_local_copy_that_is_damaged_between_batches_is_named_and_made_again(
    spark: SparkSession, tmp_path: Path, elsewhere: Path
) -> None:
    spark.conf.set("spark.millrace.localDir", str(elsewhere))
    table = built_table(tmp_path / "table", ROWS)
    error = _told_in_the_next_batch(spark, tmp_path, table, "mmap", lambda: _overwrite(next(elsewhere.glob("*.pages"))))
    assert f"page 0 of {elsewhere}" in str(error)
    assert "the next task makes another" in str(error)
    assert mr.enrich(spark.createDataFrame(IDS), table, "id").count() == KEYS
