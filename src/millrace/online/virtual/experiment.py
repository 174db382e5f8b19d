"""Online joins on devices with a virtual clock: the paper's experiments, in seconds, the same on every machine.

Rows are real, with fewer and so heavier ones: a record of `row_bytes` stands for `scale` records, and memory, extents and
pages are divided by the same number. All ratios (memory to input, extent to memory, partition to table) stay as they were.
Only transfers take time, as in the paper's models; work in memory takes none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.devices import Device, VirtualClock, VirtualDevice, device
from millrace.online.pair_functions import Products
from millrace.online.protocol import Counters, OnlineJoin, run
from millrace.online.storage.inputs import ArrayInput
from millrace.online.storage.spill import VirtualSpill
from millrace.online.virtual.inputs import Track, VirtualInput

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Setting:
    """The default is the paper's: 10 GB by 10 GB of 100-byte records (13 words), 500 MB, one disk for input, one for spills."""

    bytes_a: int = 10_000 * MEGABYTE
    bytes_b: int = 10_000 * MEGABYTE
    memory_bytes: int = 500 * MEGABYTE
    extent_bytes: int = MEGABYTE
    row_words: int = 13
    input_device: str | Device = "prjoin-disk"
    temporary_device: str | Device = "prjoin-disk"
    overlapped: bool = True
    rows: int = 500_000  # of A, that are really joined

    @property
    def scale(self) -> float:
        return self.bytes_a / (self.rows * self.row_words * 8)

    @property
    def input_bytes(self) -> int:
        return self.bytes_a + self.bytes_b

    def of(self, count: int) -> int:
        """So many bytes of the setting, in bytes that are really there."""
        return max(1, int(count / self.scale))


@dataclass(frozen=True)
class Point:
    """A report: when, how many pairs by then, and how much of the input had been read."""

    seconds: float
    results: int
    share_read: float


@dataclass(frozen=True)
class Simulated:
    """What a run came to; bytes are those of the setting."""

    points: list[Point]
    seconds: float  # end to end
    counters: Counters
    answer: Any
    input_seconds: float  # how long the input device was busy
    temporary_seconds: float
    temporary_written_bytes: float
    temporary_read_bytes: float
    memory_share: float | None  # of the input, that is read before the first row is spilled, if the join says so
    budget_peak_share: float  # of the memory

    def results_at(self, seconds: float) -> float:
        """Pairs found by then, taken to come evenly between two reports."""
        return float(np.interp(seconds, [0.0, *(p.seconds for p in self.points)], [0.0, *(p.results for p in self.points)]))


def one_to_one(setting: Setting, seed: int = 0) -> tuple[Int64Array, Int64Array]:
    """Every record of A matches one of B; if B is longer, several."""
    random = np.random.default_rng(seed)
    count_b = int(setting.rows * setting.bytes_b / setting.bytes_a)
    keys = np.arange(setting.rows, dtype=np.int64)
    a, b = np.zeros((setting.rows, setting.row_words), np.int64), np.zeros((count_b, setting.row_words), np.int64)
    a[:, 0], b[:, 0] = random.permutation(keys), random.permutation(np.resize(keys, count_b))
    b[:, 1] = np.ones(count_b).view(np.int64)
    return a, b


def simulate(
    make: Callable[..., OnlineJoin], setting: Setting, tables: tuple[Int64Array, Int64Array] | None = None, **options: Any
) -> Simulated:
    """Run a join to its end. `options` go to the join."""
    clock = VirtualClock()
    source, store = (VirtualDevice(_device(name), clock) for name in (setting.input_device, setting.temporary_device))
    track = Track()
    a, b = (
        VirtualInput(ArrayInput(words), source, track, scale=setting.scale, overlapped=setting.overlapped)
        for words in (tables or one_to_one(setting))
    )
    spill = VirtualSpill(store, scale=setting.scale, overlapped=setting.overlapped)
    budget = Budget(setting.of(setting.memory_bytes))
    join = make(a, b, Products(((), ()), ((), (1,))), budget, spill, **options)
    total = a.rows + b.rows
    memory_rows: int | None = getattr(join, "memory_rows", None)
    points = []
    for progress in run(join):
        if progress.reported:
            read = progress.counters.rows_a + progress.counters.rows_b
            points.append(Point(clock.now, progress.counters.results, read / total))
    counters = replace(progress.counters)
    return Simulated(
        points, clock.now, counters, join.pieces.answer(), source.busy, store.busy,
        counters.temp_written_bytes * setting.scale, counters.temp_read_bytes * setting.scale,
        None if memory_rows is None else memory_rows / total, budget.peak_bytes / budget.memory_bytes,
    )  # fmt: skip


def _device(given: str | Device) -> Device:
    return device(given) if isinstance(given, str) else given
