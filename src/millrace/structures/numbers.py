"""Find waiting tuples by their numbers: one pass over the slots of a window, and a set of the numbers that are wanted.

A pass costs a few nanoseconds a slot, whether one tuple is wanted or thousands. An index from numbers to slots would cost more
with every tuple that comes and goes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.compiled import inlined, kernel

NOBODY = -1  # the number of a slot that is free


def slots_of(sequence: Int64Array, numbers: Int64Array) -> Int64Array:
    """The slots that hold these numbers, in order of slots; numbers of nobody are passed over.

    >>> slots_of(np.array([7, NOBODY, 9, 8]), np.array([8, 7, 7, 100])).tolist()
    [0, 3]
    """
    numbers = numbers[numbers >= 0]
    if not len(numbers) or not len(sequence):
        return np.zeros(0, np.int64)
    places = np.full(1 << (2 * len(numbers)).bit_length(), NOBODY, np.int64)
    found = np.empty(min(len(numbers), len(sequence)), np.int64)
    return found[: _slots_of(sequence, numbers, places, found)]


@inlined
def _place(number: Any, mask: Any) -> Any:
    return np.int64((np.uint64(number) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) & mask


@kernel
def _slots_of(sequence: Any, numbers: Any, places: Any, found: Any) -> Any:
    mask = np.int64(len(places) - 1)
    least, most = numbers[0], numbers[0]
    for i in range(len(numbers)):
        number = numbers[i]
        least, most = min(least, number), max(most, number)
        place = _place(number, mask)
        while places[place] != NOBODY and places[place] != number:
            place = (place + 1) & mask
        places[place] = number
    count = 0
    for slot in range(len(sequence)):
        number = sequence[slot]
        if number < least or number > most:
            continue
        place = _place(number, mask)
        while places[place] != NOBODY and places[place] != number:
            place = (place + 1) & mask
        if places[place] == number and count < len(found):
            found[count] = slot
            count += 1
    return count
