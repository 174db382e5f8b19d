"""Small files that nobody ever sees half written."""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, data: bytes, still_wanted: Callable[[], bool] = lambda: True) -> bool:
    """Put `data` under `path` so that nobody ever sees half of it; not at all if it took so long that nobody wants it."""
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(hidden, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if not still_wanted():
            return False
        os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)
    _sync_folder(path.parent)
    return True


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Processes that change what lies in a folder do so one after the other, so that nothing is lost. The lock ends with the
    process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
