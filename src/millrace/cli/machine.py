"""Checks of the machine: memory, limits of the process, and the disk."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from pathlib import Path

import numpy as np
import psutil

from millrace.cli.findings import Finding
from millrace.core.budget import format_bytes
from millrace.core.unitcosts import calibrate_reads

SAMPLE_BYTES = 128 << 20
PAGE_BYTES = 64 << 10
_LITTLE_MEMORY = 2 << 30  # the Spark process of a command takes up to 2 GiB
_LITTLE_SPACE = 2 << 30


def check_memory() -> list[Finding]:
    memory = psutil.virtual_memory()
    found = f"{format_bytes(memory.available)} available of {format_bytes(memory.total)}, {os.cpu_count()} cores"
    values = {"available_bytes": memory.available, "total_bytes": memory.total, "cores": os.cpu_count()}
    if memory.available < _LITTLE_MEMORY:
        advice = "little for Spark: close something, or give Spark and memory= less"
        return [Finding("memory", "warn", found, advice, values)]
    return [Finding("memory", "ok", found, values=values)]


def check_limits() -> list[Finding]:
    """Limits on address space are what `spark.executor.pyspark.memory` and `ulimit -v` set."""
    return [
        _limit("RLIMIT_AS", resource.RLIMIT_AS, "a table larger than half of it can't be mapped: enrich reads directly then"),
        _limit("RLIMIT_DATA", resource.RLIMIT_DATA, "memory= must stay well below it"),
    ]


def _limit(name: str, number: int, advice: str) -> Finding:
    limit, _ = resource.getrlimit(number)
    if limit == resource.RLIM_INFINITY:
        return Finding(name, "ok", "unlimited", values={"bytes": None})
    return Finding(name, "warn", format_bytes(limit), advice, {"bytes": limit})


def check_disk(folder: Path) -> list[Finding]:
    """Free space, direct reads, and half a second of reading a file of our own."""
    try:
        free = shutil.disk_usage(folder).free
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".millrace-doctor-") as sample:
            findings = [_space(folder, free)]
            if free < 2 * SAMPLE_BYTES:
                return findings
            _fill(sample.fileno())
            direct = direct_reads(Path(sample.name))
            return [*findings, _direct(direct), _speed(Path(sample.name), direct)]
    except OSError as refused:
        return [Finding("disk", "fail", f"can't write into {folder}: {refused.strerror}", "give another --folder")]


def _space(folder: Path, free: int) -> Finding:
    found, values = f"{format_bytes(free)} free in {folder.absolute()}", {"free_bytes": free}
    if free < _LITTLE_SPACE:
        return Finding("disk", "warn", found, "a table needs about the size of its data; free some space", values)
    return Finding("disk", "ok", found, values=values)


def _fill(descriptor: int) -> None:
    """Bytes that don't compress, put on the disk and out of the page cache."""
    block = np.random.default_rng(0).bytes(4 << 20)
    for _ in range(SAMPLE_BYTES // len(block)):
        os.write(descriptor, block)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def direct_reads(path: Path) -> bool:
    """Whether the file system of `path` lets files be opened past the page cache."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def _direct(works: bool) -> Finding:
    values = {"works": works}
    if works:
        return Finding("direct reads", "ok", "O_DIRECT works in this folder", values=values)
    advice = "use read='mmap' or 'buffered', or put tables on another file system"
    return Finding("direct reads", "warn", "the file system has no O_DIRECT", advice, values)


def _speed(path: Path, direct: bool) -> Finding:
    costs = calibrate_reads(path, PAGE_BYTES, direct=direct)
    page_ms = costs.read(PAGE_BYTES) * 1000
    rate = 1 / costs.read_byte / 1e6
    how = "directly" if direct else "through the page cache, so this may be memory's speed"
    found = f"a random page of 64 KiB takes {page_ms:.2f} ms, in sequence {rate:,.0f} MB/s, read {how}"
    values = {"random_page_ms": page_ms, "sequential_mb_per_second": rate, "seek_seconds": costs.seek, "direct": direct}
    return Finding("disk speed", "ok", found, values=values)
