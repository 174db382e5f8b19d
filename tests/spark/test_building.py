"""Building a table on Spark: what goes to the driver, what is shown meanwhile, and what a killed build leaves."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession
from tests.spark.running import wait_until

import millrace as mr
from millrace.core.errors import ParameterError, TableError
from millrace.spark.progress import Moment, _Bars, _Lines

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parents[2]


def _job(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.spark.buildjob", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
def test_long_rows_are_measured_where_they_are_and_not_sent_to_the_driver(tmp_path: Path) -> None:
    job = _job("long", str(tmp_path))
    shown = job.communicate(timeout=300)[0]
    assert job.returncode == 0, shown
    built = {line.split()[0]: [int(number) for number in line.split()[1:]] for line in shown.splitlines()[-3:]}
    assert built["40k"] == [2_100, 1, 2_100]  # rows of 40 KB: one on a page of 64 KiB
    assert built["1m"] == [24, 1, 24]
    rows, planned, pages = built["mixed"]
    assert rows == 4_000
    assert planned > 100  # as the short rows of the beginning want it
    assert pages < 200


@pytest.mark.slow
def test_what_a_killed_build_left_is_no_table_and_the_next_build_removes_it(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    job = _job("many", str(tmp_path))
    try:
        wait_until(lambda: list(table.glob("v000001/*.partial")), what="tasks that write")
        job.send_signal(signal.SIGSTOP)  # its tasks go on; it can't publish
        assert not mr.MasterTable.exists(table)
        with pytest.raises(TableError, match="is being built for the first time; open it when the build has finished"):
            mr.MasterTable.open(table)
    finally:
        job.kill()
        job.communicate(timeout=60)
    assert job.returncode == -signal.SIGKILL
    assert list(table.glob("v000001/*"))
    assert not mr.MasterTable.exists(table)
    with pytest.raises(TableError, match=r"whose build never finished: .*build it again with MasterTable\.build"):
        mr.MasterTable.open(table)
    built = mr.MasterTable.build(spark.range(100), "id", table, shards=1)
    assert mr.MasterTable.exists(table)
    assert built.latest.rows == 100
    assert {path.name for path in table.iterdir()} == {"manifest.json", built.latest.folder}
    assert mr.enrich(spark.range(50, 150), mr.MasterTable.open(table), "id").count() == 50


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("millrace")}


def test_progress_is_shown_when_it_is_wanted_and_nothing_of_it_stays(
    spark: SparkSession, warehouse: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = spark.range(30_000).selectExpr("id", "repeat('x', 100) AS text")
    for name, wanted in (("default", None), ("off", False)):  # stderr is no terminal here
        mr.MasterTable.build(data, "id", warehouse / name, shards=2, progress=wanted)
    assert capfd.readouterr() == ("", "")
    table = mr.MasterTable.build(data, "id", warehouse / "on", shards=2, progress=True)
    out, shown = capfd.readouterr()
    assert out == ""
    assert re.fullmatch(r"built, 30,000 rows, [\d.]+ MiB on disk", shown.splitlines()[-1])
    assert not list(warehouse.rglob("*.rows"))
    assert _threads() == set()
    failing = spark.range(10).selectExpr("id", "assert_true(id < 5) AS x")
    with pytest.raises(TableError, match="could not be built"):
        mr.MasterTable.build(failing, "id", warehouse / "on", progress=True)
    assert _threads() == set()
    assert table.latest.rows == 30_000
    with pytest.raises(ParameterError, match="progress must be True, False or None; got 'yes'"):
        mr.MasterTable.build(data, "id", warehouse / "never", progress="yes")  # type: ignore[arg-type]
    assert not (warehouse / "never").exists()


@contextmanager
def _terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A terminal as stderr; what was written to it is in the list afterwards."""
    master, slave = os.openpty()
    pieces: list[bytes] = []

    def read() -> None:
        while b"the end" not in b"".join(pieces[-2:]):
            pieces.append(os.read(master, 4096))

    reader = threading.Thread(target=read)
    reader.start()
    shown: list[str] = []
    with os.fdopen(slave, "w") as terminal, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", terminal)
        patched.setenv("TERM", "xterm")
        patched.setenv("COLUMNS", "80")
        try:
            yield shown
        finally:
            terminal.write("the end")
            terminal.flush()
            reader.join(60)
    os.close(master)
    shown += re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(pieces).decode()))


def test_a_terminal_is_shown_a_bar(spark: SparkSession, warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _terminal(monkeypatch) as shown:
        mr.MasterTable.build(spark.range(1_000), "id", warehouse, shards=1)
    assert any(line.startswith("1 of 3: reading and sorting") for line in shown)
    assert any(re.match(r"built .* 1,000 rows, ", line) for line in shown)


def test_each_phase_and_each_pass_has_a_bar_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with _terminal(monkeypatch) as shown:
        bars = _Bars()
        bars.start(Moment("reading and sorting"))
        for now in (
            Moment("reading and sorting", share=0.5, rows=500, turn=1),
            Moment("reading and sorting", turn=2),
            Moment("writing", 36.0, rows=1_089_572, all_rows=2_000_000, share=0.75, bytes=55 << 20),
        ):
            bars.update(now)
        bars.stop(failed=False)
    done = [line for line in shown if line.endswith("done")]
    assert done == ["1 of 3: reading and sorting (pass 1): done", "1 of 3: reading and sorting (pass 2): done"]
    last = [line for line in shown if line.startswith("2 of 3: writing")][-1]
    assert re.fullmatch(r"2 of 3: writing \S{12} 75 %, 0:12 left, 1,089,572 of 2,000,000 rows.*", last)  # in 80 columns


def test_how_far_a_build_is_reads_as_a_line() -> None:
    started = Moment("reading and sorting")
    reading = Moment("reading and sorting", 4.0, rows=1_200_000, share=0.25, turn=2)
    writing = Moment("writing", 3600.0, rows=2_500_000, all_rows=10_000_000, share=0.25, bytes=300 << 20)
    unknown = Moment("writing", 3.0, rows=2_500_000, bytes=300 << 20)
    assert str(started) == "1 of 3: reading and sorting"
    assert str(reading) == "1 of 3: reading and sorting (pass 2) 25 %, 1,200,000 rows"  # passes may follow: no time left
    assert str(writing) == "2 of 3: writing 25 %, 3:00:00 left, 2,500,000 of 10,000,000 rows, 300.0 MiB on disk"
    assert str(unknown) == "2 of 3: writing, 2,500,000 rows, 300.0 MiB on disk"
    assert str(Moment("finishing")) == "3 of 3: finishing"


@pytest.mark.parametrize(("seconds", "share"), [(0.1, 0.25), (60.0, 0.01), (60.0, None), (60.0, 0.999), (60.0, 1.0)])
def test_no_time_left_is_shown_before_it_is_known_or_when_there_is_none(seconds: float, share: float | None) -> None:
    assert "left" not in str(Moment("writing", seconds, rows=10, share=share))


def test_what_is_shown_never_goes_back() -> None:
    first = Moment("reading and sorting", 5.0, rows=500, share=0.5, turn=1)
    assert first.then(Moment("reading and sorting")) == first
    assert first.then(Moment("reading and sorting", 6.0, rows=400, turn=1)) == replace(first, seconds=6.0)  # a task failed
    second = first.then(Moment("reading and sorting", 1.0, turn=2))
    assert (second.turn, second.share) == (2, None)
    writing = second.then(Moment("writing", 3.0, rows=900, all_rows=1_000, share=0.9, bytes=10))
    assert writing.then(first) == writing
    assert writing.then(Moment("writing", 4.0, rows=0, all_rows=8, share=0.0, bytes=20)) == replace(
        writing, seconds=4.0, bytes=20
    )


def test_lines_come_every_few_seconds_and_none_comes_twice() -> None:
    seconds = iter(range(100))  # a clock that goes on by a second when someone looks
    file = io.StringIO()
    lines = _Lines(file, over_a_bar=False, clock=lambda: float(next(seconds)))
    lines.start(Moment("reading and sorting"))
    for _ in range(20):
        lines.update(Moment("reading and sorting"))
    for rows in range(10, 100, 10):
        lines.update(Moment("writing", 8.0, rows=rows, all_rows=100, share=rows / 100))
    for later in range(20):
        lines.update(Moment("writing", 9.0 + later, rows=90, all_rows=100, share=0.9))  # only the time left changes
    shown = file.getvalue().splitlines()
    assert shown[:2] == ["1 of 3: reading and sorting", "2 of 3: writing 10 %, 1:12 left, 10 of 100 rows"]
    assert "2 of 3: writing 90 %" in shown[-1]
    assert 4 <= len(shown) <= 7
    assert len(set(shown)) == len(shown)


class _Shown:
    """What a cell of a notebook shows: one output, which may be replaced."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> _Shown:
        assert raw
        assert display_id
        self.lines.append(data["text/plain"])
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        self.display(data, raw=raw, display_id=True)


def test_a_notebook_without_widgets_is_shown_a_line_that_changes(
    spark: SparkSession, warehouse: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shown, shell = _Shown(), SimpleNamespace(kernel=object(), execution_count=1)
    ipython = SimpleNamespace(get_ipython=lambda: shell, __file__="/IPython/__init__.py")  # PySpark looks at the file
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    mr.MasterTable.build(spark.range(1_000), "id", warehouse / "table", shards=1)
    assert shown.lines[0] == "1 of 3: reading and sorting"
    assert re.fullmatch(r"built, 1,000 rows, .* on disk", shown.lines[-1])
    failing = spark.range(10).selectExpr("id", "assert_true(id < 5) AS x")
    with pytest.raises(TableError, match="could not be built"):
        mr.MasterTable.build(failing, "id", warehouse / "failing")
    assert shown.lines[-1].startswith("stopped at 1 of 3: reading and sorting")
    mr.MasterTable.build(spark.range(10), "id", warehouse / "off", shards=1, progress=False)
    assert shown.lines[-1].startswith("stopped at")
    shell.kernel = None  # as IPython in a terminal
    mr.MasterTable.build(spark.range(10), "id", warehouse / "shell", shards=1)
    assert shown.lines[-1].startswith("stopped at")
    assert capfd.readouterr().out == ""


@pytest.mark.slow
def test_a_saved_notebook_ends_with_what_was_built(tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    code = f"""
        from pathlib import Path
        from tests.spark.job import session
        import millrace as mr
        spark = session("local[1]", Path({str(tmp_path)!r}))
        table = mr.MasterTable.build(spark.range(1_000), "id", {str(tmp_path / "table")!r}, shards=1)
        spark.stop()
    """
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(textwrap.dedent(code))])
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(ROOT)}}).execute()
    outputs = notebook.cells[0].outputs
    (display,) = [output for output in outputs if output.output_type == "display_data"]
    assert re.fullmatch(r"built, 1,000 rows, .* on disk", display.data["text/plain"])
    assert "ipywidgets" not in str(outputs)
