"""Make one contender ready, run its query at every batch size, watch its memory, clean up."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millrace.bench.data import Say, StreamFiles, master_files, stream_files, warm_page_cache
from millrace.bench.enrich.contenders import Contender, Ready, Workload
from millrace.bench.enrich.microbatch import BatchTimes, checksum, run_query
from millrace.bench.enrich.results import Result
from millrace.bench.enrich.session import collect_garbage, describe_machine, fresh_workers, jvm_pid, settings, spark_session
from millrace.bench.memory import MemorySampler
from millrace.bench.options import EnrichOptions
from millrace.core.errors import interrupted


def _silent(_: object) -> None:
    return None


@dataclass(frozen=True)
class Progress:
    """Who hears how far a run is: `say` what is being done, `finished` each result."""

    say: Say = field(default=_silent)
    finished: Callable[[Result], None] = field(default=_silent)


@dataclass(frozen=True)
class Folders:
    """`data` is kept for the next run if the user named it; `scratch` never outlives the run."""

    data: Path
    scratch: Path


@contextmanager
def folders(data: Path | None, rebuild: bool) -> Iterator[Folders]:
    with tempfile.TemporaryDirectory(prefix="millrace-bench-", ignore_cleanup_errors=True) as scratch:
        kept = data if data is not None else Path(scratch) / "data"
        if rebuild:
            for table in kept.glob("millrace-*"):
                shutil.rmtree(table) if table.is_dir() else table.unlink()
        kept.mkdir(parents=True, exist_ok=True)
        yield Folders(kept.resolve(), Path(scratch))


@dataclass(frozen=True)
class Prepared:
    """A session with the data of a run: `about` says what it runs on."""

    work: Workload
    streams: list[StreamFiles]
    where: Folders
    about: dict[str, Any]


@contextmanager
def prepared(options: EnrichOptions, where: Folders, say: Say, values: Mapping[str, str] | None = None) -> Iterator[Prepared]:
    """Make the data, or find it from an earlier run, and start Spark. `values`: settings beside those of the session."""
    master = master_files(options, where.data, say)
    streams = [stream_files(options, size, where.data, say) for size in options.batch_rows]
    with spark_session(options.driver_memory, where.scratch) as spark, settings(spark, values or {}):
        about = describe_machine(spark, options.driver_memory)
        yield Prepared(Workload(spark, options, master, where.data, say), streams, where, about)


def measure(
    contender: Contender, work: Workload, streams: list[StreamFiles], scratch: Path, progress: Progress
) -> list[Result]:
    """One result per stream. What goes wrong becomes the status of the results: the others still run."""
    reason = contender.missing()
    if reason is not None:
        return _without_times(contender, streams, reason, progress)
    results: list[Result] = []
    try:
        progress.say(f"{contender.name}: setting up")
        started = time.monotonic()
        with settings(work.spark, contender.settings), contender.ready(work) as ready:
            if ready.files is not None:
                warm_page_cache(ready.files)
            setup_seconds = time.monotonic() - started
            for files in streams:
                results.append(_run(contender, ready, work, files, scratch, progress.say, setup_seconds))
                progress.finished(results[-1])
    except Exception as error:  # any failure of one contender is a finding, not the end of the run
        if interrupted(error):
            raise KeyboardInterrupt from error
        reason = f"failed: {type(error).__name__}: {_first_lines(error)}"
        results += _without_times(contender, streams[len(results) :], reason, progress)
    return results


def _run(
    contender: Contender,
    ready: Ready,
    work: Workload,
    files: StreamFiles,
    scratch: Path,
    say: Say,
    setup_seconds: float,
) -> Result:
    def tick(done: int) -> None:
        say(f"{contender.name}: {files.batch_rows:,} rows a batch, {done} of {files.batches} batches")

    tick(0)
    collect_garbage(work.spark)
    tag = f"{contender.name}-{files.batch_rows}-{time.monotonic_ns()}"
    with fresh_workers(work.spark, tag):
        with MemorySampler(jvm_pid(work.spark), tag, ready.service_pid) as memory:
            times = run_query(work.spark, ready.transform, files, work.options.cold_batches, scratch, tick)
        say(f"{contender.name}: checking rows")
        total = checksum(work.spark, ready.transform, files, work.options.columns) if ready.joins else None
    return _result(contender, files, times, memory, total, setup_seconds)


def _result(
    contender: Contender,
    files: StreamFiles,
    times: BatchTimes,
    memory: MemorySampler,
    total: str | None,
    setup_seconds: float,
) -> Result:
    return Result(
        contender=contender.name,
        batch_rows=files.batch_rows,
        seconds=times.warm,
        trigger_seconds=times.warm_trigger,
        cold_seconds=times.cold,
        setup_seconds=round(setup_seconds, 3),
        rows_out=times.rows_out,
        checksum=total,
        settings=dict(contender.settings),
        peak_worker_anon_bytes=memory.worker_anon_bytes,
        peak_anon_bytes_of_workers=tuple(memory.workers.values()),
        peak_jvm_rss_bytes=memory.jvm_rss_bytes,
        peak_service_rss_bytes=memory.service_rss_bytes,
    )


def _without_times(contender: Contender, streams: list[StreamFiles], reason: str, progress: Progress) -> list[Result]:
    results = [Result(contender.name, files.batch_rows, status=reason) for files in streams]
    for result in results:
        progress.finished(result)
    return results


def _first_lines(error: Exception, limit: int = 300) -> str:
    return " ".join(str(error).split())[:limit]
