"""How narrow an interval will be later: the variance of T^ at any other state of reading, from what has been joined so far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from millrace.core.errors import ParameterError
from millrace.online.estimators import smaller_of_two
from millrace.online.sums import FloatArray, Sums


@dataclass(frozen=True)
class Spread:
    """Estimated sums of squares over whole tables, (G, K, K), or (P, G, K, K) by partition: SX* over rows of A, SY* over
    rows of B, Q* over pairs. T* (G, K) or (P, G, K) are the totals they belong to."""

    sx: FloatArray
    sy: FloatArray
    q: FloatArray
    t: FloatArray
    of_a: int
    of_b: int

    @classmethod
    def of(cls, sums: Sums, n: int, m: int, of_a: int, of_b: int) -> Spread:
        """From the sums of a rectangle: n of N rows of A with m of M rows of B.

        Q* = Q/(pr)      SX* = (SX/p - r(1-r) Q*)/r^2      SY* = (SY/r - p(1-p) Q*)/p^2
        """
        if not (1 <= n <= of_a and 1 <= m <= of_b):
            raise ParameterError(f"a spread needs rows of both sides; got {n} of {of_a} and {m} of {of_b}")
        p, r = n / of_a, m / of_b
        q = sums.q / (p * r)
        sx = (sums.sx / p - r * (1 - r) * q) / r**2
        sy = (sums.sy / r - p * (1 - p) * q) / p**2
        return cls(sx, sy, q, sums.t / (p * r), of_a, of_b)

    def covariance(self, rows_a: npt.ArrayLike, rows_b: npt.ArrayLike) -> FloatArray:
        """Of T^ when so many rows have been read, (G, K, K): one count, or one per partition.

        qA SX* + qB SY* + qA qB Q* - centre terms,   qA = (1-p)/p, qB = (1-r)/r
        """
        p, r = np.asarray(rows_a, np.float64) / self.of_a, np.asarray(rows_b, np.float64) / self.of_b
        if (p <= 0).any() or (r <= 0).any() or (p > 1).any() or (r > 1).any():
            raise ParameterError(f"a forecast needs 1 to {self.of_a} rows of A and 1 to {self.of_b} of B")
        odds_a, odds_b = np.atleast_1d((1 - p) / p), np.atleast_1d((1 - r) / r)
        by_part = self.t.ndim == 3
        sx, sy, q, t = (array if by_part else array[None] for array in (self.sx, self.sy, self.q, self.t))
        if not len(odds_a) == len(odds_b) == len(t):
            raise ParameterError(
                f"a spread of {len(t)} parts needs as many counts of rows; got {len(odds_a)} and {len(odds_b)}"
            )
        a, b = odds_a[:, None, None, None], odds_b[:, None, None, None]
        own: FloatArray = (a * sx + b * sy + a * b * q).sum(axis=0)
        for odds, rows in ((odds_a, self.of_a), (odds_b, self.of_b)):
            if rows > 1:
                own = own - smaller_of_two(t, odds) / (rows - 1)
        return own


def rows_for(spread: Spread, weights: npt.ArrayLike, variance: float, group: int = 0) -> tuple[int, int]:
    """How many rows of either side, read in proportion, bring the variance of a combination of the totals down to `variance`.

    >>> from millrace.online.sums import sums_of_matches
    >>> tenth = Spread.of(sums_of_matches(range(100), range(100), np.ones(100)), 1000, 1000, 10_000, 10_000)
    >>> rows_for(tenth, [1.0], 0.0)
    (10000, 10000)
    """
    w = np.asarray(weights, np.float64)
    if not variance >= 0:
        raise ParameterError(f"a variance to reach is 0 or more; got {variance!r}")
    if spread.t.ndim != 2:
        raise ParameterError("a forecast of rows to read needs the spread of one rectangle, not of partitions")
    low, high = 0.0, 1.0  # shares: too few, enough
    for _ in range(40):
        share = (low + high) / 2
        rows = max(1.0, share * spread.of_a), max(1.0, share * spread.of_b)
        enough = float(w @ spread.covariance(*rows)[group] @ w) <= variance
        low, high = (low, share) if enough else (share, high)
    return min(spread.of_a, int(np.ceil(high * spread.of_a))), min(spread.of_b, int(np.ceil(high * spread.of_b)))
