"""How far V^ can be trusted: its degrees of freedom, from the sums that it is made of.

V^ of a total rests on few rows where few keys bring most of it, however many pairs they make: then it scatters, and with the
estimate, so that 1.96 of its roots are too few. Student's t has as many degrees of freedom as V^ is steady, 2 V^2/Var(V^)
(Satterthwaite, 1946). To the pairs of a part, a hash partition or a rectangle, about

    a = SY/Q rows of A    and    b = SX/Q rows of B      of each of      k = pairs/(a b) keys

have come, and each of these keys adds

    c = (1-p) a b^2 + (1-r) b a^2 - (1-p)(1-r) a b       times Q/pairs/(p r)^2

to V^. One row of either side makes a key match at all; of a - 1 more it might have been off by sqrt((a-1)(1-p)), and the key
itself might not have matched, unless it has so many rows that it was bound to. With P the chance that a key with as many rows
matches,

    P = (1 - e^(1-a)) (1 - e^(1-b))
    Var(V^) = sum over parts of k [(1-P) c^2 + (dc/da)^2 (a-1) (1-p) + (dc/db)^2 (b-1) (1-r)] [Q/pairs/(p r)^2]^2

Keys of a part, and values, are taken to be alike. Where some keys of a part are heavier than others there are fewer degrees
than this says: about half as many with 16 or more hash partitions of Zipf 0.5 keys, a fifth in one rectangle of them. What
squares of values add is for `intervals` to know.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.online.statistics.totals import Sums


@dataclass(frozen=True)
class Parts:
    """What a V^ is made of: sums (P, G, K) as joined, and which share of the rows of either side each part had met, (P,)."""

    sums: Sums
    share_a: FloatArray
    share_b: FloatArray
    alike: bool = False  # parts count by their pairs, not by 1/(p r): runs that each sample the same whole

    def degrees(self, gradient: FloatArray) -> FloatArray:
        """Of V^ of an aggregate with this gradient (G, K) in the functions, by group; infinite where nothing can be said."""
        used: Int64Array = np.flatnonzero((gradient != 0).any(axis=0))
        sx, sy, q = (_along(each, gradient, used) for each in (self.sums.sx, self.sums.sy, self.sums.q))
        pairs = self.sums.pairs.astype(np.float64)
        p, r = self.share_a[:, None], self.share_b[:, None]
        left_a, left_b = 1 - p, 1 - r
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            a, b = np.maximum(sy / q, 1.0), np.maximum(sx / q, 1.0)
            keys = pairs / (a * b)
            one = q / pairs / (1.0 if self.alike else (p * r) ** 2)
            both = left_a * left_b
            c = left_a * a * b**2 + left_b * b * a**2 - both * a * b
            by_a = left_a * b**2 + 2 * left_b * a * b - both * b
            by_b = 2 * left_a * a * b + left_b * a**2 - both * a
            bound = np.expm1(1 - a) * np.expm1(1 - b)
            spread = (1 - bound) * c**2 + by_a**2 * (a - 1) * left_a + by_b**2 * (b - 1) * left_b
            variance, scatter = (
                np.where(pairs > 0, each, 0.0).sum(axis=0) for each in (keys * c * one, keys * spread * one**2)
            )
            found = 2 * variance**2 / scatter
        return np.where(np.isfinite(found) & (found > 0), np.maximum(found, 1.0), np.inf)


def _along(matrices: FloatArray, gradient: FloatArray, used: Int64Array) -> FloatArray:
    """g'Mg of each part and group, (P, G). Functions that do not count are left out: one may be infinite."""
    found: FloatArray = np.zeros(matrices.shape[:2])
    for k in used:
        for m in used:
            found += matrices[:, :, k, m] * (gradient[:, k] * gradient[:, m])
    return found
