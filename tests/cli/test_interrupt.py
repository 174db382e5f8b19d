"""Ctrl-C in the middle of the demo, as a terminal sends it: to the whole process group."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
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
