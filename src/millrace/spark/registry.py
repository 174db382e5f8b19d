"""What a Python worker keeps between tasks: opened relations, one per table version and read mode.

A relation serves many tasks and checks a page that is used in place only once. So every task first looks whether a file of the
table was written to, cut or replaced since the relation was opened. If so, the table is opened again, and every page is
checked again when it is first used. A write into a file while a task uses the file is noticed by the next task. If a mapped
file is cut, the system kills the task.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import tempfile
from dataclasses import asdict
from pathlib import Path

import psutil
from pyspark import TaskContext

from millrace.core.atomic_files import write_atomically
from millrace.core.calibration import load_calibration
from millrace.core.errors import ParameterError, TableVersionError
from millrace.core.unitcosts import UnitCosts, calibrate_reads
from millrace.relations.files import READ_MODES, ReadMode, Stamp
from millrace.relations.folder import TableVersion, read_versions, version_at
from millrace.relations.stored import StoredRelation
from millrace.spark.localdir import LocalDir

_MAX_OPEN = 4  # relations kept open: old versions of a table go first
_Name = tuple[str, int, str, LocalDir | None]
_relations: dict[_Name, StoredRelation] = {}
_users: dict[_Name, int | None] = {}  # the last task that opened each
_versions: dict[str, tuple[Stamp, list[TableVersion]]] = {}
_costs: dict[int, UnitCosts] = {}
_log = logging.getLogger("millrace")


def versions_of(path: str) -> list[TableVersion]:
    """The versions of a table; the manifest is read again only when it was replaced."""
    stamp = Stamp.of(Path(path) / "manifest.json")
    if stamp is None:
        return read_versions(Path(path))  # says what is wrong
    known = _versions.get(path)
    if known is None or known[0] != stamp:
        known = _versions[path] = (stamp, read_versions(Path(path)))
    return known[1]


def open_relation(
    path: str,
    timestamp_us: int,
    columns: tuple[str, ...] = (),
    *,
    read: ReadMode = "mmap",
    otherwise: ReadMode | None = None,
    number: int | None = None,
    local: LocalDir | None = None,
) -> StoredRelation:
    """The relation for a batch of this time, or version `number` of the table. All columns can be had at no cost.

    `otherwise`: how to read if the version can't be mapped. Tasks use copies of the shards in `local`. The driver reads no
    pages and needs no copies.
    """
    versions = versions_of(path)
    if number is None:
        version = version_at(versions, timestamp_us)
    else:
        found = [version for version in versions if version.number == number]
        if not found:
            raise TableVersionError(f"version {number} of {path} has been removed; start the query with a new checkpoint")
        version = found[0]
    task = TaskContext.get()
    mode = read if otherwise is None or can_map(version, used=task is not None) else otherwise
    local = local if task is not None else None
    name = (path, version.number, mode, local)
    relation = _relations.pop(name, None)
    user = task.taskAttemptId() if task is not None else None
    used = user is not None and _users.get(name) == user  # by this task already
    rebuilt = relation is not None and relation.version != version  # the folder was removed, and a table built there anew
    if relation is not None and (rebuilt or (not used and _has_changed(relation))):
        relation.close()
        relation = None
    if relation is None:
        _give_up_others(path, user)
        relation = StoredRelation(Path(path), version, mode, local.copies(Path(path)) if local is not None else None)
    elif user is not None and not used:
        relation.try_local_again()
    _relations[name], _users[name] = relation, user  # the newest stands last
    return relation


def _has_changed(relation: StoredRelation) -> bool:
    changed = relation.changed()
    if changed is not None:
        _log.warning("%s has been changed or removed since it was opened: the table is opened and checked anew", changed)
    return changed is not None


def _give_up_others(path: str, user: int | None) -> None:
    """Close relations that this task does not use: if there are too many, or if their local copies take room."""
    for name in list(_relations):
        too_many = len(_relations) >= _MAX_OPEN
        older = name[0] == path and name[3] is not None
        if (too_many or older) and (user is None or _users[name] != user):
            _relations.pop(name).close()
            del _users[name]


def read_choice(version: TableVersion, read: str, *, workers_here: bool) -> tuple[ReadMode, ReadMode | None]:
    """What `read=` means: how workers read a table, and how a worker reads that can't do this.

    `auto`: pages are used in place. A worker whose machine has too little memory reads directly. For workers on this machine,
    this process finds out.
    """
    if read != "auto":
        if read not in READ_MODES:
            raise ParameterError(f"read must be one of auto, {', '.join(READ_MODES)}; got {read!r}")
        return read, None
    return ("direct", None) if workers_here and not can_map(version) else ("mmap", "direct")


def can_map(version: TableVersion, *, used: bool = True) -> bool:
    """Whether a version fits the memory that is left here for the page cache. Pages that are not used need only addresses."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and version.bytes > limit // 2:
        return False  # a limit on address space, as spark.executor.pyspark.memory sets it, leaves no room to map
    return not used or bool(version.bytes <= psutil.virtual_memory().available // 2)


def unit_costs(relation: StoredRelation) -> UnitCosts:
    """Unit costs of the disk of a table. If nobody calibrated the disk: measured once per host in half a second, and kept in a
    file for other workers. A task has what its plan knows, and measures the rest."""
    path = relation.largest_shard()
    if TaskContext.get() is None:
        known = load_calibration(path).reads.get(relation.mode)
        if known is not None:
            return UnitCosts(seek=known.seek, read_byte=known.read_byte, request=known.request)
    device = path.stat().st_dev
    if device in _costs:
        return _costs[device]
    cache = Path(tempfile.gettempdir()) / f"millrace-{os.getuid()}" / f"unitcosts-{device}-{relation.page_bytes}.json"
    try:
        costs = UnitCosts(**json.loads(cache.read_text()))
    except (OSError, ValueError, TypeError):
        costs = calibrate_reads(path, relation.page_bytes, direct=relation.mode == "direct")
        cache.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomically(cache, json.dumps(asdict(costs)).encode())
    _costs[device] = costs
    return costs
