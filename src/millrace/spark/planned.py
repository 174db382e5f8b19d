"""What `enrich` needs to know about a table to plan a query."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from millrace.core.errors import TableError
from millrace.core.protocols import Relation

MAX_ARRAY_ROWS = 16  # matches of one row that travel as an array beside the row; more matches come as rows of their own


@dataclass(frozen=True)
class PlannedTable:
    """A table in a query: its columns, and how a task gets at the rows that its batch sees."""

    name: str
    path: str
    schema: pa.Schema
    key: tuple[str, ...]
    longest_run: int | None  # most rows with one key; None where nobody knows
    strategy: str  # what strategy="auto" means
    open: Callable[[int, tuple[str, ...]], Relation]  # time of the batch in microseconds, columns wanted -> relation
    null_keys: int = 0  # rows that were left out because their key is null

    @property
    def unique(self) -> bool:
        return self.longest_run is not None and self.longest_run <= 1

    @property
    def few(self) -> bool:
        """No row has more matches than fit an array."""
        return self.longest_run is not None and self.longest_run <= MAX_ARRAY_ROWS

    def open_in_task(self, timestamp_us: int, columns: tuple[str, ...]) -> Relation:
        """`open` on an executor. The driver has seen the table, so a missing table means that this host can't see the path."""
        try:
            return self.open(timestamp_us, columns)
        except (TableError, OSError) as failed:
            if isinstance(failed, PermissionError) or not _holds_something(self.path):
                raise TableError(unreachable(self.path, failed)) from None
            raise


def unreachable(path: str, failed: Exception | None = None, what: str = "table at") -> str:
    """The message of an executor that does not find a path that the driver sees."""
    why = f" ({failed})" if isinstance(failed, PermissionError) else ""
    return (
        f"there is no {what} {path} on host {socket.gethostname()}{why}, though the driver had one there: driver and "
        "executors must see it under the same path. Put it into a folder that all of them share, such as an NFS mount, and "
        "build and open it by that path"
    )


def _holds_something(path: str) -> bool:
    """Whether the path holds a file. A missing mount leaves no folder, or an empty one."""
    return os.path.isfile(path) or (os.path.isdir(path) and bool(os.listdir(path)))
