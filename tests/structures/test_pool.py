"""The buffer pool: against a plain least-recently-used list."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.structures.pool import PagePool


class Reads:
    """What was asked for, and what would then lie in each frame."""

    def __init__(self, frames: int) -> None:
        self.pages: list[int] = []
        self.frames = np.full(frames, -1)
        self.fail = False

    def __call__(self, pages: Int64Array, frames: Int64Array) -> None:
        self.frames[frames] = -2
        if self.fail:
            raise OSError("the disk said no")
        self.frames[frames] = pages
        self.pages += pages.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_it_keeps_what_was_wanted_last(seed: int) -> None:
    random = np.random.default_rng(seed)
    frames = int(random.integers(1, 9))
    pool, reads = PagePool(30, frames, Budget("64k")), Reads(frames)
    ages: dict[int, int] = {}
    for call in range(300):
        pages = np.unique(random.integers(0, 30, int(random.integers(1, frames + 1))))
        before = len(reads.pages)
        missing = [page for page in pages.tolist() if page not in ages]
        places = pool.fetch(pages, reads)
        assert reads.frames[places].tolist() == pages.tolist()
        assert reads.pages[before:] == missing
        ages.update(dict.fromkeys(pages.tolist(), call))
        held = set(reads.frames[reads.frames >= 0].tolist())
        assert set(pages.tolist()) <= held <= set(ages)
        dropped = [ages[page] for page in ages if page not in held]
        assert max(dropped, default=-1) <= min(ages[page] for page in held)
        ages = {page: age for page, age in ages.items() if page in held}


def test_after_a_failed_read_nothing_is_taken_for_there() -> None:
    pool, reads = PagePool(10, 2, Budget("1k")), Reads(2)
    pool.fetch(np.array([1, 2]), reads)
    reads.fail = True
    with pytest.raises(OSError, match="said no"):
        pool.fetch(np.array([2, 3]), reads)
    reads.fail = False
    places = pool.fetch(np.array([1, 2]), reads)
    assert reads.frames[places].tolist() == [1, 2]
    assert reads.pages == [1, 2, 1]


def test_its_arrays_are_in_the_budget() -> None:
    budget = Budget("64k")
    PagePool(100, 7, budget)
    assert budget.used_bytes == 100 * PagePool.bytes_per_page + 7 * PagePool.bytes_per_frame
