"""`millrace bench estimate` on small tables: both contenders end with the same answer, and ratios come out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.bench.app import bench_app
from millrace.bench.estimate.job import milestones
from millrace.bench.options import EstimateOptions
from millrace.core.errors import ParameterError


@pytest.mark.parametrize("shape", ["foreign-key", pytest.param("groups", marks=pytest.mark.slow)])
def test_the_benchmark_writes_ratios_and_both_answers_agree(tmp_path: Path, shape: str) -> None:
    arguments = [
        "estimate",
        "--rows",
        "60000",
        "--memory",
        "20m",
        "--row-group-rows",
        "5000",
        "--shape",
        shape,
        "--json",
        str(tmp_path / "out.json"),
    ]
    result = CliRunner().invoke(bench_app, [*arguments, "--data", str(tmp_path / "data")])
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["checksums_agree"]
    assert all(ratio > 0 for ratio in report["ratios"].values())
    duckdb, ours = report["results"]
    assert len(ours["answer"]) == len(duckdb["answer"]) == (100 if shape == "groups" else 1)
    assert dict(ours["answer"]) == pytest.approx(dict(duckdb["answer"]), rel=1e-9)
    assert 0 < ours["first_seconds"] <= ours["within_seconds"] <= ours["settled_seconds"] <= ours["exact_seconds"]
    assert all(result["peak_anon_bytes"] >= result["idle_anon_bytes"] > 0 for result in (duckdb, ours))
    assert ours["budget_peak_bytes"] <= 20 << 20
    assert report["versions"]["duckdb"]
    assert {path.suffix for path in (tmp_path / "data").iterdir()} == {""}  # nothing half-made stays


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ParameterError, match="rows is 3"):
        EstimateOptions(rows=3)
    with pytest.raises(ParameterError, match="threads is 9"):
        EstimateOptions(threads=9)
    with pytest.raises(ParameterError, match="shape is 'round'"):
        EstimateOptions(shape="round")


def test_milestones_tell_when_an_estimate_was_good_and_from_when_on() -> None:
    seen = [
        (1.0, 0.1, 0.02, 0.001),
        (2.0, 0.2, 0.01, 0.03),
        (3.0, 0.3, 0.01, 0.01),
        (4.0, 0.4, 0.009, 0.02),
        (5.0, 1.0, 0.0, 0.0),
    ]
    found = milestones(seen, 0.01)
    assert found["first_seconds"] == 1.0
    assert found["narrow_seconds"] == 2.0
    assert (found["within_seconds"], found["within_share_read"]) == (3.0, 0.3)
    assert found["settled_seconds"] == 5.0
    assert found["left_again"]
    assert not milestones(seen[4:], 0.01)["left_again"]
