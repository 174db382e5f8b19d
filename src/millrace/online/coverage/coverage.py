"""Do intervals hold what they promise? Fixed tables, many seeded reshuffles, estimates at several reports of each.

A simulated run keeps only accumulators, so that a reshuffle takes milliseconds. What a run shows:

    rectangle     n of N and m of M rows have met: Ripple, Hash Ripple
    staggered     PR-Join while input is read, 16 partitions joined in turn as the input grows by half
    finishing     PR-Join's third phase, from where the input ended
    region        runs of an eighth of the input each: SMS
    stratum       rectangle, but the rows of A with the heaviest hundredth of the keys, as B's first rows show them, come first

`coverage` is the share of intervals that hold the true answer; `together` of runs in which all reports do; `at_stop` of the
intervals at which a user would have stopped, the first with a small enough half-width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.errors import ParameterError
from millrace.online.coverage.populations import Population
from millrace.online.statistics.aggregates import aggregate, functions_needed
from millrace.online.statistics.estimators import Totals, finishing, rectangle, region, staggered
from millrace.online.statistics.estimators import shares as shares_of
from millrace.online.statistics.intervals import IntervalRule, intervals
from millrace.online.statistics.tails import by_partition, widened
from millrace.online.statistics.totals import stacked, sums_of_keys

Scheme = Literal["rectangle", "staggered", "finishing", "region", "stratum"]
SHARES = (0.05, 0.1, 0.2, 0.4, 0.7)
PARTITIONS = 16
RUNS = 8


@dataclass(frozen=True)
class Row:
    """One report, over all reshuffles."""

    share: float  # of the input that had been read
    matches: float  # mean
    coverage: float
    bias: float  # relative, signed
    bias_error: float  # its standard error
    variance_ratio: float  # mean V^ over the variance of T^ among reshuffles
    half_width: float  # mean, relative to the answer


@dataclass(frozen=True)
class Coverage:
    """What reshuffles of one population gave."""

    population: str
    scheme: str
    aggregate: str
    reshuffles: int
    rows: tuple[Row, ...]
    together: float
    at_stop: float  # NaN: no run would have stopped
    stopped: float  # share of runs that would have stopped at one of the reports

    @property
    def three_errors(self) -> float:
        """Three standard errors of a coverage of 95 %."""
        return 3 * math.sqrt(0.95 * 0.05 / self.reshuffles)

    def table(self) -> str:
        """As lines of Markdown."""
        head = "| read | matches | coverage | bias (s.e.) | V^ / true | half-width |\n|---|---|---|---|---|---|\n"
        lines = [
            f"| {row.share:.0%} | {row.matches:.0f} | {row.coverage:.3f} | {row.bias:+.2%} ({row.bias_error:.2%}) "
            f"| {row.variance_ratio:.2f} | {row.half_width:.1%} |"
            for row in self.rows
        ]
        return head + "\n".join(lines)


Run = Callable[[Population, Int64Array, Int64Array, Sequence[float], bool], list[Totals]]


def measure(
    population: Population,
    scheme: Scheme = "rectangle",
    *,
    name: str = "SUM",
    rule: IntervalRule | None = None,
    reshuffles: int = 2000,
    shares: Sequence[float] = SHARES,
    wide: bool = True,
    target: float = 0.05,
    seed: int = 0,
) -> Coverage:
    """Reshuffle and look. `wide` guards against heavy tails (`tails.py`), `target` is the relative half-width of the stop."""
    if scheme not in _RUNS:
        raise ParameterError(f"scheme must be one of {', '.join(_RUNS)}; got {scheme!r}")
    if reshuffles < 2 or not shares or not all(0 < share <= 1 for share in shares):
        raise ParameterError(f"give at least two reshuffles and shares of the input above 0; got {reshuffles} and {shares!r}")
    population = population.first_functions(functions_needed(name))
    rule = replace(rule or IntervalRule(), positive=population.positive)
    answer = population.answer()
    truth = float(aggregate(name, Totals(answer.t, np.zeros_like(answer.sx), answer.pairs, exact=True)).value[0])
    random = np.random.default_rng(seed)
    seen = np.empty((5, reshuffles, len(shares)))
    for i in range(reshuffles):
        order_a, order_b = random.permutation(population.of_a), random.permutation(population.of_b)
        for j, totals in enumerate(_RUNS[scheme](population, order_a, order_b, shares, wide)):
            point = aggregate(name, totals)
            made = intervals(point, rule)
            seen[:, i, j] = point.value[0], point.variance[0], made.low[0], made.high[0], totals.pairs[0]
    return _summary(population, scheme, name, seen, truth, shares, target)


def _summary(
    population: Population, scheme: str, name: str, seen: FloatArray, truth: float, shares: Sequence[float], target: float
) -> Coverage:
    value, variance, low, high, pairs = seen
    made = np.isfinite(high)
    held = (low <= truth) & (truth <= high)
    rows = []
    for j, share in enumerate(shares):
        ok = made[:, j]
        true_variance = value[:, j].var(ddof=1)
        error = math.sqrt(true_variance / len(value))
        rows.append(
            Row(
                share,
                float(pairs[:, j].mean()),
                float(held[ok, j].mean()) if ok.any() else math.nan,
                float(value[:, j].mean() / truth - 1),
                error / abs(truth),
                float(np.nanmean(variance[:, j]) / true_variance) if true_variance > 0 else math.nan,
                float(((high - low)[ok, j]).mean() / 2 / abs(truth)) if ok.any() else math.nan,
            )
        )
    narrow = made & ((high - low) / 2 < target * np.abs(value))
    stopped = narrow.any(axis=1)
    first = narrow.argmax(axis=1)
    at_stop = float(held[np.flatnonzero(stopped), first[stopped]].mean()) if stopped.any() else math.nan
    together = float((held | ~made).all(axis=1).mean())
    return Coverage(population.name, scheme, name, len(value), tuple(rows), together, at_stop, float(stopped.mean()))


def _chosen(narrow: Totals, wider: Totals | None) -> Totals:
    """As a run would report it: what V^ rests on are the rows that have met."""
    return narrow if wider is None else replace(wider, parts=narrow.parts)


def _rows_read(population: Population, share: float) -> tuple[int, int]:
    return max(2, round(share * population.of_a)), max(2, round(share * population.of_b))


def _rectangle_run(
    population: Population, order_a: Int64Array, order_b: Int64Array, shares: Sequence[float], wide: bool
) -> list[Totals]:
    reports: list[Totals] = []
    for share in shares:
        n, m = _rows_read(population, share)
        left, right = population.joined(order_a[:n], order_b[:m])
        sums = sums_of_keys(left, right)
        narrow = rectangle(sums, n, m, population.of_a, population.of_b)
        wider = rectangle(widened(sums, left, right), n, m, population.of_a, population.of_b) if wide else None
        reports.append(_chosen(narrow, wider))
    return reports


def _partition_of(keys: Int64Array) -> Int64Array:
    mixed = (keys.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(33)) % np.uint64(PARTITIONS)).astype(np.int64)


def _last_joined(share: float) -> FloatArray:
    """The share of the input at which each partition was last joined: partition i at 0.04 x 1.5^(j + i/16), j = 0, 1, ..."""
    i = np.arange(PARTITIONS) / PARTITIONS
    steps = np.floor(np.log(share / 0.04) / math.log(1.5) - i + 1e-9)
    return np.where(steps >= 0, 0.04 * 1.5 ** (steps + i), 0.04)


def _staggered_run(
    population: Population, order_a: Int64Array, order_b: Int64Array, shares: Sequence[float], wide: bool
) -> list[Totals]:
    place_a, place_b = _places(order_a), _places(order_b)
    part_a, part_b = _partition_of(population.keys_a), _partition_of(population.keys_b)
    of_key = _partition_of(np.arange(population.keys))
    reports: list[Totals] = []
    for share in shares:
        last = np.minimum(_last_joined(share), share)
        n = np.maximum(2, np.round(last * population.of_a)).astype(np.int64)
        m = np.maximum(2, np.round(last * population.of_b)).astype(np.int64)
        left, right = population.joined(np.flatnonzero(place_a < n[part_a]), np.flatnonzero(place_b < m[part_b]))
        sums = sums_of_keys(left, right, of_key, PARTITIONS)
        narrow, wider = staggered(by_partition(sums), n, m, population.of_a, population.of_b), None
        if wide:
            p, r = (n / population.of_a)[of_key], (m / population.of_b)[of_key]
            sums = widened(sums, left, right, of_key, share_a=p, share_b=r)
            wider = staggered(by_partition(sums), n, m, population.of_a, population.of_b)
        reports.append(_chosen(narrow, wider))
    return reports


def _finishing_run(
    population: Population, order_a: Int64Array, order_b: Int64Array, shares: Sequence[float], wide: bool
) -> list[Totals]:
    """`shares` are here of partitions that are finished; the others were last joined when 0.55 to 0.8 of the input was read."""
    place_a, place_b = _places(order_a), _places(order_b)
    part_a, part_b = _partition_of(population.keys_a), _partition_of(population.keys_b)
    of_key = _partition_of(np.arange(population.keys))
    last = np.linspace(0.55, 0.8, PARTITIONS)
    reports: list[Totals] = []
    for share in shares:
        at = np.where(np.arange(PARTITIONS) < round(share * PARTITIONS), 1.0, last)
        n, m = np.round(at * population.of_a), np.round(at * population.of_b)
        in_a, in_b = np.flatnonzero(place_a < n[part_a]), np.flatnonzero(place_b < m[part_b])
        left, right = population.joined(in_a, in_b)
        sums = sums_of_keys(left, right, of_key, PARTITIONS)
        counts = [np.bincount(part, minlength=PARTITIONS) for part in (part_a[in_a], part_b[in_b], part_a, part_b)]
        narrow, wider = finishing(by_partition(sums), *counts), None
        if wide:
            own_a, own_b, total_a, total_b = counts
            p, r = own_a / np.maximum(total_a, 1), own_b / np.maximum(total_b, 1)
            sums = widened(sums, left, right, of_key, share_a=p[of_key], share_b=r[of_key])
            wider = finishing(by_partition(sums), *counts)
        reports.append(_chosen(narrow, wider))
    return reports


def _region_run(
    population: Population, order_a: Int64Array, order_b: Int64Array, shares: Sequence[float], wide: bool
) -> list[Totals]:
    edges_a = np.linspace(0, population.of_a, RUNS + 1).astype(np.int64)
    edges_b = np.linspace(0, population.of_b, RUNS + 1).astype(np.int64)
    runs, widest = [], []
    for i in range(max(1, round(max(shares) * RUNS))):
        left, right = population.joined(order_a[edges_a[i] : edges_a[i + 1]], order_b[edges_b[i] : edges_b[i + 1]])
        runs.append(sums_of_keys(left, right))
        widest.append(widened(runs[-1], left, right) if wide else runs[-1])
    reports: list[Totals] = []
    for share in shares:
        count = max(1, round(share * RUNS))
        na, nb = np.diff(edges_a)[:count], np.diff(edges_b)[:count]
        cover = shares_of(edges_a[:count], na, edges_b[:count], nb)
        narrow, wider = (
            region(stacked(each[:count]), na, nb, cover, population.of_a, population.of_b) for each in (runs, widest)
        )
        reports.append(_chosen(narrow, wider))
    return reports


def _stratum_run(
    population: Population, order_a: Int64Array, order_b: Int64Array, shares: Sequence[float], wide: bool
) -> list[Totals]:
    """A's order does not depend on B's: whatever keys B's rows choose, the estimate stays unbiased."""
    first = _rows_read(population, shares[0])[1]
    counts = np.bincount(population.keys_b[order_b[:first]], minlength=population.keys)
    heavy = np.zeros(population.keys, np.int64)
    heavy[np.argsort(-counts, kind="stable")[: max(1, population.keys // 100)]] = 1
    place_a = _places(order_a)
    reports: list[Totals] = []
    for share in shares:
        n, m = _rows_read(population, share)
        in_a = np.flatnonzero((place_a < n) | (heavy[population.keys_a] == 1))
        left, right = population.joined(in_a, order_b[:m])
        rows_a, rows_b = np.array([n, population.of_a]), np.array([m, m])
        sums = sums_of_keys(left, right, heavy, 2)
        narrow, wider = staggered(by_partition(sums), rows_a, rows_b, population.of_a, population.of_b), None
        if wide:
            sums = widened(sums, left, right, heavy, pool=heavy)
            wider = staggered(by_partition(sums), rows_a, rows_b, population.of_a, population.of_b)
        reports.append(_chosen(narrow, wider))
    return reports


def _places(order: Int64Array) -> Int64Array:
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return places


_RUNS: dict[str, Run] = {
    "rectangle": _rectangle_run,
    "staggered": _staggered_run,
    "finishing": _finishing_run,
    "region": _region_run,
    "stratum": _stratum_run,
}
