"""How often keys came lately, in little memory: one byte for all keys with the same hash.

CINLJ has no window in which tuples of a key would meet. The paper gives it a buffer of the join keys of recent tuples, which is
refreshed after a time span. Here keys are not kept, only counted, in a table of counters: two keys may share a counter, and a
key that comes once may then come in as if it came often. That costs a place for a while, never a wrong row.

The span is such that a key just worth keeping is expected twice in it: of n keys by Zipf's law the rarest comes once in n H
tuples, H being about 16 for millions of keys. At the end of a span all counts are halved.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.compiled import kernel

_HARMONIC = 16
_MOST = 255


class RecentKeys:
    """Counters for the keys of the last tuples, in at most `memory_bytes`. `worth`: how many keys are to be found.

    >>> recent = RecentKeys(1024, worth=10)
    >>> recent.add(np.array([7, 7, 8]))
    >>> recent.counts(np.array([7, 8, 9])).tolist()
    [2, 1, 0]
    """

    def __init__(self, memory_bytes: int, worth: int) -> None:
        self._counters = np.zeros(1 << max(0, memory_bytes.bit_length() - 1), np.uint8)
        self._period = min(2 * _HARMONIC * worth, 4 * len(self._counters))
        self._added = 0

    @property
    def nbytes(self) -> int:
        return self._counters.nbytes

    @property
    def span(self) -> int:
        """Tuples that the counts speak of."""
        return max(1, self._added)

    def add(self, codes: Int64Array) -> None:
        """Tuples with these keys came."""
        if self._added >= self._period:
            self._counters >>= 1
            self._added //= 2
        _add(codes, self._counters)
        self._added += len(codes)

    def counts(self, codes: Int64Array) -> Int64Array:
        """How many tuples came with each key, or with keys of the same counter."""
        counts = np.empty(len(codes), np.int64)
        _counts(codes, self._counters, counts)
        return counts


@kernel
def _add(codes: Any, counters: Any) -> None:
    for i in range(len(codes)):
        at = np.int64((np.uint64(codes[i]) * np.uint64(0xD6E8FEB86659FD93)) >> np.uint64(16)) & (len(counters) - 1)
        if counters[at] < _MOST:
            counters[at] += np.uint8(1)


@kernel
def _counts(codes: Any, counters: Any, out: Any) -> None:
    for i in range(len(codes)):
        at = np.int64((np.uint64(codes[i]) * np.uint64(0xD6E8FEB86659FD93)) >> np.uint64(16)) & (len(counters) - 1)
        out[i] = counters[at]
