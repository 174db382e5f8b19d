"""Ctrl-C in the middle of the demo or of a build, as a terminal sends it: to the whole process group."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.spark


def test_ctrl_c_stops_the_demo_and_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "millrace.cli.app", "demo", "--rows", "2000", "--sales", "5000000"]
    demo = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
    )
    assert demo.stdout is not None
    shown = []
    try:
        for line in demo.stdout:
            shown.append(line)
            if line.split()[:1] == ["0"]:  # the first micro-batch is through
                break
        started = psutil.Process(demo.pid).children(recursive=True)
        os.killpg(demo.pid, signal.SIGINT)
        shown += demo.stdout.readlines()
        assert demo.wait(60) == 130, "".join(shown)
    finally:
        demo.kill()
    assert started  # Spark was running
    assert shown[-1] == "stopped\n"
    assert "Traceback" not in "".join(shown)
    assert [path for path in tmp_path.iterdir() if path.name.startswith(("millrace-demo-", "millrace-spark-"))] == []
    _, alive = psutil.wait_procs(started, 20)
    assert alive == []


@pytest.mark.slow
def test_ctrl_c_stops_a_build_and_leaves_nothing_behind(tmp_path: Path) -> None:
    source, table, temporary = tmp_path / "source.parquet", tmp_path / "table", tmp_path / "temporary"
    temporary.mkdir()
    ids = np.arange(3_000_000)
    pq.write_table(pa.table({"id": ids, "value": np.sqrt(ids)}), source, row_group_size=500_000)
    command = [sys.executable, "-m", "millrace.cli.app", "build", str(source), str(table), "--key", "id"]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    build = subprocess.Popen(command, text=True, start_new_session=True, env=environment, **pipes)  # type: ignore[call-overload]
    try:
        while not list(table.glob("v000001/*.partial")):  # tasks write
            assert build.poll() is None
            time.sleep(0.02)
        os.killpg(build.pid, signal.SIGINT)
        shown = build.communicate(timeout=60)[0]
    finally:
        build.kill()
    assert (build.returncode, shown) == (130, "stopped\n")
    assert not table.exists()
    assert [path for path in temporary.iterdir() if path.name.startswith("millrace-")] == []
