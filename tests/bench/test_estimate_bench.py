"""`millrace bench estimate` on small tables: both contenders end with the same answer, and ratios come out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.bench.app import bench_app
from millrace.bench.estimate import EstimateOptions
from millrace.core.errors import ParameterError


def test_the_benchmark_writes_ratios_and_both_answers_agree(tmp_path: Path) -> None:
    arguments = [
        "estimate",
        "--rows",
        "60000",
        "--memory",
        "20m",
        "--row-group-rows",
        "5000",
        "--json",
        str(tmp_path / "out.json"),
    ]
    result = CliRunner().invoke(bench_app, [*arguments, "--data", str(tmp_path / "data")])
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["checksums_agree"]
    assert set(report["ratios"]) == {"first_over_duckdb", "within_over_duckdb", "exact_over_duckdb"}
    duckdb, ours = report["results"]
    assert ours["answer"] == pytest.approx(duckdb["answer"], rel=1e-9)
    assert 0 < ours["first_seconds"] <= ours["exact_seconds"]
    assert ours["budget_peak_bytes"] <= 20 << 20
    assert report["versions"]["duckdb"]
    assert {path.suffix for path in (tmp_path / "data").iterdir()} == {""}  # nothing half-made stays


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ParameterError, match="rows is 3"):
        EstimateOptions(rows=3)
    with pytest.raises(ParameterError, match="threads is 9"):
        EstimateOptions(threads=9)
