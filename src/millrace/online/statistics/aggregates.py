"""SUM, COUNT, AVG, VAR and STDDEV, by SQL's names, as smooth functions of estimated totals.

Keep the functions 1, v - pilot and (v - pilot)^2 of the pairs that count, in this order; `pilot` is any guess at the mean,
from the first rows, and saves digits. With c, s, ss their estimated totals and S their covariance matrix:

    COUNT = c           SUM = s + pilot c           AVG = pilot + s/c
    VAR_POP = ss/c - (s/c)^2                        VAR_SAMP = VAR_POP c/(c-1)          STDDEV_x = sqrt(VAR_x)

Each has the variance g'Sg, g its gradient in (c, s, ss). For AVG that is the variance of the total of v - AVG over c^2. What
blocks add to S is known from a sample only: of each matrix A of it, max(0, g'Ag) counts.

SUM and COUNT are unbiased, and of AVG the bias is not to be seen. VAR of a sample is too low by what its mean is off, and its
root once more, as roots bend downwards. To second order, with h the total of (v - AVG)^2 - VAR, V the variance of VAR:

    b = E[VAR^] - VAR = -Cov(h, c)/c^2 - Var(AVG)              E[STDDEV^]/STDDEV - 1 = b/(2 VAR) - V/(8 VAR^2)

Estimates are corrected by that, by a tenth at most: with more to correct, S says too little. The end is exact: S is 0 then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.errors import ParameterError
from millrace.online.statistics.estimators import Totals
from millrace.online.statistics.freedom import Parts

Aggregate = Literal["COUNT", "SUM", "AVG", "VAR_POP", "VAR_SAMP", "STDDEV_POP", "STDDEV_SAMP"]
AGGREGATES: tuple[str, ...] = get_args(Aggregate)
_SAME_AS = {"VARIANCE": "VAR_SAMP", "STDDEV": "STDDEV_SAMP", "STD": "STDDEV_POP", "MEAN": "AVG", "AVERAGE": "AVG"}
_LARGEST_CORRECTION = 0.1
_FUNCTIONS = {"COUNT": 1, "SUM": 2, "AVG": 2}  # how many of 1, v, v^2 are needed; 3 for the others


@dataclass(frozen=True)
class Point:
    """An aggregate of each group before it gets an interval."""

    name: str
    value: FloatArray  # (G,)
    variance: FloatArray  # (G,) NaN where there is none
    pairs: Int64Array  # (G,)
    exact: bool
    degrees: float | FloatArray  # of freedom of the variance
    gradient: FloatArray  # (G, K), in the totals
    sample: FloatArray | None = None  # (G,) VAR and STDDEV: how many independent values would tell AVG as well as these matches


def known(name: str) -> Aggregate:
    """The name that SQL's standard gives an aggregate; an error says what cannot be estimated and why.

    >>> known("stddev")
    'STDDEV_SAMP'
    """
    upper = _SAME_AS.get(name.upper(), name.upper())
    if upper not in AGGREGATES:
        raise ParameterError(refusal(upper) or f"there is no aggregate {name!r}; use one of {', '.join(AGGREGATES)}")
    return upper  # type: ignore[return-value]


def refusal(name: str) -> str | None:
    """Why an aggregate has no estimate; None if it has one."""
    upper = name.upper()
    if upper in ("MIN", "MAX"):
        return f"{upper} cannot be estimated from a sample: the rows not yet read may hold any value. Run the join to its end."
    if "DISTINCT" in upper:
        return (
            f"{upper} cannot be estimated from a sample of the join: how many more values the rows not yet read hold is "
            "unknown. Run the join to its end, or group by the column instead."
        )
    return None


def functions_needed(name: str) -> int:
    """How many of 1, v - pilot and (v - pilot)^2 an aggregate rests on."""
    return _FUNCTIONS.get(known(name), 3)


def aggregate(name: str, totals: Totals, pilot: float = 0.0) -> Point:
    """One aggregate of totals of 1, v - pilot, (v - pilot)^2 (as many of them as it needs).

    Groups without a match have a COUNT and a SUM of 0; their other aggregates are NaN, as SQL's are NULL.
    """
    kind = known(name)
    if totals.value.shape[-1] < functions_needed(kind):
        raise ParameterError(
            f"{kind} needs totals of {functions_needed(kind)} functions (1, v, v^2); got {totals.value.shape[-1]}"
        )  # fmt: skip
    if not np.isfinite(pilot):
        raise ParameterError(f"pilot must be a finite guess at the mean; got {pilot!r}")
    with np.errstate(divide="ignore", invalid="ignore"):
        value, slope = _value_and_slope(kind, totals.value, float(pilot))
        gradient = np.zeros_like(totals.value)
        gradient[:, : slope.shape[1]] = slope
        variance = _variance(totals, gradient)
        if totals.exact:
            variance = np.zeros(len(value))
        sample = None
        if functions_needed(kind) == 3 and not totals.exact:
            of_mean, off = _second_order(totals, gradient, value, variance, root=kind.startswith("STDDEV"))
            value, sample = value * (1 - off), _spread(kind, value) / of_mean
    point = Point(kind, value, variance, totals.pairs, totals.exact, totals.degrees, gradient, sample)
    return trusted(point, totals.parts, gradient)


def trusted(point: Point, parts: Parts | None, gradient: FloatArray) -> Point:
    """With the degrees of freedom that the parts of its totals leave; `gradient` in the functions of these parts."""
    if parts is None or point.exact:
        return point
    return replace(point, degrees=np.minimum(point.degrees, parts.degrees(gradient)))


def _spread(kind: Aggregate, value: FloatArray) -> FloatArray:
    """The variance of values, given a VAR or a STDDEV."""
    return value**2 if kind.startswith("STDDEV") else value


def _second_order(
    totals: Totals, gradient: FloatArray, value: FloatArray, variance: FloatArray, *, root: bool
) -> tuple[FloatArray, FloatArray]:
    """V of AVG, and by what part of itself a VAR, or its root, is off on average."""
    c, mean = totals.value[:, 0], totals.value[:, 1] / totals.value[:, 0]
    slope = np.zeros_like(totals.value)
    slope[:, 0], slope[:, 1] = -mean / c, 1 / c
    of_mean = _variance(totals, slope)
    with_count = np.einsum("gk,gk->g", gradient, sum(totals.added, totals.covariance)[:, :, 0]) / c
    if root:  # the gradient of a root is that of its square over 2 STDDEV
        off = -with_count / value - of_mean / (2 * value**2) - variance / (2 * value**2)
    else:
        off = (-with_count - of_mean) / value
    return of_mean, np.where(np.isfinite(off), np.clip(off, -_LARGEST_CORRECTION, _LARGEST_CORRECTION), 0.0)


def _variance(totals: Totals, gradient: FloatArray) -> FloatArray:
    """g'Sg and what blocks add, of each group, clamped at 0.

    It is clamped here and not as a matrix: where c and s are large and s - AVG c is not, the nearest matrix without negative
    values gives AVG some of what noise took from c and s.
    """
    added = sum(projected(each, gradient) for each in totals.added)
    return np.maximum(np.einsum("gk,gkl,gl->g", gradient, totals.covariance, gradient) + added, 0.0)


def projected(covariance: FloatArray, gradient: FloatArray) -> FloatArray:
    """g'Sg of each group, clamped at 0."""
    variance = np.einsum("gk,gkl,gl->g", gradient, covariance, gradient)
    return np.where(np.isnan(variance), np.nan, np.maximum(variance, 0.0))


def _value_and_slope(kind: Aggregate, totals: FloatArray, pilot: float) -> tuple[FloatArray, FloatArray]:
    c = totals[:, 0]
    one = np.ones_like(c)
    if kind == "COUNT":
        return c.copy(), one[:, None]
    s = totals[:, 1]
    if kind == "SUM":
        return s + pilot * c, np.stack((pilot * one, one), axis=1)
    mean = s / c
    if kind == "AVG":
        return pilot + mean, np.stack((-mean / c, one / c), axis=1)
    ss = totals[:, 2]
    variance = np.maximum(ss / c - mean**2, 0.0)
    slope = np.stack((-ss / c**2 + 2 * mean**2 / c, -2 * mean / c, one / c), axis=1)
    if kind.endswith("SAMP"):
        inflate = np.where(c > 1, c / (c - 1), np.nan)
        slope *= inflate[:, None]
        slope[:, 0] -= variance / np.where(c > 1, (c - 1) ** 2, np.nan)
        variance = variance * inflate
    if kind.startswith("VAR"):
        return variance, slope
    deviation = np.sqrt(variance)
    return deviation, slope / (2 * deviation)[:, None]
