"""`millrace bench estimate`: a join of two large tables, as DuckDB answers it and as `mr.estimate` does, early and in the end.

    SELECT sum(l.value * r.value) FROM left l JOIN right r ON l.key = r.key

The left table has every key once, the right one refers to them; rows of both lie in random order. Each contender runs in a
process of its own, with the same memory limit and threads, after the files have been read once. millrace first answers a tiny
question, so that its kernels are compiled; that is not counted.

Run as a module, this file is such a process: it is given a job as JSON and prints its result.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

from millrace.bench.data import Say, warm_page_cache
from millrace.bench.memory import machine_bytes, status_bytes
from millrace.core.budget import parse_bytes
from millrace.core.errors import ParameterError
from millrace.online.aggregations import sum_
from millrace.online.estimate import estimate
from millrace.streams.permutation import Permutation

OK = "ok"
TARGET = 0.01
_VALUE = "left.value * right.value"
_PACKAGES = ("millrace", "duckdb", "pyarrow", "numpy", "numba")


@dataclass(frozen=True)
class EstimateOptions:
    """Options of `bench estimate`."""

    rows: int = 100_000_000
    memory: str = "500m"
    threads: int = 2
    row_group_rows: int = 1 << 20
    seed: int = 1
    data: Path | None = None

    def __post_init__(self) -> None:
        if self.rows < 1000 or self.row_group_rows < 1000:
            raise ParameterError(f"rows is {self.rows} and row_group_rows {self.row_group_rows}; give 1000 or more.")
        if self.threads not in (1, 2):
            raise ParameterError(f"threads is {self.threads}; give 1 or 2.")
        parse_bytes(self.memory)

    def to_json(self) -> dict[str, Any]:
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}


def run_estimate(options: EstimateOptions, say: Say) -> dict[str, Any]:
    """Run the benchmark; the returned values are plain, ready for JSON."""
    with tempfile.TemporaryDirectory(prefix="millrace-bench-", ignore_cleanup_errors=True) as scratch:
        data = options.data or Path(scratch) / "data"
        data.mkdir(parents=True, exist_ok=True)
        left, right = (_table(options, data, side, say) for side in ("left", "right"))
        job = {
            "left": str(left), "right": str(right), "memory_bytes": parse_bytes(options.memory), "threads": options.threads,
            "seed": options.seed, "scratch": scratch,
        }  # fmt: skip
        results = []
        for contender in ("duckdb", "millrace"):
            for folder in (left, right):
                warm_page_cache(folder)
            say(f"{contender} runs")
            results.append(_in_a_process({**job, "contender": contender}))
            job["answer"] = results[0].get("answer")
        sizes = {folder.name: sum(path.stat().st_size for path in folder.iterdir()) for folder in (left, right)}
    return _report(options, results, sizes)


def _table(options: EstimateOptions, data: Path, side: str, say: Say) -> Path:
    """A generated table, from an earlier run if it is there."""
    folder = data / f"millrace-estimate-{side}-{options.rows}-{options.row_group_rows}-{options.seed}"
    if not folder.is_dir():
        say(f"making the {side} table: {options.rows:,} rows")
        part = folder.with_name(folder.name + ".part")
        part.mkdir(exist_ok=True)
        schema = pa.schema({"key": pa.int64(), "value": pa.float64()})
        with pq.ParquetWriter(part / "rows.parquet", schema, use_dictionary=False) as writer:
            for batch in _chunks(options, side):
                writer.write_table(pa.table(batch, schema=schema), row_group_size=options.row_group_rows)
        part.rename(folder)
    return folder


def _chunks(options: EstimateOptions, side: str) -> Iterator[dict[str, Any]]:
    random = np.random.default_rng([options.seed, side == "right"])
    keys = Permutation(options.rows, options.seed)
    for first in range(0, options.rows, options.row_group_rows):
        count = min(options.row_group_rows, options.rows - first)
        numbers = np.arange(first, first + count, dtype=np.int64)
        key = keys.apply(numbers) if side == "left" else random.integers(0, options.rows, count)
        yield {"key": key, "value": random.gamma(4.0, 0.25, count)}


def _in_a_process(job: dict[str, Any]) -> dict[str, Any]:
    child = subprocess.run(
        [sys.executable, "-m", "millrace.bench.estimate", json.dumps(job)], capture_output=True, text=True, check=False
    )
    if child.returncode:
        reason = " ".join(child.stderr.split())[-300:]
        return {"contender": job["contender"], "status": f"failed: exit code {child.returncode}: {reason}"}
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return found


def run_duckdb(job: dict[str, Any]) -> dict[str, Any]:
    import duckdb

    config = {"memory_limit": f"{job['memory_bytes']}B", "threads": job["threads"], "temp_directory": job["scratch"]}
    connection = duckdb.connect(config=config)
    started = time.monotonic()
    (answer,) = connection.execute(
        f"SELECT sum(l.value * r.value) FROM read_parquet('{job['left']}/*.parquet') l "
        f"JOIN read_parquet('{job['right']}/*.parquet') r ON l.key = r.key"
    ).fetchall()[0]
    return {"exact_seconds": time.monotonic() - started, "answer": answer}


def run_millrace(job: dict[str, Any]) -> dict[str, Any]:
    tiny = pa.table({"key": [1, 2], "value": [1.0, 2.0]})
    estimate(tiny, tiny, on="key", answer=sum_(_VALUE), threads=job["threads"]).exact()
    truth = job["answer"]
    before = status_bytes(os.getpid(), "VmRSS")
    started = time.monotonic()
    first = within = None
    with estimate(
        job["left"], job["right"], on="key", answer=sum_(_VALUE), memory=job["memory_bytes"], threads=job["threads"],
        seed=job["seed"], every=0.02, spill=job["scratch"],
    ) as run:  # fmt: skip
        for report in run:
            now = time.monotonic() - started
            first = now if first is None else first
            found = report["answer"]
            wrong = abs(found.value / truth - 1) if truth else float("inf")
            if within is None and found.relative_half_width <= TARGET and wrong <= TARGET:
                within, share, error = now, report.share_read, wrong
        held = run.held()["answer"]
        return {
            "first_seconds": first,
            "within_seconds": within,
            "within_share_read": share if within is not None else None,
            "within_error": error if within is not None else None,
            "exact_seconds": now,
            "answer": found.value,
            "reports": len(run.history),
            "intervals_held": held.share,
            "order": report.variance_of,
            "temporary_bytes": report.temporary_bytes,
            "budget_peak_bytes": run.budget.peak_bytes,
            "rss_before_bytes": before,
        }


def _report(options: EstimateOptions, results: list[dict[str, Any]], sizes: dict[str, int]) -> dict[str, Any]:
    failed = any(result["status"] != OK for result in results)
    duckdb, ours = results
    ratios: dict[str, float | None] = {}
    agree = False
    if not failed:
        whole = duckdb["exact_seconds"]
        for name in ("first_seconds", "within_seconds", "exact_seconds"):
            ratios[name.replace("_seconds", "_over_duckdb")] = ours[name] / whole if ours[name] is not None else None
        agree = abs(ours["answer"] / duckdb["answer"] - 1) < 1e-9
    return {
        "benchmark": "estimate",
        "options": options.to_json(),
        "seed": options.seed,
        "target": TARGET,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        "machine": {"cores": os.cpu_count(), "memory_bytes": machine_bytes(), "system": platform.system()},
        "data": {"rows": [options.rows, options.rows], "file_bytes": sizes},
        "results": results,
        "ratios": ratios,
        "rows_agree": agree,
        "checksums_agree": agree,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def estimate_table(report: dict[str, Any]) -> Table:
    options = report["options"]
    table = Table(
        title=f"A join of two tables of {options['rows']:,} rows, {options['memory']} of memory, {options['threads']} threads",
        caption=f"within: half-width and true error are both at most {report['target']:.0%}; x: over DuckDB's exact time",
    )
    for heading in ("contender", "first", "within", "exact", "x first", "x within", "x exact", "peak memory"):
        table.add_column(heading, justify="left" if heading == "contender" else "right")
    for result in report["results"]:
        if result["status"] != OK:
            table.add_row(result["contender"], result["status"])
            continue
        times = [result.get(f"{name}_seconds") for name in ("first", "within", "exact")]
        ratios = [report["ratios"].get(f"{name}_over_duckdb") for name in ("first", "within", "exact")]
        ratios = ratios if result["contender"] == "millrace" else [None, None, 1.0]
        cells = ["" if value is None else f"{value:.2f} s" for value in times] + [
            "" if x is None else f"{x:.3f}" for x in ratios
        ]
        peak = result.get("peak_rss_bytes")
        table.add_row(result["contender"], *cells, "" if peak is None else f"{peak / 1e6:,.0f} MB")
    return table


def main(job: dict[str, Any]) -> None:
    found = run_duckdb(job) if job["contender"] == "duckdb" else run_millrace(job)
    peak = status_bytes(os.getpid(), "VmHWM")
    print(json.dumps({"contender": job["contender"], "status": OK, **found, "peak_rss_bytes": peak}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
