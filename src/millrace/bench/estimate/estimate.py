"""`millrace bench estimate`: a join of two large tables, as DuckDB answers it and as `mr.estimate` does, early and in the end.

    SELECT sum(left.value * right.value) FROM left JOIN right ON left.key = right.key       other shapes: `estimateshapes.py`

Each contender runs in a process of its own (`estimatejob.py`), with the same files, memory limit, threads and folder for
temporary data, after the files have been read once. Both first answer a tiny question, so that libraries are loaded and kernels
compiled; that is not counted. DuckDB need not keep the order of rows, which saves it memory.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.table import Table

from millrace.bench.data import Say, warm_page_cache
from millrace.bench.estimate.job import TARGET
from millrace.bench.estimate.shapes import SHAPES, chunks
from millrace.bench.memory import SAMPLE_SECONDS, machine_bytes, status_bytes
from millrace.bench.options import EstimateOptions
from millrace.bench.versions import versions_of
from millrace.core.budget import parse_bytes

OK = "ok"
_PACKAGES = ("duckdb", "pyarrow", "numpy", "numba")
_TIMES = ("first", "within", "settled", "exact")


def run_estimate(options: EstimateOptions, say: Say) -> dict[str, Any]:
    """Run the benchmark; the returned values are plain, ready for JSON."""
    with tempfile.TemporaryDirectory(prefix="millrace-bench-", ignore_cleanup_errors=True) as scratch:
        data = options.data or Path(scratch) / "data"
        data.mkdir(parents=True, exist_ok=True)
        left, right = (_table(options, data, side, say) for side in ("left", "right"))
        job: dict[str, Any] = {
            "left": str(left), "right": str(right), "memory_bytes": parse_bytes(options.memory), "threads": options.threads,
            "seed": options.seed, "scratch": scratch, "shape": options.shape,
        }  # fmt: skip
        results: list[dict[str, Any]] = []
        for contender in ("duckdb", "millrace"):
            if results and results[0]["status"] != OK:  # nobody knows the truth
                break
            for folder in (left, right):
                warm_page_cache(folder)
            say(f"{contender} runs")
            results.append(_in_a_process({**job, "contender": contender}))
            job["answer"] = results[0].get("answer")
        sizes = {folder.name: sum(path.stat().st_size for path in folder.iterdir()) for folder in (left, right)}
    return _report(options, results, sizes)


def _table(options: EstimateOptions, data: Path, side: str, say: Say) -> Path:
    """A generated table, from an earlier run if it is there."""
    name = getattr(SHAPES[options.shape], side)
    name = f"{name}-{side}" if name == "quarter" else name
    folder = data / f"millrace-estimate-{name}-{options.rows}-{options.row_group_rows}-{options.seed}"
    if not folder.is_dir():
        say(f"making the {side} table: {options.rows:,} rows")
        part = folder.with_name(folder.name + ".part")
        part.mkdir(exist_ok=True)
        writer: pq.ParquetWriter | None = None
        for table in chunks(name, options.rows, options.row_group_rows, options.seed):
            writer = writer or pq.ParquetWriter(part / "rows.parquet", table.schema, use_dictionary=False)
            writer.write_table(table, row_group_size=options.row_group_rows)
        assert writer is not None
        writer.close()
        part.rename(folder)
    return folder


def _in_a_process(job: dict[str, Any]) -> dict[str, Any]:
    """What the contender found, with the most memory of its own that was seen meanwhile."""
    load = os.getloadavg()[0]
    command = [sys.executable, "-m", "millrace.bench.estimate.job", json.dumps(job)]
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            output: str | None = None
            while output is None:
                with suppress(subprocess.TimeoutExpired):
                    output, errors = child.communicate(timeout=SAMPLE_SECONDS)
                peak = max(peak, status_bytes(child.pid, "RssAnon") or 0)
        finally:
            child.kill()
    if child.returncode:
        reason = " ".join(errors.split())[-300:]
        return {"contender": job["contender"], "status": f"failed: exit code {child.returncode}: {reason}"}
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    shared = {"peak_anon_bytes": max(peak, found["idle_anon_bytes"]), "load_average": [load, os.getloadavg()[0]]}
    return {"contender": job["contender"], "status": OK, **found, **shared}


def _report(options: EstimateOptions, results: list[dict[str, Any]], sizes: dict[str, int]) -> dict[str, Any]:
    ratios: dict[str, float] = {}
    agree = False
    if len(results) == 2 and all(result["status"] == OK for result in results):
        duckdb, ours = results
        ratios = {f"{name}_over_duckdb": ours[f"{name}_seconds"] / duckdb["exact_seconds"] for name in _TIMES}
        ratios["cpu_over_duckdb"] = ours["cpu_seconds"] / duckdb["cpu_seconds"]
        agree = _same(ours["answer"], duckdb["answer"])
    return {
        "benchmark": "estimate",
        "options": options.to_json(),
        "seed": options.seed,
        "target": TARGET,
        "memory_bytes": parse_bytes(options.memory),
        "versions": versions_of(*_PACKAGES),
        "machine": {"cores": os.cpu_count(), "memory_bytes": machine_bytes(), "system": platform.system()},
        "data": {"rows": [options.rows, options.rows], "file_bytes": sizes},
        "results": results,
        "ratios": ratios,
        "rows_agree": agree,
        "checksums_agree": agree,
    }


def _same(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """Group by group, up to the order of additions."""
    if [group for group, _ in ours] != [group for group, _ in theirs]:
        return False
    return all(abs(mine / other - 1) < 1e-9 for (_, mine), (_, other) in zip(ours, theirs, strict=True))


def estimate_table(report: dict[str, Any]) -> Table:
    options = report["options"]
    size = f"{options['rows']:,} rows, {options['memory']} of memory, {options['threads']} threads"
    table = Table(title=f"Two tables of {size}: {SHAPES[options['shape']].title}")
    for heading in ("", *(result["contender"] for result in report["results"]), "x DuckDB"):
        table.add_column(heading, justify="right" if heading else "left")
    if any(result["status"] != OK for result in report["results"]):
        table.add_row("status", *(result["status"] for result in report["results"]))
        return table
    share = f"{report['target']:.0%}"
    lines = {
        "first report": "first_seconds",
        f"half-width and true error at most {share}": "within_seconds",
        "and so for good from": "settled_seconds",
        "exact": "exact_seconds",
        "processor": "cpu_seconds",
    }
    for title, key in lines.items():
        values = [result.get(key) for result in report["results"]]
        ratio = report["ratios"][key.replace("_seconds", "_over_duckdb")]
        table.add_row(title, *("" if value is None else f"{value:.2f} s" for value in values), f"{ratio:.3f}")
    own = [result["peak_anon_bytes"] - result["idle_anon_bytes"] for result in report["results"]]
    table.add_row("own memory at its peak, over idle", *(f"{value / 1e6:,.0f} MB" for value in own), "")
    return table
