"""HMJ, the hash-merge join: buckets are spilled in pairs, and while the inputs stall, spilled rows of a pair are merged.

Mokbel, Lu, Aref: Hash-Merge Join: A Non-blocking Join Algorithm for Producing Fast and Early Join Results, ICDE 2004.

The loop:
    1. read the next rows and put them into their buckets; rows in memory meet (hashing phase);
    2. when memory is full, the pair of buckets with the most pages gives up an extent of each side that has one, so that both
       inputs keep their share of the memory (adaptive flushing);
    3. while both inputs stall: take the pair with the most to gain, and join its spilled rows (merging phase);
    4. when both inputs have ended: each bucket joins all that has not met.

Memory: as in `xjoin`.

Needs equal keys. What has met depends on the data, so its counts allow no estimate of the whole.

Differs from the paper:
    - Spilled rows are not sorted and merged: those of the smaller side are held, those of the other pass by.
    - A pair gives up extents, not all of its pages.
"""

from __future__ import annotations

import numpy as np

from millrace.core.budget import Budget
from millrace.core.step import Int64Array
from millrace.online.functions import Functions
from millrace.online.needs import states_what_it_needs
from millrace.online.plan import Layout
from millrace.online.protocol import A, B, Counters, Input, Pieces, Progress
from millrace.online.spill import Spill
from millrace.online.streaming import DD, Area, StreamJoin


class HMJ:
    """Counts by bucket, and in the end the exact answer."""

    @states_what_it_needs
    def __init__(
        self, a: Input, b: Input, functions: Functions, budget: Budget, spill: Spill, *, layout: Layout | None = None
    ) -> None:
        self._join = StreamJoin(a, b, functions, budget, spill, self, layout=layout)

    @property
    def pieces(self) -> Pieces:
        return self._join.pieces

    @property
    def counters(self) -> Counters:
        return self._join.counters

    def victims(self, join: StreamJoin, pages: Int64Array, least: int) -> list[tuple[int, int]]:  # step 2
        bucket = int(np.argmax(pages[0::2] + pages[1::2]))
        return [(bucket, side) for side in (A, B) if pages[2 * bucket + side] >= least]

    def task(self, join: StreamJoin) -> tuple[int, Area] | None:  # step 3
        gain, cost = join.gains()
        worth = gain[:, DD] / np.maximum(1, cost[:, DD])
        bucket = int(np.argmax(worth))
        return (bucket, join.stage(bucket, DD)) if worth[bucket] else None

    def step(self) -> Progress:
        return self._join.step()

    def close(self) -> None:
        self._join.close()
