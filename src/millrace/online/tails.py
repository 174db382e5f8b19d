"""Heavy tails: what to do when few rows bring most of the variance.

In a key/foreign-key join with hot keys the row of A with the hottest key has been read or it has not: a coin toss. While it has not
been read, the estimate is too low, and so is V^, which has not seen it either. But B's sample shows the hot keys, whether or not their
row of A has been read. `wide_sums` uses that: it takes the rows of A to be spread over the keys of B as they are on average,

    SX~ = (sum of U2 over common keys / keys of B) x sum over all keys of B of V^2          instead of   SX = sum of U2 V^2

and the same for SY. Both estimate the same where matches do not depend on how hot a key is; the wide one varies far less. Where hot
keys of B are hot in A too, SX~ is too small: intervals use the larger variance of the two. Where hot keys of B have no row in A, it
is too large, until A has been read: at that point nobody can know.

A `Spread` carries this from one moment of a run to the others: it holds the sums of squares of the whole tables, estimated once, from
the first rows, while all keys are in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from millrace.core.errors import ParameterError
from millrace.core.step import Int64Array
from millrace.online.estimators import smaller_of_two
from millrace.online.sums import FloatArray, KeyMoments, Sums, sums_of_keys


def wide_sums(left: KeyMoments, right: KeyMoments, part: Int64Array | None = None, parts: int = 1) -> Sums:
    """As `sums_of_keys`, with the wide SX and SY. Moments of *all* keys of both sides, matched or not.

    By partition, (P, 1, K), where `part` says in which each key is; how many rows of the other side a key has on average is
    taken from all of them.
    """
    sums = sums_of_keys(left, right, part, parts)
    in_a, in_b = left.rows > 0, right.rows > 0
    both = in_a & in_b
    sx = _mean(left.second[both], in_b) * _crossed(right.first, part, parts)
    sy = _mean(right.second[both], in_a) * _crossed(left.first, part, parts)
    wide = Sums(sums.t, sx, sy, sums.q, sums.pairs)
    return wide if part is None else by_partition(wide)


def by_partition(sums: Sums) -> Sums:
    """Sums whose groups are partitions of one group of pairs, as formulas for partitions take them: (P, 1, K)."""
    return Sums(sums.t[:, None], sums.sx[:, None], sums.sy[:, None], sums.q[:, None], sums.pairs[:, None])


def _mean(second: FloatArray, keys: npt.NDArray[np.bool_]) -> FloatArray:
    mean: FloatArray = second.sum(axis=0) / max(1, int(keys.sum()))
    return mean


def _crossed(first: FloatArray, part: Int64Array | None, parts: int) -> FloatArray:
    if part is None:
        return (first.T @ first)[None]
    crossed = np.zeros((parts, first.shape[1], first.shape[1]))
    np.add.at(crossed, part, first[:, :, None] * first[:, None, :])
    return crossed


def largest_rows(left: KeyMoments, right: KeyMoments) -> tuple[FloatArray, FloatArray]:
    """Squares of the largest X_a and of the largest Y_b, (K,), rows of one key taken to be alike."""
    largest = []
    for one, other in ((left, right), (right, left)):
        mean = np.diagonal(one.second, axis1=1, axis2=2) / np.maximum(one.rows, 1)[:, None]
        largest.append((mean * other.first**2).max(axis=0, initial=0.0))
    return largest[0], largest[1]


@dataclass(frozen=True)
class Spread:
    """Estimated sums of squares over whole tables, (G, K, K), or (P, G, K, K) by partition: SX* over rows of A, SY* over rows of B, Q*
    over pairs. T* (G, K) or (P, G, K) are the totals they belong to."""

    sx: FloatArray
    sy: FloatArray
    q: FloatArray
    t: FloatArray
    of_a: int
    of_b: int

    @classmethod
    def of(cls, wide: Sums, n: int, m: int, of_a: int, of_b: int) -> Spread:
        """From the sums of a rectangle: n of N rows of A with m of M rows of B.

            Q* = Q/(pr)      SX* = (SX/p - r(1-r) Q*)/r^2      SY* = (SY/r - p(1-p) Q*)/p^2
        """
        if not (1 <= n <= of_a and 1 <= m <= of_b):
            raise ParameterError(f"a spread needs rows of both sides; got {n} of {of_a} and {m} of {of_b}")
        p, r = n / of_a, m / of_b
        q = wide.q / (p * r)
        sx = (wide.sx / p - r * (1 - r) * q) / r**2
        sy = (wide.sy / r - p * (1 - p) * q) / p**2
        return cls(sx, sy, q, wide.t / (p * r), of_a, of_b)

    def covariance(self, rows_a: npt.ArrayLike, rows_b: npt.ArrayLike) -> FloatArray:
        """Of T^ when so many rows have been read, (G, K, K): one count, or one per partition.

            qA SX* + qB SY* + qA qB Q* - centre terms,   qA = (1-p)/p, qB = (1-r)/r
        """
        p, r = np.asarray(rows_a, np.float64) / self.of_a, np.asarray(rows_b, np.float64) / self.of_b
        if (p <= 0).any() or (r <= 0).any():
            raise ParameterError("a covariance needs rows of both sides; none have been read of one")
        odds_a, odds_b = np.atleast_1d((1 - p) / p), np.atleast_1d((1 - r) / r)
        by_part = self.t.ndim == 3
        sx, sy, q, t = (array if by_part else array[None] for array in (self.sx, self.sy, self.q, self.t))
        if not len(odds_a) == len(odds_b) == len(t):
            raise ParameterError(f"a spread of {len(t)} parts needs as many counts of rows; got {len(odds_a)} and {len(odds_b)}")
        a, b = odds_a[:, None, None, None], odds_b[:, None, None, None]
        own: FloatArray = (a * sx + b * sy + a * b * q).sum(axis=0)
        for odds, rows in ((odds_a, self.of_a), (odds_b, self.of_b)):
            if rows > 1:
                own = own - smaller_of_two(t, odds) / (rows - 1)
        return own
