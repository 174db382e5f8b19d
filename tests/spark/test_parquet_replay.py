"""Files of a `ParquetTable` that come, go and change around a micro-batch that is replayed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.running import add_file, frame, read_stream, write_files

import millrace as mr
from millrace.core.errors import ParameterError, TableError

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]


def put(path: Path, value: str, key: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": [key], "v": [value]}), path)
    return path


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return put(tmp_path / "lake" / "a.parquet", "old").parent


class Job:
    """A query of one row a batch, planned anew for every run. The sink of the first run fails after it has seen the rows, so
    that the second run replays batch 0 from the checkpoint."""

    def __init__(
        self, spark: SparkSession, folder: Path, table: Callable[[], mr.ParquetTable], *, inside: bool = False
    ) -> None:
        self.seen: list[list[str]] = []
        self._spark, self._folder, self._table, self._inside = spark, folder, table, inside
        self._source = write_files(pa.table({"id": [1]}), folder / "in", 1)

    def run(self, *, fail: bool = False, meanwhile: Callable[[], object] = lambda: None) -> list[str]:
        def sink(rows: DataFrame, number: int) -> None:
            found = mr.enrich(rows, self._table(), on="id") if self._inside else rows
            meanwhile()
            self.seen.append(sorted(found.toArrow()["v"].to_pylist()))
            if fail:
                raise RuntimeError("the sink is down")

        stream = read_stream(self._spark, self._source)
        stream = stream if self._inside else mr.enrich(stream, self._table(), on="id")
        writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(self._folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        if fail:
            with pytest.raises(Exception, match="the sink is down"):
                query.awaitTermination(120)
        else:
            query.awaitTermination(120)
        return self.seen[-1]


def test_a_replay_does_not_see_files_that_came_after_the_first_run(spark: SparkSession, lake: Path, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, lambda: mr.ParquetTable(lake))
    assert job.run(fail=True, meanwhile=lambda: put(lake / "b.parquet", "late")) == ["old"]
    put(lake / "c.parquet", "later")
    assert job.run() == ["old"]


def test_a_replay_that_can_not_tell_what_the_first_run_saw_is_an_error_that_names_the_file(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    job = Job(spark, tmp_path, lambda: mr.ParquetTable(lake))
    put(tmp_path / "elsewhere.parquet", "written before, renamed later")
    assert job.run(fail=True) == ["old"]
    os.rename(tmp_path / "elsewhere.parquet", lake / "b.parquet")
    with pytest.raises(Exception, match=r"(?s)whether it saw .*b\.parquet can't be known.* pins=folder.* new checkpoint"):
        job.run()


@pytest.mark.parametrize("inside", [False, True], ids=["stream", "foreachBatch"])
def test_with_pins_a_replay_sees_the_files_of_the_first_run_whatever_their_times(
    spark: SparkSession, lake: Path, tmp_path: Path, inside: bool
) -> None:
    put(lake / "ahead.parquet", "by a clock that runs ahead")
    os.utime(lake / "ahead.parquet", (time.time() + 9e5,) * 2)
    put(tmp_path / "elsewhere.parquet", "written before, renamed later")
    job = Job(spark, tmp_path, lambda: mr.ParquetTable(lake, pins=tmp_path / "pins"), inside=inside)
    first = job.run(fail=True)
    assert first == ["by a clock that runs ahead", "old"]
    os.rename(tmp_path / "elsewhere.parquet", lake / "b.parquet")
    os.chmod(lake / "a.parquet", 0o600)
    assert job.run() == first
    add_file(pa.table({"id": [1]}), tmp_path / "in")
    assert len(job.run()) == 3  # the next batch sees all


@pytest.mark.parametrize("inside", [False, True], ids=["stream", "foreachBatch"])
def test_a_pinned_file_that_is_gone_or_rewritten_fails_the_replay_by_name(
    spark: SparkSession, lake: Path, tmp_path: Path, inside: bool
) -> None:
    put(lake / "b.parquet", "more")
    job = Job(spark, tmp_path, lambda: mr.ParquetTable(lake, pins=lake / "_pins"), inside=inside)
    job.run(fail=True)
    kept = (lake / "b.parquet").rename(tmp_path / "kept")
    with pytest.raises(Exception, match=r"b\.parquet has vanished since this batch was first run; put it back"):
        job.run()
    put(lake / "b.parquet", "MORE")  # as long as before
    with pytest.raises(Exception, match=r"b\.parquet was replaced since this batch was first run; put it back"):
        job.run()
    kept.rename(lake / "b.parquet")
    assert job.run() == ["more", "old"]


def test_a_batch_dataframe_takes_the_files_of_its_planning_and_asks_no_clock(spark: SparkSession, lake: Path) -> None:
    put(lake / "ahead.parquet", "by a clock that runs ahead")
    os.utime(lake / "ahead.parquet", (time.time() + 9e5,) * 2)
    found = mr.enrich(frame(spark, pa.table({"id": [1]})), mr.ParquetTable(lake), on="id")
    put(lake / "b.parquet", "late")
    assert found.count() == 2


def test_a_file_that_is_rewritten_while_a_query_runs_fails_the_batch_by_name(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    job = Job(spark, tmp_path, lambda: mr.ParquetTable(lake))
    before = (lake / "a.parquet").stat()

    def rewrite() -> None:
        put(lake / "a.parquet", "OLD")
        assert (lake / "a.parquet").stat().st_size == before.st_size

    with pytest.raises(Exception, match=r"a\.parquet was replaced since the query was planned"):
        job.run(meanwhile=rewrite)


def test_with_pins_a_file_that_vanishes_while_a_query_runs_fails_the_batch_by_name(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    put(lake / "b.parquet", "old too")
    job = Job(spark, tmp_path, lambda: mr.ParquetTable(lake, pins=tmp_path / "pins"))
    with pytest.raises(Exception, match=r"b\.parquet has vanished since the query was planned"):
        job.run(meanwhile=(lake / "b.parquet").unlink)


def test_pins_among_the_files_of_the_table_are_refused(lake: Path, tmp_path: Path) -> None:
    for wrong in (lake, lake / "pins", lake / "_k=1"):
        with pytest.raises(ParameterError, match="lies among the files of"):
            mr.ParquetTable(lake, pins=wrong)
    for right in (lake / "_pins", lake / ".pins", tmp_path / "pins"):
        assert mr.ParquetTable(lake, pins=str(right)).pins == str(right)


def test_pins_that_an_executor_does_not_find_are_an_error_and_never_written_anew(tmp_path: Path) -> None:
    from millrace.spark.pins import FilePins

    pins = FilePins.prepare(str(tmp_path / "pins"), "/lake")
    assert pins.files("query", f"{7:020d}", tuple) == ()
    assert FilePins.prepare(str(tmp_path / "pins"), "/lake") == pins
    assert FilePins.prepare(str(tmp_path / "pins"), "/other").folder != pins.folder
    (tmp_path / "pins").rename(tmp_path / "not mounted")
    with pytest.raises(TableError, match=r"there is no folder of pins .*such as an NFS mount"):
        pins.files("query", f"{8:020d}", tuple)
    other = FilePins.prepare(str(tmp_path / "pins"), "/lake")  # a folder of that name on another host
    with pytest.raises(TableError, match="there is no folder of pins"):
        pins.files("query", f"{8:020d}", tuple)
    for batch in range(130):
        other.files("query", f"{batch:020d}", tuple)
    assert len(list(Path(other.folder, "query").iterdir())) == 100
