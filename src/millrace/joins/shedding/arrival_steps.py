"""In which step a tuple arrived, by its number: one entry for each step in which tuples came."""

from __future__ import annotations

import numpy as np

from millrace.core.arrays import Int64Array

_MOST = 1 << 11


class ArrivalSteps:
    """Numbers ascend with steps. Of too many entries every second is forgotten: a tuple may then seem to have come earlier.

    >>> arrivals = ArrivalSteps()
    >>> arrivals.add(first_number=0, step=0), arrivals.add(first_number=10, step=3)
    (None, None)
    >>> arrivals.steps_of(np.array([9, 10, 11])).tolist()
    [0, 3, 3]
    """

    bytes_used = 2 * 8 * _MOST

    def __init__(self) -> None:
        self._firsts, self._steps = np.zeros(_MOST, np.int64), np.zeros(_MOST, np.int64)
        self._count = 0

    def add(self, first_number: int, step: int) -> None:
        """Tuples from this number on came in this step."""
        if self._count and self._steps[self._count - 1] == step:
            return
        if self._count == _MOST:
            self._count //= 2
            self._firsts[: self._count], self._steps[: self._count] = self._firsts[::2].copy(), self._steps[::2].copy()
        self._firsts[self._count], self._steps[self._count] = first_number, step
        self._count += 1

    def steps_of(self, numbers: Int64Array) -> Int64Array:
        return self._steps[np.searchsorted(self._firsts[: self._count], numbers, "right") - 1]
