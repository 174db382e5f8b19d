"""How often the pages of a relation are wanted, which is what decides how many tuples a read serves.

    scattered   rows lie in any order of their frequency, so that hot keys share pages with cold ones
    sorted      the rows that are wanted most come first

Pages that are wanted alike form a class. Keys that come often are put on pages one by one, at random but always the same way;
all others are spread evenly, because a page has many of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.cost.popularity import Popularity

Order = Literal["scattered", "sorted"]

_MOST_PLACED = 1 << 20  # keys put on pages one by one
_MOST_PAGES = 1 << 20  # with more pages, keys are no longer put on pages one by one
_BINS = 400  # classes of pages, by the logarithm of how often they are wanted


@dataclass(frozen=True)
class Places:
    """Classes of pages, or of partitions: `each` is the share of the stream for one of them, `count` how many there are."""

    each: FloatArray
    count: FloatArray

    @property
    def total(self) -> float:
        return float(self.count.sum())

    def distinct(self, tuples: float) -> float:
        """How many different places so many tuples want."""
        return float(np.sum(self.count * -np.expm1(-self.each * tuples)))

    def tuples_for(self, distinct: float) -> float:
        """How many tuples want so many different places; there must be more places than that."""
        low, high = 0.0, max(1.0, distinct)
        while self.distinct(high) < distinct and high < 1e18:
            low, high = high, 2 * high
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.distinct(middle) < distinct else (low, middle)
        return high

    def hottest(self, places: float) -> tuple[float, Places]:
        """The share of the stream on the `places` that are wanted most, and the other places with the rest of the stream."""
        order = np.argsort(-self.each)
        each, count = self.each[order], self.count[order]
        before = np.cumsum(count) - count
        taken = np.clip(places - before, 0, count)
        share = float(np.sum(each * taken))
        left = count - taken
        kept = left > 1e-9
        if not kept.any() or share >= 1:
            return 1.0, Places(np.ones(1), np.ones(1))
        return share, Places(each[kept] / (1 - share), left[kept])


@dataclass(frozen=True)
class PageDemand:
    """How often each page of a relation is wanted.

    >>> demand = PageDemand(Popularity.zipf(0, 1000), rows=1000, pages=10)
    >>> places = demand.places(2)
    >>> places.total, float((places.each * places.count).sum())
    (5.0, 1.0)
    """

    popularity: Popularity
    rows: int
    pages: int
    order: Order = "scattered"

    def places(self, pages_each: int = 1, pinned: int = 0) -> Places:
        """Partitions of so many neighbouring pages, behind the first `pinned` pages, and the share of each in the stream that
        wants them."""
        if not self._one_by_one:
            return Places(*self._classes(pages_each, pinned))
        shares = self.by_page[min(pinned, self.pages - 1) :]
        if pages_each > 1:
            shares = np.add.reduceat(shares, np.arange(0, len(shares), pages_each))
        return _binned(shares / max(float(shares.sum()), 1e-300))

    def behind_pool(self, F: float, pages_each: int = 1) -> tuple[float, Places]:
        """The share of the stream whose page is among the F pages that were used last, and the partitions that the rest wants.

        A page is there if it was wanted among the last T tuples; T is found from F (Che's approximation)."""
        places = self.places()
        if places.total <= F:
            return 1.0, Places(np.ones(1), np.ones(1))
        T = places.tuples_for(F)
        share = float(np.sum(places.count * places.each * -np.expm1(-places.each * T)))
        if not self._one_by_one:
            return share, self.places(pages_each)
        left = self.by_page * np.exp(-self.by_page * T)
        if pages_each > 1:
            left = np.add.reduceat(left, np.arange(0, len(left), pages_each))
        return share, _binned(left / max(float(left.sum()), 1e-300))

    def pinned_share(self, pinned: int) -> float:
        """p_N: share of the stream on the first pages."""
        if pinned <= 0:
            return 0.0
        if self.order == "sorted":
            return self.popularity.share(pinned * self.rows / self.pages)
        return float(self.by_page[:pinned].sum()) if self._one_by_one else pinned / self.pages

    @property
    def by_page(self) -> FloatArray:
        """Share of the stream for each page, in their order. Their sum is 1."""
        return _by_page(self.popularity, self.rows, self.pages, self.order)

    @property
    def _one_by_one(self) -> bool:
        return self.pages <= _MOST_PAGES

    def _classes(self, pages_each: int, pinned: int) -> tuple[FloatArray, FloatArray]:
        """For very many pages: as if keys were put on them one by one, but only by how many there are of each class."""
        if self.order == "sorted":
            edges = np.unique(np.geomspace(max(1, pinned), self.pages, _BINS).round())
            if not pinned:
                edges = np.append(0.0, edges)
            counts, upto = self.popularity.upto
            shares = np.diff(np.interp(edges * self.rows / self.pages, np.append(0.0, counts), np.append(0.0, upto)))
            each = shares / np.diff(edges) * pages_each
            count = np.diff(edges) / pages_each
        else:
            partitions = (self.pages - pinned) / pages_each
            upto, mass = np.cumsum(self.popularity.count), self.popularity.each * self.popularity.count
            hot = upto <= partitions
            # keys lie at random: a partition is known by the hottest of its keys, and has an even part of all colder ones
            none_before = np.exp(-np.append(0, upto[hot]) / partitions)
            colder = np.maximum(0.0, 1.0 - np.cumsum(mass[hot])) / partitions
            rest = max(0.0, 1.0 - float(mass[hot].sum())) / partitions
            each = np.append(self.popularity.each[hot] + colder, rest)
            count = partitions * np.append(-np.diff(none_before), none_before[-1])
        return each / float(np.sum(each * count)), count


@lru_cache(maxsize=16)
def _by_page(popularity: Popularity, rows: int, pages: int, order: Order) -> FloatArray:
    if order == "sorted":
        counts, shares = popularity.upto
        edges = np.linspace(0, popularity.keys, pages + 1)
        return np.diff(np.interp(edges, np.append(0.0, counts), np.append(0.0, shares)))
    each, count = popularity.each, popularity.count
    placed = np.flatnonzero((np.cumsum(count) <= _MOST_PLACED) & (len(each) > 1))
    shares = np.repeat(each[placed], count[placed])
    per_page = max(1, -(-max(rows, popularity.keys) // pages))
    apart = popularity.keys <= 2 * _MOST_PLACED  # no two keys on one row: this matters for small tables
    places = _random_places(pages, per_page, apart)[: len(shares)]
    rest = max(0.0, 1.0 - float(shares.sum()))
    found = np.bincount(places, shares, minlength=pages)[:pages] + rest / pages
    return np.asarray(found / found.sum())


@lru_cache(maxsize=4)
def _random_places(pages: int, per_page: int, apart: bool) -> Int64Array:
    """A page for each key that is put on pages one by one, always the same. `apart`: every key has a row of its own."""
    random = np.random.default_rng(0)
    return random.permutation(pages * per_page) // per_page if apart else random.integers(0, pages, _MOST_PLACED)


def _binned(shares: FloatArray) -> Places:
    """Places that are wanted about alike, together."""
    if len(shares) <= _BINS:
        return Places(shares, np.ones(len(shares)))
    low = max(float(shares.min()), 1e-18)
    high = max(float(shares.max()), low * (1 + 1e-9))
    bins = (np.log(np.maximum(shares, low) / low) / np.log(high / low) * (_BINS - 1)).astype(np.int64)
    count = np.bincount(bins, minlength=_BINS).astype(np.float64)
    sums = np.bincount(bins, shares, minlength=_BINS)
    kept = count > 0
    return Places(sums[kept] / count[kept], count[kept])
