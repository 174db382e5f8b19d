"""The Zipf distribution on ranks 1..n: P(k) ~ k^-e for any e >= 0, without a table of n entries.

Legend: e exponent; n domain; h(x) = x^-e; H(x) = integral of h from 1 to x.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.core.arrays import FloatArray, Int64Array
from millrace.streams.draws import BLOCK_KEYS

# Ranks summed one by one before the Euler-Maclaurin formula takes over; its error is then below rounding for any e.
_SUMMED_RANKS = 64


def integral(x: npt.ArrayLike, e: float) -> FloatArray:
    """H(x) = (x^(1-e) - 1)/(1-e), ln x for e = 1. The expm1 form stays accurate when e is close to 1."""
    log_x: FloatArray = np.log(np.asarray(x, dtype=np.float64))
    return log_x if e == 1.0 else np.expm1((1.0 - e) * log_x) / (1.0 - e)


def inverse_integral(y: npt.ArrayLike, e: float) -> FloatArray:
    """The x with H(x) = y; infinite where rounding puts y on the limit that H has for e > 1."""
    y = np.asarray(y, dtype=np.float64)
    if e == 1.0:
        log_x: FloatArray = y
    else:
        with np.errstate(divide="ignore"):
            log_x = np.log1p(np.maximum((1.0 - e) * y, -1.0)) / (1.0 - e)
    return np.exp(log_x)


def harmonic(ranks: npt.ArrayLike, e: float) -> FloatArray:
    """Generalised harmonic numbers: sum of k^-e for k = 1..ranks.

    Exact sums up to rank m = 64; beyond, Euler-Maclaurin from m to r:
    H(r) - H(m) + (h(r) - h(m))/2 + sum over j of B_2j/(2j)! (h^(2j-1)(r) - h^(2j-1)(m)), j = 1..3.
    """
    r = np.asarray(ranks, dtype=np.float64)
    head = np.concatenate(([0.0], np.cumsum(np.arange(1, _SUMMED_RANKS + 1, dtype=np.float64) ** -e)))
    m = float(_SUMMED_RANKS)
    far = np.maximum(r, m)
    summed = head[np.minimum(r, m).astype(np.int64)]
    return summed + integral(far, e) - integral(m, e) + _ends(far, e) - _ends(np.float64(m), e)


def _ends(x: npt.ArrayLike, e: float) -> FloatArray:
    """The end terms of Euler-Maclaurin at x; the odd derivatives of x^-e are -e x^(-e-1), -e(e+1)(e+2) x^(-e-3), ..."""
    x = np.asarray(x, dtype=np.float64)
    first = e / x
    third = first * (e + 1) * (e + 2) / x**2
    fifth = third * (e + 3) * (e + 4) / x**2
    ends: FloatArray = x**-e * (0.5 - first / 12 + third / 720 - fifth / 30240)
    return ends


class ExactZipf:
    """Rejection-inversion: Hörmann and Derflinger, "Rejection-inversion to generate variates from monotone discrete
    distributions", ACM TOMACS 6(3), 1996.

    A point u is drawn evenly under the continuous curve h, from H(1.5) - h(1) to H(n + 0.5); x = inverse of H at u; k =
    x rounded. k is kept if u lies in the last h(k) of the stretch that ends at H(k + 0.5), so that k has exactly the
    area h(k). `squeeze` accepts most k without evaluating H. Nearly all points are kept, for any exponent.
    """

    def __init__(self, domain: int, exponent: float, random: np.random.Generator) -> None:
        self._domain, self._exponent, self._random = float(domain), exponent, random
        self._low = float(integral(1.5, exponent)) - 1.0
        self._high = float(integral(domain + 0.5, exponent))
        with np.errstate(over="ignore"):
            self._squeeze = 2.0 - float(inverse_integral(integral(2.5, exponent) - 2.0**-exponent, exponent))

    def block(self) -> Int64Array:
        while True:
            u = self._low + self._random.random(BLOCK_KEYS) * (self._high - self._low)
            x = np.clip(inverse_integral(u, self._exponent), 0.5, self._domain + 0.5)
            k = np.clip(np.floor(x + 0.5), 1.0, self._domain)
            kept = k - x <= self._squeeze
            doubtful = np.flatnonzero(~kept)
            near = k[doubtful]
            kept[doubtful] = u[doubtful] >= integral(near + 0.5, self._exponent) - near**-self._exponent
            if kept.any():
                return k[kept].astype(np.int64)

    @staticmethod
    def probability(ranks: npt.ArrayLike, domain: int, exponent: float) -> FloatArray:
        return np.asarray(ranks, dtype=np.float64) ** -exponent / harmonic(domain, exponent)

    @staticmethod
    def mass(ranks: npt.ArrayLike, domain: int, exponent: float) -> FloatArray:
        return harmonic(ranks, exponent) / harmonic(domain, exponent)


class PaperZipf:
    """The inverse of the integral of x^-e on [1, n], rounded down, as in figure 7 of the HYBRIDJOIN paper.

    P(k) is the area from k to k + 1: ln((k+1)/k)/ln n for e = 1. The last rank has none: [n, n + 1] is outside.
    """

    def __init__(self, domain: int, exponent: float, random: np.random.Generator) -> None:
        self._domain, self._exponent, self._random = domain, exponent, random
        self._area = float(integral(domain, exponent))

    def block(self) -> Int64Array:
        x = inverse_integral(self._random.random(BLOCK_KEYS) * self._area, self._exponent)
        # rounding may lift x to n, which no draw below the full area reaches
        return np.clip(np.floor(x), 1.0, self._domain - 1.0).astype(np.int64)

    @staticmethod
    def probability(ranks: npt.ArrayLike, domain: int, exponent: float) -> FloatArray:
        k = np.asarray(ranks, dtype=np.float64)
        # H(k+1) - H(k) = k^(1-e) H(1 + 1/k), which does not cancel for big k
        step = np.log1p(1.0 / k)
        slope = 1.0 - exponent
        area = step if exponent == 1.0 else k**slope * np.expm1(slope * step) / slope
        return np.where(k < domain, area / integral(domain, exponent), 0.0)

    @staticmethod
    def mass(ranks: npt.ArrayLike, domain: int, exponent: float) -> FloatArray:
        reached = np.minimum(np.asarray(ranks, dtype=np.float64) + 1.0, domain)
        return integral(reached, exponent) / integral(domain, exponent)
