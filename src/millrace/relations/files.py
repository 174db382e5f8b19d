"""Opening and reading the files of a table, whole or with an error that says which of them is not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

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


def write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while len(data):
        count = os.pwrite(descriptor, data, offset)
        data, offset = data[count:], offset + count
