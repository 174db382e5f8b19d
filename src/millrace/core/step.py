"""What one step of a join reports: counts, rows, and when the tuples that left had entered."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
import pyarrow as pa

from millrace.core.arrays import Int64Array


@dataclass(frozen=True)
class StepCounts:
    """What a step did, in the terms of the cost model; sums of steps are `StepCounts` too."""

    tuples_in: int = 0  # stream tuples that entered the window
    pages_read: int = 0
    bytes_read: int = 0
    seeks: int = 0  # reads that did not begin where the read before ended
    index_reads: int = 0  # blocks of an index on disk; an index in memory costs none
    probes: int = 0  # look-ups in the window, or in a page
    matches: int = 0  # pairs whose keys are equal
    removed: int = 0  # stream tuples that left the window
    matched: int = 0  # of these tuples, those with at least one match
    front_lookups: int = 0
    front_hits: int = 0
    pinned_matches: int = 0  # matches with rows that are kept in memory
    absent_keys: int = 0  # left because the relation has no such key
    null_keys: int = 0
    condition_false: int = 0  # left because a further condition did not hold
    deferred: int = 0
    spilled_bytes: int = 0

    @property
    def unmatched(self) -> int:
        return self.absent_keys + self.null_keys + self.condition_false

    def __add__(self, other: StepCounts) -> StepCounts:
        mine, others = vars(self), vars(other)
        return StepCounts(**{name: mine[name] + others[name] for name in mine})

    def as_dict(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class Step:
    """One pass of a join's loop.

    `output` holds finished rows in the join's output schema. `sequence[i]` is the stream tuple of row i, counted from 0 in
    the order offered. `left` has the number of every tuple that left the window in this step. `entered` has the step in which
    each of these tuples had entered.
    """

    counts: StepCounts
    output: pa.RecordBatch
    sequence: Int64Array
    entered: Int64Array
    left: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
