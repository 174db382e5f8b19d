"""What is shown while a table is built: rows, share, time left, and bytes on disk.

Each writing task keeps the number of its rows in a small file beside its shard. Spark's status tells the number of all rows
once they are sorted. A thread looks at both a few times a second, and ends with the build.

Spark reads the data more than once before rows are written: a few rows for their size, then all rows for the ranges of the
shards, then all rows for the sort. The query that makes the data adds stages of its own. The number of passes is not known
beforehand, so each pass shows its own share, and time left is shown only for writing.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import pyarrow as pa
from pyspark import InheritableThread
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from millrace.core.budget import format_bytes

_SUFFIX = ".rows"
_PHASES = _READING, _WRITING, _FINISHING = "reading and sorting", "writing", "finishing"
_BUILT = "built"
_LOOK_SECONDS = 0.25
_LINE_SECONDS = 3.0
_NOTE_SECONDS = 0.2
_PASS_SECONDS = 1.0  # a shorter stage is not told of
_SURE_SECONDS, _SURE_SHARE = 2.0, 0.05  # from here on the time left is known


def note_rows(shard: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches; how many rows they had so far is in a file beside the shard, which `finish` removes."""
    rows, noted = 0, 0.0
    path = shard.with_name(shard.name + _SUFFIX)
    for batch in batches:
        yield batch
        rows += batch.num_rows
        if time.monotonic() - noted > _NOTE_SECONDS:
            path.write_text(str(rows))
            noted = time.monotonic()
    path.write_text(str(rows))


@dataclass(frozen=True)
class Moment:
    """How far a build is."""

    doing: str
    seconds: float = 0.0  # of what it is doing
    rows: int = 0
    all_rows: int | None = None
    share: float | None = None  # of what it is doing, or of the pass; None: unknown
    bytes: int = 0
    turn: int = 0  # which pass over the data, from 1; 0: none yet

    @property
    def seconds_left(self) -> float | None:
        """Of writing. A share that is young or small says nothing."""
        if self.doing != _WRITING or self.share is None or self.seconds < _SURE_SECONDS:
            return None
        return self.seconds * (1 - self.share) / self.share if self.share >= _SURE_SHARE else None

    @property
    def place(self) -> tuple[int, int]:
        """Phase and pass: what has a bar of its own."""
        return _PHASES.index(self.doing) if self.doing in _PHASES else len(_PHASES), self.turn

    def then(self, seen: Moment) -> Moment:
        """What is shown after this moment, when `seen` was seen. Numbers never go back, even if Spark tries tasks again or
        `finish` removes files."""
        if seen.place != self.place:
            return max(self, seen, key=lambda moment: moment.place)
        shares = [share for share in (self.share, seen.share) if share is not None]
        return replace(
            seen,
            rows=max(self.rows, seen.rows),
            all_rows=self.all_rows or seen.all_rows,
            share=max(shares, default=None),
            bytes=max(self.bytes, seen.bytes),
        )

    def __str__(self) -> str:
        return ", ".join(part for part in (f"{self.name} {self.percent}".rstrip(), self.amounts) if part)

    @property
    def name(self) -> str:
        if self.doing not in _PHASES:
            return self.doing
        return f"{self.place[0] + 1} of {len(_PHASES)}: {self.doing}" + (f" (pass {self.turn})" if self.turn else "")

    @property
    def percent(self) -> str:
        return "" if self.share is None or self.doing == _BUILT else f"{int(100 * self.share)} %"

    @property
    def amounts(self) -> str:
        of = f" of {self.all_rows:,}" if self.all_rows else ""
        left = f"{_clock(self.seconds_left)} left" if self.seconds_left and round(self.seconds_left) else ""
        on_disk = f"{format_bytes(self.bytes)} on disk" if self.bytes else ""
        return ", ".join(part for part in (left, f"{self.rows:,}{of} rows" if self.rows else "", on_disk) if part)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class BuildProgress:
    """Shows the build inside a `with` block, if wanted. Default: in a terminal or a notebook."""

    def __init__(self, folder: Path, spark: Any, wanted: bool | None) -> None:
        notebook, in_terminal = _in_notebook(), sys.stderr.isatty()
        self.on = (in_terminal or notebook) if wanted is None else wanted
        self._folder = folder
        self._jobs = _Jobs(spark)
        self._show: _Notebook | _Bars | _Lines
        if notebook:
            self._show = _Notebook()
        elif in_terminal and not self._jobs.shown_by_spark:
            self._show = _Bars()
        else:
            self._show = _Lines(sys.stderr, over_a_bar=in_terminal)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._now = Moment(_READING)
        self._passes: list[int] = []  # numbers of stages

    def __enter__(self) -> BuildProgress:
        self._jobs.tag()
        if self.on:
            self._show.start(self._now)
            self._thread = self._jobs.thread(self._watch)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._show.stop(failed=error is not None)
        if error is not None:
            self._jobs.cancel()  # behind a Ctrl-C tasks would go on writing
        self._jobs.untag()

    def built(self, rows: int, size: int) -> None:
        """The table is there."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._show.update(Moment(_BUILT, rows=rows, share=1.0, bytes=size))

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            with suppress(OSError):  # files come and go
                self._now = self._now.then(self._look())
                self._show.update(self._now)

    def _look(self) -> Moment:
        rows, size = _written(self._folder)
        stage = self._jobs.stage()
        if not (rows or size):
            return self._reading(stage)
        all_rows = self._now.all_rows or stage.sorted_rows
        if all_rows and rows >= all_rows:
            return Moment(_FINISHING)
        return Moment(_WRITING, stage.seconds, rows, all_rows, rows / all_rows if all_rows else None, size)

    def _reading(self, stage: _Stage) -> Moment:
        if stage.number not in self._passes:
            if stage.number is None or stage.seconds < _PASS_SECONDS or stage.number < max(self._passes, default=0):
                return self._now
            self._passes.append(stage.number)
        turn = self._passes.index(stage.number) + 1
        return Moment(_READING, stage.seconds, stage.rows, None, stage.share, turn=turn)


def _written(folder: Path) -> tuple[int, int]:
    """Rows that tasks have written, and the bytes of their files. An attempt that failed counts as one with the next."""
    rows: dict[str, int] = {}
    size = 0
    for entry in os.scandir(folder):
        if entry.name.endswith(_SUFFIX):
            partition = entry.name.rpartition("-")[0]
            rows[partition] = max(rows.get(partition, 0), int(Path(entry.path).read_text() or 0))
        else:
            size += entry.stat().st_size
    return sum(rows.values()), size


@dataclass(frozen=True)
class _Stage:
    """What Spark says of the stage that runs."""

    number: int | None = None
    seconds: float = 0.0
    rows: int = 0
    share: float | None = None
    sorted_rows: int | None = None  # all rows of the table, once they are sorted


class _Jobs:
    """The jobs of this build, by a tag. Spark Connect tells nothing of them."""

    def __init__(self, spark: Any) -> None:
        self._context: Any = getattr(spark, "_sc", None)
        self._tag = f"millrace-build-{uuid.uuid4().hex}"
        self._started: dict[int, float] = {}

    @property
    def shown_by_spark(self) -> bool:
        """Spark draws a bar of its own on the terminal."""
        return self._context is not None and self._context.getConf().get("spark.ui.showConsoleProgress", "false") == "true"

    def tag(self) -> None:
        if self._context is not None:
            self._context.addJobTag(self._tag)

    def untag(self) -> None:
        if self._context is not None:
            with suppress(Exception):  # the JVM may be gone
                self._context.removeJobTag(self._tag)

    def cancel(self) -> None:
        if self._context is not None:
            with suppress(Exception):
                self._context.cancelJobsWithTag(self._tag)

    def thread(self, target: Callable[[], None]) -> threading.Thread:
        kind = threading.Thread if self._context is None else InheritableThread  # which gives its connection to the JVM back
        return kind(target=target, name="millrace-build-progress", daemon=True)

    def stage(self) -> _Stage:
        if self._context is None:
            return _Stage()
        try:
            return self._latest()
        except Exception:  # of py4j or the JVM: what is shown must never end a build
            return _Stage()

    def _latest(self) -> _Stage:
        jvm = self._context._jsc.sc()
        tracker, store = jvm.statusTracker(), jvm.statusStore()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForTag(self._tag)]
        numbers = sorted({number for job in jobs if job.isDefined() for number in job.get().stageIds()})
        done, active = None, None
        for number in numbers:
            stage = store.lastStageAttempt(number)
            status = str(stage.status())
            if status == "COMPLETE" and stage.shuffleWriteRecords():
                done = stage
            elif status == "ACTIVE":
                active = number, stage
        sorted_rows = int(done.shuffleWriteRecords()) if done is not None else None
        if active is None:
            return _Stage(sorted_rows=sorted_rows)
        number, stage = active
        seconds = time.monotonic() - self._started.setdefault(number, time.monotonic())
        rows = max(int(stage.inputRecords()), int(stage.shuffleWriteRecords()))
        share = stage.numCompleteTasks() / max(1, stage.numTasks())
        return _Stage(number, seconds, rows, share or None, sorted_rows)  # until a task has ended, nothing is known


def _in_notebook() -> bool:
    """Whether a kernel runs this process. A process that has not imported IPython has none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class _Notebook:
    """One line of text that changes. Every front end can show the line, without widgets, and a saved notebook keeps it."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._line = ""

    def start(self, now: Moment) -> None:
        self._line = str(now)
        self._handle = importlib.import_module("IPython.display").display(_text(self._line), raw=True, display_id=True)

    def update(self, now: Moment) -> None:
        self._say(str(now))

    def stop(self, *, failed: bool) -> None:
        if failed:
            self._say(f"stopped at {self._line}")

    def _say(self, line: str) -> None:
        if line != self._line:
            self._line = line
            self._handle.update(_text(line), raw=True)


def _text(line: str) -> dict[str, str]:
    return {"text/plain": line}


class _Bars:
    """A bar for each phase and each pass, one after the other, for a terminal. A narrow terminal cuts the end of the text."""

    def __init__(self) -> None:
        text = TextColumn("{task.fields[text]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
        console = Console(stderr=True, force_jupyter=False)
        self._progress = Progress(TextColumn("{task.description}"), BarColumn(12), text, console=console, expand=True)
        self._now, self._task = Moment(""), TaskID(0)

    def start(self, now: Moment) -> None:
        self._task = self._progress.add_task(now.name, total=None, text="")
        self._now = now
        self._progress.start()

    def update(self, now: Moment) -> None:
        if now.place != self._now.place:
            self._next(now)
        self._now = now
        text = ", ".join(part for part in (now.percent, now.amounts) if part)
        total = None if now.share is None else 1.0
        self._progress.update(self._task, total=total, completed=now.share or 0.0, text=text)

    def _next(self, now: Moment) -> None:
        self._progress.remove_task(self._task)
        if self._now.turn or self._now.doing == _WRITING:
            self._progress.console.print(f"{self._now.name}: done", highlight=False, markup=False)
        self._task = self._progress.add_task(now.name, total=None, text="")

    def stop(self, *, failed: bool) -> None:
        self._progress.live.transient = failed
        self._progress.stop()


class _Lines:
    """A line now and then, for a log, or beside the bar that Spark draws. No line is written twice."""

    def __init__(self, file: TextIO, *, over_a_bar: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._clear = "\r\x1b[K" if over_a_bar else ""
        self._said, self._now, self._line = 0.0, Moment(""), ""

    def start(self, now: Moment) -> None:
        self.update(now)

    def update(self, now: Moment) -> None:
        line = str(replace(now, seconds=0.0))  # time left alone is no news
        new_place = now.place != self._now.place
        if line != self._line and (new_place or self._clock() - self._said >= _LINE_SECONDS):
            self._said, self._now, self._line = self._clock(), now, line
            self._file.write(f"{self._clear}{now}\n")
            self._file.flush()

    def stop(self, *, failed: bool) -> None:
        pass
