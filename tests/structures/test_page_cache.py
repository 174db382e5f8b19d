"""The page cache: pages that are worth least make room."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.structures.page_cache import PageCache


class Frames:
    """What was asked for, and what then lies in each frame."""

    def __init__(self, frames: int) -> None:
        self.pages: list[int] = []
        self.frames = np.full(frames, -1)
        self.fail = False

    def __call__(self, pages: Int64Array, frames: Int64Array) -> None:
        assert len(set(frames.tolist())) == len(pages)
        self.frames[frames] = -2
        if self.fail:
            raise OSError("the disk said no")
        self.frames[frames] = pages
        self.pages += pages.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_it_keeps_what_is_worth_most(seed: int) -> None:
    random = np.random.default_rng(seed)
    cache, disk, worth = PageCache(30, 6, Budget("4k")), Frames(6), {}
    for _ in range(300):
        pages = np.sort(random.choice(30, int(random.integers(1, 7)), replace=False))
        missing = [page for page in pages.tolist() if page not in worth]
        others = sorted((value, page) for page, value in worth.items() if page not in pages)
        limit = others[max(0, len(missing) + len(worth) - 6 - 1)][0] if others else 0
        before = set(worth)
        cache.read(pages, disk)
        held = set(np.flatnonzero(cache.held(np.arange(30))).tolist())
        assert set(pages.tolist()) <= held
        gone = before - held
        assert len(gone) == max(0, len(before) + len(missing) - 6)
        assert all(worth[page] <= limit for page in gone)
        worth = {page: worth.get(page, 0.0) for page in held}
        gains = random.integers(0, 9, len(pages))
        cache.add_worth(pages, gains)
        for page, gain in zip(pages.tolist(), gains.tolist(), strict=True):
            worth[page] += gain
        assert (disk.frames[cache.frames_of(pages)] == pages).all()


def test_pages_that_are_here_are_not_read_again_and_do_not_make_room() -> None:
    cache, disk = PageCache(9, 3, Budget("1k")), Frames(3)
    cache.read(np.array([1, 2, 3]), disk)
    cache.add_worth(np.array([2, 3]), np.array([5, 5]))
    cache.read(np.array([1, 4, 5]), disk)
    assert disk.pages == [1, 2, 3, 4, 5]
    assert cache.held(np.arange(9)).tolist() == [False, True, False, False, True, True, False, False, False]


def test_worth_fades_and_can_be_set() -> None:
    cache, disk = PageCache(9, 2, Budget("1k")), Frames(2)
    cache.read(np.array([1, 2]), disk)
    cache.add_worth(np.array([1]), np.array([8]))
    cache.fade(0.25)
    cache.set_worth(np.array([2]), 3)
    cache.read(np.array([7]), disk)
    assert cache.held(np.array([1, 2, 7])).tolist() == [False, True, True]


def test_after_a_failed_read_no_page_is_thought_to_be_where_it_is_not() -> None:
    cache, disk = PageCache(9, 2, Budget("1k")), Frames(2)
    cache.read(np.array([1, 2]), disk)
    cache.add_worth(np.array([2]), np.array([1]))
    disk.fail = True
    with pytest.raises(OSError, match="the disk said no"):
        cache.read(np.array([5]), disk)
    assert cache.held(np.array([1, 2, 5])).tolist() == [False, True, False]
    disk.fail = False
    cache.read(np.array([5]), disk)
    assert cache.held(np.array([1, 2, 5])).tolist() == [False, True, True]


def test_all_bytes_are_in_the_budget() -> None:
    budget = Budget("4k")
    PageCache(30, 6, budget)
    assert budget.used_bytes == 30 * PageCache.bytes_per_page + 6 * PageCache.bytes_per_frame
