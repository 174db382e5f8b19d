"""Intervals around estimated aggregates: how wide, on which scale, for how many looks and groups, and when there is none.

    each      the interval of one report holds with the given confidence
    always    the intervals of all reports of a run hold together: z is fixed at the start (`quantiles.always_quantile`)

Few matches give no interval ("too few"). A warning says when one row brings much of the variance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.errors import ParameterError
from millrace.online.statistics.aggregates import Point
from millrace.online.statistics.estimators import Totals
from millrace.online.statistics.quantiles import (
    LARGEST_SPAN,
    always_quantile,
    check_confidence,
    normal_quantile,
    student_quantile,
)

FEWEST_MATCHES = 5
HEAVY_SHARE = 0.25  # of V^ from one row: then V^ itself is a matter of chance
_LARGEST_EXPONENT = 500.0
WIDEST_SPREAD = 4.0  # times a VAR or STDDEV, or that part of it: an interval beyond says nothing
_SQUARES = 7.0  # normal values say as much about V^ of their variance as a seventh of them about V^ of their mean

TOO_FEW = f"too few matches (below {FEWEST_MATCHES}) for an interval; read on"
NO_VARIANCE = "too few rows for an interval; read on"
HEAVY_TAIL = "one row brings {share:.0%} of the variance: the interval may be too narrow until more is read"


@dataclass(frozen=True)
class Estimate:
    """One aggregate of one group. Without an interval `low` and `high` are infinite and a warning says why."""

    value: float
    low: float
    high: float
    half_width: float
    confidence: float
    exact: bool = False
    warnings: tuple[str, ...] = ()
    refused_because: str | None = None

    @property
    def relative_half_width(self) -> float:
        """Half the interval over the value; infinite where either is no number to go by."""
        if self.exact:
            return 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = float(np.float64(self.half_width) / abs(self.value))
        return relative if relative >= 0 else float("inf")

    def covers(self, truth: float) -> bool:
        return self.low <= truth <= self.high


@dataclass(frozen=True)
class Estimates:
    """One aggregate of all groups, as arrays; `estimates[g]` is one of them."""

    value: FloatArray
    low: FloatArray
    high: FloatArray
    confidence: float
    exact: bool
    pairs: Int64Array
    heavy: FloatArray  # share of the variance that the largest row brings; NaN where unknown
    notes: tuple[str, ...] = ()  # warnings about all groups

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Estimate]:
        return (self[group] for group in range(len(self)))

    @property
    def half_width(self) -> FloatArray:
        return (self.high - self.low) / 2

    def __getitem__(self, group: int) -> Estimate:
        warnings = list(self.notes)
        if not self.exact:
            if self.pairs[group] < FEWEST_MATCHES:
                warnings.append(TOO_FEW)
            elif not np.isfinite(self.high[group]):
                warnings.append(NO_VARIANCE)
            elif self.heavy[group] > HEAVY_SHARE:
                warnings.append(HEAVY_TAIL.format(share=min(1.0, self.heavy[group])))
        low, high = float(self.low[group]), float(self.high[group])
        return Estimate(
            float(self.value[group]), low, high, (high - low) / 2, self.confidence, self.exact, tuple(warnings)
        )  # fmt: skip


@dataclass(frozen=True)
class IntervalRule:
    """How intervals are made. Fix it when a run starts.

    `scale`: "plain" is value ± z sd; "log" is value x exp(± z sd/value), for counts and for sums of values above 0; "auto"
    takes "log" for COUNT, VAR and STDDEV, and for SUM where `positive` says that no value is negative. `together`: all groups
    hold at once (Bonferroni). `span`: for "always", ln(V_first/V_last) that the run will show.
    """

    confidence: float = 0.95
    interval: Literal["each", "always"] = "each"
    span: float = LARGEST_SPAN
    scale: Literal["auto", "plain", "log"] = "auto"
    positive: bool = False
    together: bool = False
    _z: dict[int, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_confidence(self.confidence)
        if self.interval not in ("each", "always"):
            raise ParameterError(f'interval must be "each" or "always"; got {self.interval!r}')
        if self.scale not in ("auto", "plain", "log"):
            raise ParameterError(f'scale must be "auto", "plain" or "log"; got {self.scale!r}')
        if not self.span >= 0:
            raise ParameterError(f"span must be ln(first/last variance), 0 or more; got {self.span!r}")

    def z(self, groups: int = 1) -> float:
        """Standard deviations to either side, for so many groups."""
        share = groups if self.together else 1
        if share not in self._z:
            level = 1 - (1 - self.confidence) / share if share > 1 else self.confidence
            self._z[share] = always_quantile(level, self.span) if self.interval == "always" else normal_quantile(level)
        return self._z[share]

    def logarithmic(self, aggregate: str) -> bool:
        fits = aggregate == "COUNT" or is_spread(aggregate) or (aggregate == "SUM" and self.positive)
        return fits and self.scale != "plain"


def intervals(point: Point, rule: IntervalRule, *, largest: FloatArray | None = None, notes: tuple[str, ...] = ()) -> Estimates:
    """Intervals of one aggregate for all groups.

    `largest`: what the largest row adds to the variance, (G,) (`tails.largest_row`). `notes`: warnings for all groups.
    """
    variance = point.variance
    with np.errstate(divide="ignore", invalid="ignore"):
        heavy = np.full(len(variance), np.nan) if largest is None else largest / variance
        low, high = _limits(point, rule, variance)
    none = ~np.isfinite(variance) | (point.pairs < FEWEST_MATCHES) | (variance == 0.0)
    if is_spread(point.name):
        with np.errstate(invalid="ignore"):
            none |= ~(high <= WIDEST_SPREAD * point.value)
    if point.exact:
        low, high = point.value.copy(), point.value.copy()
    else:
        low, high = np.where(none, -np.inf, low), np.where(none, np.inf, high)
    return Estimates(point.value, low, high, rule.confidence, point.exact, point.pairs, heavy, notes)


def _limits(point: Point, rule: IntervalRule, variance: FloatArray) -> tuple[FloatArray, FloatArray]:
    z = student_quantile(rule.z(len(point.value)), _degrees(point))
    reach = z * np.sqrt(variance)
    low, high = point.value - reach, point.value + reach
    if rule.logarithmic(point.name):
        above = point.value > 0
        factor = np.exp(np.minimum(reach / point.value, _LARGEST_EXPONENT))
        low, high = np.where(above, point.value / factor, low), np.where(above, point.value * factor, high)
    if point.name == "COUNT":
        low = np.maximum(low, point.pairs)  # these matches are there
    elif is_spread(point.name):
        low = np.maximum(low, 0.0)
    return low, high


def _degrees(point: Point) -> FloatArray:
    """Of freedom: few matches say little about V^, and so do few keys (`freedom`).

    V^ of a mean of n normal values has n - 1 degrees, as 2 (mean)^2/variance of v^2 says; that of their variance, which rests
    on fourth powers, n/7. n is here the number of independent values that would do: matches share rows.
    """
    each: FloatArray = np.broadcast_to(np.asarray(point.degrees, np.float64), point.value.shape)
    if point.name == "COUNT":
        return each
    matches = np.maximum(point.pairs, 2) - 1.0
    if point.sample is None:
        return np.minimum(each, matches)
    known = np.where(np.isfinite(point.sample), np.minimum(point.sample, matches), matches)
    return np.minimum(each, np.maximum(known / _SQUARES, 0.1))


def is_spread(aggregate: str) -> bool:
    return aggregate.startswith(("VAR", "STDDEV"))


@dataclass(frozen=True)
class OrderCheck:
    """Whether rows came in random order, as far as the first batches tell."""

    ratio: float  # variance that blocks show over variance that rows show; about 1 in random order
    use: Literal["rows", "blocks"]
    message: str | None


def check_order(rows: Totals, blocks: Totals, blocks_read: int) -> OrderCheck:
    """Compare the row-level with the block-level variance of the same totals, on the first batches.

    With d blocks the block-level variance itself is off by about sqrt(2/(d-1)) of itself; what lies more than two of these
    above the row-level one is taken as a sign that neighbours resemble each other. Fewer than 5 blocks cannot tell; then
    blocks count.
    """
    if blocks_read < 1:
        raise ParameterError(f"at least one block must have been read to check the order; got {blocks_read}")
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = blocks.variance / rows.variance
    known = ratios[np.isfinite(ratios)]
    ratio = float(known.max()) if len(known) else float("nan")  # what one function shows, others may hide
    if blocks_read < 5 or not np.isfinite(ratio):
        return OrderCheck(ratio, "blocks", "too few blocks have been read to tell whether rows come in random order")
    if ratio > 1 + 2 * np.sqrt(2 / (blocks_read - 1)):
        return OrderCheck(
            ratio,
            "blocks",
            f"rows do not come in random order: rows that lie together vary {ratio:.1f} times as much as rows drawn at random. "
            'Intervals count blocks instead. Scramble the table once for narrower ones; order="random" switches this off',
        )
    return OrderCheck(ratio, "rows", None)
