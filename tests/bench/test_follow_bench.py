"""`bench follow` on a simulated device, whose clock makes rates the same on every machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.bench.app import bench_app
from millrace.bench.follow.follow import run_follow
from millrace.bench.options import FollowOptions
from millrace.core.errors import ParameterError

SMALL: dict[str, Any] = {"rows": 50_000, "page_bytes": 8192, "memory": "300k", "tuples": 8_000, "windows": 1.0, "seconds": 0.5}


def followed(*zipf: float) -> list[dict[str, Any]]:
    """The phases, each of which must come near to settings made for it."""
    report = json.loads(json.dumps(run_follow(FollowOptions(**SMALL, zipf=zipf))))
    assert report["rows_agree"]
    for phase in report["results"]:
        assert phase["status"] == "ok"
        assert phase["followed"] >= 0.9 * phase["fresh"], phase
        assert phase["bytes_used"] <= 300 << 10
    results: list[dict[str, Any]] = report["results"]
    return results


def test_the_rate_recovers_when_the_skew_comes_and_goes() -> None:
    even, skewed, even_again = followed(0.0, 1.2, 0.0)
    assert skewed["followed"] > 3 * skewed["before"]
    assert [len(phase["changes"]) for phase in (even, skewed, even_again)] == [0, 1, 1]
    assert even_again["settings"] == even["settings"] != skewed["settings"]


@pytest.mark.slow
def test_the_rate_recovers_when_hot_keys_move() -> None:
    first, moved, again = followed(1.2, 1.2, 1.2)
    assert first["settings"] == moved["settings"] == again["settings"]
    assert not [*first["changes"], *moved["changes"], *again["changes"]]


def test_the_command_prints_ratios_and_writes_json(tmp_path: Path) -> None:
    given = ["follow", "--rows", "20000", "--memory", "200k", "--tuples", "2000", "--windows", "0.5", "--seconds", "0.1"]
    given += ["--zipf", "0,1.5", "--strategies", "hybridjoin,meshjoin", "--json", str(tmp_path / "out.json")]
    result = CliRunner().invoke(bench_app, given, env={"COLUMNS": "220"})
    assert result.exit_code == 0, result.output
    assert "every tuple was joined once" in result.output
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [(one["strategy"], one["zipf"]) for one in results] == [
        ("hybridjoin", 0.0), ("hybridjoin", 1.5), ("meshjoin", 0.0), ("meshjoin", 1.5)
    ]  # fmt: skip


def test_on_the_disk_real_pages_are_read(tmp_path: Path) -> None:
    options = FollowOptions(
        **{**SMALL, "seconds": 0.1}, zipf=(0.0,), devices=("disk",), strategies=("hybridjoin",), data=tmp_path
    )
    report = run_follow(options)
    assert report["rows_agree"]
    assert [one["status"] for one in report["results"]] == ["ok"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [({"strategies": ("x",)}, "unknown strategy"), ({"zipf": ()}, "zipf"), ({"zipf": (-1.0,)}, "zipf is -1"),
     ({"devices": ("tape",)}, "device"), ({"memory": "lots%"}, "memory is 'lots%'")],
)  # fmt: skip
def test_bad_options_are_errors_before_anything_runs(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ParameterError, match=problem):
        FollowOptions(**given)
