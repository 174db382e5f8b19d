"""Building a table on Spark: what goes to the driver, what is shown meanwhile, and what a killed build leaves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.running import wait_until

import millrace as mr
from millrace.core.errors import ParameterError, TableError
from millrace.spark.progress import Moment

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parents[2]


def _job(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.spark.buildjob", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
def test_long_rows_are_measured_where_they_are_and_not_sent_to_the_driver(tmp_path: Path) -> None:
    job = _job("long", str(tmp_path))
    shown = job.communicate(timeout=300)[0]
    assert job.returncode == 0, shown
    built = {line.split()[0]: [int(number) for number in line.split()[1:]] for line in shown.splitlines()[-3:]}
    assert built["40k"] == [2_100, 1, 2_100]  # rows of 40 KB: one on a page of 64 KiB
    assert built["1m"] == [24, 1, 24]
    rows, planned, pages = built["mixed"]
    assert rows == 4_000
    assert planned > 100  # as the short rows of the beginning want it
    assert pages < 200


@pytest.mark.slow
def test_what_a_killed_build_left_is_no_table_and_the_next_build_removes_it(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    job = _job("many", str(tmp_path))
    try:
        wait_until(lambda: list(table.glob("v000001/*.partial")), what="tasks that write")
        job.send_signal(signal.SIGSTOP)  # its tasks go on; it can't publish
        assert not mr.MasterTable.exists(table)
        with pytest.raises(TableError, match="is being built for the first time; open it when the build has finished"):
            mr.MasterTable.open(table)
    finally:
        job.kill()
        job.communicate(timeout=60)
    assert job.returncode == -signal.SIGKILL
    assert list(table.glob("v000001/*"))
    assert not mr.MasterTable.exists(table)
    with pytest.raises(TableError, match=r"whose build never finished: .*build it again with MasterTable\.build"):
        mr.MasterTable.open(table)
    built = mr.MasterTable.build(spark.range(100), "id", table, shards=1)
    assert mr.MasterTable.exists(table)
    assert built.latest.rows == 100
    assert {path.name for path in table.iterdir()} == {"manifest.json", built.latest.folder}
    assert mr.enrich(spark.range(50, 150), mr.MasterTable.open(table), "id").count() == 50


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("millrace")}


def test_progress_is_shown_when_it_is_wanted_and_nothing_of_it_stays(
    spark: SparkSession, warehouse: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = spark.range(30_000).selectExpr("id", "repeat('x', 100) AS text")
    for name, wanted in (("default", None), ("off", False)):  # stderr is no terminal here
        mr.MasterTable.build(data, "id", warehouse / name, shards=2, progress=wanted)
    assert capfd.readouterr() == ("", "")
    table = mr.MasterTable.build(data, "id", warehouse / "on", shards=2, progress=True)
    out, shown = capfd.readouterr()
    assert out == ""
    assert re.fullmatch(r"built, 30,000 rows, [\d.]+ MiB on disk", shown.splitlines()[-1])
    assert not list(warehouse.rglob("*.rows"))
    assert _threads() == set()
    failing = spark.range(10).selectExpr("id", "assert_true(id < 5) AS x")
    with pytest.raises(TableError, match="could not be built"):
        mr.MasterTable.build(failing, "id", warehouse / "on", progress=True)
    assert _threads() == set()
    assert table.latest.rows == 30_000
    with pytest.raises(ParameterError, match="progress must be True, False or None; got 'yes'"):
        mr.MasterTable.build(data, "id", warehouse / "never", progress="yes")  # type: ignore[arg-type]
    assert not (warehouse / "never").exists()


def test_a_terminal_is_shown_a_bar(spark: SparkSession, warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = os.openpty()
    written: list[bytes] = []

    def read() -> None:
        while piece := os.read(master, 4096):
            written.append(piece)
            if b"the end" in piece:
                return

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(slave, "w") as terminal, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", terminal)
        patched.setenv("TERM", "xterm")
        mr.MasterTable.build(spark.range(1_000), "id", warehouse, shards=1)
        terminal.write("the end")
        terminal.flush()
        reader.join(60)
    os.close(master)
    assert "built" in b"".join(written).decode()
    assert "1,000 rows, " in b"".join(written).decode()


def test_how_far_a_build_is_reads_as_a_line() -> None:
    started = Moment("reading and sorting", 0.0)
    reading = Moment("reading and sorting", 4.0, rows=1_200_000, share=0.25)
    writing = Moment("writing", 3600.0, rows=2_500_000, all_rows=10_000_000, share=0.25, bytes=300 << 20)
    unknown = Moment("writing", 3.0, rows=2_500_000, bytes=300 << 20)
    assert str(started) == "reading and sorting"
    assert str(reading) == "reading and sorting 25 %, 1,200,000 rows, 0:12 left"
    assert str(writing) == "writing 25 %, 2,500,000 of 10,000,000 rows, 300.0 MiB on disk, 3:00:00 left"
    assert str(unknown) == "writing, 2,500,000 rows, 300.0 MiB on disk"
