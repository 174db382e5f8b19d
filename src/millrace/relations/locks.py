"""Locks on files, by which processes of a machine know of each other. A lock ends with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def take_lock(path: Path, *, shared: bool = False, wait: bool = True, create: bool = False) -> int | None:
    """Lock the file of this name, and keep the lock until the descriptor that comes back is closed.

    None: there is no such file, or, without `wait`, somebody else has it.
    """
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, how)
            if names(path, descriptor):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # it was removed or replaced while we waited: what has the name now is another file


def is_locked(path: Path) -> bool:
    """Whether somebody has the lock on this file at the moment."""
    try:
        descriptor = take_lock(path, shared=True, wait=False)
    except OSError:  # a file that may only be read: nobody here can tell
        return False
    if descriptor is None:
        return path.exists()
    os.close(descriptor)
    return False


def names(path: Path, descriptor: int) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
