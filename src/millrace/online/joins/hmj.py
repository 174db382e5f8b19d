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

from millrace.core.arrays import Int64Array
from millrace.online.joins.streaming import DD, Area, StreamJoin
from millrace.online.protocol import A, B


class HMJ(StreamJoin):
    """Counts by bucket, and in the end the exact answer."""

    def victims(self, pages: Int64Array, least: int) -> list[tuple[int, int]]:  # step 2
        bucket = int(np.argmax(pages[0::2] + pages[1::2]))
        return [(bucket, side) for side in (A, B) if pages[2 * bucket + side] >= least]

    def task(self) -> tuple[int, Area] | None:  # step 3
        gain, cost = self.gains()
        worth = gain[:, DD] / np.maximum(1, cost[:, DD])
        bucket = int(np.argmax(worth))
        return (bucket, self.stage(bucket, DD)) if worth[bucket] else None
