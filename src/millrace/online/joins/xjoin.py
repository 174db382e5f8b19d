"""XJoin: what is in memory meets as it comes; while the inputs stall, spilled rows of one side meet the other side in memory.

Urhan, Franklin: XJoin: A Reactively-Scheduled Pipelined Join Operator, IEEE Data Engineering Bulletin 2000.

The loop:
    1. read the next rows and put them into their buckets; rows in memory meet;
    2. when memory is full, an extent of the largest bucket of one side is spilled, after it has met what is in memory;
    3. while both inputs stall: the spilled bucket of one side with the most to gain meets what is in memory of the other;
    4. when both inputs have ended: each bucket joins all that has not met.

Memory:

    pages [ A0 A0 B0 | A1 | B2 B2 | ... ]     rows of one bucket, and an extent they meet     table     buffers

Needs equal keys. What has met depends on the data, so its counts allow no estimate of the whole.

Differs from the paper:
    - Time stamps are not kept with rows: rows are numbered in the order of their arrival and spilled in it, so areas of numbers
      say what has met (`streaming`).
    - Rows in memory meet in portions, an eighth of the memory at a time, not one by one.
"""

from __future__ import annotations

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.online.joins.streaming import DD, Area, StreamJoin


class XJoin(StreamJoin):
    """Counts by bucket, and in the end the exact answer."""

    def victims(self, pages: Int64Array, least: int) -> list[tuple[int, int]]:  # step 2
        largest = int(np.argmax(pages))
        return [(largest // 2, largest % 2)]

    def task(self) -> tuple[int, Area] | None:  # step 3
        gain, cost = self.gains()
        worth = gain[:, :DD] / np.maximum(1, cost[:, :DD])
        bucket, stage = divmod(int(np.argmax(worth)), DD)
        return (bucket, self.stage(bucket, stage)) if worth[bucket, stage] else None
