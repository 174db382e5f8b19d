"""The files of a table version as one relation has them open: where the table is, or as copies on this machine.

TableFile    shard-*.pages, keys.index     many parts, each with a checksum: read, mapped, copied
IndexFile    index.arrow, keys.arrow       one checksum: read once, held in memory
"""

from __future__ import annotations

import logging
import mmap
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import xxhash

from millrace.core.errors import DamagedTableError, TableError
from millrace.relations.files import LargeWrites, ReadMode, Stamp, map_file, open_file, read_into
from millrace.relations.localcopies import LocalCopies, LocalCopy

_log = logging.getLogger("millrace")


class ReadCounts:
    """What was read of a relation's files since it was last taken. All files of a relation count here."""

    def __init__(self) -> None:
        self._reads, self._bytes, self._seconds = 0, 0, 0.0

    def note(self, reads: int, read_bytes: int, since: float) -> None:
        """So many reads, which began when `time.perf_counter` said `since` and end now."""
        self._seconds += time.perf_counter() - since
        self._reads += reads
        self._bytes += read_bytes

    def take(self) -> dict[str, float]:
        counts = {"disk_reads": self._reads, "disk_bytes": self._bytes, "read_seconds": self._seconds}
        self._reads, self._bytes, self._seconds = 0, 0, 0.0
        return counts


class TableFile:
    """A file of which parts are read, open. It is used where the table is until `make_local` is asked for a copy.

    The copy's name has the checksum of the index that has the checksums of the parts: it stands for these bytes for ever.
    """

    def __init__(self, path: Path, size: int, mode: ReadMode, local: LocalCopies | None, index_checksum: str) -> None:
        self.path = self._shared_path = path  # of the file in use, and of the table's own
        self.size = size
        self.remote = False  # used where the table is, though a copy was wanted: there was no room
        self._mode = mode
        self._local = local
        self._copy_name = f"{index_checksum}-{path.name}"
        self._copy: LocalCopy | None = None
        self._copied_bytes = 0
        self._open(path)

    def _open(self, path: Path) -> None:
        self.descriptor = open_file(path, self.size, self._mode)
        self._stamp = Stamp.of(self.descriptor)

    def close(self) -> None:
        """Any number of times; what was mapped stays."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        if self._copy is not None:
            self._copy.close()
        self.descriptor, self._copy = -1, None

    def changed(self) -> bool:
        """Whether it was written to, replaced or removed since it was opened. Two microseconds."""
        return Stamp.of(self.path) != self._stamp

    def map(self) -> mmap.mmap:
        return map_file(self.descriptor, self.path, self.size)

    def read(self, offset: int, views: Sequence[memoryview], what: str) -> None:
        """Fill the views, one after the other; `what`, such as page 3, is what begins there. Nothing is checked or counted."""
        read_into(self.descriptor, offset, views, self.path, what)

    def make_local(self, pieces: Iterable[Any], *, again: bool = False) -> bool:
        """Use a copy on this machine from now on; whether that has just begun. Then what was mapped before must be mapped anew.

        `pieces`: the bytes of the whole file, checked; nobody asks for them if there is a copy already. Where there was no room
        for one, nothing is tried until it is `again`, and only there.
        """
        if self._local is None or not self.size or self._copy is not None or self.remote != again:
            return False
        self._copy = self._local.get(self._copy_name, self.size, lambda target: _write(pieces, target))
        self.remote = self._copy is None
        if self._copy is None:
            if not again:
                _log.warning("no room for a local copy of %s (%d bytes): it is read where it is", self.path, self.size)
            return False
        self._copied_bytes += self.size if self._copy.made else 0
        shared = self.descriptor
        self._open(self._copy.path)
        self.path = self._copy.path
        os.close(shared)
        return True

    def take_copied_bytes(self) -> int:
        """What was copied since the last call: nothing, or all of it."""
        copied, self._copied_bytes = self._copied_bytes, 0
        return copied

    def refuse(self, what: str) -> NoReturn:
        """Say that a part, such as page 3, is not what was written. A copy goes, so that the next task makes another."""
        advice = "restore the file or build the table again"
        if self._copy is not None:
            advice = self._copy.discard(self._shared_path)
        raise DamagedTableError(f"{what} of {self.path} is damaged (its checksum does not fit); {advice}")


def _write(pieces: Iterable[Any], target: int) -> None:
    writes = LargeWrites(target)
    for piece in pieces:
        writes.write(piece)
    writes.finish()


class IndexFile:
    """A file of one Arrow batch that says where all else is. It is read where the table is, and all of it is checked."""

    def __init__(self, path: Path, checksum: str) -> None:
        self.path = path
        self._stamp = Stamp.of(path)  # before it is read: what changes later shows
        try:
            data = pa.memory_map(str(path)).read_buffer()
        except FileNotFoundError:
            raise TableError(f"{path} is missing: the table is incomplete; build it again") from None
        if xxhash.xxh3_64_hexdigest(data) != checksum:
            raise DamagedTableError(f"{path} is damaged (its checksum does not fit); restore it or build the table again")
        batch = pa.ipc.open_file(data).get_batch(0)
        self.columns = {name: batch.column(name).to_numpy(zero_copy_only=True) for name in batch.schema.names}

    def changed(self) -> bool:
        """Whether it was written to, replaced or removed since it was read."""
        return Stamp.of(self.path) != self._stamp
