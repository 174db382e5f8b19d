"""A buffer pool: pages that were read lately stay in memory, and the least recently used make room for others.

    places  [ -1 |  2 | -1 |  0 | ... ]     per page of the relation: its frame, or -1
    pages   [  3 |  7 |  1 ]                per frame: its page, or -1
    used    [  9 |  4 |  9 ]                per frame: when it was wanted last

Pages are asked for many at a time, each once, so that ages are those of such calls and not of single tuples.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget

Load = Callable[[Int64Array, Int64Array], None]  # pages, frames


class PagePool:
    """Which of a relation's pages lie in which of `frames` frames.

    >>> pool = PagePool(pages=10, frames=2, budget=Budget("1k"))
    >>> pool.fetch(np.array([3, 7]), lambda pages, frames: print("read", pages.tolist())).tolist()
    read [3, 7]
    [0, 1]
    >>> pool.fetch(np.array([3]), lambda pages, frames: print("read", pages.tolist())).tolist()
    [0]
    >>> pool.fetch(np.array([3, 9]), lambda pages, frames: print("read", pages.tolist())).tolist()
    read [9]
    [0, 1]
    """

    bytes_per_page = 4
    bytes_per_frame = 4 + 8

    def __init__(self, pages: int, frames: int, budget: Budget) -> None:
        self._places = budget.array("pool places", pages, np.int32)
        self._pages = budget.array("pool pages", frames, np.int32)
        self._used = budget.array("pool ages", frames, np.int64)
        self._places[:] = -1
        self._pages[:] = -1
        self._now = 0

    @property
    def frames(self) -> int:
        return len(self._pages)

    def fetch(self, pages: Int64Array, load: Load) -> Int64Array:
        """The frames of these pages, ascending, no more than there are frames; `load` reads those that are not there."""
        self._now += 1
        places = self._places[pages].astype(np.int64)
        self._used[places[places >= 0]] = self._now
        missing = pages[places < 0]
        if len(missing):
            oldest = np.argpartition(self._used, len(missing) - 1)[: len(missing)]
            frames = np.sort(oldest).astype(np.int64)
            gone = self._pages[frames]
            self._places[gone[gone >= 0]] = -1
            self._pages[frames] = -1  # until the read has succeeded
            self._used[frames] = 0
            load(missing, frames)
            self._places[missing] = frames
            self._pages[frames] = missing
            self._used[frames] = self._now
            places[places < 0] = frames
        return places
