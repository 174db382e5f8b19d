"""`millrace tune`, without Spark."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from millrace.cli.app import app
from millrace.core.calibration import ReadCosts
from millrace.relations.build import build_table

ROWS = 40_000
ARGUMENTS = ("--device", "hdd2008", "--memory", "1m")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["tune", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})


def rows() -> pa.Table:
    ids = np.arange(ROWS)
    return pa.table({"id": ids, "price": ids * 1.5, "name": [f"the name of product {number}" for number in ids]})


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tables") / "products"
    build_table(folder, rows(), "id", page_bytes=8192, shards=2)
    return str(folder)


def found(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code in (0, 1), result.output
    plain: dict[str, Any] = json.loads(result.stdout)
    return plain


def error(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith("error: ")
    return line


def test_every_join_has_a_line_the_fastest_first(table: str) -> None:
    result = run(table, *ARGUMENTS, "--zipf", "1")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0].startswith(f"table {table}: 40,000 rows on ")
    assert lines[1] == "device hdd2008, memory 1.0 MiB for each join; Zipf exponent 1"
    plain = found(table, *ARGUMENTS, "--zipf", "1")
    rates = [one["tuples_per_second"] for one in plain["joins"]]
    assert rates == sorted(rates, reverse=True)
    assert len(rates) == 12
    shown = [
        line.split()[0] for line in lines if line.split() and line.split()[0] in {one["strategy"] for one in plain["joins"]}
    ]
    assert shown == [one["strategy"] for one in plain["joins"]]
    assert f"fastest: {shown[0]}, about {rates[0]:,.0f} rows a second in one task" in lines


def test_skew_changes_what_is_best(table: str) -> None:
    assert found(table, *ARGUMENTS, "--zipf", "1")["joins"][0]["strategy"] == "csweepjoin"
    assert found(table, *ARGUMENTS)["joins"][0]["strategy"] == "sweepjoin"


def test_arrivals_say_whether_a_join_keeps_up_and_with_how_little_memory(table: str) -> None:
    arguments = (table, *ARGUMENTS, "--strategy", "sweepjoin", "--strategy", "inlj", "--arrivals", "20000")
    result = run(*arguments)
    assert result.exit_code == 0
    assert "keeps up: sweepjoin takes" in result.output
    sweep, inlj = found(*arguments)["joins"]
    assert sweep["keeps_up"] is True
    assert sweep["headroom"] == pytest.approx(sweep["tuples_per_second"] / 20_000)
    assert sweep["least_memory_bytes"] < 1 << 20
    assert inlj["keeps_up"] is False
    again = found(table, "--device", "hdd2008", "--memory", str(sweep["least_memory_bytes"]), "--strategy", "sweepjoin")
    assert again["joins"][0]["tuples_per_second"] >= 20_000


def test_a_stream_that_is_too_fast_is_exit_code_1_and_says_what_can_be_had(table: str) -> None:
    result = run(table, *ARGUMENTS, "--strategy", "hybridjoin", "--arrivals", "1e9")
    assert result.exit_code == 1
    assert "does not keep up: hybridjoin takes" in result.output
    assert "no memory is enough: hybridjoin can't take 1,000,000,000 rows a second" in result.output


def test_sizes_of_pages_are_rated_for_the_fastest_join(table: str) -> None:
    plain = found(table, *ARGUMENTS, "--strategy", "hybridjoin", "--page-bytes")
    sizes = {one["page_bytes"]: one["tuples_per_second"] for one in plain["page_sizes"]}
    assert list(sizes) == [4096 << power for power in range(9)]
    assert plain["best_page_bytes"] == max((size for size in sizes if sizes[size]), key=lambda size: sizes[size])
    shown = run(table, *ARGUMENTS, "--strategy", "hybridjoin", "--page-bytes").output
    assert f"build the table anew with --page-bytes {plain['best_page_bytes'] >> 10}k" in shown


def test_the_memory_of_a_line_adds_up_to_the_budget(table: str) -> None:
    for one in found(table, *ARGUMENTS, "--zipf", "1")["joins"]:
        assert sum(one["memory"].values()) <= 1.01 * (1 << 20)


def test_the_disk_of_the_table_is_taken_from_a_calibration_and_its_note_is_shown(table: str) -> None:
    plain = found(table, "--memory", "1m", "--strategy", "hybridjoin")
    assert plain["device"] == "disk"
    assert "run millrace tune --calibrate" in " ".join(plain["notes"])
    shown = run(table, "--memory", "1m", "--strategy", "hybridjoin").output
    assert "note: " in shown
    assert ReadCosts().seek > 0


def test_parquet_files_are_scanned_and_joins_with_an_index_say_what_they_lack(tmp_path: Path) -> None:
    pq.write_table(rows(), tmp_path / "products.parquet", row_group_size=5_000)
    plain = found(str(tmp_path / "products.parquet"), "--key", "id", "--device", "hdd2008", "--memory", "64m")
    assert {one["strategy"] for one in plain["joins"]} == {"meshjoin", "rmeshjoin", "cmeshjoin"}
    assert plain["refused"]["hybridjoin"].startswith("needs an index on the key")


def test_a_picture_shows_the_curves(table: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "curve.svg"
    result = run(
        table, *ARGUMENTS, "--zipf", "1", "--strategy", "chybridjoin", "--strategy", "xhybridjoin", "--plot", str(picture)
    )
    assert result.exit_code == 0
    assert f"chart: {picture}" in result.output
    drawn = picture.read_text()
    for words in ("pages of the disk buffer", "pinned pages", "share of the memory for the cache", "chybridjoin: "):
        assert words in drawn  # a comment of the file holds each text


def test_a_png_is_a_png(table: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert run(table, *ARGUMENTS, "--strategy", "hybridjoin", "--plot", str(tmp_path / "curve.png")).exit_code == 0
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_error_says_what_to_install(table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'millrace-spark[plot]'" in error(table, "--plot", str(tmp_path / "curve.png"))


def test_a_calibration_is_handed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def measured(table: Path | None, *, spark: bool, as_json: bool, console: Any) -> None:
        asked.append((table, spark, as_json))

    monkeypatch.setattr("millrace.cli.calibrate.run_calibrate", measured)
    assert run("--calibrate").exit_code == 0
    assert run(str(tmp_path), "--calibrate", "--spark", "--json").exit_code == 0
    assert asked == [(None, False, False), (tmp_path, True, True)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name a table to tune for"),
        (("--spark",), "give --calibrate with it"),
        (("nowhere",), "there is no"),
        (("TABLE", "--memory", "lots"), "can't read 'lots' as a size"),
        (("TABLE", "--device", "tape"), "--device must be one of disk, hdd2008, ssd, object-store; got 'tape'"),
        (("TABLE", "--read", "slowly"), "--read must be one of"),
        (("TABLE", "--strategy", "mashjoin"), "there is no strategy 'mashjoin'"),
        (("TABLE", "--arrivals", "-5"), "arrivals must be a number of rows a second, above 0; got -5.0"),
        (("TABLE", "--arrivals", "nan"), "arrivals must be a number of rows a second, above 0; got nan"),
        (("TABLE", "--zipf", "nan"), "zipf_exponent must be a number"),
        (("TABLE", "--zipf", "-1"), "zipf_exponent must be a number"),
        (("TABLE", "--columns", "prize"), "no column 'prize'"),
        (("TABLE", "--memory", "4k"), "is less than one page of the table"),
        (("TABLE", "--memory", "20k", "--strategy", "hybridjoin"), "give memory="),
        (("TABLE", "--plot", "curve.doc"), "must name a file that ends in .png, .svg, .pdf"),
        (("TABLE", "--plot", "nowhere/curve.png"), "there is no folder"),
    ],
)
def test_what_can_not_be_asked_is_one_line(table: str, arguments: tuple[str, ...], words: str) -> None:
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")
    assert words in error(*(table if word == "TABLE" else word for word in arguments))


def test_an_empty_table_can_not_be_tuned(tmp_path: Path) -> None:
    build_table(tmp_path / "empty", rows().slice(0, 0), "id", page_bytes=8192)
    assert "is empty: there is nothing to tune" in error(str(tmp_path / "empty"), *ARGUMENTS)


def test_parquet_files_need_a_key(tmp_path: Path) -> None:
    pq.write_table(rows().slice(0, 10), tmp_path / "products.parquet")
    assert "name the key: --key COLUMN" in error(str(tmp_path / "products.parquet"), *ARGUMENTS)
