"""What was measured of a machine and of the disk of a table, and where it is kept.

    millrace tune --calibrate  -->  calibration-<device>.json  -->  read planner, joins, `auto`, `explain`

One file for each machine and disk. Processor costs are kept by join, because joins differ in what they do to a tuple beside the
terms of their equations. Where nothing was measured, defaults are used, and `note` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from millrace.core.unitcosts import UnitCosts


@dataclass(frozen=True)
class ReadCosts:
    """Seconds of reads of one disk in one way: direct, buffered, or from pages in memory (mmap)."""

    seek: float = UnitCosts.seek
    read_byte: float = UnitCosts.read_byte
    request: float = UnitCosts.request


@dataclass(frozen=True)
class LookUpCosts:
    """Seconds of looking keys up in pages that lie in memory."""

    call: float = 1e-4
    row: float = 6e-8
    found_byte: float = 2e-10


@dataclass(frozen=True)
class SparkCosts:
    """Seconds that Spark takes beside the join."""

    batch: float = 0.08  # of a micro-batch, whatever is in it
    task: float = 0.01  # of a task, whatever is in it
    row: float = 3e-7  # of a row in one task: read by Spark, its key to Python, its match back
    found_byte: float = 1e-9  # of a byte that comes back from Python
    whole_row: float = 1.5e-6  # of a row that goes to Python and back as a whole


@dataclass(frozen=True)
class Calibration:
    """Costs of a machine and of the disk of a table."""

    reads: Mapping[str, ReadCosts] = field(default_factory=dict)  # by read mode
    work: Mapping[str, UnitCosts] = field(default_factory=dict)  # by strategy; the read costs in them do not count
    look_up: LookUpCosts = LookUpCosts()
    spark: SparkCosts = SparkCosts()
    note: str = ""  # what is missing or too old, and what to do; empty: all was measured

    def costs(self, strategy: str, mode: str | None) -> UnitCosts:
        """Unit costs of a join that reads in this way."""
        read = self.reads.get(mode or "buffered", ReadCosts())
        work = self.work.get(strategy, UnitCosts())
        return replace(work, seek=read.seek, read_byte=read.read_byte, request=read.request)


def load_calibration(table: Path | None = None) -> Calibration:
    """What was measured for the disk on which this table lies; defaults, with a note, where nothing was."""
    return Calibration(note="nothing was measured on this machine: defaults are used; run millrace tune --calibrate")
