"""What `enrich` needs to know of a table when it plans a query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from millrace.core.protocols import Relation

MAX_ARRAY_ROWS = 16  # matches of one row that still travel as an array beside it; more come as rows of their own


@dataclass(frozen=True)
class PlannedTable:
    """A table in a query: its columns, and how a task gets at the rows that its batch sees."""

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    longest_run: int | None  # most rows with one key; None where nobody knows
    strategy: str  # what strategy="auto" means
    open: Callable[[int, tuple[str, ...]], Relation]  # time of the batch in microseconds, columns wanted -> relation

    @property
    def unique(self) -> bool:
        return self.longest_run is not None and self.longest_run <= 1

    @property
    def few(self) -> bool:
        """No row has more matches than fit an array."""
        return self.longest_run is not None and self.longest_run <= MAX_ARRAY_ROWS
