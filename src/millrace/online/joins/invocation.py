"""When PR-Join joins a partition: the join invocation condition. Any object with these methods will do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.errors import ParameterError


@dataclass(frozen=True)
class Moment:
    """What a condition may look at. Rows are those of both inputs together, as read: global counts, never a partition's own,
    which depend on its keys and would bias the estimate."""

    rows_read: int
    rows_total: int  # known or estimated
    spilled: bool  # whether a join has to read temporary data


class Invocation(Protocol):
    """Asked before every read; told about every join."""

    def begin(self, partitions: int, memory_rows: int, order: Int64Array) -> None:
        """`memory_rows` fit into memory. `order[i]`: the place of partition i in the staggering."""
        ...

    def first(self, moment: Moment) -> bool:
        """Whether it is time to join every partition for the first time."""
        ...

    def due(self, moment: Moment) -> int | None:
        """A partition to join now."""
        ...

    def joined(self, partition: int, moment: Moment) -> None: ...


class Expanding:
    """Partition i is joined when the rows read reach m (1 + gamma)^(j + i/n), m being what fits into memory.

    Powers below that, j < 1, cost no transfer and give the first estimates; the first of them joins all partitions at about
    `first_share` of the memory. The stop constraint leaves out a join that reads temporary data if the input will have ended
    before the next one of the same partition would be due: m (1 + gamma)^(j + 1 + i/n) > total.

    >>> condition = Expanding(gamma=1.0, first_share=0.5)
    >>> condition.begin(2, 100, np.array([0, 1]))
    >>> condition.first(Moment(50, 1000, False))
    True
    >>> [condition.due(Moment(rows, 1000, False)) for rows in (60, 71)]
    [None, 1]
    """

    def __init__(self, gamma: float = 1.0, *, stop: bool = True, first_share: float = 1 / 64) -> None:
        if not gamma > 0 or not 0 < first_share <= 1:
            raise ParameterError(f"gamma must be above 0 and first_share in (0, 1]; got {gamma} and {first_share}")
        self.gamma, self.stop, self.first_share = gamma, stop, first_share

    def begin(self, partitions: int, memory_rows: int, order: Int64Array) -> None:
        growth = 1 + self.gamma
        powers = math.ceil(math.log(1 / self.first_share) / math.log(growth))
        self.first_rows = memory_rows / growth**powers
        self._next = self.first_rows * growth ** (order / partitions)
        self._next[order == 0] *= growth  # its first join is the one of all

    def first(self, moment: Moment) -> bool:
        return moment.rows_read >= self.first_rows

    def due(self, moment: Moment) -> int | None:
        partition = int(np.argmin(self._next))
        threshold = float(self._next[partition])
        if threshold > moment.rows_read:
            return None
        if self.stop and moment.spilled and threshold * (1 + self.gamma) > moment.rows_total:
            self._next[partition] = np.inf
            return self.due(moment)
        return partition

    def joined(self, partition: int, moment: Moment) -> None:
        growth = 1 + self.gamma
        if np.isfinite(self._next[partition]):
            while self._next[partition] <= moment.rows_read:
                self._next[partition] *= growth
