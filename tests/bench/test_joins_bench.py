"""`bench joins` end to end at a size where only its form can be judged, and its times worked out by hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.bench.app import bench_app
from millrace.bench.joins.clock import DeviceClock
from millrace.bench.joins.joins import cells, contenders, run_joins
from millrace.bench.joins.run import JoinRun, Limits
from millrace.bench.options import JoinOptions
from millrace.catalog import ALGORITHMS, make_join
from millrace.core.budget import Budget
from millrace.core.devices import VirtualClock, VirtualDevice, device
from millrace.core.errors import MillraceError
from millrace.core.protocols import JoinSpec
from millrace.core.unitcosts import UnitCosts
from millrace.relations.generated import GeneratedRelation
from millrace.relations.simulated import SimulatedRelation
from millrace.streams import SteadyArrivals, Workload, ZipfKeys

SMALL: dict[str, Any] = {
    "rows": (20_000,),
    "page_bytes": 8192,
    "memory": ("600k",),
    "seconds": 0.05,
    "tuples": 3000,
    "windows": 0.5,
}
FREE = UnitCosts(expire=0.0, take=0.0, add=0.0, probe=0.0, output=0.0)


def run_of(name: str, pages: int, costs: UnitCosts = FREE, **parameters: Any) -> JoinRun:
    """A join on pages of 70,000 bytes: one millisecond each on hdd2008, behind a seek of 8 ms."""
    generated = GeneratedRelation(pages * 700, row_bytes=100, page_bytes=70_000)
    relation = SimulatedRelation(generated, VirtualDevice(device("hdd2008"), VirtualClock()))
    stream = Workload(ZipfKeys(generated.rows, scatter=True), SteadyArrivals(1))
    spec = JoinSpec(stream.schema, (("key", "key"),), "inner", (), ("surrogate_key",))
    join = make_join(name, relation, spec, Budget("4m"), **parameters)
    return JoinRun(join, stream, DeviceClock(relation, costs))


def test_every_join_of_the_catalog_runs_on_the_disk_and_on_a_device_and_the_report_is_complete(tmp_path: Path) -> None:
    report = json.loads(json.dumps(run_joins(JoinOptions(**SMALL, devices=("disk", "hdd2008"), data=tmp_path))))
    assert report["rows_agree"]
    assert {"python", "millrace", "pyarrow", "numpy", "numba"} <= report["versions"].keys()
    assert {"cores", "memory_bytes"} <= report["machine"].keys()
    assert report["seed"] == report["options"]["seed"] == 1
    assert [table["device"] for table in report["tables"]] == ["disk", "hdd2008"]
    assert all(table["pages"] > 1 and table["seek_ms"] > 0 for table in report["tables"])
    names = [contender.name for contender in contenders()]
    assert {row.name for row in ALGORITHMS} <= set(names)
    assert [result["join"] for result in report["results"]] == names * 2
    for result in report["results"]:
        assert result["status"] == "ok", result
        assert result["rows_right"]
        assert result["tuples_per_second"] == pytest.approx(result["tuples"] / result["seconds"])
        assert result["counts"]["matched"] == result["counts"]["removed"] == result["tuples"]
        assert result["ratio_to_inlj"] > 0
        assert 0 < result["bytes_used"] <= result["peak_bytes"] <= result["memory_bytes"] == 600 * 1024
        for times in (result["processing_seconds"], result["paced"]["waiting_seconds"], result["paced"]["processing_seconds"]):
            assert 0 <= times["p50"] <= times["p95"] <= times["p99"]
        assert result["cpu_ns_per_tuple"] > 0
        if result["device"] == "disk":
            assert result["kernel_ns_per_tuple"] == pytest.approx(sum(result["kernels"].values()))
            assert "relations.row_records.copy_records" in result["kernels"]
            hashed = result["join"].removeprefix("c") in ("meshjoin", "rmeshjoin", "hybridjoin", "xhybridjoin")
            probed = "structures.hashtable._probe" in result["kernels"]
            assert probed <= hashed
            assert probed or not hashed or result["front"] is not None  # all of a short profile may be answered in front
    (cell, _) = report["cells"]
    assert cell["sweepjoin_to_the_better"] > 0


def test_what_a_device_takes_is_the_same_in_every_run() -> None:
    options = JoinOptions(**SMALL, devices=("ssd",), zipf=(0.0, 1.0), joins=("meshjoin", "hybridjoin"))
    first, second = run_joins(options), run_joins(options)
    assert first["results"] == second["results"]
    assert [(cell["zipf"], sorted(cell["tuples_per_second"])) for cell in first["cells"]] == [
        (0.0, ["hybridjoin", "meshjoin"]),
        (1.0, ["hybridjoin", "meshjoin"]),
    ]


def test_tuning_does_not_make_a_join_slower() -> None:
    options: dict[str, Any] = {**SMALL, "devices": ("hdd2008",), "joins": ("hybridjoin",), "hot_keys": "sorted"}
    (plain,), (tuned,) = (run_joins(JoinOptions(**options, tune=tune))["results"] for tune in (False, True))
    assert tuned["tuples_per_second"] >= 0.98 * plain["tuples_per_second"]
    assert tuned["buffer_pages"] >= 1


def test_cached_joins_stand_beside_their_plain_forms_and_an_ideal_front_stage() -> None:
    options = JoinOptions(**SMALL, devices=("hdd2008",), joins=("inlj", "meshjoin", "cinlj", "cmeshjoin"), cache_share=("0.2",))
    results = {result["join"]: result for result in run_joins(options)["results"]}
    assert list(results) == ["inlj", "meshjoin", "cinlj share=0.2", "cmeshjoin share=0.2"]
    for plain in ("inlj", "meshjoin"):
        assert (results[plain]["front"], results[plain]["ratio_to_plain"]) == (None, None)
        cached = results[f"c{plain} share=0.2"]
        ratio = cached["tuples_per_second"] / results[plain]["tuples_per_second"]
        assert cached["ratio_to_plain"] == pytest.approx(ratio)
        front = cached["front"]
        assert front["cache_share"] == pytest.approx(0.2, abs=0.01)
        assert 0 < front["answered_share"] < front["ideal_answered_share"] < 1
        assert ratio < 1.05 * front["ideal_ratio_to_plain"]


def test_shares_and_thresholds_make_a_grid_that_is_the_same_in_every_run() -> None:
    options = JoinOptions(
        **SMALL, devices=("ssd",), joins=("chybridjoin",), cache_share=("auto", "0.1"), threshold=("auto", "4")
    )
    first, second = run_joins(options)["results"], run_joins(options)["results"]
    names = ["chybridjoin", "chybridjoin threshold=4", "chybridjoin share=0.1", "chybridjoin share=0.1 threshold=4"]
    assert [result["join"] for result in first] == names
    assert [result["tuples_per_second"] for result in first] == [result["tuples_per_second"] for result in second]
    assert all(result["rows_right"] for result in first)


def test_keys_of_one_interval_at_a_time_are_answered_in_front() -> None:
    options: dict[str, Any] = {
        **SMALL,
        "tuples": 13_000,  # two laps: rows come into the front stage as the scan passes them
        "devices": ("hdd2008",),
        "joins": ("cmeshjoin",),
        "zipf": (0.0,),
        "cache_share": ("0.3",),
    }
    (all_keys,), (moving,) = (
        run_joins(JoinOptions(**options, intervals=intervals, interval_tuples=20_000))["results"] for intervals in (1, 100)
    )
    assert all_keys["rows_right"]
    assert moving["rows_right"]
    assert moving["front"]["answered_share"] > 2 * all_keys["front"]["answered_share"]


def test_a_table_that_doubles_takes_twice_the_time_to_scan_and_no_row_is_lost() -> None:
    # whole windows: while the table is twice as long as the queue was made for, tuples come in for half of each pass
    options = JoinOptions(**{**SMALL, "windows": 2.0}, devices=("hdd2008",), joins=("meshjoin", "cmeshjoin"), doubling=True)
    plain, cached = run_joins(options)["results"]
    assert plain["rows_right"]
    assert cached["rows_right"]
    assert plain["doubled"]["settled"]["tuples_per_second"] == pytest.approx(plain["tuples_per_second"] / 2, rel=0.2)
    assert cached["doubled"]["settled"]["tuples_per_second"] > cached["doubled"]["first"]["tuples_per_second"]


def test_a_phase_ends_though_all_tuples_are_answered_in_front() -> None:
    generated = GeneratedRelation(100, row_bytes=100, page_bytes=1000)
    relation = SimulatedRelation(generated, VirtualDevice(device("ssd"), VirtualClock()))
    stream = Workload(ZipfKeys(100), SteadyArrivals(1))
    spec = JoinSpec(stream.schema, (("key", "key"),), "inner", (), ("surrogate_key",))
    join = make_join("cinlj", relation, spec, Budget("1m"), cache_share=0.5)
    run = JoinRun(join, stream, DeviceClock(relation, UnitCosts()))
    run.warm_up(Limits(tuples=5_000))
    counts = run.saturate(Limits(tuples=1_000))["counts"]
    assert counts["front_hits"] == counts["front_lookups"] >= 64 * 1_000


def test_a_budget_too_small_is_said_and_the_others_still_run() -> None:
    options = JoinOptions(**{**SMALL, "memory": ("20k", "600k")}, devices=("ssd",), joins=("meshjoin",))
    small, large = run_joins(options)["results"]
    assert small["status"].startswith("needs ")
    assert large["status"] == "ok"


def test_rates_and_processing_times_are_those_worked_out_by_hand() -> None:
    run = run_of("meshjoin", 4, buffer_pages=4, tuples_per_step=5)
    measured = run.saturate(Limits(tuples=50))
    # every step is one pass: 8 ms to get back and 4 ms to read, for five tuples
    assert measured["seconds"] == pytest.approx(0.120)
    assert measured["tuples_per_second"] == pytest.approx(5 / 0.012)
    assert measured["processing_seconds"] == pytest.approx({"p50": 0.012, "p95": 0.012, "p99": 0.012, "mean": 0.012})
    assert (measured["pages_per_tuple"], measured["seeks_per_tuple"]) == (0.8, 0.2)
    assert measured["cpu_ns_per_tuple"] == 0


def test_unit_costs_are_added_to_reading() -> None:
    costs = UnitCosts(take=1e-3, add=0.0, expire=0.0, probe=0.0, output=1e-3)
    measured = run_of("meshjoin", 4, costs, buffer_pages=4, tuples_per_step=5).saturate(Limits(tuples=50))
    assert measured["tuples_per_second"] == pytest.approx(5 / (0.012 + 5 * 2e-3))
    assert measured["cpu_ns_per_tuple"] == pytest.approx(2e6)


def test_a_tuple_waits_until_the_join_takes_it() -> None:
    run = run_of("meshjoin", 4, buffer_pages=4, tuples_per_step=1)
    # one tuple in 12 ms, one arrives every 6 ms: the k-th comes at 6k and is taken at 12k; those from the fifth on count
    paced = run.pace(1 / 0.006, Limits(tuples=10))
    assert paced["waiting_seconds"]["mean"] == pytest.approx(6e-3 * (5 + 6 + 7 + 8 + 9) / 5)
    assert paced["processing_seconds"]["p99"] == pytest.approx(0.012)


def test_nobody_waits_for_a_join_that_is_idle() -> None:
    run = run_of("meshjoin", 4, buffer_pages=4, tuples_per_step=1)
    paced = run.pace(10.0, Limits(tuples=10))
    assert paced["waiting_seconds"] == pytest.approx({"p50": 0, "p95": 0, "p99": 0, "mean": 0}, abs=1e-9)
    assert run.clock.now == pytest.approx(0.9 + 0.012)  # ten arrivals, 0.1 s apart


@pytest.mark.parametrize("name", ["meshjoin", "hybridjoin"])
def test_a_stream_that_stops_leaves_an_empty_window_after_one_pass_at_most(name: str) -> None:
    run = run_of(name, 40, buffer_pages=2)
    run.warm_up(Limits(tuples=20_000))
    waiting = run.join.pending
    assert waiting > 1000
    drained = run.drain(40)
    assert (drained["tuples"], run.join.pending) == (waiting, 0)
    assert 0 < drained["passes"] <= 1
    assert run.rows_right


def test_rows_that_are_wrong_are_noticed() -> None:
    run = run_of("meshjoin", 4)
    run.warm_up(Limits(tuples=100))
    run.drain(4)
    assert run.rows_right
    run.surrogate_sum += 1
    assert not run.rows_right


def test_cells_compare_sweepjoin_with_the_better_of_the_two_that_ran() -> None:
    place = {"device": "ssd", "rows": 1, "memory": "1m", "zipf": 1.0, "status": "ok"}
    results = [
        {**place, "join": "meshjoin", "tuples_per_second": 2.0},
        {**place, "join": "hybridjoin", "tuples_per_second": 4.0},
        {**place, "join": "sweepjoin", "tuples_per_second": 6.0},
        {**place, "memory": "2m", "join": "meshjoin", "tuples_per_second": 2.0},
        {**place, "memory": "2m", "join": "hybridjoin", "status": "needs 5 bytes"},
        {**place, "memory": "2m", "join": "sweepjoin", "tuples_per_second": 1.0},
        {**place, "memory": "3m", "join": "sweepjoin", "tuples_per_second": 1.0},
    ]
    assert [cell["sweepjoin_to_the_better"] for cell in cells(results)] == [1.5, 0.5, None]


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": ()},
        {"rows": (0,)},
        {"memory": ("0%",)},
        {"memory": ("ten%",)},
        {"memory": ("much",)},
        {"memory": ()},
        {"zipf": (-1.0,)},
        {"zipf": ()},
        {"devices": ("tape",)},
        {"hot_keys": "cold"},
        {"overlap": "half"},
        {"load": 1.0},
        {"seconds": 0.0},
        {"windows": 0.0},
        {"repeats": 0},
        {"tuples": 0},
        {"cache_share": ("1.5",)},
        {"cache_share": ("some",)},
        {"cache_share": ()},
        {"threshold": ("0",)},
        {"intervals": 0},
        {"intervals": 3_000_000},
        {"interval_tuples": 0},
        {"doubling": True, "devices": ("disk",)},
    ],
)
def test_bad_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(MillraceError):
        JoinOptions(**wrong)


def test_memory_is_bytes_or_a_share_of_the_table() -> None:
    options = JoinOptions()
    assert options.memory_bytes("10%", 2_000_000) == 24_000_000
    assert options.memory_bytes("50000000", 2_000_000) == 50_000_000


def command(*arguments: str) -> list[str]:
    small = ["--rows", "20000", "--page-bytes", "8192", "--memory", "600k", "--tuples", "3000", "--windows", "0.5"]
    return ["joins", *small, *arguments]


def test_the_command_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    file = tmp_path / "out" / "joins.json"
    done = CliRunner().invoke(
        bench_app, command("--devices", "hdd2008", "--algorithms", "meshjoin,sweepjoin", "--json", str(file))
    )
    assert done.exit_code == 0, done.output
    assert "processing p50/p95/p99" in done.output  # nothing is cut off, however narrow the screen
    assert [result["join"] for result in json.loads(file.read_text())["results"]] == ["meshjoin", "sweepjoin"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "tape"], "unknown device 'tape'; choose from disk, hdd2008"),
        (["--algorithms", "mashjoin"], "unknown join 'mashjoin'; choose from inlj"),
        (["--columns", "colour"], "no column 'colour'"),
        (["--memory", "much"], "can't read 'much' as a size"),
    ],
)
def test_a_wrong_option_is_named_and_nothing_runs(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(bench_app, command("--devices", "ssd", *arguments))
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


@pytest.mark.timeout(120)
def test_ctrl_c_stops_it_and_leaves_nothing_behind(tmp_path: Path) -> None:
    arguments = [
        sys.executable,
        "-u",
        "-m",
        "millrace.bench.app",
        *command("--devices", "disk", "--seconds", "500", "--repeats", "9"),
    ]
    bench = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert bench.stdout is not None
    shown = []
    try:
        for line in bench.stdout:
            shown.append(line)
            if "inlj" in line:
                break
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith("millrace-bench-")] != []
        os.killpg(bench.pid, signal.SIGINT)
        shown += bench.stdout.readlines()
        assert bench.wait(60) == 130, "".join(shown)
    finally:
        bench.kill()
    assert "Traceback" not in "".join(shown)
    assert [path for path in tmp_path.iterdir() if path.name.startswith("millrace-bench-")] == []


def test_a_file_for_results_that_cannot_be_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(bench_app, ["joins", "--json", str(tmp_path / "file" / "results.json")])
    assert done.exit_code == 2
    assert "can't be written" in " ".join(done.output.split())
