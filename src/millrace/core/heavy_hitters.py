"""Heavy hitters: the most frequent codes of a long sequence, counted in little memory.

Anderson, Bevin, Lang, Liberty, Rhodes, Thaler: A High-Performance Algorithm for Identifying Frequent Items in Data Streams,
IMC 2017. It is the algorithm of Misra and Gries, with many counters thrown out at a time instead of one.

1. A code that has a counter: the counter grows by one.
2. Any other code gets a counter, which starts at `floor` + 1. The code may have come up to `floor` times before.
3. When all `2 * kept` counters are taken, those that are not above the (`kept` + 1)th largest go. Its count is the new `floor`.

    codes   | 17 | -- |  4 | -- | 99 | ...      hash table, half empty at least
    counts  |  9 |    | 70 |    |  6 | ...      the code came at most so often
    errors  |  0 |    |  0 |    |  5 | ...      and at least `counts - errors` times

Bounds, for a sequence of n codes in any order: a code without a counter came at most `floor` times, and `floor` is at most
n / (kept + 1). So every code that came more often than that has a counter, and no count is over by more than that. As long as
no counter has gone, all counts are exact.

Differs from the paper: a counter keeps the floor at which it started, so the count of a code that was there from the start is
exact. The kth largest count is exact, and not that of a sample.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.core.arrays import BoolArray, Int64Array
from millrace.core.compiled import inlined, kernel

_ARRAYS = 4
_FLOOR, _USED = 0, 1


class HeavyHitters:
    """Counters of codes. Each code has the row at which its counter started, so that users can keep more about the code.

    >>> counted = HeavyHitters(2)
    >>> counted.add(np.array([7, 8, 7, 7], np.int64), np.array([True, True, True, False]))
    >>> slots = counted.largest(2)
    >>> counted.codes[slots].tolist(), counted.counts[slots].tolist(), counted.rows, counted.left_out
    ([7, 8], [2, 1], 3, 1)
    """

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self.most = 2 * kept
        slots = _slots(kept)
        self.codes = np.zeros(slots, np.int64)
        self.counts = np.zeros(slots, np.int64)  # 0: no counter
        self.errors = np.zeros(slots, np.int64)
        self.notes = np.zeros(slots, np.int64)  # the user's own; -1 - row of the last `add` for a new counter
        self.rows = 0  # that were counted
        self.left_out = 0  # rows that were not valid
        self._state = np.zeros(2, np.int64)
        self._spare = np.zeros((_ARRAYS, self.most), np.int64)

    @staticmethod
    def bytes_for(kept: int) -> int:
        """Bytes of all arrays."""
        return 8 * _ARRAYS * (_slots(kept) + 2 * kept) + 8 * 2 * kept  # and a copy of the counts, to find the kth largest

    @property
    def floor(self) -> int:
        """A code without a counter came at most so often."""
        return int(self._state[_FLOOR])

    def add(self, codes: Int64Array, valid: BoolArray) -> None:
        """Count the codes that are valid."""
        counted = _add(codes, valid, self.codes, self.counts, self.errors, self.notes, self._state, self._spare, self.kept)
        self.rows += counted
        self.left_out += len(codes) - counted

    def started(self) -> Int64Array:
        """Slots of the counters that the last `add` started. The user must set `notes` to 0 or more for each."""
        return np.flatnonzero((self.notes < 0) & (self.counts > 0))

    def slots(self) -> Int64Array:
        """Slots of all counters."""
        return np.flatnonzero(self.counts)

    def largest(self, count: int) -> Int64Array:
        """Slots of the largest counts, the largest first; of equal counts, those that are surer."""
        slots = self.slots()
        return slots[np.lexsort((self.codes[slots], self.errors[slots], -self.counts[slots]))[:count]]

    def beyond(self, slots: Int64Array) -> int:
        """A code that has none of these slots came at most so often."""
        others = self.counts.copy()
        others[slots] = 0
        return max(self.floor, int(others.max(initial=0)))


def _slots(kept: int) -> int:
    """A power of two, at least twice the counters."""
    return 1 << (4 * kept - 1).bit_length()


@inlined
def _slot_of(code: Any, codes: Any, counts: Any, mask: Any) -> Any:
    """The slot of a code, or the free slot where it belongs."""
    word = np.uint64(code) * np.uint64(0x9E3779B97F4A7C15)
    slot = np.int64(word >> np.uint64(32)) & mask
    while counts[slot] != 0 and codes[slot] != code:
        slot = (slot + 1) & mask
    return slot


@kernel
def _add(arriving: Any, valid: Any, codes: Any, counts: Any, errors: Any, notes: Any, state: Any, spare: Any, kept: Any) -> Any:
    mask = np.int64(len(codes) - 1)
    most = 2 * kept
    floor, used = state[0], state[1]
    counted = 0
    for i in range(len(arriving)):
        if not valid[i]:
            continue
        counted += 1
        slot = _slot_of(arriving[i], codes, counts, mask)
        if counts[slot] != 0:  # step 1
            counts[slot] += 1
            continue
        codes[slot] = arriving[i]  # step 2
        counts[slot] = floor + 1
        errors[slot] = floor
        notes[slot] = -1 - i
        used += 1
        if used == most:  # step 3
            floor, used = _throw_out(codes, counts, errors, notes, spare, kept)
    state[0], state[1] = floor, used
    return counted


@kernel
def _ranked(values: Any, rank: Any) -> Any:
    """The value that would be at place `rank` if the values were sorted. Changes their order (Hoare's quickselect).

    `np.partition` would do, but takes seconds to compile.
    """
    first, last = 0, len(values) - 1
    while first < last:
        pivot = values[(first + last) // 2]
        i, j = first, last
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if rank <= j:
            last = j
        elif rank >= i:
            first = i
        else:
            break
    return values[rank]


@kernel
def _throw_out(codes: Any, counts: Any, errors: Any, notes: Any, spare: Any, kept: Any) -> Any:
    """Keep the `kept` largest counters, or fewer where several have the same count."""
    mask = np.int64(len(codes) - 1)
    used = 0
    for slot in range(len(counts)):
        if counts[slot] != 0:
            spare[0, used] = codes[slot]
            spare[1, used] = counts[slot]
            spare[2, used] = errors[slot]
            spare[3, used] = notes[slot]
            used += 1
            counts[slot] = 0
    floor = _ranked(spare[1, :used].copy(), used - kept - 1)
    left = 0
    for i in range(used):
        if spare[1, i] > floor:
            slot = _slot_of(spare[0, i], codes, counts, mask)
            codes[slot] = spare[0, i]
            counts[slot] = spare[1, i]
            errors[slot] = spare[2, i]
            notes[slot] = spare[3, i]
            left += 1
    return floor, left
