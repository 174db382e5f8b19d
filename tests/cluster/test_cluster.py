"""On real executors: build and enrich, an executor killed in a micro-batch, shards made local, a path out of reach."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path

import pytest
from tests.cluster.data import FILES, ROWS_PER_FILE, batches, truth
from tests.cluster.standalone import Cluster, Program, can_blind
from tests.spark.running import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.cluster]


def test_an_executor_killed_in_a_micro_batch_changes_no_row_and_no_count(
    cluster: Cluster, programs: list[Program], tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    driver = Program("driver", "enrich", cluster.url, folder)
    programs.append(driver)
    wait_until(lambda: (folder / "held").exists() or driver.process.poll() is not None, seconds=400, what="the task to wait")
    assert (folder / "held").exists(), driver.process.communicate()[0]
    before = cluster.executors()
    assert len(before) == 2
    victim = cluster.executor_of(int((folder / "held").read_text()))
    assert not (folder / "checkpoint" / "commits" / "1").exists()  # the batch is going on
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: victim not in cluster.executors(), what="the executor to be gone")
    (folder / "go").touch()

    found = driver.result()
    assert found["batch"]
    assert found["scanned"]
    assert found["streamed"]  # every row once, and as in Spark's own join
    assert found["batch_report"] == truth(0, FILES * ROWS_PER_FILE)
    assert found["reports"] == batches()
    for worker in cluster.workers:
        assert worker.copies == found["copies"]
    assert found["copied_bytes"] == 2 * found["table_bytes"]  # once for each worker, whatever runs there
    assert found["remote_shards"] == 0


def test_a_table_that_workers_can_not_see_is_an_error_that_says_where_and_what_to_do(
    cluster: Cluster, programs: list[Program], tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    if not can_blind(folder / "hidden"):
        pytest.skip("a folder can be hidden from workers only with the right to mount")
    driver = Program("driver", "unreachable", cluster.url, folder)
    programs.append(driver)
    said = driver.result()
    host = f"on host {socket.gethostname()}, though the driver had one there: "
    for name, path in [("batch", "table"), ("stream", "table"), ("parquet", "lake"), ("build", "new")]:
        kind, text = said[name]
        assert kind == "TableError", (name, text)
        assert str(folder / "hidden" / path) in text
        assert host in text or name == "parquet"  # there it is Spark that reads first
        assert re.search(r"driver and executors must see (it|them) under the same path.*share, such as an NFS mount", text)
        assert len(text.splitlines()) == 1
    assert said["left"] == []
    assert said["written"] == []
