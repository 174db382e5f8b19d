"""Building a table on Spark: what goes to the driver, what is shown meanwhile, and what a killed build leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
