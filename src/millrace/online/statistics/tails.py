"""Heavy tails: what to do when few rows bring most of the variance.

In a key/foreign-key join with heavy keys the row of A with the heaviest key has been read or it has not: a coin toss. While it
has not been read, the estimate is too low, and so is V^, which has not seen it either. But B's rows show the heavy keys whether
or not their row of A has been read. So SX = sum over keys of U2 V^2 is replaced by

    SX~ = sum over keys of (mean of U2 over keys about as heavy) V^2            all keys of B, whether or not they have met A

and SY likewise. Keys that have `ROWS_PER_BIN` rows of A or more speak for themselves. The others, sorted by weight, V^2, are
cut into bins that hold as many rows of A: with one row of A for a key that makes bins of many keys, and where heavy keys have
rows of A more often than light ones, bins of few. A bin that ended when it has its rows would have too many on average. So keys
are taken in turn for two halves, the rows of one half say where bins end, and those of the other what a key has. T^ does not
change. V^ becomes far steadier, and stays right on average.

The price: a heavy key of B that has no row in A at all widens intervals until A has been read. At that time nobody can know
that it has none; `heavy_key_note` says so. Reading the rows of A with the heaviest keys first ends that doubt: then they are a
partition of their own with p = 1 in `estimators.staggered`.

A join need not keep all keys for this: `widened` also takes the moments of the heaviest ones only, as the first rows show them.
Early these may have too few rows of A to fill a bin, none at all perhaps, and V^ would be a coin toss again. Then the other
keys, which are lighter, fill it up: `Rest` says how many rows of A they have for a key on average, and what a row brings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.errors import ParameterError
from millrace.online.statistics.estimators import Totals
from millrace.online.statistics.totals import KeyMoments, Sums, sums_of_keys

ROWS_PER_BIN = 5
MUCH_WIDER = 4.0  # times the variance: intervals of twice the width


@dataclass(frozen=True)
class Rest:
    """Rows of a side whose keys' moments are not given, by pool: how many there would be for a key of the other side once all
    are read, (pools,), and the mean second moment of one, (pools, K, K). What is not finite or 0 is not known."""

    rows: FloatArray
    second: FloatArray


def widened(
    sums: Sums,
    left: KeyMoments,
    right: KeyMoments,
    group: Int64Array | None = None,
    *,
    pool: Int64Array | None = None,
    share_a: FloatArray | None = None,
    share_b: FloatArray | None = None,
    rest_a: Rest | None = None,
    rest_b: Rest | None = None,
) -> Sums:
    """The sums with SX~ and SY~ for the keys whose moments are given, all keys or the heaviest, matched or not.

    `group`: of each cell, as for `sums_of_keys`; with groups by a column of A, the keys of B are in a cell of every group, and
    the other way round. Hash partitions are such groups, too. `pool`: cells whose bins are formed together, if not all of
    them: the groups of GROUP BY. `share_a`, `share_b`: what share of the rows had been read, where that differs between cells;
    for `estimators.finishing`, the share of each partition's own rows, as its formula counts them. `rest_a`, `rest_b`: of the
    keys that are not given.
    """
    groups = sums.groups
    at = _numbers(group, len(left.rows))
    of = _numbers(pool, len(left.rows))
    p, r = _given(share_a, len(at)), _given(share_b, len(at))
    narrow = sums_of_keys(left, right, at, groups)
    sx = _smoothed(left, right, p, r, of, at, groups, rest_a)
    sy = _smoothed(right, left, r, p, of, at, groups, rest_b)
    return Sums(sums.t, sums.sx + (sx - narrow.sx), sums.sy + (sy - narrow.sy), sums.q, sums.pairs)


def _smoothed(
    one: KeyMoments,
    other: KeyMoments,
    share_one: FloatArray,
    share_other: FloatArray,
    pool: Int64Array,
    group: Int64Array,
    groups: int,
    rest: Rest | None,
) -> FloatArray:
    """sum over cells of (mean second moment of `one` in the cell's bin) x V V' of `other`, by group."""
    functions = one.first.shape[1]
    total = np.zeros((groups, functions, functions))
    there = np.flatnonzero(other.rows > 0)
    if not len(there):
        return total
    v = other.first[there] / share_other[there, None]
    weight = (v**2 / np.maximum((v**2).sum(axis=0), np.finfo(np.float64).tiny)).sum(axis=1)
    order = there[np.lexsort((-weight, pool[there]))]
    second = one.second[order].reshape(len(order), -1)
    mean = _means(second, one.rows[order], share_one[order], pool[order], rest)
    squares = (other.first[order, :, None] * other.first[order, None, :]).reshape(len(order), -1)
    cells = mean * share_one[order, None] * squares
    return _totals(cells, group[order], groups).reshape(groups, functions, functions)


def _means(second: FloatArray, rows: Int64Array, share: FloatArray, pool: Int64Array, rest: Rest | None) -> FloatArray:
    """Of cells sorted by pool and weight: the mean second moment in the bin of each, as if all rows had been read."""
    mean: FloatArray = second / share[:, None]
    few = np.flatnonzero(rows < ROWS_PER_BIN)
    if not len(few):
        return mean
    second, rows, share, pool = second[few], rows[few], share[few], pool[few]
    pools, first, of = np.unique(pool, return_index=True, return_inverse=True)
    half = (np.arange(len(few)) - first[of]) % 2
    pair: Int64Array = np.cumsum(half == 0) - 1
    total = np.bincount(of, rows)
    alone = total[of] < 2 * ROWS_PER_BIN  # pools too small for two halves
    for number in (0, 1):
        mine = ~alone & (half == number)
        if mine.any():
            theirs = np.bincount(pair, np.where(half == number, 0, rows)).astype(np.int64)
            bins = np.unique(_bins(theirs, of[half == 0])[pair[mine]], return_inverse=True)[1]
            mean[few[mine]] = (_totals(second[mine], bins) / _totals(share[mine, None], bins))[bins]
    if alone.any():
        bins = of[alone]
        seconds, shares = _totals(second[alone], bins, len(pools)), _totals(share[alone, None], bins, len(pools))
        if rest is not None:
            more, keys = _filled(rest, pools, (ROWS_PER_BIN - total).astype(np.float64))
            seconds, shares = seconds + more, shares + keys[:, None]
        mean[few[alone]] = seconds[bins] / shares[bins]
    return mean


def _filled(rest: Rest, pool: Int64Array, missing: FloatArray) -> tuple[FloatArray, FloatArray]:
    """What the other keys add to bins in which rows are missing: second moments, and keys, counted as shares read."""
    per_key, second = rest.rows[pool], rest.second.reshape(len(rest.rows), -1)[pool]
    known = (missing > 0) & (per_key > 0) & np.isfinite(per_key) & np.isfinite(second).all(axis=1)
    added = np.where(known, missing, 0.0)
    return np.where(known[:, None], added[:, None] * second, 0.0), added / np.where(known, per_key, 1.0)


def _bins(rows: Int64Array, pool: Int64Array) -> Int64Array:
    """Bin numbers, given rows in order of weight: a new bin starts with a pool, and after `ROWS_PER_BIN` rows or more.

    The lightest of a pool, after its last full bin, are a bin with fewer rows: they bring little.
    """
    before = np.cumsum(rows) - rows
    starts = np.flatnonzero(np.concatenate(([True], pool[1:] != pool[:-1])))
    since = before - np.repeat(before[starts], np.diff(np.append(starts, len(pool))))
    step = since // ROWS_PER_BIN
    new = np.concatenate(([True], (step[1:] != step[:-1]) | (pool[1:] != pool[:-1])))
    numbers: Int64Array = np.cumsum(new) - 1
    return numbers


def _totals(values: FloatArray, at: Int64Array, count: int = 0) -> FloatArray:
    return np.stack([np.bincount(at, values[:, i], count) for i in range(values.shape[1])], axis=1)


def _numbers(given: Int64Array | None, count: int) -> Int64Array:
    return np.zeros(count, np.int64) if given is None else np.asarray(given, np.int64)


def _given(share: FloatArray | None, count: int) -> FloatArray:
    if share is None:
        return np.ones(count)
    if len(share) != count or not ((share >= 0) & (share <= 1)).all():
        raise ParameterError(f"shares of rows read are from 0 to 1, one for each of the {count} cells")
    return np.maximum(np.asarray(share, np.float64), np.finfo(np.float64).tiny)  # of no rows there are no moments either


def by_partition(sums: Sums) -> Sums:
    """Sums whose groups are partitions of one group of pairs, as formulas for partitions take them: (P, 1, K)."""
    return Sums(sums.t[:, None], sums.sx[:, None], sums.sy[:, None], sums.q[:, None], sums.pairs[:, None])


def heavy_key_note(narrow: Totals, wide: Totals) -> str | None:
    """A warning where heavy keys that have not met yet make intervals much wider; None where they do not."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = wide.variance / narrow.variance
    known = ratios[np.isfinite(ratios)]
    if not len(known) or np.median(known) < MUCH_WIDER:
        return None
    return (
        "keys that are frequent on one side have not met a row of the other yet: intervals allow for it. If such a key is "
        "known to have no partner, filter it out for narrower ones"
    )
