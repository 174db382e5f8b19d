"""What was measured of a machine and of the disk of a table: the costs, when they were measured, and how far to trust them.

    reads     of one disk: direct, buffered, and from pages in memory
    work      of the processor, by join: joins differ in what they do to a tuple beside the terms of their equations
    look_up   of keys in pages that lie in memory
    spark     what Spark takes beside the join

Parts are measured one by one, and may be missing one by one. For a missing part defaults are used, and `note` says so.

    machine-<host>.json          work, look_up, spark
    disk-<host>-<device>.json    reads

The files lie in the folder that MILLRACE_CALIBRATION names, else in $XDG_CACHE_HOME/millrace, else in ~/.cache/millrace. What
was measured on the executors of a cluster is kept beside, in files whose names begin with `cluster-`: the driver plans with it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from millrace.core.atomic_files import one_at_a_time, write_atomically
from millrace.core.errors import ParameterError
from millrace.core.machine_name import Machine, device_number, this_machine
from millrace.core.strict_json import UnreadableError, by_name, from_object, members, number, numbers
from millrace.core.unitcosts import UnitCosts

Part = Literal["reads", "work", "look_up", "spark"]
PARTS: tuple[Part, ...] = ("reads", "work", "look_up", "spark")
FORMAT = 1
FOLDER_VARIABLE = "MILLRACE_CALIBRATION"
MOST_DAYS = 90  # after which a part is measured anew: systems, packages and disks change

_OF_MACHINE: tuple[Part, ...] = ("work", "look_up", "spark")
_OF_DISK: tuple[Part, ...] = ("reads",)
_DAY = 86_400.0
_CALLED = {
    "reads": "reading from the disk of the table",
    "work": "the work of joins",
    "look_up": "looking keys up",
    "spark": "Spark's own part",
}


@dataclass(frozen=True)
class ReadCosts:
    """Seconds of reads of one disk in one way: direct, buffered, or from pages in memory (mmap).

    `together`: times as long as a read takes while all cores read, because they share the disk.
    """

    seek: float = UnitCosts.seek
    read_byte: float = UnitCosts.read_byte
    request: float = UnitCosts.request
    together: float = 1.0

    def sharing(self, readers: int, cores: int) -> float:
        """Times as long as a read takes beside other readers.

        >>> ReadCosts(together=2.0).sharing(1, 4), ReadCosts(together=2.5).sharing(2, 4), ReadCosts(together=2.0).sharing(9, 4)
        (1.0, 1.5, 2.0)
        """
        return 1.0 + (self.together - 1.0) * (min(readers, cores) - 1) / max(1, cores - 1)


@dataclass(frozen=True)
class LookUpCosts:
    """Seconds of looking keys up in pages that lie in memory.

    A row of a big table is rarely in the caches of the processor, so it costs more than a row of a small one.

    >>> costs = LookUpCosts(row_by_rows=((10_000, 2e-8), (1_000_000, 8e-8)))
    >>> [round(1e9 * costs.row_in(rows)) for rows in (100, 100_000, 1_000_000, 50_000_000)]
    [20, 50, 80, 80]
    """

    call: float = 1e-4
    row: float = 6e-8  # where nothing is known by size
    found_byte: float = 2e-10
    row_by_rows: tuple[tuple[float, float], ...] = ()  # (rows of the table, seconds of a row), small tables first

    def row_in(self, table_rows: float) -> float:
        """Seconds of a row in a table of so many rows: between two sizes that were measured, by the logarithm of the size."""
        if not self.row_by_rows:
            return self.row
        sizes, seconds = zip(*self.row_by_rows, strict=True)
        return float(np.interp(np.log(max(1.0, table_rows)), np.log(sizes), seconds))


@dataclass(frozen=True)
class SparkCosts:
    """Seconds that Spark takes beside the join."""

    batch: float = 0.08  # of a micro-batch, whatever is in it
    task: float = 0.01  # of a task, whatever is in it
    row: float = 3e-7  # of a row in one task: read by Spark, its key to Python, its match back
    found_byte: float = 1e-9  # of a byte that comes back from Python
    whole_row: float = 1.5e-6  # of a row that goes to Python and back as a whole


@dataclass(frozen=True)
class Measured:
    """Where and when a part was measured."""

    at: float  # seconds since 1970
    host: str  # the machine that did it: for a cluster, that of a task
    device: str = ""  # the disk, for `reads`
    versions: Mapping[str, str] = field(default_factory=dict)  # of packages whose speed counts


@dataclass(frozen=True)
class Calibration:
    """Costs of a machine and of the disk of a table."""

    reads: Mapping[str, ReadCosts] = field(default_factory=dict)  # by read mode
    work: Mapping[str, UnitCosts] = field(default_factory=dict)  # by strategy; the read costs in them do not count
    look_up: LookUpCosts = LookUpCosts()
    spark: SparkCosts = SparkCosts()
    note: str = ""  # what is missing or too old, and what to do; empty: all was measured
    spread: Mapping[str, float] = field(default_factory=dict)  # by cost, such as work.meshjoin.probe: 0.1 is a tenth of it
    measured: Mapping[Part, Measured] = field(default_factory=dict)  # the parts that are not defaults

    def __str__(self) -> str:
        """In a few words. All costs: `millrace tune --calibrate` prints them.

        >>> str(Calibration())
        'calibration: nothing was measured'
        """
        parts = [_CALLED[part] for part in PARTS if part in self.measured]
        return f"calibration: {', '.join(parts)} measured" if parts else "calibration: nothing was measured"

    def costs(self, strategy: str, mode: str | None = None) -> UnitCosts:
        """Unit costs of a join that reads in this way; None: through the page cache."""
        read = self.reads.get(mode or "buffered", ReadCosts())
        work = self.work.get(strategy, UnitCosts())
        return replace(work, seek=read.seek, read_byte=read.read_byte, request=read.request)

    def has(self, part: Part) -> bool:
        """Whether a part was measured."""
        return part in self.measured

    def only(self, parts: Sequence[Part]) -> Calibration:
        """These parts, and defaults for the others."""
        for part in parts:
            if part not in PARTS:
                raise ParameterError(f"a calibration has the parts {', '.join(PARTS)}; got {part!r}")
        kept = [part for part in parts if part in self.measured]
        spread = {name: value for name, value in self.spread.items() if name.partition(".")[0] in kept}
        return Calibration(
            spread=spread, measured={part: self.measured[part] for part in kept}, **{part: getattr(self, part) for part in kept}
        )  # fmt: skip

    def with_parts(self, other: Calibration) -> Calibration:
        """This calibration, and every part of the other one that was measured."""
        replaced = {part: getattr(other, part) for part in other.measured}
        spread = {name: value for name, value in self.spread.items() if name.partition(".")[0] not in other.measured}
        return replace(
            self, spread={**spread, **other.spread}, measured={**self.measured, **other.measured}, **replaced
        )  # fmt: skip


# --- where it is kept


def calibration_folder() -> Path:
    """The folder of all calibrations."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "millrace"


def check_calibration_folder() -> None:
    """An error if nothing can be kept there."""
    folder = calibration_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as refused:
        raise ParameterError(f"{folder} can't be made ({refused}): name another folder in {FOLDER_VARIABLE}") from refused
    if not os.access(folder, os.W_OK):
        raise ParameterError(f"{folder} can't be written: name another folder in {FOLDER_VARIABLE}")


def load_calibration(table: Path | None = None, *, cluster: bool = False, now: float | None = None) -> Calibration:
    """What was measured for the disk on which this table lies (None: that of the working folder); defaults, with a note, for
    what was not, is too old, or holds for another machine.

    `cluster`: what was measured on executors. Cheap: a file that did not change is not read again.
    """
    here, now = this_machine(), time.time() if now is None else now
    found, problems, lacking = Calibration(), [], []
    for path, parts in _files(table, cluster):
        kept = _read(path)
        problem = kept.problem or _not_for(kept.machine, here, path)
        if problem:
            problems.append(problem)
            continue
        young = [
            part
            for part in parts
            if part in kept.parts.measured and -_DAY <= now - kept.parts.measured[part].at <= MOST_DAYS * _DAY
        ]
        found = found.with_parts(kept.parts.only(young))
        problems += [
            f"{_CALLED[part]} was measured {(now - kept.parts.measured[part].at) / _DAY:.0f} days ago"
            for part in parts
            if part in kept.parts.measured and part not in young
        ]
        lacking += [part for part in parts if part not in kept.parts.measured]
    return replace(found, note=_note(found, problems, lacking, cluster))


def save_calibration(calibration: Calibration, table: Path | None = None, *, cluster: bool = False) -> tuple[Path, ...]:
    """Keep the parts that were measured, beside other parts that were kept before; returns the files."""
    folder, written = calibration_folder(), []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with one_at_a_time(folder):
            for path, parts in _files(table, cluster):
                new = calibration.only([part for part in parts if part in calibration.measured])
                if not new.measured:
                    continue
                kept = _read(path)
                mine = not kept.problem and _not_for(kept.machine, this_machine(), path) is None
                write_atomically(path, _text((kept.parts if mine else Calibration()).with_parts(new)).encode())
                written.append(path)
    except OSError as refused:
        raise ParameterError(
            f"{folder} can't be written ({refused}); name a folder for calibrations in {FOLDER_VARIABLE}"
        ) from refused
    return tuple(written)


def as_object(calibration: Calibration) -> dict[str, Any]:
    """The parts that were measured, ready for JSON."""
    parts: dict[str, Any] = {}
    for part, measured in calibration.measured.items():
        values = getattr(calibration, part)
        plain = {name: asdict(one) for name, one in values.items()} if isinstance(values, Mapping) else asdict(values)
        spread = {name: one for name, one in calibration.spread.items() if name.partition(".")[0] == part}
        parts[part] = {"measured": asdict(measured), "values": plain, "spread": spread}
    return parts


def of_object(parts: Any) -> Calibration:
    """What `as_object` was made of; an error for anything else."""
    if not isinstance(parts, Mapping) or set(parts) - set(PARTS):
        raise UnreadableError(f"parts {', '.join(PARTS)} are expected")
    found: dict[str, Any] = {}
    spread: dict[str, float] = {}
    measured: dict[Part, Measured] = {}
    for part in PARTS:
        if part in parts:
            given = members(parts[part], ["measured", "values", "spread"])
            found[part] = _values(part, given["values"])
            measured[part] = from_object(Measured, given["measured"])
            number(measured[part].at)
            spread |= {name: number(value) for name, value in by_name(given["spread"]).items()}
    return Calibration(**found, spread=spread, measured=measured)


class _Kept(NamedTuple):
    """What a file holds; `problem` says why it can't be used. No file: nothing was measured, which is no problem."""

    parts: Calibration
    machine: Machine | None = None
    problem: str = ""


_known: dict[Path, tuple[tuple[int, int, int], _Kept]] = {}


def _read(path: Path) -> _Kept:
    try:
        stat = os.stat(path)
    except OSError:
        return _Kept(Calibration())
    stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
    known = _known.get(path)
    if known is None or known[0] != stamp:
        known = _known[path] = (stamp, _parsed(path))
    return known[1]


def _parsed(path: Path) -> _Kept:
    try:
        whole = json.loads(path.read_text())
        if isinstance(whole, Mapping) and whole.get("format") != FORMAT:
            return _Kept(Calibration(), problem=f"{path} has format {whole.get('format')!r}, and this millrace reads {FORMAT}")
        given = members(whole, ["format", "machine", "parts"])
        return _Kept(of_object(given["parts"]), from_object(Machine, given["machine"]))
    except (OSError, ValueError, TypeError) as unreadable:
        return _Kept(Calibration(), problem=f"{path} can't be read ({unreadable})")


def _text(calibration: Calibration) -> str:
    whole = {"format": FORMAT, "machine": asdict(this_machine()), "parts": as_object(calibration)}
    return json.dumps(whole, indent=1)


def _values(part: Part, values: Any) -> Any:
    if part == "reads":
        return {mode: numbers(from_object(ReadCosts, costs)) for mode, costs in by_name(values).items()}
    if part == "work":
        return {name: numbers(from_object(UnitCosts, costs)) for name, costs in by_name(values).items()}
    if part == "spark":
        return numbers(from_object(SparkCosts, values))
    costs = from_object(LookUpCosts, values)
    return numbers(replace(costs, row_by_rows=tuple((number(rows), number(seconds)) for rows, seconds in costs.row_by_rows)))


def _files(table: Path | None, cluster: bool) -> Iterator[tuple[Path, tuple[Part, ...]]]:
    """The files for a table, and the parts in each."""
    folder, prefix = calibration_folder(), "cluster-" if cluster else ""
    host = re.sub(r"[^A-Za-z0-9.-]", "_", this_machine().host)
    yield folder / f"{prefix}machine-{host}.json", _OF_MACHINE
    yield folder / f"{prefix}disk-{host}-{device_number(table or Path())}.json", _OF_DISK


def _not_for(machine: Machine | None, here: Machine, path: Path) -> str | None:
    """Why what was measured does not hold here."""
    if machine is None or machine == here:
        return None
    if (machine.host, machine.processor) == (here.host, here.processor):
        return f"{path} was measured with {machine.cores} cores, and this machine has {here.cores}"
    return f"{path} was measured on another machine ({machine.host}, {machine.processor})"


def _note(found: Calibration, problems: Sequence[str], lacking: Sequence[Part], cluster: bool) -> str:
    """What is missing, why, and what to do."""
    if len(found.measured) == len(PARTS):
        return ""
    tune = "run mr.calibrate(table, spark)" if cluster else "run millrace tune --calibrate"
    if not found.measured and not problems:
        where = "on the executors" if cluster else "on this machine"
        return f"nothing was measured {where}: defaults are used; {tune}"
    reasons = [*problems, *(f"{_CALLED[part]} was not measured" for part in lacking)]
    spark = "" if "spark" in found.measured or cluster else " --spark"
    return f"{'; '.join(reasons)}: defaults are used; {tune}{spark}"
