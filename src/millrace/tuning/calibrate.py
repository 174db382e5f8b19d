"""The costs of this machine and of one disk, measured in about half a minute: all that needs no Spark.

disk        reads by size, past the page cache and through it     the table's disk
look-ups    keys in pages in memory, by the size of the table     tables made for it
work        every join of the catalogue, at several settings      tables made for it
"""

from __future__ import annotations

import importlib.metadata
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from millrace.catalog import ALGORITHMS, Algorithm
from millrace.core.calibration import Calibration, Measured, Part
from millrace.core.errors import TableError
from millrace.core.machine_name import device_name, this_machine
from millrace.tuning.calibrate_disk import SAMPLE_BYTES, calibrate_disk, measure_overhead, memory_reads
from millrace.tuning.calibrate_look_ups import calibrate_look_ups
from millrace.tuning.calibrate_work import calibrate_work
from millrace.tuning.scratch_tables import build_scratch, opened, scratch_folder

Say = Callable[[str], None]
_PACKAGES = ("numba", "numpy", "pyarrow", "pyspark")


@dataclass(frozen=True)
class Effort:
    """How long to measure, and with how big tables: for joins one with large pages and one with small pages."""

    disk_seconds: float = 4.0
    look_up_seconds: float = 3.0
    work_seconds: float = 12.0
    sample_bytes: int = SAMPLE_BYTES
    join_tables: tuple[tuple[int, int], ...] = ((2_500_000, 64 << 10), (400_000, 8 << 10))  # rows, bytes of a page
    look_up_rows: tuple[int, ...] = (50_000, 400_000)  # and the largest table of the joins
    algorithms: Sequence[Algorithm] = ALGORITHMS


def calibrate_machine(
    table: Path | None = None, *, say: Say = lambda _: None, effort: Effort | None = None
) -> tuple[Calibration, list[str]]:
    """Measure this machine, and the disk of a table (None: of the working folder). Also what could not be measured, for people.

    Reads of the table's largest file are measured, if that is big; otherwise those of a file of our own beside the table.
    """
    effort = effort or Effort()
    place = (table or Path()).absolute()
    if not place.exists():
        raise TableError(f"there is no {place}; give a table, or a folder on the disk where tables will lie")
    with scratch_folder(place) as scratch, ExitStack() as kept:
        say("measuring the disk")
        disk = calibrate_disk(
            largest_file(place, effort.sample_bytes) or scratch, seconds=effort.disk_seconds, sample_bytes=effort.sample_bytes
        )
        say("building tables to measure joins with")
        built = [build_scratch(scratch, rows, page_bytes) for rows, page_bytes in effort.join_tables]
        tables = [kept.enter_context(opened(one, "buffered")) for one in built]
        sized = [build_scratch(scratch, rows, 64 << 10) for rows in effort.look_up_rows]
        mapped = [kept.enter_context(opened(one, "mmap")) for one in (*sized, built[0])]
        say("measuring look-ups")
        look_up, look_up_spread = calibrate_look_ups(mapped, seconds=effort.look_up_seconds)
        overhead = measure_overhead(tables, disk.reads["buffered"], seconds=effort.disk_seconds / 8)
        # a page that a disk has just written into memory is in no cache of the processor: work on it takes longer
        uncached = [kept.enter_context(opened(one, "direct")) for one in built] if "direct" in disk.reads else tables
        work, work_spread = calibrate_work(
            uncached, seconds=effort.work_seconds, page_seconds=overhead.page, algorithms=effort.algorithms, say=say
        )
    reads = {mode: overhead.added(costs) for mode, costs in disk.reads.items()}
    parts = {"reads": disk.spread, "look_up": look_up_spread, "work": work_spread}
    measured: dict[Part, Measured] = {
        "reads": measured_here(device_name(place)), "look_up": measured_here(), "work": measured_here()
    }  # fmt: skip
    found = Calibration(
        reads={**reads, "mmap": memory_reads()}, work=work, look_up=look_up, measured=measured,
        spread={f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()},
    )  # fmt: skip
    return found, [disk.remark] if disk.remark else []


def measured_here(device: str = "") -> Measured:
    """Now, on this machine."""
    return Measured(time.time(), this_machine().host, device, _versions())


def largest_file(table: Path, least_bytes: int) -> Path | None:
    """The largest file of a table that this process may read; None if it is smaller than that."""
    if table.is_file():
        files = [table]
    else:
        files = [*table.glob("v??????/shard-*.pages"), *table.glob("*.parquet")]
    sizes = {file: file.stat().st_size for file in files if os.access(file, os.R_OK)}
    largest = max(sizes, key=sizes.__getitem__, default=None)
    return largest if largest is not None and sizes[largest] >= least_bytes else None


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # Spark may be missing
    return found
