"""The commands without Spark: help, errors, and tables that are looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from millrace import __version__
from millrace.cli.app import app
from millrace.core.errors import MillraceError, interrupted
from millrace.relations.build import build_table


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "160", "NO_COLOR": "1", "TERM": "dumb"})


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = pa.table({"id": pa.array([*range(5_000), None]), "name": [f"name {i}" for i in range(5_001)]})
    build_table(tmp_path / "products", rows, "id", page_bytes=4096, shards=2)
    return tmp_path / "products"


def test_help_lists_every_command() -> None:
    shown = run("--help").output
    for command in ("demo", "doctor", "build", "inspect", "bench"):
        assert command in shown


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("demo", ["--rows", "--sales", "--memory", "--zipf", "--seed", "--folder", "--keep"]),
        ("doctor", ["--folder", "--json"]),
        ("build", ["--key", "--layout", "--page-bytes", "--shards"]),
        ("inspect", ["--verify", "--json"]),
        ("bench", ["enrich"]),
    ],
)
def test_help_of_a_command_names_its_options(command: str, words: list[str]) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    for word in words:
        assert word in result.output


def test_the_version_is_printed() -> None:
    assert run("--version").output == f"millrace {__version__}\n"


def test_an_error_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    result = run("inspect", str(tmp_path / "nowhere"))
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith("error: there is no table at")
    assert "build one" in line


def test_debug_lets_the_error_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_DEBUG", "1")
    assert isinstance(run("inspect", str(tmp_path / "nowhere")).exception, MillraceError)


def test_a_table_with_a_log_of_its_own_is_not_built_from(tmp_path: Path) -> None:
    (tmp_path / "lake" / "_delta_log").mkdir(parents=True)
    result = run("build", f"file://{tmp_path}/lake", str(tmp_path / "table"), "--key", "id")
    assert "is a table in the format Delta" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("demo", "--memory", "plenty"), "can't read 'plenty' as a size"),
        (("demo", "--rows", "0"), "--rows must be at least 1; got 0"),
        (("demo", "--zipf", "-1"), "--zipf and --seed must be 0 or more; got -1"),
        (("build", "nowhere.parquet", "table", "--key", "id"), "there is no nowhere.parquet"),
        (("build", "nowhere.parquet", "s3a://bucket/table", "--key", "id"), "s3a:/bucket/table is in a s3a: file system"),
        (("build", "hdfs://host/lake", "table", "--key", "id"), "mount that file system"),
        (("inspect", "dbfs:/table"), "dbfs:/table is in a dbfs: file system"),
        (("build", "nowhere.parquet", "table", "--key", ", ,"), "--key must name at least one column"),
        (("build", "nowhere.parquet", "table", "--key", "id", "--page-bytes", "big"), "can't read 'big' as a size"),
    ],
)
def test_bad_options_are_refused_before_spark_starts(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert words in result.output


def test_the_demo_takes_no_folder_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    result = run("demo", "--folder", str(tmp_path))
    assert result.exit_code == 1
    assert "is not an empty folder" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_without_spark_the_demo_says_what_to_install() -> None:
    program = "import sys; sys.modules['pyspark'] = None\nfrom millrace.cli.app import main\nmain()"
    done = subprocess.run([sys.executable, "-c", program, "demo"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: this command needs Spark, which is not installed: pip install 'millrace-spark[spark]'\n"


def test_inspect_shows_rows_columns_and_versions(table: Path) -> None:
    result = run("inspect", str(table))
    assert result.exit_code == 0
    for words in (
        "key      id (unique), layout key",
        "5,000; 1 row without a key was left out",
        "name  string",
        "1 (current)",
        "the beginning",
    ):
        assert words in result.output


def test_inspect_as_json_has_every_version(table: Path) -> None:
    report = json.loads(run("inspect", str(table), "--json").output)
    (version,) = report["versions"]
    assert report["current_version"] == version["number"] == 1
    assert (version["rows"], version["null_keys"], version["unique"]) == (5_000, 1, True)
    assert version["columns"] == {"id": "int64", "name": "string"}
    assert version["pages"] == sum(shard["pages"] for shard in version["shards"])
    assert "damage" not in report


def test_verify_checks_every_page(table: Path) -> None:
    report = json.loads(run("inspect", str(table), "--verify", "--json").output)
    assert report["pages_checked"] == report["versions"][0]["pages"] > 10
    assert report["damage"] == []
    assert "all checksums fit" in run("inspect", str(table), "--verify").output


def test_verify_names_every_damaged_page_and_ends_with_1(table: Path) -> None:
    shard = sorted((table / "v000001").glob("*.pages"))[1]
    data = bytearray(shard.read_bytes())
    for page in (1, 3):
        data[page * 4096 + 2000] ^= 1
    shard.write_bytes(data)
    result = run("inspect", str(table), "--verify", "--json")
    assert result.exit_code == 1
    damage = json.loads(result.output)["damage"]
    assert [words.split(" is damaged")[0] for words in damage] == [f"page {page} of {shard}" for page in (1, 3)]


def test_verify_reports_a_missing_file(table: Path) -> None:
    shard = min((table / "v000001").glob("*.pages"))
    shard.unlink()
    result = run("inspect", str(table), "--verify")
    assert result.exit_code == 1
    assert f"{shard} is missing" in result.output
    assert "0 pages checked: 1 problem found" in result.output


def test_inspect_says_what_a_folder_is_that_holds_no_table(tmp_path: Path) -> None:
    for name in ("half/v000001", "empty", "files"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "files" / "part-0.parquet").touch()
    words = {
        "nowhere": "there is no table at",
        "half": "holds a table whose build never finished",
        "empty": "is not a millrace table (no manifest.json) but an empty folder",
        "files": "is not a millrace table (no manifest.json) but a folder of Parquet files",
        "files/part-0.parquet": "is a file, not a table folder",
    }
    for name, text in words.items():
        result = run("inspect", str(tmp_path / name))
        assert result.exit_code == 1
        assert text in result.output
        assert "MasterTable.build" not in result.output
        path = tmp_path / name if name in ("nowhere", "half") else "NEW_FOLDER"
        assert f"millrace build FILES.parquet {path} --key COLUMN" in result.output or name == "files/part-0.parquet"


def test_an_empty_table_reads_well(tmp_path: Path) -> None:
    build_table(tmp_path / "none", pa.table({"id": pa.array([], pa.int64()), "name": pa.array([], pa.string())}), "id")
    shown = run("inspect", str(tmp_path / "none"), "--verify").output
    for words in ("rows     0; no row was left out", "pages    none: the table is empty", "on disk  0 B in 1 shard"):
        assert words in shown
    assert "0 pages checked: all checksums fit" in shown


def test_an_error_behind_which_ctrl_c_stands_is_an_interruption() -> None:
    def cut_short() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("the call was cut short")

    with pytest.raises(RuntimeError) as caught:
        cut_short()
    assert interrupted(caught.value)
    assert not interrupted(RuntimeError("no"))
