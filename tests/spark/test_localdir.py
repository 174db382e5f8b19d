"""The settings by which tasks keep local copies of shards; on a cluster, see tests/cluster."""

from __future__ import annotations

import os
import uuid
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from tests.spark.running import frame, wait_until
from tests.spark.tables import built_table

import millrace as mr
from millrace.core.errors import BudgetError, ParameterError
from millrace.relations.folder import now_us

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]

KEYS = 3000
SALES = pa.table({"id": pa.array([n * 7 % (KEYS + 100) for n in range(4000)], pa.int64())})


def _table(path: Path, value: str = "v") -> mr.MasterTable:
    rows = pa.table({"id": pa.array(range(KEYS), pa.int64()), "v": [f"{value} {n}" for n in range(KEYS)]})
    return built_table(path, rows, shards=3)


def _sales(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(SALES).repartition(4)


def _report(sales: DataFrame, table: mr.MasterTable, read: str = "auto") -> mr.BatchReport:
    watch = Observation(uuid.uuid4().hex)
    rows = mr.enrich(sales, table, "id", read=read, observation=watch).toArrow()
    assert len(rows) == sum(one < KEYS for one in SALES["id"].to_pylist())
    return mr.reports(watch)[0]


def _copies(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.pages"))


def _passed(time_us: int) -> bool:
    return now_us() > time_us


def _all_local(sales: DataFrame, table: mr.MasterTable) -> bool:
    return _report(sales, table).remote_shards == 0


@pytest.mark.parametrize("read", ["mmap", "buffered"])
def test_all_workers_of_a_machine_share_one_copy(spark: SparkSession, warehouse: Path, elsewhere: Path, read: str) -> None:
    table = _table(warehouse)
    spark.conf.set("spark.millrace.localDir", str(elsewhere))
    first, second = (_report(_sales(spark), table, read) for _ in range(2))
    assert first.copied_bytes == table.latest.bytes
    assert second.copied_bytes == 0
    assert _copies(elsewhere) == sorted(f"{table.latest.index_checksum}-{shard.file}" for shard in table.latest.shards)


def test_without_the_setting_or_on_the_same_disk_nothing_is_copied(
    spark: SparkSession, warehouse: Path, tmp_path: Path
) -> None:
    table = _table(warehouse)
    assert _report(_sales(spark), table).copied_bytes == 0
    spark.conf.set("spark.millrace.localDir", str(tmp_path / "local"))
    assert _report(_sales(spark), table).copied_bytes == 0
    assert _copies(tmp_path / "local") == []


def test_what_has_no_room_is_read_where_it_is_and_reported(spark: SparkSession, warehouse: Path, elsewhere: Path) -> None:
    table = _table(warehouse)
    spark.conf.set("spark.millrace.localDir", str(elsewhere))
    spark.conf.set("spark.millrace.localDirLimit", str(2 * max(shard.bytes for shard in table.latest.shards)))
    report = _report(_sales(spark), table)
    assert len(_copies(elsewhere)) == 2
    assert report.remote_shards == 1


def test_a_newer_version_takes_the_room_of_the_older(spark: SparkSession, warehouse: Path, elsewhere: Path) -> None:
    spark.conf.set("spark.millrace.localDir", str(elsewhere))
    one_task = frame(spark, SALES)
    for value in ("old", "new"):
        table = _table(warehouse, value)
        spark.conf.set("spark.millrace.localDirLimit", str(table.latest.bytes + 4096))
        newest = table.versions[-1].effective_at_us
        wait_until(partial(_passed, newest), seconds=20, what="the version to take effect")
        wait_until(partial(_all_local, one_task, table), seconds=100, what="idle workers to let go")
        assert all(name.startswith(table.latest.index_checksum) for name in _copies(elsewhere))
        assert len(_copies(elsewhere)) == 3


def test_settings_that_can_not_be_used_say_so(spark: SparkSession, warehouse: Path) -> None:
    table = _table(warehouse)
    spark.conf.set("spark.millrace.localDir", "scratch/copies")
    with pytest.raises(ParameterError, match=r"spark\.millrace\.localDir must be an absolute path.*got 'scratch/copies'"):
        mr.enrich(_sales(spark), table, "id")
    spark.conf.set("spark.millrace.localDir", "$MILLRACE_NOT_SET/copies")
    spark.conf.set("spark.millrace.localDirLimit", "a lot")
    with pytest.raises(ParameterError, match=r"spark\.millrace\.localDirLimit: .*a lot"):
        mr.enrich(_sales(spark), table, "id")
    spark.conf.unset("spark.millrace.localDirLimit")
    with pytest.raises(Exception, match="names no folder on host") as failed:
        mr.enrich(_sales(spark), table, "id").count()
    error = mr.task_error(failed.value)
    assert isinstance(error, ParameterError)
    assert "set the variable there" in str(error)
    spark.conf.set("spark.millrace.localDir", "/proc/version/copies")
    with pytest.raises(Exception, match="can't hold local copies of shards") as failed:
        mr.enrich(_sales(spark), table, "id").count()
    assert len(str(mr.task_error(failed.value)).splitlines()) == 1


def test_a_folder_that_is_empty_where_the_task_runs_is_said_to_be_out_of_reach(spark: SparkSession, warehouse: Path) -> None:
    table = _table(warehouse)
    rows = mr.enrich(frame(spark, SALES), table, "id")
    os.rename(warehouse, f"{warehouse}-moved")
    warehouse.mkdir()
    with pytest.raises(Exception, match="there is no table at") as failed:
        rows.count()
    assert f"{warehouse} on host" in str(mr.task_error(failed.value))


def test_an_exception_of_somebody_else_is_no_error_of_a_task() -> None:
    assert mr.task_error(ValueError("millrace is not to blame")) is None
    assert mr.task_error(None) is None
    small = mr.task_error(RuntimeError("millrace.core.errors.BudgetError: too small; give memory=4711 or more"))
    assert isinstance(small, BudgetError)
    assert small.needed_bytes == 4711
    said = ParameterError("this is")
    assert mr.task_error(said) is said
