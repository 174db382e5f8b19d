"""A page cache: pages stay in memory by what they are worth, and those worth least make room for others.

    places  [ -1 |  2 | -1 |  0 | ... ]     per page of the relation: its frame, or -1
    pages   [  3 |  7 |  1 ]                per frame: its page, or -1
    worth   [ 40 |  0 | 12 ]                per frame: what its page is worth; who holds the cache says what that means

A page that was just read is worth nothing until somebody says otherwise. So it stays only if it is worth more than another one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from millrace.core.arrays import BoolArray, Int64Array
from millrace.core.budget import Budget

Load = Callable[[Int64Array, Int64Array], None]  # pages, frames


class PageCache:
    """Which of a relation's pages lie in which of `frames` frames.

    >>> cache = PageCache(pages=10, frames=2, budget=Budget("1k"))
    >>> cache.read(np.array([3, 7]), lambda pages, frames: print("read", pages.tolist()))
    read [3, 7]
    >>> cache.add_worth(np.array([3]), np.array([5]))
    >>> cache.read(np.array([8]), lambda pages, frames: print("read", pages.tolist()))
    read [8]
    >>> cache.held(np.array([3, 7, 8])).tolist()
    [True, False, True]
    """

    bytes_per_page = 4
    bytes_per_frame = 4 + 8 + 16  # page and worth; a copy of the worth, and an order, while frames are chosen

    def __init__(self, pages: int, frames: int, budget: Budget) -> None:
        self._places = budget.array("cache places", pages, np.int32)
        self._pages = budget.array("cache pages", frames, np.int32)
        self._worth = budget.array("cache worth", frames, np.float64)
        budget.reserve("cache scratch", frames * 16)
        self._places[:] = -1
        self._pages[:] = -1
        self._worth[:] = -1  # an empty frame goes first

    def held(self, pages: Int64Array) -> BoolArray:
        """Which of these pages are here."""
        return np.asarray(self._places[pages] >= 0)

    def frames_of(self, pages: Int64Array) -> Int64Array:
        """The frames of these pages, all of which are here."""
        return self._places[pages].astype(np.int64)

    def read(self, pages: Int64Array, load: Load) -> None:
        """Have these pages, ascending, no more than there are frames; `load` reads those that are not here. After an error the
        pages that had to make room are gone, and no other page has come."""
        here = self.held(pages)
        missing = pages[~here]
        if len(missing) == 0:
            return
        worth = self._worth.copy()
        worth[self._places[pages[here]]] = np.inf
        frames = np.sort(np.argpartition(worth, len(missing) - 1)[: len(missing)]).astype(np.int64)
        gone = self._pages[frames]
        self._places[gone[gone >= 0]] = -1
        self._pages[frames] = -1
        self._worth[frames] = -1
        load(missing, frames)
        self._places[missing] = frames
        self._pages[frames] = missing
        self._worth[frames] = 0

    def add_worth(self, pages: Int64Array, worth: Int64Array) -> None:
        """These pages, each named once and here, are worth so much more."""
        self._worth[self._places[pages]] += worth

    def set_worth(self, pages: Int64Array, worth: float) -> None:
        self._worth[self._places[pages]] = worth

    def fade(self, factor: float) -> None:
        """All pages are worth a part of what they were."""
        self._worth[self._pages >= 0] *= factor
