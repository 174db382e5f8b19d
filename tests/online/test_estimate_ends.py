"""How runs end before their end: full disks, Ctrl-C, files that change, runs that are dropped; nothing stays behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.relations.parquet_folders import parquet_folder

import millrace as mr
from millrace.core.errors import MillraceError, TableError

ROWS = 40_000
ROOT = Path(__file__).resolve().parents[2]


def _tables(rows: int = ROWS) -> tuple[pa.Table, pa.Table]:
    random = np.random.default_rng(3)
    left = pa.table({"k": random.permutation(rows), "x": random.integers(0, 9, rows)})
    right = pa.table({"k": random.permutation(rows), "v": random.integers(0, 9, rows)})
    return left, right


def _python(program: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options)


FULL = """
import resource, sys
from pathlib import Path
import numpy as np, pyarrow as pa
import millrace as mr
from millrace.core.errors import SpillError

spill, most, staged = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "staged"
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))  # writing beyond it fails, as on a full disk
random = np.random.default_rng(1)
left = pa.table({"k": random.permutation(60_000)})
right = pa.table({"k": random.permutation(60_000), "v": random.normal(10, 1, 60_000)})
run = None
try:
    run = mr.estimate(left, right.to_reader(5000) if staged else right, on="k", s="sum(v)", every=0, memory="500k", spill=spill)
    run.exact()
except SpillError as full:
    print("refused:", full)
print("last:", run is not None and run.last is not None and run.last["s"].half_width < 1e9)
print("there:", [path.name for path in Path(spill).iterdir()])
"""


@pytest.mark.parametrize(
    ("staged", "message", "last"),
    [("no", "is full after", True), pytest.param("staged", "can't be copied", False, marks=pytest.mark.slow)],
)
def test_a_disk_that_runs_full_leaves_the_last_report_and_no_files(
    staged: str, message: str, last: bool, tmp_path: Path
) -> None:
    out, errors = _python(FULL, tmp_path, 200_000, staged).communicate()
    assert "refused:" in out, errors
    assert message in out
    assert f"last: {last}" in out
    assert "there: []" in out
    assert list(tmp_path.iterdir()) == []


INTERRUPTED = """
import sys
import numpy as np, pyarrow as pa
import millrace as mr

random = np.random.default_rng(1)
keys = random.permutation(400_000)

def rows(before):
    for first in range(0, 400_000, 4000):
        if before:
            print("going", flush=True)
        yield pa.record_batch({"k": keys[first : first + 4000]})

staging = sys.argv[2] == "staging"
schema = pa.schema({"k": pa.int64()})
reader = pa.RecordBatchReader.from_batches(schema, rows(staging))
with mr.estimate(pa.table({"k": keys}), reader, on="k", n="count(*)", memory="2m", spill=sys.argv[1], every=0) as run:
    for report in run:
        print("going", flush=True)
"""


@pytest.mark.parametrize("when", [pytest.param("staging", marks=pytest.mark.slow), "joining"])
def test_ctrl_c_leaves_nothing_on_disk(when: str, tmp_path: Path) -> None:
    program = _python(INTERRUPTED, tmp_path, when)
    assert program.stdout is not None
    assert program.stdout.readline() == "going\n"
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate()
    assert "KeyboardInterrupt" in errors
    assert list(tmp_path.iterdir()) == []


def _replaced(path: Path) -> None:
    table = pq.read_table(path)
    other = path.with_name("other")
    pq.write_table(table.set_column(1, "v", pa.array(np.arange(len(table)))), other)
    other.replace(path)


def _overwritten(path: Path) -> None:
    """In place, as many bytes as before: zeros in the middle."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 3)
        file.write(bytes(100))


@pytest.mark.parametrize("change", [Path.unlink, _replaced, _overwritten])
def test_a_file_that_changes_in_mid_run_is_an_error_never_a_wrong_answer(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    left, right = _tables()
    folder = parquet_folder(tmp_path / "right", right, files=8, rows_per_group=ROWS // 32)
    with mr.estimate(left, folder, on="k", s=mr.sum_("v"), every=0, memory="1m", threads=1) as run:
        first = next(run)
        for path in folder.iterdir():
            change(path)
        with pytest.raises(MillraceError, match=r"run .* again|can't be read"):
            run.exact()
        assert run.last is not None
        assert run.last.number >= first.number
        assert not run.last.exact


def test_a_folder_of_more_files_than_may_be_open(tmp_path: Path) -> None:
    """Few files are open at a time."""
    left, right = _tables(3000)
    folder = parquet_folder(tmp_path / "right", right, files=600, rows_per_group=1)
    pq.write_table(left, tmp_path / "left.parquet", row_group_size=100)
    before = len(os.listdir("/proc/self/fd"))
    with mr.estimate(tmp_path / "left.parquet", folder, on="k", s=mr.sum_("v"), memory="400k") as run:
        assert len(os.listdir("/proc/self/fd")) < before + 200
        assert run.exact()["s"].value == sum(right["v"].to_pylist())


def test_several_estimates_at_the_same_time(tmp_path: Path) -> None:
    left, right = _tables()
    truth = sum(right["v"].to_pylist())
    one = mr.estimate(left, right, on="k", s=mr.sum_("v"), every=0, memory="1m", spill=tmp_path)
    two = mr.estimate(left, right, on="k", s=mr.sum_("v"), every=0, memory="1m", spill=tmp_path, seed=5)
    for _ in range(3):  # in turn
        next(one)
        next(two)
    found: list[float] = []
    threads = [threading.Thread(target=lambda run=run: found.append(run.exact()["s"].value)) for run in (one, two)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [truth, truth]
    assert list(tmp_path.iterdir()) == []


def _open_files() -> set[tuple[str, str]]:
    """Number and target of each: one that is new shows even if another was closed meanwhile."""
    folder = Path("/proc/self/fd")
    numbers = [number for number in os.listdir(folder) if (folder / number).is_symlink()]  # not that of the listing itself
    return {(number, os.readlink(folder / number)) for number in numbers}


def test_an_estimate_that_is_dropped_gives_everything_back(tmp_path: Path) -> None:
    left, right = _tables()
    gc.collect()  # what other tests left behind goes now, and not in between
    before = _open_files()
    run = mr.estimate(left, right.to_reader(1000), on="k", s=mr.sum_("v"), every=0, memory="1m", spill=tmp_path)
    next(run)
    assert list(tmp_path.iterdir())
    del run
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert _open_files() - before == set()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("millrace")]


def test_a_file_that_is_gone_before_its_turn_says_which(tmp_path: Path) -> None:
    left, right = _tables()
    folder = parquet_folder(tmp_path / "right", right, files=8, rows_per_group=ROWS // 32)
    with mr.estimate(left, folder, on="k", n=mr.count(), every=0, memory="1m", threads=1) as run:
        next(run)
        for path in folder.iterdir():
            path.unlink()
        with pytest.raises(TableError, match=r"right/\d\.parquet can't be read any more .*run the estimate again"):
            run.exact()
