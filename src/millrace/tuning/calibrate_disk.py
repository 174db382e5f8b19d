"""What reads of a disk cost: reads of several sizes, in sequence and at random, past the page cache and through it.

    seconds of a read = seek, if it begins elsewhere + request + bytes x read_byte

`direct` reads go to the disk. `buffered` reads find the file in the page cache, as a table that is in use does. What a join's
relation does with each read beside it (checksums, finding pages) is measured apart, see `Overhead`, and added.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.calibration import ReadCosts
from millrace.core.errors import TableError
from millrace.relations.stored import StoredRelation
from millrace.tuning.fitting import fit

SAMPLE_BYTES = 128 << 20
_SIZES = tuple(4096 * 4**power for power in range(6))  # 4 KiB to 4 MiB
_GUESS = {"direct": np.array([1e-4, 1e-9, 2e-5]), "buffered": np.array([1e-7, 1e-10, 1e-6])}  # seek, read_byte, request
_LEAST_READS = 3
_MEMORY_BYTES = 64 << 20
_TOGETHER_BYTES = 1 << 20  # about what joins read at once
_TURNS = 3


@dataclass(frozen=True)
class DiskCosts:
    """Costs by read mode, and how uncertain each is. `remark`: what could not be measured, for people."""

    reads: dict[str, ReadCosts]
    spread: dict[str, float]  # by name, such as direct.seek
    remark: str = ""


def calibrate_disk(
    place: Path, *, seconds: float = 4.0, sample_bytes: int = SAMPLE_BYTES, seed: int | None = None
) -> DiskCosts:
    """Measure the disk of a big file, such as a shard; of a folder with a file of our own, which is gone afterwards.

    Without a seed other places are read each time: a virtual disk gives places again, from a cache of its own, that were read
    before."""
    if place.is_dir():
        with _sample(place, sample_bytes) as file:
            return _measured(file, seconds, seed)
    return _measured(place, seconds, seed)


def _measured(file: Path, seconds: float, seed: int | None) -> DiskCosts:
    reads: dict[str, ReadCosts] = {}
    spread: dict[str, float] = {}
    remark = ""
    for mode in ("direct", "buffered"):
        try:
            descriptor = os.open(file, os.O_RDONLY | (os.O_DIRECT if mode == "direct" else 0))
        except OSError as refused:
            if mode == "buffered":
                raise TableError(f"{file} can't be read ({refused}): give another folder") from refused
            remark = f"the file system of {file.parent} has no direct reads: read='buffered' or 'mmap' is what works there"
            continue
        try:
            alone, found = _reads(descriptor, mode, seconds / 2, seed)
            reads[mode] = replace(alone, together=_together(descriptor, seconds / 8) if mode == "direct" else 1.0)
        except OSError as refused:  # some file systems open a file for direct reads, and refuse to read
            if mode == "buffered":
                raise TableError(f"{file} can't be read ({refused}): check its disk") from refused
            remark = f"direct reads of {file.parent} fail ({refused})"
            continue
        finally:
            os.close(descriptor)
        spread |= {f"{mode}.{name}": value for name, value in found.items()}
    return DiskCosts(reads, spread, remark)


def _reads(descriptor: int, mode: str, seconds: float, seed: int | None) -> tuple[ReadCosts, dict[str, float]]:
    size = os.fstat(descriptor).st_size
    with mmap.mmap(-1, _SIZES[-1], flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as buffer, memoryview(buffer) as view:
        if mode == "buffered":
            size = min(size, SAMPLE_BYTES)  # as much as surely stays in the page cache
            _timed(descriptor, view, np.arange(0, size - len(view) + 1, len(view)), 60.0)
        sizes = [length for length in _SIZES if size >= 4 * length]
        random = np.random.default_rng(seed)
        counts, taken = [], []
        for length in sizes:
            places = np.arange(size // length) * length
            start = int(random.integers(len(places)))
            for seek, order in ((1.0, random.permutation(places)), (0.0, np.roll(places, -start))):
                with view[:length] as part:
                    median = _timed(descriptor, part, order, seconds / (2 * len(sizes)))
                counts.append([seek, length, 1.0])
                taken.append(median)
    found = fit(np.array(counts), np.array(taken), _GUESS[mode], pulled=False)
    seek, read_byte, request = found.costs.tolist()
    return ReadCosts(seek, read_byte, request), dict(zip(("seek", "read_byte", "request"), found.spread.tolist(), strict=True))


def _together(descriptor: int, seconds: float) -> float:
    """Times as long as long reads take while all cores read; by turns with reads of one core."""
    readers, each, size = len(os.sched_getaffinity(0)), seconds / (2 * _TURNS), os.fstat(descriptor).st_size
    if readers == 1 or size < 4 * _TOGETHER_BYTES:
        return 1.0

    def read(number: int) -> float:
        with mmap.mmap(-1, _TOGETHER_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as buffer, memoryview(buffer) as view:
            places = np.random.default_rng().permutation(size // _TOGETHER_BYTES) * _TOGETHER_BYTES
            return _timed(descriptor, view, places, each)

    ratios = []
    with ThreadPoolExecutor(readers) as pool:
        for _ in range(_TURNS):
            alone = read(0)
            ratios.append(float(np.mean(list(pool.map(read, range(readers))))) / alone)
    return max(1.0, float(np.median(ratios)))


def _timed(descriptor: int, view: Any, places: Int64Array, seconds: float) -> float:
    """Median seconds of a read at each of the places, until the time is up or there are no more places."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    for place in places.tolist():
        before = time.perf_counter()
        os.preadv(descriptor, [view], place)
        after = time.perf_counter()
        taken.append(after - before)
        if after > end and len(taken) >= _LEAST_READS:
            break
    return float(np.median(taken))


@contextmanager
def _sample(folder: Path, size: int) -> Iterator[Path]:
    """A file that is on the disk and not in the page cache, of bytes that don't compress."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".millrace-calibration-") as file:
            block = np.random.default_rng(0).bytes(4 << 20)
            for _ in range(-(-size // len(block))):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            with suppress(OSError):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            yield Path(file.name)
    except OSError as refused:
        raise TableError(f"{folder} can't be measured ({refused}): name another folder on the same disk") from refused


# --- what a relation does with a read


@dataclass(frozen=True)
class Overhead:
    """What a relation does beside the reads of the disk, for each read, page and byte. Each page has a checksum."""

    request: float
    page: float
    byte: float

    def added(self, read: ReadCosts) -> ReadCosts:
        """Reads as a join sees them. The part of a page is not among them: it counts as work of the join."""
        return replace(read, read_byte=read.read_byte + self.byte, request=read.request + self.request)


def measure_overhead(relations: list[StoredRelation], buffered: ReadCosts, *, seconds: float = 0.6, seed: int = 0) -> Overhead:
    """Read runs of several lengths from tables with different pages, and take off what the disk costs."""
    random = np.random.default_rng(seed)
    counts, taken = [], []
    for relation in relations:
        relation.read(0, relation.pages)  # into the page cache
        for length in (1, 4, 16, 64):
            firsts = random.integers(0, max(1, relation.pages - length), 4096)
            count, median = min(length, relation.pages), []
            end = time.perf_counter() + seconds / (4 * len(relations))
            for first in firsts.tolist():
                before = time.perf_counter()
                relation.read(first, count)
                median.append(time.perf_counter() - before)
                if before > end and len(median) >= _LEAST_READS:
                    break
            size = count * relation.page_bytes
            raw = buffered.seek + buffered.request + size * buffered.read_byte
            counts.append([1.0, count, size])
            taken.append(max(float(np.median(median)) - raw, 1e-7))
    request, page, byte = fit(np.array(counts), np.array(taken), np.array([1e-5, 1e-6, 5e-11])).costs.tolist()
    return Overhead(request, page, byte)


def memory_reads() -> ReadCosts:
    """Pages used in place: nothing is sought or asked for, and their bytes come from memory."""
    source, target = np.ones(_MEMORY_BYTES, np.uint8), np.empty(_MEMORY_BYTES, np.uint8)
    taken = []
    for _ in range(4):
        before = time.perf_counter()
        np.copyto(target, source)
        taken.append(time.perf_counter() - before)
    return ReadCosts(0.0, min(taken) / 2 / _MEMORY_BYTES, 0.0)  # a copy reads, and writes as much
