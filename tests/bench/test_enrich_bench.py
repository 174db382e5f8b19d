"""The benchmarks run end to end, at a size where only their form can be judged."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.spark]

FLOORS = ["read-only", "identity-map", "identity-udf"]
SPARK = ["spark-defaults", "spark-sort-merge", "spark-persisted-bucketed", "spark-broadcast"]
STORES = [name for name, there in [("rocksdb", find_spec("rocksdict")), ("redis", which("redis-server"))] if there]
STRATEGIES = ["auto", "hybridjoin", "rmeshjoin", "meshjoin", "inlj"]


def _bench(command: str, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """In a process of its own: the benchmark starts and stops its own Spark session."""
    file = tmp_path / "report.json"
    shared = ["--warm-batches", "5", "--data", str(tmp_path / "data"), "--json", str(file)]
    done = subprocess.run(
        [sys.executable, "-m", "millrace.bench.app", command, *shared, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(file.read_text()))


def test_every_contender_puts_out_the_same_rows_and_the_report_is_complete(tmp_path: Path) -> None:
    names = [*FLOORS, *SPARK, *STORES, "millrace"]
    report = _bench(
        "enrich",
        tmp_path,
        *("--rows", "20000", "--batch-rows", "2000", "--memory", "64m", "--how", "inner"),
        *("--contenders", ",".join(names), "--strategies", ",".join(STRATEGIES), "--repeats", "2"),
    )
    assert report["rows_agree"]
    assert report["checksums_agree"]
    assert report["clock"] == "durationMs.addBatch"
    assert report["seed"] == report["options"]["seed"] == 1
    assert {"python", "pyspark", "pyarrow", "numpy", "numba", "java"} <= report["versions"].keys()
    assert {"cores", "memory_bytes"} <= report["machine"].keys()
    assert report["data"]["master_parquet_bytes"] > 0
    expected = [*FLOORS, *SPARK, *STORES, *(f"millrace-{strategy}" for strategy in STRATEGIES)]
    results = {one["contender"]: one for one in report["results"]}
    assert sorted(results) == sorted(expected)
    for name, result in results.items():
        assert result["status"] == "ok"
        assert len(result["seconds"]) == (10 if name in (*FLOORS, "millrace-auto") else 5)
        assert result["median_seconds"] > 0
        assert result["rows_out"] == [2000] * 7
        assert result["ratio_to_identity_map"] > 0
        assert result["ratio_to_millrace"] > 0
        assert result["peak_jvm_rss_bytes"] > 1 << 20
        assert (result["checksum"] is None) == (name in FLOORS)
    for name in ("identity-map", "identity-udf", "millrace-auto"):
        assert results[name]["peak_worker_anon_bytes"] > 1 << 20


def test_growth_is_given_for_spark_and_for_millrace(tmp_path: Path) -> None:
    sizes = ("--rows", "10000,20000", "--batch-rows", "2000", "--memory", "64m", "--broadcast-rows", "10000")
    chart = tmp_path / "charts" / "growth.svg"
    report = _bench("enrich-growth", tmp_path, *sizes, "--repeats", "2", "--plot", str(chart))
    assert report["rows_agree"]
    assert report["checksums_agree"]
    assert set(report["growth"]) == {"spark-defaults", "spark-broadcast", "millrace-auto"}
    assert report["growth"].pop("spark-broadcast") == {"10000": 1.0}
    for ratios in report["growth"].values():
        assert ratios["10000"] == 1.0
        assert ratios["20000"] > 0
    assert all(one["status"] == "ok" and len(one["seconds"]) == 10 for one in report["results"])
    assert "Time of a micro-batch of 2,000 rows" in chart.read_text()


def test_ranges_are_found_by_all_alike_and_cold_batches_do_not_count(tmp_path: Path) -> None:
    sizes = ("--rows", "5000", "--batch-rows", "2000", "--nested-rows", "200")
    report = _bench("enrich-ranges", tmp_path, *sizes, "--cold-batches", "3", "--repeats", "1", "--memory", "64m")
    assert report["rows_agree"]
    assert report["checksums_agree"]
    results = {(one["contender"], one["batch_rows"]): one for one in report["results"]}
    names = ["identity-map", "millrace-auto", "millrace-parquet", "spark-binned", "spark-binned-defaults"]
    assert set(results) == {*((name, 2000) for name in names), ("millrace-auto", 200), ("spark-nested-loop", 200)}
    assert {result["status"] for result in results.values()} == {"ok"}
    assert report["cold_batches_dropped"] == 3
    assert {len(results[name, 2000]["seconds"]) for name in names} == {5}
    assert {len(results[name, 2000]["cold_seconds"]) for name in names} == {3}


def test_one_pass_and_two_calls_put_out_the_same_rows(tmp_path: Path) -> None:
    sizes = ("--rows", "5000", "--batch-rows", "2000", "--memory", "64m")
    report = _bench("enrich-lookups", tmp_path, *sizes, "--cold-batches", "2", "--repeats", "2")
    assert report["rows_agree"]
    assert report["checksums_agree"]
    names = ["identity-map", "identity-chained", "identity-one-pass", "millrace-chained", "millrace-auto"]
    seconds = {one["contender"]: one["median_seconds"] for one in report["results"]}
    assert sorted(seconds) == sorted(names)
    assert all(one["status"] == "ok" and len(one["seconds"]) == 10 for one in report["results"])
    ratios = report["one_pass_to_chained"]
    assert ratios["millrace"]["2000"] == pytest.approx(seconds["millrace-auto"] / seconds["millrace-chained"], abs=1e-4)
    assert ratios["identity"]["2000"] == pytest.approx(seconds["identity-one-pass"] / seconds["identity-chained"], abs=1e-4)


def test_a_front_stage_is_compared_with_the_join_behind_it(tmp_path: Path) -> None:
    sizes = ("--rows", "20000", "--batch-rows", "2000", "--memory", "16m", "--cold-batches", "2")
    report = _bench("enrich-front", tmp_path, *sizes)
    assert report["rows_agree"]
    assert report["checksums_agree"]
    plain, cached = report["results"]
    assert (plain["strategy"], cached["strategy"]) == ("sweepjoin", "csweepjoin")
    assert plain["hit_share"] == 0 < cached["hit_share"]
    assert cached["pages"] <= plain["pages"]
    assert cached["pages_first_batch"] == pytest.approx(plain["pages_first_batch"], rel=0.05)  # nothing was known yet
    (cell,) = report["cells"]
    assert cell["pages"] == cached["pages"] / plain["pages"]


def test_counting_hot_keys_is_compared_with_not_counting_them(tmp_path: Path) -> None:
    sizes = ("--rows", "20000", "--batch-rows", "2000", "--memory", "16m", "--cold-batches", "2")
    report = _bench("enrich-hot-keys", tmp_path, *sizes)
    assert report["rows_agree"]
    assert report["checksums_agree"]
    (result,) = report["results"]
    assert set(result["ratios"]) == {"plain-again", "hot-keys"}
    assert {len(seconds) for seconds in result["seconds"].values()} == {5}
