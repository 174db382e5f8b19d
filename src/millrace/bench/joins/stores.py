"""Where the tables of `bench joins` lie: in a folder that is read directly, or nowhere, on a simulated device."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.bench.data import Say, made_once
from millrace.bench.joins.clock import DeviceClock, HostClock
from millrace.bench.options import REAL_DISK, JoinOptions
from millrace.core.calibration import Calibration
from millrace.core.devices import VirtualClock, VirtualDevice, device
from millrace.core.errors import TableError
from millrace.core.protocols import Relation
from millrace.core.unitcosts import UnitCosts, calibrate_reads
from millrace.relations.build import build_table
from millrace.relations.folder import read_versions
from millrace.relations.generated import KEY, GeneratedRelation, generated_rows
from millrace.relations.simulated import SimulatedRelation
from millrace.relations.stored import StoredRelation
from millrace.tuning.timed import TimedRelation, WallClock

_BUILD_ROWS = 500_000  # made at a time


@dataclass(frozen=True)
class Store:
    """Where the rows of a cell lie: opens a relation with its clock. `costs` is what joins are told of the device; `folder`: of
    a table on the disk. `calibration`: unit costs by join, where they were measured."""

    costs: UnitCosts
    open: Callable[[], tuple[Relation, HostClock]]
    real: bool
    folder: Path | None = None
    calibration: Calibration | None = None

    def costs_of(self, strategy: str) -> UnitCosts:
        """What this join is told of the device."""
        return self.costs if self.calibration is None else self.calibration.costs(strategy, "direct")


@contextmanager
def open_store(name: str, rows: int, options: JoinOptions, say: Say) -> Iterator[Store]:
    """The rows of a table on a device; a table built here is gone afterwards, unless options name a folder for it."""
    if name != REAL_DISK:
        yield _simulated(name, rows, options)
        return
    with tempfile.TemporaryDirectory(prefix="millrace-bench-", ignore_cleanup_errors=True) as scratch:
        folder = _table(options.data if options.data is not None else Path(scratch), rows, options, say)
        yield from _on_disk(folder, say)


def _simulated(name: str, rows: int, options: JoinOptions) -> Store:
    model = device(name)
    fixed = UnitCosts()

    def open_it() -> tuple[Relation, HostClock]:
        disk = VirtualDevice(model, VirtualClock())
        generated = GeneratedRelation(rows, row_bytes=options.row_bytes, page_bytes=options.page_bytes)
        relation = SimulatedRelation(generated, disk, overlapped=options.overlap == "overlapped")
        return relation, DeviceClock(relation, fixed)

    return Store(UnitCosts(seek=model.seek, read_byte=1 / model.read_rate), open_it, real=False)


def _on_disk(folder: Path, say: Say) -> Iterator[Store]:
    version_ = read_versions(folder)[-1]
    try:
        relation = StoredRelation(folder, version_, "direct")
    except TableError as refused:
        raise TableError(f"{refused}; or give --data a folder on a disk that has them") from refused
    try:
        say("calibrating")
        costs = calibrate_reads(relation.largest_shard(), relation.page_bytes, seconds=1.0)

        def open_it() -> tuple[Relation, HostClock]:
            timed = TimedRelation(relation)
            return timed, WallClock(timed)

        yield Store(costs, open_it, real=True, folder=folder)
    finally:
        relation.close()


def _table(data: Path, rows: int, options: JoinOptions, say: Say) -> Path:
    """A table folder of generated rows, made unless it is there."""
    folder = data.resolve() / f"joins-{rows}-{options.row_bytes}-{options.page_bytes}"
    parameters = {"rows": rows, "row_bytes": options.row_bytes, "page_bytes": options.page_bytes, "made": 1}

    def make() -> None:
        say(f"building a table of {rows:,} rows")
        starts = range(1, rows + 1, _BUILD_ROWS)
        parts = [np.arange(first, min(first + _BUILD_ROWS, rows + 1)) for first in starts]
        table = pa.Table.from_batches([generated_rows(keys, options.row_bytes) for keys in parts])
        build_table(folder, table, KEY, page_bytes=options.page_bytes)

    made_once(folder, parameters, make)
    return folder


def about_table(name: str, rows: int, store: Store, options: JoinOptions) -> dict[str, Any]:
    """What the table is and what its device was found to do."""
    relation, _ = store.open()
    return {
        "device": name,
        "rows": rows,
        "bytes": rows * options.row_bytes,
        "pages": relation.pages,
        "page_bytes": relation.page_bytes,
        "seek_ms": store.costs.seek * 1e3,
        "sequential_mb_per_second": 1e-6 / store.costs.read_byte,
    }
