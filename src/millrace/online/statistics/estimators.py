"""From what has been joined to an estimate of the whole: T^ and its covariance, for each way in which joins cover pairs.

    rectangle          Ripple, Block Ripple, Hash Ripple: n of N rows of A met m of M rows of B
    region             SMS runs, two-way DBO: several rectangles; `exact` adds what a merge has finished
    staggered          PR-Join while input is read: each partition was last joined at its own time
    finishing          PR-Join's third phase: some partitions are finished, the others are rectangles of known sizes
    sample_of_parts    GRACE's join phase: d of P partitions are done

Rows are counted before filters, and must come in random order. All formulas are pure functions of `Sums`; several rectangles
are an axis in front of its arrays. Legend, as in the formulas:

    N, M     rows of A and of B in all             t     sum of f over joined pairs
    n, m     rows that have been read              SX    sum over rows of A of (sum of f of that row)^2; SY likewise over B
    p, r     n/N and m/M                           Q     sum of f^2
    T^, V^   estimated total and its variance; with several functions V^ is a covariance matrix, and each square a product
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.errors import ParameterError
from millrace.online.statistics.freedom import Parts
from millrace.online.statistics.totals import Sums

Rows = int | Int64Array


@dataclass(frozen=True)
class Totals:
    """Estimated totals of K functions for G groups. A covariance of NaN: none can be given yet. Early it may be negative."""

    value: FloatArray  # (G, K)
    covariance: FloatArray  # (G, K, K)
    pairs: Int64Array  # (G,) matches that the estimate rests on
    exact: bool = False  # value is the answer, covariance is 0
    degrees: float = math.inf  # of freedom of the covariance, where few independent parts lie behind it
    parts: Parts | None = field(default=None, repr=False, compare=False)  # what the covariance is made of, if that can be told
    added: tuple[FloatArray, ...] = ()  # to the covariance, (G, K, K) each: at least 0 in truth, in any direction (`order`)

    @property
    def variance(self) -> FloatArray:
        """The diagonal, clamped at 0; NaN where there is none."""
        diagonal: FloatArray = np.diagonal(self.covariance, axis1=-2, axis2=-1)
        return np.where(np.isnan(diagonal), np.nan, np.maximum(diagonal, 0.0))

    def __add__(self, other: Totals) -> Totals:
        """Both together, for parts that are independent of one another, or of which one is exact."""
        return Totals(
            self.value + other.value,
            self.covariance + other.covariance,
            self.pairs + other.pairs,
            self.exact and other.exact,
            min(self.degrees, other.degrees),
            other.parts if self.exact else self.parts if other.exact else None,
            self.added + other.added,
        )


def exactly(sums: Sums) -> Totals:
    """What is known completely."""
    return Totals(sums.t.astype(np.float64), np.zeros_like(sums.sx), sums.pairs, exact=True)


def rectangle(sums: Sums, n: int, m: int, of_a: int, of_b: int) -> Totals:
    """n of `of_a` rows of A have met m of `of_b` rows of B, all pairs of them. T^ and V^ are unbiased.

    Hash Ripple: m is the number of rows of B kept in memory, not the number read.

    >>> from millrace.online.statistics.totals import sums_of_matches
    >>> half = sums_of_matches([0, 1], [0, 1], [1.0, 1.0])
    >>> totals = rectangle(half, 2, 2, 4, 4)
    >>> float(totals.value[0, 0])
    8.0
    """
    _check_rows(n, of_a, "A")
    _check_rows(m, of_b, "B")
    value, covariance = _rectangles(sums, n, m, of_a, of_b)
    parts = _parts(_one(sums), np.array([n]), np.array([m]), of_a, of_b)
    return Totals(value, covariance, sums.pairs, exact=n == of_a and m == of_b, parts=parts)


def _rectangles(sums: Sums, n: Rows, m: Rows, of_a: Rows, of_b: Rows) -> tuple[FloatArray, FloatArray]:
    """T^ and V^ of each rectangle; sizes are scalars or have the shape of the axes in front."""
    n_, m_, big_n, big_m = (np.asarray(count, np.float64)[..., None, None] for count in (n, m, of_a, of_b))
    none = (big_n == 0) | (big_m == 0)  # an empty input: the answer is 0, and known
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(none, 0.0, (big_n / n_) * (big_m / m_))
        value = np.where(none, 0.0, sums.t * scale)
        sx, sy, sg = _mean_squares(sums, n_[..., None], m_[..., None])
        n_, m_, big_n, big_m = n_[..., None], m_[..., None], big_n[..., None], big_m[..., None]
        fa, fb = 1 - n_ / big_n, 1 - m_ / big_m
        inner = _times(fa, sx / n_) + _times(fb, sy / m_) - _times(fa * fb, sg / (n_ * m_))
        covariance = np.where(none[..., None], 0.0, (big_n * big_m) ** 2 * inner)
    return value, covariance


def _times(share: FloatArray, term: FloatArray) -> FloatArray:
    """A share of 0 drops a term even where it cannot be estimated: one row of one is all of them."""
    return np.where(share == 0.0, 0.0, share * term)


def _mean_squares(sums: Sums, n: FloatArray, m: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """sx, sy and sg: of rows of A, of rows of B, and of their interaction. NaN where fewer than two rows leave no estimate."""
    mu = sums.t / (n * m)[..., 0]
    square = mu[..., :, None] * mu[..., None, :]
    free_a, free_b = np.where(n < 2, np.nan, n - 1), np.where(m < 2, np.nan, m - 1)
    sx = (sums.sx / m**2 - n * square) / free_a
    sy = (sums.sy / n**2 - m * square) / free_b
    sg = (sums.q - sums.sx / m - sums.sy / n + n * m * square) / (free_a * free_b)
    return sx, sy, sg


def components(sums: Sums, n: FloatArray, m: FloatArray, of_a: int, of_b: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Sa2, Sb2 and Sg2 of the whole tables, from rectangles: with n' of N and m' of M rows read, V of the total is

    (NM)^2 [Sa2 (1/n' - 1/N) + Sb2 (1/m' - 1/M) + Sg2 (1/n' - 1/N) (1/m' - 1/M)]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        sx, sy, sg = _mean_squares(sums, n, m)
        return sx - (1 / m - 1 / of_b) * sg, sy - (1 / n - 1 / of_a) * sg, sg


@dataclass(frozen=True)
class Shares:
    """How a region lies over rows and columns: its area, and the sums of squares of its shares in each row and each column."""

    area: float
    rows: float  # sum of w^2
    columns: float  # sum of v^2


def shares(first_a: Int64Array, rows_a: Int64Array, first_b: Int64Array, rows_b: Int64Array) -> Shares:
    """Of rectangles that do not overlap: `rows_a` rows from row `first_a` on, by `rows_b` columns from `first_b` on.

    >>> two = np.array([0, 10]), np.array([10, 10]), np.array([0, 10]), np.array([10, 10])
    >>> shares(*two).area, round(shares(*two).rows, 6)
    (200.0, 0.05)
    """
    sizes = [np.asarray(array, np.int64) for array in (first_a, rows_a, first_b, rows_b)]
    if len({array.shape for array in sizes}) != 1 or sizes[0].ndim != 1:
        raise ParameterError("a region needs the first row, rows, first column and columns of each of its rectangles")
    if any((array < 0).any() for array in sizes):
        raise ParameterError("a region has no rectangle that starts or measures below 0")
    a, na, b, nb = sizes
    area = float((na.astype(np.float64) * nb).sum())
    if area == 0:
        return Shares(0.0, 0.0, 0.0)
    return Shares(area, _squared_shares(a, na, nb, area), _squared_shares(b, nb, na, area))


def _squared_shares(first: Int64Array, length: Int64Array, width: Int64Array, area: float) -> float:
    edges = np.concatenate((first, first + length))
    steps = np.concatenate((width, -width)).astype(np.float64)
    order = np.argsort(edges, kind="stable")
    covered = np.cumsum(steps[order])[:-1]  # columns that a row of each stretch between edges meets
    return float((np.diff(edges[order]) * (covered / area) ** 2).sum())


def region(
    sums: Sums,
    rows_a: Int64Array,
    rows_b: Int64Array,
    cover: Shares,
    of_a: int,
    of_b: int,
    exact: Sums | None = None,
) -> Totals:
    """Several rectangles, (R, G, K), of `rows_a` by `rows_b` rows each, that cover what `cover` says.

    Mean squares are estimated from each rectangle and averaged by area. `exact`: what a merge has finished, with its keys
    left out of `sums` (SMS and DBO while they merge).
    """
    na, nb = np.asarray(rows_a, np.int64), np.asarray(rows_b, np.int64)
    if sums.t.ndim != 3 or not len(sums.t) == len(na) == len(nb):
        raise ParameterError(f"a region needs the sizes of each of its {len(sums.t)} rectangles; got {len(na)} and {len(nb)}")
    _check_rows(int(na.max(initial=0)), of_a, "A")
    _check_rows(int(nb.max(initial=0)), of_b, "B")
    if cover.area > 0 and len(na) == 1:
        estimate = rectangle(_only(sums), int(na[0]), int(nb[0]), of_a, of_b)
    else:
        estimate = _region(sums, na, nb, cover, of_a, of_b)
    return estimate if exact is None else estimate + exactly(exact)


def _region(sums: Sums, na: Int64Array, nb: Int64Array, cover: Shares, of_a: int, of_b: int) -> Totals:
    pairs = sums.pairs.sum(axis=0)
    if of_a == 0 or of_b == 0:
        return Totals(sums.t.sum(axis=0), np.zeros(sums.sx.shape[1:]), pairs, exact=True)
    if cover.area == 0:
        return _unknown(sums.t.shape[1:], pairs)
    everything = float(of_a) * of_b
    value = sums.t.sum(axis=0) * (everything / cover.area)
    if cover.area == everything:
        return Totals(value, np.zeros(sums.sx.shape[1:]), pairs, exact=True)
    n, m = na.astype(np.float64)[:, None, None, None], nb.astype(np.float64)[:, None, None, None]
    usable = (na >= 2) & (nb >= 2)
    if not usable.any():
        return Totals(value, np.full(sums.sx.shape[1:], np.nan), pairs)
    a2, b2, sg = components(sums, n, m, of_a, of_b)
    weight = (na.astype(np.float64) * nb)[usable]
    mean_a, mean_b, mean_g = (np.average(square[usable], axis=0, weights=weight) for square in (a2, b2, sg))
    w, v = cover.rows, cover.columns
    covariance = everything**2 * (
        mean_a * (w - 1 / of_a) + mean_b * (v - 1 / of_b) + mean_g * (1 / cover.area - w / of_b - v / of_a + 1 / everything)
    )
    return Totals(value, covariance, pairs, parts=_parts(sums, na, nb, of_a, of_b, alike=True))


def staggered(sums: Sums, rows_a: Int64Array, rows_b: Int64Array, of_a: int, of_b: int) -> Totals:
    """Partitions by key, (P, G, K), each last joined when `rows_a[i]` and `rows_b[i]` rows had been read of all partitions.

        T^ = sum_i t_i/(p_i r_i)
        V^ = sum_i [(1-p_i) SX_i + (1-r_i) SY_i - (1-p_i)(1-r_i) Q_i]/(p_i r_i)^2
             - 1/(N-1) sum_ij T^_i T^_j min(qA_i, qA_j) - 1/(M-1) sum_ij T^_i T^_j min(qB_i, qB_j),   qA = (1-p)/p, qB = (1-r)/r

    V^ is right up to relative terms of 1/n + 1/m, and may be negative early. A partition may have been read completely on
    one side only: a stratum of heavy keys that was fetched first has p = 1. Joins must be triggered by global counts, never
    by a partition's own size. Partitions of equal counts are one rectangle, and get its unbiased formula.
    """
    n, m = np.asarray(rows_a, np.int64), np.asarray(rows_b, np.int64)
    if sums.t.ndim != 3 or n.shape != (len(sums.t),) or m.shape != (len(sums.t),):
        raise ParameterError(f"each of the {len(sums.t)} partitions needs its counts of rows; got {n.shape} and {m.shape}")
    for counts, total, side in ((n, of_a, "A"), (m, of_b, "B")):
        _check_rows(int(counts.min()), total, side)
        _check_rows(int(counts.max()), total, side)
    pairs = sums.pairs.sum(axis=0)
    if (n == n[0]).all() and (m == m[0]).all():
        whole = Sums(sums.t.sum(axis=0), sums.sx.sum(axis=0), sums.sy.sum(axis=0), sums.q.sum(axis=0), pairs)
        return replace(rectangle(whole, int(n[0]), int(m[0]), of_a, of_b), parts=_parts(sums, n, m, of_a, of_b))
    if (n == 0).any() or (m == 0).any():
        return _unknown(sums.t.shape[1:], pairs)
    p, r = n / of_a, m / of_b
    scale = 1 / (p * r)
    each = sums.t * scale[:, None, None]
    left_a, left_b, square = ((column[:, None, None, None]) for column in (1 - p, 1 - r, scale**2))
    inner = _times(left_a, sums.sx) + _times(left_b, sums.sy) - _times(left_a * left_b, sums.q)
    own = (inner * square).sum(axis=0)
    covariance = own - _centre(each, (1 - p) / p, of_a) - _centre(each, (1 - r) / r, of_b)
    return Totals(each.sum(axis=0), covariance, pairs, parts=Parts(sums, p, r))


def _parts(sums: Sums, n: Int64Array, m: Int64Array, of_a: Rows, of_b: Rows, *, alike: bool = False) -> Parts:
    return Parts(sums, n / np.maximum(of_a, 1), m / np.maximum(of_b, 1), alike)


def _centre(each: FloatArray, odds: FloatArray, rows: int) -> FloatArray:
    """1/(N-1) sum_ij T_i T_j min(q_i, q_j)."""
    if rows < 2:
        return np.zeros(())
    return smaller_of_two(each, odds) / (rows - 1)


def smaller_of_two(each: FloatArray, weights: FloatArray) -> FloatArray:
    """sum_ij min(w_i, w_j) T_i T_j' for T (P, ..., K): in P log P, by adding up what lies above each weight."""
    order = np.argsort(weights, kind="stable")
    steps = np.diff(weights[order], prepend=0.0)
    above: FloatArray = np.cumsum(each[order][::-1], axis=0)[::-1]
    return np.einsum("i,i...k,i...l->...kl", steps, above, above)


def staggered_blocks(
    x: FloatArray,
    y: FloatArray,
    f: FloatArray,
    pairs: Int64Array,
    blocks_a: Int64Array,
    blocks_b: Int64Array,
    of_a: int,
    of_b: int,
) -> Totals:
    """Partitions as in `staggered`, where whole blocks of rows came in random order. Blocks span partitions, so that

        V^ = sum_ij (1 - max(p_i, p_j)) sum over blocks a of X_ai X_aj/(p_i r_i p_j r_j)
             + sum_ij (1 - max(r_i, r_j)) the same over blocks b with Y
             - sum_ij (1 - max(p_i, p_j)) (1 - max(r_i, r_j)) the same over pairs of blocks with F, less the centre terms there

    x (blocks of A, P, K), y (blocks of B, P, K), f (pairs of blocks, P, K): totals per partition as joined, 0 where there is
    none. `blocks_a`, `blocks_b` (P,): blocks read when a partition was last joined, in the same order on both sides.
    """
    n, m = np.asarray(blocks_a, np.int64), np.asarray(blocks_b, np.int64)
    if not (x.ndim == y.ndim == f.ndim == 3 and x.shape[1:] == y.shape[1:] == f.shape[1:] and len(n) == len(m) == x.shape[1]):
        raise ParameterError(
            "blocks need totals of the same partitions and functions on both sides, and counts for each partition"
        )
    if len(n) == 0 or n.min() < 1 or m.min() < 1 or n.max() > of_a or m.max() > of_b:
        raise ParameterError(f"every partition needs 1 to {of_a} blocks of A and 1 to {of_b} of B")
    if not _same_order(n, m):
        raise ParameterError("partitions must have been joined in the same order on both sides; count both when a join starts")
    p, r = n / of_a, m / of_b
    scale = (1 / (p * r))[None, :, None]
    over_a, over_b, over_pairs = (np.swapaxes(total * scale, 0, 1) for total in (x, y, f))  # (P, blocks, K)
    each = over_a.sum(axis=1)
    covariance = (
        smaller_of_two(over_a, 1 - p).sum(axis=0)
        + smaller_of_two(over_b, 1 - r).sum(axis=0)
        - smaller_of_two(over_pairs, (1 - p) * (1 - r)).sum(axis=0)
        - _centre(each, (1 - p) / p, of_a)
        - _centre(each, (1 - r) / r, of_b)
    )
    exact = bool((n == of_a).all() and (m == of_b).all())
    return Totals(each.sum(axis=0)[None], covariance[None], np.asarray(pairs, np.int64).reshape(1), exact)


def _same_order(n: Int64Array, m: Int64Array) -> bool:
    order = np.lexsort((m, n))
    return bool((np.diff(m[order]) >= 0).all())


def finishing(
    sums: Sums, own_a: Int64Array, own_b: Int64Array, total_a: Int64Array, total_b: Int64Array
) -> Totals:  # fmt: skip
    """PR-Join once all input is read: `own_a[i]` of the `total_a[i]` rows of partition i have met `own_b[i]` of `total_b[i]`.

    Finished partitions are exact, each of the others is a rectangle of known sizes, and given those sizes they are independent:
    T^ and V^ add up. V^ ends at 0 and T^ at the answer.
    """
    sizes = [np.asarray(array, np.int64) for array in (own_a, own_b, total_a, total_b)]
    if sums.t.ndim != 3 or any(array.shape != (len(sums.t),) for array in sizes):
        raise ParameterError(f"each of the {len(sums.t)} partitions needs four counts of rows")
    n, m, of_a, of_b = sizes
    if (n < 0).any() or (m < 0).any() or (n > of_a).any() or (m > of_b).any():
        raise ParameterError("no partition can have joined more rows than it has; give rows joined, then rows in all")
    value, covariance = _rectangles(sums, n, m, of_a, of_b)
    exact = bool((((n == of_a) & (m == of_b)) | (of_a == 0) | (of_b == 0)).all())
    parts = _parts(sums, n, m, of_a, of_b)
    return Totals(value.sum(axis=0), covariance.sum(axis=0), sums.pairs.sum(axis=0), exact, parts=parts)


def sample_of_parts(done: Sums, parts: int) -> Totals:
    """GRACE's join phase: `done` (d, G, K) are d of `parts` partitions, drawn at random. t with d - 1 degrees of freedom."""
    d = len(done.t)
    if done.t.ndim != 3 or not 0 <= d <= parts:
        raise ParameterError(f"partitions done must be at most all {parts}, as an axis in front; got {done.t.shape}")
    pairs = done.pairs.sum(axis=0)
    if d == parts:
        return exactly(Sums(done.t.sum(axis=0), done.sx.sum(axis=0), done.sy.sum(axis=0), done.q.sum(axis=0), pairs))
    if d == 0:
        return _unknown(done.t.shape[1:], pairs)
    value = parts * done.t.mean(axis=0)
    if d == 1:
        return Totals(value, np.full(done.sx.shape[1:], np.nan), pairs, degrees=1.0)
    off = done.t - done.t.mean(axis=0)
    spread = np.einsum("igk,igl->gkl", off, off) / (d - 1)
    return Totals(value, parts**2 * (1 - d / parts) * spread / d, pairs, degrees=float(d - 1))


def _one(sums: Sums) -> Sums:
    """As the only one of several."""
    return Sums(sums.t[None], sums.sx[None], sums.sy[None], sums.q[None], sums.pairs[None])


def _only(sums: Sums) -> Sums:
    return Sums(sums.t[0], sums.sx[0], sums.sy[0], sums.q[0], sums.pairs[0])


def _unknown(shape: tuple[int, ...], pairs: Int64Array) -> Totals:
    groups, functions = shape
    return Totals(np.full(shape, np.nan), np.full((groups, functions, functions), np.nan), pairs)


def _check_rows(count: int, total: int, side: str) -> None:
    if not 0 <= count <= total:
        raise ParameterError(f"rows read of {side} must be from 0 to all {total} of them; got {count}")
