"""RPJ, the rate-based progressive join: keeps in memory what is likely to meet, and picks the stage that yields most.

Tao, Yiu, Papadias, Hadjieleftheriou, Mamoulis: RPJ: Producing Fast Join Results on Streams through Rate-based Optimization,
SIGMOD 2005.

The loop:
    1. read the next rows and put them into their buckets; rows in memory meet (stage mm);
    2. when memory is full, the bucket of a side that new rows of the other are least likely to fall into gives up an extent;
    3. while both inputs stall: of all buckets and stages (md either way, dd) the one with the most pairs expected per row read;
    4. when both inputs have ended: each bucket joins all that has not met.

Memory: as in `xjoin`.

Needs equal keys. What has met depends on the data, so its counts allow no estimate of the whole.

Differs from the paper:
    - How likely a row is to meet is taken by bucket, from counts of all rows so far, not from a model of each stream.
    - In stage dd the paper sorts runs and merges them progressively (PMJ). Here the spilled rows of a bucket's smaller side are
      held, and those of the other pass by: a bucket is read once, which is no more than the merge would read.
    - Extents, not single pages, are spilled.
"""

from __future__ import annotations

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.online.joins.streaming import Area, StreamJoin
from millrace.online.protocol import A, B


class RPJ(StreamJoin):
    """Counts by bucket, and in the end the exact answer."""

    def victims(self, pages: Int64Array, least: int) -> list[tuple[int, int]]:  # step 2
        likely = np.empty(len(pages))
        likely[A::2], likely[B::2] = self.buckets.rows(B), self.buckets.rows(A)
        likely[pages < least] = np.inf
        number = int(np.argmin(likely))
        return [(number // 2, number % 2)]

    def task(self) -> tuple[int, Area] | None:  # step 3
        gain, cost = self.gains()
        density = (1 + self.pieces.pairs.sum(axis=1)) / np.maximum(1, self.met_pairs)  # areas may overlap: a rough guide
        worth = density[:, None] * gain / np.maximum(1, cost)
        bucket, stage = divmod(int(np.argmax(worth)), worth.shape[1])
        return (bucket, self.stage(bucket, stage)) if worth[bucket, stage] else None
