"""Unit costs of a machine, and a calibration that takes about a second.

Field names are those of the cost model. Each value is the seconds for one such operation. `read(bytes)` is the cost of one read
after a seek.
"""

from __future__ import annotations

import mmap
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from millrace.core.errors import ParameterError


class Counted(Protocol):
    """What was done, or what is expected: `StepCounts` and `cost.iteration.IterationCost` share these names."""

    @property
    def tuples_in(self) -> float: ...
    @property
    def pages_read(self) -> float: ...
    @property
    def probes(self) -> float: ...
    @property
    def matches(self) -> float: ...
    @property
    def removed(self) -> float: ...
    @property
    def front_lookups(self) -> float: ...


@dataclass(frozen=True)
class UnitCosts:
    """Seconds: of reading, of what is done to a tuple, and of what a call takes however little it does.

    The last five are zero where nobody has measured them, as on simulated devices.
    """

    seek: float = 1.0e-4  # to another place of the disk
    read_byte: float = 1.0 / 1.4e9
    expire: float = 2.0e-8
    take: float = 2.0e-8
    add: float = 4.0e-8
    probe: float = 3.0e-8  # one look-up of a key in the window, or of a tuple in a page
    output: float = 1.5e-7
    front: float | None = None  # one look-up in a front stage; None: as a probe
    request: float = 0.0  # of each read, in sequence or not
    page: float = 0.0  # of each page read, beside its bytes
    index_read: float = 0.0  # of each block of an index on disk, beside its seek and bytes
    step: float = 0.0  # of each step

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not value >= 0:
                raise ParameterError(f"unit cost {name} must be zero or more seconds; got {value!r}")

    def read(self, count: int) -> float:
        """Seconds for one read of `count` bytes after a seek."""
        return self.seek + self.request + count * self.read_byte

    def work(self, counts: Counted, steps: float = 0) -> float:
        """Processor seconds for what steps did, without reads: the terms of the cost model, term by term.

        A look-up in an index in memory is part of taking a tuple.
        """
        front = self.probe if self.front is None else self.front
        return (
            counts.tuples_in * (self.take + self.add)
            + counts.probes * self.probe
            + counts.front_lookups * front
            + counts.matches * self.output
            + counts.removed * self.expire
            + counts.pages_read * self.page
            + steps * self.step
        )

    def gap_bytes(self) -> int:
        """Bytes that cost as much to read through as another read costs."""
        return int((self.seek + self.request) / self.read_byte) if self.read_byte else 1 << 62


def calibrate_reads(path: Path, page_bytes: int, *, seconds: float = 0.5, direct: bool = True, seed: int = 0) -> UnitCosts:
    """Measure the device of this file: random reads of a page, and long sequential reads, half of the time each.

    A file smaller than a few long reads tells too little; then the defaults are kept.
    """
    size = path.stat().st_size
    long_read = 4 << 20
    if size < 4 * long_read or page_bytes > long_read:
        return UnitCosts()
    descriptor = _open(path, direct)
    try:
        buffer = mmap.mmap(-1, long_read, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        view = memoryview(buffer)
        page = -(-page_bytes // 4096) * 4096
        places = np.random.default_rng(seed).permutation(size // page)[:4096] * page
        random_seconds = _timed(descriptor, view[:page], [int(p) for p in places], seconds / 2)
        start = int(np.random.default_rng(seed + 1).integers(size // long_read)) * long_read
        runs = [(start + i * long_read) % (size - long_read) // 4096 * 4096 for i in range(size // long_read)]
        long_seconds = _timed(descriptor, view, runs, seconds / 2)
        view.release()
        buffer.close()
    finally:
        os.close(descriptor)
    read_byte = long_seconds / long_read
    return UnitCosts(seek=max(1e-7, random_seconds - page * read_byte), read_byte=read_byte)


def _open(path: Path, direct: bool) -> int:
    flags = os.O_RDONLY | (getattr(os, "O_DIRECT", 0) if direct else 0)
    try:
        return os.open(path, flags)
    except OSError:
        if not direct:
            raise
        return os.open(path, os.O_RDONLY)  # the file system has no direct reads: tmpfs, some network mounts


def _timed(descriptor: int, view: Any, places: list[int], seconds: float) -> float:
    """Median seconds of a read at each of the places, until the time is up."""
    taken = []
    end = time.perf_counter() + seconds
    for place in places:
        before = time.perf_counter()
        os.preadv(descriptor, [view], place)
        after = time.perf_counter()
        taken.append(after - before)
        if after > end and len(taken) >= 3:
            break
    return float(np.median(taken))
