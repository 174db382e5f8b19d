"""Opening and reading the files of a table, whole or with an error that says which of them is not."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from millrace.core.errors import DamagedTableError, TableError

ReadMode = Literal["direct", "buffered", "mmap"]
READ_MODES: tuple[ReadMode, ...] = ("direct", "buffered", "mmap")
_MOST_VIEWS = 512  # of one read: less than any system's limit


class Stamp(NamedTuple):
    """What tells that a file is no longer the one it was, or has been written to. Nobody can set the last of these back."""

    device: int
    inode: int
    bytes: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, file: Path | str | int) -> Stamp | None:
        """The stamp of a path or an open file; None where it can't be had, as of a file that is gone."""
        try:
            stat = os.stat(file)
        except OSError:
            return None
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


def open_file(path: Path, size: int, mode: ReadMode) -> int:
    """A descriptor of a file that must have `size` bytes."""
    try:
        descriptor = os.open(path, os.O_RDONLY | (os.O_DIRECT if mode == "direct" else 0))
    except FileNotFoundError:
        raise TableError(f"{path} is missing: the table is incomplete; restore the file or build the table again") from None
    except OSError as refused:
        if mode != "direct" or isinstance(refused, PermissionError):
            raise
        raise TableError(f"{path}: the file system has no direct reads ({refused}); use read='buffered'") from None
    try:
        _check_size(descriptor, path, size)
    except DamagedTableError:
        os.close(descriptor)
        raise
    return descriptor


def map_file(descriptor: int, path: Path, size: int) -> mmap.mmap:
    """An open file in memory, to be read here and there. The system kills whoever looks behind the end of a file that was cut,
    so its size is looked at once more."""
    _check_size(descriptor, path, size)
    mapped = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    return mapped


def _check_size(descriptor: int, path: Path, size: int) -> None:
    actual = os.fstat(descriptor).st_size
    if actual != size:
        raise DamagedTableError(
            f"{path} has {actual} bytes and should have {size}: it was cut or changed; restore it or build the table again"
        )


def read_into(descriptor: int, offset: int, views: Sequence[memoryview], path: Path, what: str) -> None:
    """Fill the views, one after the other, from this place on; `what`, such as page 3, is what begins there."""
    for start in range(0, len(views), _MOST_VIEWS):
        left = list(views[start : start + _MOST_VIEWS])
        while left:
            try:
                count = os.preadv(descriptor, left, offset)
            except OSError as failed:
                if os.fstat(descriptor).st_size > offset:
                    raise TableError(f"{path} can't be read from {what} on ({failed}): check its disk") from failed
                count = 0  # a direct read can't begin where a file ends
            if count == 0:
                raise DamagedTableError(f"{path} was cut: it ends before {what} does; restore it or build the table again")
            offset += count
            while left and count >= len(left[0]):
                count -= len(left.pop(0))
            if left and count:
                left[0] = left[0][count:]


class LargeWrites:
    """Writes a new file, from its beginning, in pieces that begin at multiples of their size.

    Where the file system can, Linux then keeps the file in its cache in pages of 2 MiB. Whoever maps it finds rows with far
    fewer looks into the page tables: two look-ups in a mapped table take the time of three in a file written piece by piece.

    >>> import tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     writes = LargeWrites(file.fileno(), piece_bytes=4)
    ...     writes.write(b"abcdef")
    ...     before = os.fstat(file.fileno()).st_size
    ...     writes.finish()
    ...     before, file.read()
    (4, b'abcdef')
    """

    def __init__(self, descriptor: int, piece_bytes: int = 4 << 20) -> None:
        self._descriptor = descriptor
        self._piece = memoryview(bytearray(piece_bytes))
        self._filled = 0
        self._offset = 0

    def write(self, data: Any) -> None:
        """Bytes, in whatever has them."""
        left = memoryview(data).cast("B")
        while len(left):
            taken = left[: len(self._piece) - self._filled]
            self._piece[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            left = left[len(taken) :]
            if self._filled == len(self._piece):
                self.finish()

    def finish(self) -> None:
        """Write what is left."""
        left = self._piece[: self._filled]
        while len(left):
            count = os.pwrite(self._descriptor, left, self._offset)
            left, self._offset = left[count:], self._offset + count
        self._filled = 0
