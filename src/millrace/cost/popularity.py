"""How often the keys of a stream come: what every cost equation needs to know of the workload.

    q_r     share of the stream on the key of rank r; rank 1 comes most often
    Zipf    q_r = r^-e / H(R_t, e),  H(n, e) = sum of k^-e over k = 1 .. n

A popularity is either a law (Zipf, any exponent) or what was counted: a list of shares, and a rest that all other keys have
alike. In either case it is held as *classes* of ranks: the first ranks one by one, then ever wider classes whose keys count as
alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.errors import ParameterError

_ONE_BY_ONE = 1 << 16  # ranks that have a class of their own
_WIDER = 1.05  # each class beyond them, than the one before
_EXACT = 1_000_000


def harmonic(count: float, exponent: float) -> float:
    """H(n, e); behind the first million terms by an integral."""
    first = int(min(count, _EXACT))
    total = float(np.sum(np.arange(1, first + 1, dtype=np.float64) ** -exponent))
    return total + _tail(first + 0.5, count + 0.5, exponent) if count > first else total


def _tail(low: float, high: float, exponent: float) -> float:
    """Sum of k^-e between two ranks, by the integral."""
    if exponent == 1:
        return float(np.log(high / low))
    return float((high ** (1 - exponent) - low ** (1 - exponent)) / (1 - exponent))


@dataclass(frozen=True, eq=False)
class Popularity:
    """Shares of the stream by classes of keys, the most frequent first.

    `each[i]`: share of one key of class i; `count[i]`: keys of the class. `exponent`: of Zipf's law, where it is one.

    >>> even = Popularity.zipf(0, 1000)
    >>> even.share(100), Popularity.zipf(1, 10_000_000).share(155_584).__round__(2)
    (0.1, 0.75)
    """

    each: FloatArray
    count: Int64Array
    exponent: float | None = None

    @staticmethod
    def zipf(exponent: float, keys: int) -> Popularity:
        """Zipf's law over so many keys. Exponent 0: all alike."""
        check_exponent(exponent)
        if keys < 1:
            raise ParameterError(f"a stream has at least one key; got {keys}")
        return _zipf(float(exponent), int(keys))

    @staticmethod
    def counted(shares: FloatArray, keys: int) -> Popularity:
        """Shares that were counted, and all other keys alike. `keys`: in all."""
        shares = np.sort(np.asarray(shares, np.float64))[::-1]
        keys = max(keys, len(shares))
        rest, others = max(0.0, 1.0 - float(shares.sum())), keys - len(shares)
        if not others:
            return Popularity(shares / max(float(shares.sum()), 1e-300), np.ones(len(shares), np.int64))
        each = np.append(shares, rest / others)
        return Popularity(each, np.append(np.ones(len(shares), np.int64), others))

    @property
    def keys(self) -> int:
        return int(self.count.sum())

    @cached_property
    def upto(self) -> tuple[FloatArray, FloatArray]:
        """Keys and shares of all classes up to each."""
        return np.cumsum(self.count).astype(np.float64), np.cumsum(self.each * self.count)

    def share(self, keys: float) -> float:
        """Share of the stream on the `keys` most frequent keys."""
        counts, shares = self.upto
        return float(np.interp(keys, np.append(0.0, counts), np.append(0.0, shares)))

    def without(self, keys: int) -> Popularity:
        """The stream that is left when the `keys` most frequent keys are answered elsewhere."""
        if keys <= 0:
            return self
        left = self.count - np.clip(keys - (np.cumsum(self.count) - self.count), 0, self.count)
        kept = left > 0
        if not kept.any():
            return Popularity(np.ones(1), np.ones(1, np.int64))
        rest = float(np.sum(self.each[kept] * left[kept]))
        return Popularity(self.each[kept] / max(rest, 1e-300), left[kept])

    def estimated_exponent(self) -> float:
        """The exponent of Zipf's law that comes nearest: exact for a law, from two far ranks otherwise."""
        if self.exponent is not None:
            return self.exponent
        single = np.flatnonzero(self.count == 1)
        if len(single) < 8:
            return 0.0
        ranks, shares = np.log(single + 1.0), np.log(np.maximum(self.each[single], 1e-300))
        weights = 1.0 / (single + 1.0)
        middle = np.average(ranks, weights=weights)
        slope = np.average((ranks - middle) * shares, weights=weights) / np.average((ranks - middle) ** 2, weights=weights)
        return float(max(0.0, -slope))


@lru_cache(maxsize=64)
def _zipf(exponent: float, keys: int) -> Popularity:
    first = min(keys, _ONE_BY_ONE)
    each = np.arange(1, first + 1, dtype=np.float64) ** -exponent
    count = np.ones(first, np.int64)
    if exponent == 0:
        return Popularity(np.full(1, 1.0 / keys), np.full(1, keys), exponent)
    if keys > first:
        classes = max(1, int(np.ceil(np.log(keys / first) / np.log(_WIDER))))
        edges = np.unique(np.geomspace(first, keys, classes + 1).round().astype(np.int64))
        more = np.diff(edges)
        sums = np.array([_tail(low + 0.5, high + 0.5, exponent) for low, high in pairwise(edges)])
        each, count = np.concatenate((each, sums / more)), np.concatenate((count, more))
    return Popularity(each / float(np.sum(each * count)), count, exponent)


def check_exponent(exponent: float) -> None:
    if isinstance(exponent, (bool, str)) or not np.isfinite(exponent) or exponent < 0:
        raise ParameterError(f"zipf_exponent must be a number, 0 (keys wanted alike) or more; got {exponent!r}")
