"""Copies of a table's files on a disk of this machine, shared by all processes that are given the same folder.

cache/
  CHECKSUM-shard-00000.pages         a copy, whole and checked; whoever uses it holds a shared lock on it
  CHECKSUM-shard-00000.pages.used    empty: its time is when the copy was last used, for the copy's own tell of damage
  CHECKSUM-keys.index                another
  CHECKSUM-shard-00001.pages.lock    held by the one process that copies this shard; others wait for it
  CHECKSUM-shard-00001.pages.draft   what it has copied so far; gets its name when all of it is there
  .room                              held while room is made

CHECKSUM is that of the index that has the checksum of every page or block of the file: a name stands for the same bytes for
ever. To make room, copies that nobody uses are removed, those used longest ago first. What a killed process left has no lock
on it and is removed with them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from millrace.core.errors import TableError
from millrace.relations.locks import names, take_lock

_LOCK, _DRAFT, _USED, _ROOM = ".lock", ".draft", ".used", ".room"
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class LocalCopy:
    """A copy in use: it is not removed before it is closed."""

    path: Path
    made: bool  # now, by this call
    _lock: int

    def close(self) -> None:
        if names(self.path, self._lock):
            _note_use(self.path)  # until now
        os.close(self._lock)

    def discard(self, original: Path) -> str:
        """Remove a copy whose bytes have gone bad; whoever needs it next makes another. What to say of it."""
        if names(self.path, self._lock):
            _remove(self.path)
        return f"this copy of {original} has been removed, and the next task makes another: check the local disk"


class LocalCopies:
    """A folder of copies that holds at most `limit_bytes`; by default half of what its disk has."""

    def __init__(self, folder: Path, limit_bytes: int | None = None) -> None:
        self._folder = folder
        try:
            os.close(self._lock(_ROOM))
            disk = os.statvfs(folder)
        except OSError as refused:
            raise TableError(
                f"{folder} can't hold local copies of shards ({refused}); name a folder that can be written on every executor"
            ) from refused
        self._limit = disk.f_blocks * disk.f_frsize // 2 if limit_bytes is None else limit_bytes

    def get(self, name: str, size: int, fill: Callable[[int], None]) -> LocalCopy | None:
        """The copy of this name. If there is none it is made: `fill` writes all of it into the descriptor that it is given.

        None where there is no room: the disk is full, or the limit is reached, and all else is in use.
        """
        path = self._folder / name
        while True:
            used = take_lock(path, shared=True)
            if used is not None:
                copy = LocalCopy(path, False, used)
                if os.fstat(used).st_size == size:
                    _note_use(path)
                    return copy
                copy.discard(path)  # somebody has cut it
                copy.close()
                continue
            copying = self._lock(name + _LOCK)
            try:
                if not path.exists():  # nobody else has made it while we waited
                    return self._make(path, size, fill)
            finally:
                (self._folder / (name + _LOCK)).unlink(missing_ok=True)  # whoever waits for it looks again
                os.close(copying)

    def _make(self, path: Path, size: int, fill: Callable[[int], None]) -> LocalCopy | None:
        draft = path.with_name(path.name + _DRAFT)
        try:
            descriptor = os.open(draft, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o600)
            try:
                if not self._make_room(descriptor, size):
                    return None
                fill(descriptor)
            finally:
                os.close(descriptor)
            used = take_lock(draft, shared=True)
            assert used is not None  # only who holds the lock on the name touches its draft
            draft.rename(path)  # so the copy is never seen without a lock on it
            _note_use(path)
            return LocalCopy(path, True, used)
        except OSError as failed:
            if failed.errno in _FULL:
                return None
            raise
        finally:
            draft.unlink(missing_ok=True)

    def _make_room(self, descriptor: int, size: int) -> bool:
        """Take `size` bytes of the disk for a draft, within the limit; remove copies for it that nobody uses."""
        if size > self._limit:
            return False
        with self._alone():
            self._remove_killed()
            while sum(self._sizes()) + size > self._limit:
                if not self._remove_oldest():
                    return False
            while True:
                try:
                    os.posix_fallocate(descriptor, 0, size)
                    return True
                except OSError as failed:
                    if failed.errno not in _FULL:
                        raise
                    os.ftruncate(descriptor, 0)
                    if not self._remove_oldest():
                        return False

    def _sizes(self) -> Iterator[int]:
        for entry in os.scandir(self._folder):
            with suppress(FileNotFoundError):
                yield entry.stat().st_size

    def _remove_oldest(self) -> bool:
        """Remove the copy that was used longest ago, of those that nobody uses now."""
        stamped = []
        for path in self._folder.iterdir():
            if path.name.endswith((_LOCK, _DRAFT, _USED, _ROOM)):
                continue
            with suppress(FileNotFoundError):
                used = _beside(path)
                stamped.append(((used if used.exists() else path).stat().st_mtime_ns, path))
        for _, path in sorted(stamped):
            unused = take_lock(path, wait=False)
            if unused is not None:
                _remove(path)
                os.close(unused)
                return True
        return False

    def _remove_killed(self) -> None:
        for lock in self._folder.glob("*" + _LOCK):
            held = take_lock(lock, wait=False)
            if held is not None:
                lock.with_name(lock.name.removesuffix(_LOCK) + _DRAFT).unlink(missing_ok=True)
                lock.unlink(missing_ok=True)
                os.close(held)
        for used in self._folder.glob("*" + _USED):
            if not used.with_name(used.name.removesuffix(_USED)).exists():
                used.unlink(missing_ok=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        held = self._lock(_ROOM)
        try:
            yield
        finally:
            os.close(held)

    def _lock(self, name: str) -> int:
        held = None
        while held is None:  # the folder itself may be removed at any time
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            held = take_lock(self._folder / name, create=True)
        return held


def _beside(copy: Path) -> Path:
    return copy.with_name(copy.name + _USED)


def _note_use(copy: Path) -> None:
    """A copy is in use now. The copy itself is left alone: whoever has checked it takes a new time for a change."""
    with suppress(OSError):
        _beside(copy).touch(mode=0o600)


def _remove(copy: Path) -> None:
    copy.unlink(missing_ok=True)
    _beside(copy).unlink(missing_ok=True)
