"""What is shown while a table is built: rows, share, time left, and bytes on disk.

Tasks that write leave how many rows they have written in small files beside their shards; how many there will be is known
from Spark's status when all are sorted. A thread looks at both a few times a second, and ends with the build.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
from pyspark import InheritableThread
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from millrace.core.budget import format_bytes

_SUFFIX = ".rows"
_READING, _WRITING, _BUILT = "reading and sorting", "writing", "built"
_LOOK_SECONDS = 0.25
_LINE_SECONDS = 5.0
_NOTE_SECONDS = 0.2


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
    seconds: float  # of what it is doing
    rows: int = 0
    all_rows: int | None = None
    share: float | None = None  # of what it is doing; None: unknown
    bytes: int = 0

    @property
    def seconds_left(self) -> float | None:
        return self.seconds * (1 - self.share) / self.share if self.share and self.share < 1 else None

    def __str__(self) -> str:
        return ", ".join(part for part in (self.heading, self.amounts) if part)

    @property
    def heading(self) -> str:
        return self.doing if self.share is None or self.doing == _BUILT else f"{self.doing} {100 * self.share:.0f} %"

    @property
    def amounts(self) -> str:
        of = f" of {self.all_rows:,}" if self.all_rows else ""
        left = "" if self.seconds_left is None else f"{_clock(self.seconds_left)} left"
        on_disk = f"{format_bytes(self.bytes)} on disk" if self.bytes else ""
        return ", ".join(part for part in (f"{self.rows:,}{of} rows" if self.rows else "", on_disk, left) if part)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class BuildProgress:
    """Shows a build that goes on in a `with` block, if it is wanted: by default in a terminal or a notebook."""

    def __init__(self, folder: Path, spark: Any, wanted: bool | None) -> None:
        self._console = Console(stderr=True)
        in_terminal = sys.stderr.isatty()
        self.on = (in_terminal or self._console.is_jupyter) if wanted is None else wanted
        self._folder = folder
        self._jobs = _Jobs(spark)
        live = self._console.is_jupyter or (in_terminal and not self._jobs.shown_by_spark)
        self._show: _Bar | _Lines = _Bar(self._console) if live else _Lines(self._console, in_terminal)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._doing, self._since = "", 0.0

    def __enter__(self) -> BuildProgress:
        self._jobs.tag()
        if self.on:
            self._show.start()
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
            self._show.update(Moment(_BUILT, 0.0, rows, None, 1.0, size))

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            with suppress(OSError):  # files come and go
                self._show.update(self._look())

    def _look(self) -> Moment:
        rows, size = _written(self._folder)
        stage = self._jobs.stage()
        doing = _WRITING if rows or size else _READING
        if doing != self._doing:
            self._doing, self._since = doing, time.monotonic()
        seconds = time.monotonic() - self._since
        if doing == _WRITING:
            share = min(1.0, rows / stage.sorted_rows) if stage.sorted_rows else None
            return Moment(doing, seconds, rows, stage.sorted_rows, share, size)
        return Moment(doing, stage.seconds, stage.rows, None, stage.share)


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
        return _Stage(seconds, rows, stage.numCompleteTasks() / max(1, stage.numTasks()), sorted_rows)


class _Bar:
    """One line that changes, for a terminal or a notebook."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(12), TextColumn("{task.fields[amounts]}"))
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task(_READING, total=None, amounts="")

    def start(self) -> None:
        self._progress.start()

    def update(self, now: Moment) -> None:
        total = None if now.share is None else 1.0
        self._progress.update(self._task, description=now.heading, total=total, completed=now.share or 0.0, amounts=now.amounts)

    def stop(self, *, failed: bool) -> None:
        self._progress.live.transient = failed
        self._progress.stop()


class _Lines:
    """A line now and then, for a log, or beside the bar that Spark draws."""

    def __init__(self, console: Console, over_a_bar: bool) -> None:
        self._file = console.file
        self._clear = "\r\x1b[K" if over_a_bar else ""
        self._said, self._doing = 0.0, ""

    def start(self) -> None:
        pass

    def update(self, now: Moment) -> None:
        if now.doing != self._doing or time.monotonic() - self._said > _LINE_SECONDS:
            self._doing, self._said = now.doing, time.monotonic()
            self._file.write(f"{self._clear}{now}\n")
            self._file.flush()

    def stop(self, *, failed: bool) -> None:
        pass
