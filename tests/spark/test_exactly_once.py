"""Killed, retried and replayed: every row once, each with the table version that its batch saw first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from tests.spark.running import wait_until, write_files

from millrace.relations.build import build_table
from millrace.relations.folder import now_us, read_versions

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JOB = str(Path(__file__).with_name("job.py"))
FILES, ROWS_PER_FILE, KEYS = 8, 500, 400
KILLED_BATCH = 2  # of four, two files each


def _start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, JOB, *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )  # fmt: skip


def _kill(process: subprocess.Popen[str]) -> None:
    """All of it at once: the driver, its JVM and the workers."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.fixture
def running() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            _kill(process)


def _sales() -> pa.Table:
    numbers = range(FILES * ROWS_PER_FILE)
    ids = [None if n % 23 == 5 else n * 7919 % (KEYS + 50) for n in numbers]
    files = [n // ROWS_PER_FILE for n in numbers]
    return pa.table({"n": numbers, "id": pa.array(ids, pa.int64()), "file": pa.array(files, pa.int64())})


def _table(path: Path, value: str, keys: range) -> None:
    build_table(path, pa.table({"id": pa.array(keys, pa.int64()), "v": [value] * len(keys)}), "id", page_bytes=4096)


def _planned(folder: Path) -> bool:
    checkpoint = folder / "checkpoint"
    return (checkpoint / "offsets" / str(KILLED_BATCH)).exists() and not (checkpoint / "commits" / str(KILLED_BATCH)).exists()


def _joining(folder: Path) -> bool:
    return _planned(folder) and (folder / "marks" / str(2 * KILLED_BATCH + 1)).exists()


def _half_written(folder: Path) -> bool:
    """One task has written its file, the other one still sleeps behind the join."""
    return _joining(folder) and len(list((folder / "out").glob("*.parquet"))) > 2 * KILLED_BATCH


@pytest.mark.parametrize("moment", [_planned, _joining, _half_written])
def test_a_query_killed_in_a_batch_writes_every_row_once_and_replays_with_the_same_version(
    tmp_path: Path, running: list[subprocess.Popen[str]], moment: Callable[[Path], bool]
) -> None:
    folder, table = tmp_path / "query", tmp_path / "table"
    folder.mkdir()
    source = write_files(_sales(), tmp_path / "source", FILES)
    _table(table, "old", range(KEYS))
    running.append(_start("stream", source, table, folder, 5))
    wait_until(lambda: moment(folder) or running[0].poll() is not None, every=0.005, seconds=240, what=moment.__name__)
    assert running[0].poll() is None, running[0].communicate()[0]
    _kill(running[0])
    commits = {int(path.name) for path in (folder / "checkpoint" / "commits").glob("[0-9]*")}
    assert commits == set(range(KILLED_BATCH)), "the kill came too late"

    _table(table, "new", range(KEYS // 2, KEYS + 50))  # other values, other keys
    newest = read_versions(table)[-1].effective_at_us
    wait_until(lambda: now_us() > newest, seconds=30)
    running.append(_start("stream", source, table, folder, 0))
    output, _ = running[1].communicate(timeout=240)
    assert running[1].returncode == 0, output

    rows = _committed(folder / "out")
    assert Counter(rows["n"].to_pylist()) == Counter(range(FILES * ROWS_PER_FILE))
    for row in rows.to_pylist():
        old = row["file"] < 2 * (KILLED_BATCH + 1)
        known = row["id"] is not None and (row["id"] < KEYS if old else row["id"] >= KEYS // 2)
        assert row["v"] == (("old" if old else "new") if known else None), row


def _committed(out: Path) -> pa.Table:
    """What the sink's log says was written, which is what readers see; files of the killed attempt are not in it."""
    names = set()
    for log in (out / "_spark_metadata").iterdir():
        if log.name.startswith("."):
            continue
        for line in log.read_text().splitlines()[1:]:
            names.add(out / json.loads(line)["path"].rsplit("/", 1)[1])
    return ds.dataset([str(name) for name in sorted(names)]).to_table()


def test_counts_are_exact_when_every_task_fails_once(tmp_path: Path, running: list[subprocess.Popen[str]]) -> None:
    running.append(_start("retry", tmp_path))
    output, _ = running[0].communicate(timeout=500)
    assert running[0].returncode == 0, output
    results = json.loads(next(line for line in output.splitlines() if line.startswith("RESULT ")).removeprefix("RESULT "))
    assert len(results) == 15
    for name, result in results.items():
        copies = {"unique": 1, "few": 3, "many": 21}[name.split()[0]]
        parts = [range(2000)] if name.endswith("batch") else [range(1000), range(1000, 2000)]
        truth = []
        for part in parts:
            ids = [None if n % 10 == 3 else n % 50 for n in part]
            nulls, met = ids.count(None), sum(key is not None and key < 30 for key in ids)
            truth.append([len(ids), met, len(ids) - met - nulls, nulls, met * copies])
        assert result["reports"] == truth, name
        rows = sum(counts[4] + counts[2] + counts[3] for counts in truth)
        assert (result["rows"], result["distinct"]) == (rows, 2000), name
