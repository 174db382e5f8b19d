"""`millrace bench cost-figures`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from millrace.bench.app import bench_app


def run(*arguments: str) -> Result:
    return CliRunner().invoke(bench_app, ["cost-figures", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})


def test_series_are_written_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = tmp_path / "figures.json"
    result = run("--figures", "1,21", "--json", str(report), "--plot", str(tmp_path))
    assert result.exit_code == 0, result.output
    found = json.loads(report.read_text())["results"]
    assert [figure["number"] for figure in found] == [1, 21]
    assert len(found[1]["series"]["chance"]) == 40
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["01-meshjoin-memory.png", "21-match-probability.png"]
    assert (tmp_path / "01-meshjoin-memory.png").read_bytes().startswith(b"\x89PNG")


def test_a_figure_that_needs_a_run_is_not_among_them() -> None:
    result = run("--figures", "1,4")
    assert result.exit_code == 2
    assert "there is no figure 4 drawn from equations; choose from 1, 2, 3, 8" in result.output


def test_pictures_need_a_folder(tmp_path: Path) -> None:
    result = run("--figures", "21", "--plot", str(tmp_path / "nowhere"))
    assert result.exit_code == 2
    assert "there is no folder" in result.output
