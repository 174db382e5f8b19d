"""The Python of Spark's workers: on one machine it is the one that runs the program, whatever the PATH says."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.core.errors import MillraceError
from millrace.spark.workers import worker_problem

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without packages."""
    home = tmp_path_factory.mktemp("other")
    venv.create(home, symlinks=True)
    return home / "bin" / "python3"


@pytest.fixture
def workers(spark: SparkSession) -> Iterator[SparkSession]:
    """A session whose workers' Python a test may change."""
    before = spark.sparkContext.pythonExec
    yield spark
    spark.sparkContext.pythonExec = before


def _rows(spark: SparkSession, folder: Path) -> list[tuple[int, str | None]]:
    table = mr.MasterTable.build(spark.range(2).selectExpr("id", "'known' AS v"), "id", folder, shards=1)
    return sorted(tuple(row) for row in mr.enrich(spark.range(3), table, "id", how="left").collect())


def test_workers_run_this_python_where_the_one_of_the_path_lacks_millrace(
    workers: SparkSession, other: Path, warehouse: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workers.sparkContext.pythonExec = str(other)
    with caplog.at_level(logging.INFO, logger="millrace"):
        assert _rows(workers, warehouse) == [(0, "known"), (1, "known"), (2, None)]
    assert workers.sparkContext.pythonExec == sys.executable
    (said,) = [record.getMessage() for record in caplog.records if "workers" in record.getMessage()]
    assert said.startswith(f"Spark's workers would run {other}, which has no ")
    assert said.endswith(f"; from here on they run {sys.executable}")


def test_a_python_that_was_chosen_is_not_replaced_but_refused(
    workers: SparkSession, other: Path, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = mr.MasterTable.build(workers.range(2), "id", warehouse, shards=1)
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    workers.sparkContext.pythonExec = str(other)
    words = rf"workers run {other}, which has no .*os.environ\['PYSPARK_PYTHON'\] = sys.executable"
    with pytest.raises(MillraceError, match=words):
        mr.enrich(workers.range(3), table, "id")
    with pytest.raises(MillraceError, match=words):
        mr.MasterTable.build(workers.range(2), "id", warehouse)
    assert workers.sparkContext.pythonExec == str(other)


def test_this_python_is_known_by_any_of_its_names_and_a_link_to_it_is_another(tmp_path: Path, other: Path) -> None:
    for name in ("python", "python3"):
        if (mine := Path(sys.executable).with_name(name)).exists():
            assert worker_problem(str(mine)) is None
    assert worker_problem(str(tmp_path / "none")) == "does not start"
    assert str(worker_problem(str(other))).startswith("has no ")  # a link to the same program, in another environment
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho oh no >&2\nexit 3\n")
    broken.chmod(0o755)
    assert worker_problem(str(broken)) == "fails: oh no"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["notebook", "script"])
def test_the_quick_start_runs_in_an_environment_that_is_not_on_the_path(other: Path, tmp_path: Path, way: str) -> None:
    """No PYSPARK_PYTHON, and another python3 first on the PATH; a notebook has no file either."""
    code = (ROOT / "examples" / "enrich_stream.py").read_text()
    lines = [line for line in code.splitlines() if not line.startswith("os.environ.setdefault(")]
    program = "\n".join(lines)
    arguments = ["-c", program]
    if way == "script":
        (tmp_path / "program.py").write_text(program)
        arguments = [str(tmp_path / "program.py")]
    unset = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"PATH": f"{other.parent}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "5 in, 3 joined, 1 unknown, 1 without a key" in done.stdout
