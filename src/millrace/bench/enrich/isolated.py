"""A contender in a process of its own, with its own driver: one that may run out of memory hurts nobody else.

Run as a module, this file is that process: it reads a job from a JSON file and writes results to another.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from millrace.bench.data import StreamFiles, master_files, stream_files
from millrace.bench.enrich.contenders import Workload, contenders
from millrace.bench.enrich.measure import Folders, Progress, measure
from millrace.bench.enrich.results import OK, Result
from millrace.bench.enrich.session import spark_session
from millrace.bench.options import EnrichOptions

OUT_OF_MEMORY = "out of memory"
_SIGNS = (
    "OutOfMemoryError",
    "Not enough memory to build and broadcast",
    "NOT_ENOUGH_MEMORY",
    "GC overhead limit",
    "TaskResultLost",  # with one driver and no executors: a part of the table was pushed out of memory
)


def measure_isolated(name: str, options: EnrichOptions, where: Folders, progress: Progress) -> list[Result]:
    """Results of the contender, one per batch size; "out of memory" or "out of time" where that is what happened."""
    job = {**options.to_json(), "contenders": [name], "rebuild": False, "repeats": 1}
    results: list[Result] = []
    for batch_rows in options.batch_rows:
        if results and results[-1].status == OUT_OF_MEMORY:
            # The table is what does not fit, and it is the same for every batch size.
            results.append(Result(name, batch_rows, status=OUT_OF_MEMORY))
        else:
            progress.say(f"{name}: {batch_rows:,} rows a batch, in a process of its own")
            results += _one_process({**job, "batch_rows": [batch_rows]}, where, options.broadcast_timeout_seconds)
        progress.finished(results[-1])
    return results


def _one_process(job: dict[str, Any], where: Folders, timeout_seconds: float) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="isolated-", dir=where.scratch) as scratch:
        (Path(scratch) / "job.json").write_text(json.dumps(job))
        command = [sys.executable, "-m", "millrace.bench.enrich.isolated", str(where.data), scratch]
        with (Path(scratch) / "log").open("wb") as log:
            child = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            try:
                ended = _wait(child, timeout_seconds)
            finally:
                _end_group(child)
        answer = Path(scratch) / "results.json"
        output = (Path(scratch) / "log").read_text(errors="replace")
        if answer.is_file():
            return [_judged(_read(plain), output) for plain in json.loads(answer.read_text())]
    if _ran_out_of_memory(output):
        status = OUT_OF_MEMORY
    else:
        status = f"failed: exit code {child.returncode}" if ended else f"out of time: {timeout_seconds:g} s"
    return [Result(job["contenders"][0], job["batch_rows"][0], status=status)]


def _judged(result: Result, output: str) -> Result:
    """A query that failed for want of memory may only say what that led to; what the process wrote says more."""
    failed = result.status != OK
    return replace(result, status=OUT_OF_MEMORY) if failed and _ran_out_of_memory(result.status + output) else result


def _ran_out_of_memory(output: str) -> bool:
    return any(sign in output for sign in _SIGNS)


def _wait(child: subprocess.Popen[bytes], timeout_seconds: float) -> bool:
    until = time.monotonic() + timeout_seconds
    while child.poll() is None and time.monotonic() < until:
        time.sleep(0.2)
    return child.poll() is not None


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """The child leads a group of its own, which its JVM is in too."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _read(plain: dict[str, Any]) -> Result:
    lists = {name: tuple(value) for name, value in plain.items() if isinstance(value, list)}
    result = Result(**{**plain, **lists})
    if result.status != OK and any(sign in result.status for sign in _SIGNS):
        return Result(result.contender, result.batch_rows, status=OUT_OF_MEMORY)
    return result


def main(data: Path, scratch: Path) -> None:
    options = EnrichOptions.from_json(json.loads((scratch / "job.json").read_text()), data)
    master = master_files(options, data, print)
    streams: list[StreamFiles] = [stream_files(options, size, data, print) for size in options.batch_rows]
    with spark_session(options.driver_memory, scratch) as spark:
        work = Workload(spark, options, master, data, print)
        (contender,) = contenders(options)
        results = measure(contender, work, streams, scratch, Progress())
    # Whole or not at all: the parent takes a file that is there for an answer.
    part = scratch / "results.part"
    part.write_text(json.dumps([asdict(result) for result in results]))
    part.rename(scratch / "results.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
