"""The commands on a real Spark session, which they share, and the examples."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import shutil
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from millrace.cli.app import app
from millrace.cli.demo import DemoOptions, Folders, compare, run_demo
from millrace.cli.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with local_session(tmp_path_factory.mktemp("spark"), driver_memory="1g", brief=True) as session:
        yield session


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "160", "NO_COLOR": "1", "TERM": "dumb"})


def test_the_demo_runs_to_its_end_and_would_notice_a_wrong_row(spark: SparkSession, tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=80)
    options = DemoOptions(rows=20_000, sales=30_000, memory="4m", folder=tmp_path / "demo")
    assert run_demo(options, console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    folders = Folders(tmp_path / "demo")
    check = compare(spark, folders)
    assert (check.rows, check.spark_rows, check.differing, check.agrees) == (30_000, 30_000, 0, True)
    for words in (
        "made 20,000 products",
        "built the table",
        "30,000 in 4 micro-batches",
        "of a budget of 4.0 MiB",
        f"equal: 30,000 rows each, checksum {check.checksum:016x}",
        "x as fast as",
        "and the two results are the same rows",
        "millrace build FILE_OR_FOLDER my-table --key COLUMN",
        f"kept in {tmp_path / 'demo'}",
    ):
        assert words in shown
    assert re.findall(r"^ +(\d) +[\d,]+ +[\d.]+ m?s +[\d.]+ m?s +(warming up|[\d.]+ x)$", shown, re.MULTILINE)[2][0] == "2"

    warehouse = folders.warehouse("millrace")
    shutil.rmtree(warehouse / "_spark_metadata")  # so that its files are read as they are
    wrong = max(warehouse.glob("*.parquet"), key=lambda path: path.stat().st_size)
    table = pq.read_table(wrong)
    wrong.with_name(f".{wrong.name}.crc").unlink()
    pq.write_table(table.slice(2), wrong, use_deprecated_int96_timestamps=True)  # two sales that the other side has
    check = compare(spark, folders)
    assert (check.rows, check.spark_rows, check.differing, check.agrees) == (29_998, 30_000, 2, False)


def test_a_budget_too_small_for_the_demo_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    result = run("demo", "--rows", "1000", "--sales", "1000", "--memory", "1k", "--folder", str(tmp_path / "demo"))
    assert result.exit_code == 1
    assert "error: the memory budget of 1.0 KiB is too small" in result.output
    assert "Traceback" not in result.output


def test_build_makes_a_table_that_inspect_shows(spark: SparkSession, tmp_path: Path) -> None:
    source, path = tmp_path / "source", tmp_path / "table"
    spark.range(3_000).selectExpr("id", "id % 7 AS shop", "string(id) AS name").write.parquet(str(source))
    result = run("build", str(source), str(path), "--key", "id,shop", "--layout", "hash", "--page-bytes", "8k", "--shards", "2")
    assert result.exit_code == 0, result.output
    assert "built version 1 of" in result.output
    assert "3,000 rows" in result.output
    report = json.loads(run("inspect", str(path), "--json", "--verify").output)
    (version,) = report["versions"]
    assert (version["key"], version["layout"], version["rows"], len(version["shards"])) == (["id", "shop"], "hash", 3_000, 2)
    assert report["damage"] == []

    wrong = run("build", str(source), str(path), "--key", "nope")
    assert wrong.exit_code == 1
    assert "has no column 'nope'" in wrong.output


def test_build_takes_counts_and_inspect_shows_and_checks_the_index(spark: SparkSession, tmp_path: Path) -> None:
    source, counts, path = tmp_path / "source", tmp_path / "counts", tmp_path / "table"
    spark.range(3_000).selectExpr("id", "string(id) AS name").write.parquet(str(source))
    spark.range(100).selectExpr("id * 30 AS id", "id AS count").write.parquet(str(counts))
    build = ("build", str(source), str(path), "--key", "id", "--layout", "frequency")
    missing = run(*build)
    assert missing.exit_code == 1
    assert "layout='frequency' needs counts=" in missing.output
    result = run(*build, "--counts", str(counts), "--shards", "2")
    assert result.exit_code == 0, result.output
    shown = run("inspect", str(path), "--verify").output
    assert "index    3,000 keys in 12 blocks, 48.0 KiB" in shown
    assert "all checksums fit" in shown
    index = path / "v000001" / "keys.index"
    data = bytearray(index.read_bytes())
    data[5000] ^= 1
    index.write_bytes(data)
    damaged = run("inspect", str(path), "--verify")
    assert damaged.exit_code == 1
    assert "block 1 of" in damaged.output


def test_doctor_as_json_lists_every_check(spark: SparkSession, tmp_path: Path) -> None:
    result = run("doctor", "--json", "--folder", str(tmp_path))
    report = json.loads(result.output)
    names = [finding["name"] for finding in report["findings"]]
    assert names == [
        *("python", "java", "pyspark", "pyarrow", "numba", "pandas", "kernels", "workers", "memory"),
        *("RLIMIT_AS", "RLIMIT_DATA", "disk", "direct reads", "disk speed", "spark job"),
    ]
    assert report["ok"], report
    assert result.exit_code == 0
    assert all(finding["advice"] for finding in report["findings"] if finding["status"] != "ok")


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_prints_what_it_says(
    example: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = example.read_text()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(example), "exec"), {"__name__": "__main__"})
    said = (ast.get_docstring(ast.parse(code)) or "").partition("\n\n")[2]
    assert textwrap.dedent(said).strip() == printed.getvalue().strip()
