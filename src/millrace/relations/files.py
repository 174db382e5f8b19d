"""Opening and reading the files of a table, whole or with an error that says which of them is not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from millrace.core.errors import DamagedTableError, TableError

ReadMode = Literal["direct", "buffered", "mmap"]
READ_MODES: tuple[ReadMode, ...] = ("direct", "buffered", "mmap")
_MOST_VIEWS = 512  # of one read: less than any system's limit


def open_file(path: Path, size: int, mode: ReadMode) -> int:
    """A descriptor of a file that must have `size` bytes."""
    try:
        actual = path.stat().st_size
    except FileNotFoundError:
        raise TableError(f"{path} is missing: the table is incomplete; restore the file or build the table again") from None
    if actual != size:
        raise DamagedTableError(
            f"{path} has {actual} bytes and should have {size}: it was cut or changed; restore it or build the table again"
        )
    flags = os.O_RDONLY
    if mode == "direct":
        try:
            return os.open(path, flags | os.O_DIRECT)
        except OSError as refused:
            raise TableError(f"{path}: the file system has no direct reads ({refused}); use read='buffered'") from None
    return os.open(path, flags)


def read_into(descriptor: int, offset: int, views: Sequence[memoryview], what: str) -> None:
    """Fill the views, one after the other, from this place on; `what` says in an error where the file ends."""
    for start in range(0, len(views), _MOST_VIEWS):
        left = list(views[start : start + _MOST_VIEWS])
        while left:
            count = os.preadv(descriptor, left, offset)
            if count == 0:
                raise DamagedTableError(f"{what}; restore it or build the table again")
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
