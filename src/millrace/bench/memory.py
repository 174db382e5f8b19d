"""Peak memory of the Spark driver and of its Python workers, watched from outside through /proc (Linux).

Of a worker its own memory counts, RssAnon: pages of a mapped file are the system's to take back. Peaks are samples,
taken every few milliseconds, so a shorter spike may be missed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

WORKER_TAG = "MILLRACE_BENCH_WORKERS"
"""Environment variable that tells the workers of one contender from those of the one before.

Spark keeps a pool of Python workers per set of environment variables, so a new value also means fresh workers.
"""

SAMPLE_SECONDS = 0.02
SEARCH_SECONDS = 0.25
_PROC = Path("/proc")


class MemorySampler:
    """Context manager: samples in a thread while the block runs. Peaks are in bytes, None where /proc is missing."""

    def __init__(self, jvm_pid: int, worker_tag: str, service_pid: int | None = None) -> None:
        self._jvm_pid = jvm_pid
        self._marker = f"{WORKER_TAG}={worker_tag}".encode()
        self._service_pid = service_pid
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)
        self._peak_by_worker: dict[int, int] = {}
        self.jvm_rss_bytes: int | None = None
        self.service_rss_bytes: int | None = None

    @property
    def worker_anon_bytes(self) -> int | None:
        """The largest own memory of any single worker."""
        return max(self._peak_by_worker.values(), default=None)

    @property
    def workers(self) -> dict[int, int]:
        """Peak own memory of every worker seen, by process id."""
        return dict(self._peak_by_worker)

    def __enter__(self) -> MemorySampler:
        if _PROC.is_dir():
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        until_search = 0.0
        workers: list[int] = []
        while not self._stopping.is_set():
            if until_search <= 0:
                workers, until_search = list(self._find_workers()), SEARCH_SECONDS
            self._sample(workers)
            until_search -= SAMPLE_SECONDS
            self._stopping.wait(SAMPLE_SECONDS)

    def _sample(self, workers: list[int]) -> None:
        for pid in workers:
            own = status_bytes(pid, "RssAnon")
            if own is not None:
                self._peak_by_worker[pid] = max(own, self._peak_by_worker.get(pid, 0))
        self.jvm_rss_bytes = _larger(self.jvm_rss_bytes, status_bytes(self._jvm_pid, "VmRSS"))
        if self._service_pid is not None:
            self.service_rss_bytes = _larger(self.service_rss_bytes, status_bytes(self._service_pid, "VmRSS"))

    def _find_workers(self) -> Iterator[int]:
        """Forks of the driver's pyspark daemons that carry the tag."""
        parents = {pid: parent for pid in _pids() if (parent := _parent(pid)) is not None}
        for pid, daemon in parents.items():
            if parents.get(daemon) == self._jvm_pid and self._is_ours(pid):
                yield pid

    def _is_ours(self, pid: int) -> bool:
        command = _read(pid, "cmdline")
        return b"pyspark" in command and self._marker in _read(pid, "environ").split(b"\0")


def status_bytes(pid: int, field: str) -> int | None:
    """A field of /proc/PID/status that is given in kB; None if the process is gone."""
    for line in _read(pid, "status").splitlines():
        if line.startswith(field.encode() + b":"):
            return int(line.split()[1]) * 1024
    return None


def machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def _parent(pid: int) -> int | None:
    # The name in parentheses may hold spaces; the parent is the second field after it.
    rest = _read(pid, "stat").rpartition(b")")[2].split()
    return int(rest[1]) if len(rest) > 1 else None


def _read(pid: int, name: str) -> bytes:
    try:
        return (_PROC / str(pid) / name).read_bytes()
    except OSError:  # the process ended meanwhile
        return b""


def _larger(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)
