"""Look-ups that are answered at once: nothing is read, so no tuple waits.

Where the pages of a table lie in memory, a host asks a look-up instead of a join. A front stage or a join can also hold one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from millrace.core.arrays import BoolArray
from millrace.core.step import StepCounts

SCRATCH_BYTES = 64  # per key, all arrays of a look-up together


@dataclass(frozen=True)
class Answer:
    """One row for each key that was looked up: whether the key was found, and the columns (null if not found).

    With a limit in bytes, an answer may hold only the first keys, but at least one key.
    """

    found: BoolArray
    columns: list[pa.Array]
    counts: StepCounts


class InstantLookup(Protocol):
    """Keys in, rows out. Each key finds one row at most."""

    reversed_ranges: int  # rows of the table whose range ends before it begins; 0 where keys are looked up

    def look_up(self, keys: Sequence[pa.Array], limit_bytes: int | None = None) -> Answer:
        """The rows of these keys, or of the first keys only: see `Answer`."""
