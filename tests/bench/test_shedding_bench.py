"""`bench shedding` end to end at a size where only its form can be judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.bench.app import bench_app
from millrace.bench.options import SHEDDING_POLICIES, SheddingOptions
from millrace.bench.shedding.shedding import cells, run_shedding
from millrace.core.errors import ParameterError

SMALL: dict[str, Any] = {"rows": (20_000,), "page_bytes": 8192, "memory": ("300k",), "tuples": 3000, "windows": 0.5}


def test_every_policy_runs_in_every_cell_and_joins_each_tuple_once(tmp_path: Path) -> None:
    options = SheddingOptions(**SMALL, joins=("meshjoin", "hybridjoin", "sweepjoin"), data=tmp_path)
    report = json.loads(json.dumps(run_shedding(options)))
    assert report["rows_agree"]
    assert [cell["join"] for cell in report["cells"]] == ["meshjoin", "hybridjoin", "sweepjoin"] * 2
    assert len(report["results"]) == 6 * len(SHEDDING_POLICIES)
    for result in report["results"]:
        assert result["status"] == "ok"
        assert result["tuples_per_second"] > 0
        assert result["counts"]["deferred"] == result["drain"]["left_outside"]
        assert (result["share_lost"] > 0) <= (result["policy"] == "drop")
    assert {result["ratio_to_keep"] for result in report["results"] if result["policy"] == "keep"} == {1.0}
    assert report["cells_with_ours"] == 6
    assert not list(tmp_path.iterdir())


def test_a_simulated_device_gives_the_same_result_again() -> None:
    options = SheddingOptions(**SMALL, joins=("hybridjoin",), policies=("keep", "selective"), hot_keys=("sorted",))
    first, second = (run_shedding(options)["results"] for _ in range(2))
    assert [one["tuples_per_second"] for one in first] == [one["tuples_per_second"] for one in second]


def test_on_the_disk_a_real_file_is_used(tmp_path: Path) -> None:
    options = SheddingOptions(
        **SMALL, seconds=0.1, devices=("disk",), joins=("hybridjoin",), policies=("keep", "selective"), hot_keys=("sorted",),
        data=tmp_path,
    )  # fmt: skip
    report = run_shedding(options)
    assert report["rows_agree"]
    assert {result["status"] for result in report["results"]} == {"ok"}


def test_ours_is_compared_with_the_best_other_that_loses_nothing() -> None:
    place = {"device": "ssd", "rows": 1, "memory": "1m", "hot_keys": "sorted", "join": "inlj", "status": "ok"}
    rates = {"drop": 100.0, "keep": 10.0, "considering": 20.0, "selective": 18.0}
    cell = cells([{**place, "policy": policy, "tuples_per_second": rate} for policy, rate in rates.items()])[0]
    assert cell["ours_to_best"] == 0.9
    assert not cell["ours_is_good"]


def test_the_command_prints_ratios_and_writes_json(tmp_path: Path) -> None:
    given = ["shedding", "--rows", "20000", "--page-bytes", "8192", "--memory", "300k", "--tuples", "2000", "--windows", "0.5"]
    given += ["--joins", "hybridjoin", "--hot-keys", "sorted", "--json", str(tmp_path / "out.json")]
    result = CliRunner().invoke(bench_app, given, env={"COLUMNS": "220"})
    assert result.exit_code == 0, result.output
    assert "every tuple was joined once" in result.output
    assert json.loads((tmp_path / "out.json").read_text())["benchmark"] == "shedding"


@pytest.mark.parametrize(
    ("given", "problem"),
    [({"overload": 0.0}, "overload is 0.0"), ({"position": 2.0}, "position is 2.0"), ({"policies": ("x",)}, "unknown policy"),
     ({"age_limit": -1}, "age_limit is -1"), ({"hot_keys": ("warm",)}, "unknown hot_keys"), ({"devices": ("tape",)}, "device")],
)  # fmt: skip
def test_bad_options_are_errors_before_anything_runs(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ParameterError, match=problem):
        SheddingOptions(**given)


def test_an_unknown_join_is_an_error_that_lists_the_joins() -> None:
    with pytest.raises(ParameterError, match=r"unknown join 'x'; choose from inlj, .*sweepjoin"):
        run_shedding(SheddingOptions(**SMALL, joins=("x",)))
