"""Whether rows come in random order, and how much variance blocks add if only blocks of rows do.

A few rows of some blocks of either side are joined, and the variance that their blocks show is compared with the one that their
rows show. With qA = (1-p)/p and qB = (1-r)/r, p and r the shares that have been read, the variance of a total is

    V = qA EA + qB EB + qA qB EG        EA, EB, EG from the mean squares of A's rows, B's rows, their interaction

and what blocks add is the same form with the differences of E between blocks and rows. They grow with the length of a block, as
in any sample by clusters (Kish, Survey Sampling, 1965): b rows of a block were seen, it has B, so that the difference is
(B-1)/(b-1) times what the sample shows. How much wider intervals get therefore depends on how far reading has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from millrace.core.errors import ParameterError
from millrace.core.step import Int64Array
from millrace.online.answers import Pieces
from millrace.online.estimators import Totals, components, rectangle
from millrace.online.functions import Functions, Products
from millrace.online.intervals import check_order
from millrace.online.protocol import A, B
from millrace.online.sides import Side
from millrace.online.sources import Source
from millrace.online.sums import FloatArray, KeyMoments, Sums, sums_of_keys

ORDERS = ("auto", "random", "blocks")
Chosen = Literal["auto", "random", "blocks"]
SAMPLE_BLOCKS = 16
_UNKNOWN = (
    "whether rows come in random order can't be told from the first blocks, so there is no interval until the end. If they do, "
    'say order="random"; otherwise scramble the table once'
)


@dataclass(frozen=True)
class Clusters:
    """What blocks add to V: `a`, `b`, `g` (K, K) with qA, qB and qA qB. `rows`: EA, EB and EG of rows in random order."""

    a: FloatArray
    b: FloatArray
    g: FloatArray
    rows: tuple[FloatArray, FloatArray, FloatArray]
    block_rows: tuple[int, int]  # 1: this side comes in random order

    def added(self, p: float, r: float) -> tuple[FloatArray, FloatArray]:
        """With these shares read: what blocks add, (K, K), and the ratio of both variances to that of rows, (K,)."""
        qa, qb = (1 - p) / p, (1 - r) / r
        more: FloatArray = qa * self.a + qb * self.b + qa * qb * self.g
        one, two, both = (np.diagonal(each) for each in self.rows)
        rows = np.maximum(qa * one + qb * two + qa * qb * both, np.finfo(np.float64).tiny)
        ratio: FloatArray = 1 + np.diagonal(more) / rows
        return more, ratio

    def mean(self, other: Clusters) -> Clusters:
        """Of two samples."""
        a, b, g = ((one + two) / 2 for one, two in ((self.a, other.a), (self.b, other.b), (self.g, other.g)))
        rows = [(one + two) / 2 for one, two in zip(self.rows, other.rows, strict=True)]
        return Clusters(a, b, g, (rows[0], rows[1], rows[2]), self.block_rows)


@dataclass(frozen=True)
class Order:
    """`inflation`: about how many times the variance of rows it is; NaN: nobody knows, so that there is no interval."""

    use: Literal["rows", "blocks"]
    inflation: float = 1.0
    message: str | None = None
    clusters: Clusters | None = field(default=None, repr=False, compare=False)

    def applied(self, totals: Totals, pieces: Pieces, of_a: int, of_b: int) -> tuple[Totals, Order]:
        """Totals with the variance of blocks, and the order with what that came to. Fewer than two blocks give no interval,
        few of them a wide one."""
        if self.use == "rows" or totals.exact:
            return totals, self
        unknown = replace(totals, covariance=np.full_like(totals.covariance, np.nan)), self
        open_ = ~pieces.exact
        rows = (pieces.rows_a[open_], pieces.rows_b[open_])
        if self.clusters is None or not open_.any() or min(rows[A].min(), rows[B].min()) < 1:
            return unknown
        p, r = (min(1.0, float(1 / np.mean(total / each))) for total, each in zip((of_a, of_b), rows, strict=True))
        sizes = zip(self.clusters.block_rows, (p * of_a, r * of_b), strict=True)
        blocks = min(read / size for size, read in sizes if size > 1)
        if blocks < 2:
            return unknown
        more, ratio = self.clusters.added(p, r)
        more = more * open_.mean() ** 2  # of finished partitions there is no doubt, whatever block their rows are in
        if len(totals.value) == 1 and totals.value.shape[1] == len(more):
            covariance = totals.covariance + more
        else:  # groups, or functions that were not sampled: by the ratio of the whole
            root = np.sqrt(ratio if totals.value.shape[1] == len(more) else np.full(totals.value.shape[1], ratio.max()))
            covariance = totals.covariance * (root[:, None] * root)
        widened = replace(totals, covariance=covariance, degrees=min(totals.degrees, blocks - 1))
        return widened, replace(self, inflation=float(ratio.max()))


def check_sources(
    sources: tuple[Source, Source], samples: tuple[Sequence[pa.RecordBatch], Sequence[pa.RecordBatch]],
    sides: tuple[Side, Side], functions: Functions, chosen: Chosen,
) -> Order:  # fmt: skip
    """From a sample of each side: batches that are parts of blocks."""
    if chosen not in ORDERS:
        raise ParameterError(f"order must be one of {', '.join(ORDERS)}; got {chosen!r}")
    if chosen == "random" or all(source.random for source in sources) or 0 in (sources[A].rows, sources[B].rows):
        return Order("rows")
    found = [_Sampled(side, sample, functions) for side, sample in zip(sides, samples, strict=True)]
    a, b = found
    keys = np.intersect1d(a.codes, b.codes)
    if not len(keys) or min(a.blocks, b.blocks) < 2:
        return Order("blocks", float("nan"), _UNKNOWN)
    for each in found:
        each.keep(keys)
    rows = sums_of_keys(KeyMoments.of(a.cells, a.values, len(keys)), KeyMoments.of(b.cells, b.values, len(keys)))
    shares = [source.rows / each.rows for source, each in zip(sources, found, strict=True)]
    whole = [max(each.blocks, round(each.blocks * share)) for each, share in zip(found, shares, strict=True)]
    blocks = _blocks(a, b, len(keys))
    check = check_order(
        rectangle(rows, a.rows, b.rows, sources[A].rows, sources[B].rows),
        rectangle(blocks, a.blocks, b.blocks, *whole),
        min(each.blocks for each, source in zip(found, sources, strict=True) if not source.random),
    )
    if check.use == "rows" and chosen == "auto":
        return Order("rows")
    if not np.isfinite(check.ratio):
        return Order("blocks", float("nan"), _UNKNOWN)
    of_rows = _scaled(rows, (a.rows, b.rows), (sources[A].rows, sources[B].rows))
    of_blocks = _scaled(blocks, (a.blocks, b.blocks), (whole[A], whole[B]))
    longer = [
        0.0 if source.random else max(1.0, (source.block_rows - 1) / max(1.0, each.rows / each.blocks - 1))
        for source, each in zip(sources, found, strict=True)
    ]
    times = (longer[A], longer[B], max(1.0, longer[A]) * max(1.0, longer[B]))
    more = [_above_0(n * (one - other)) for n, one, other in zip(times, of_blocks, of_rows, strict=True)]
    sizes = tuple(1 if source.random else source.block_rows for source in sources)
    clusters = Clusters(more[0], more[1], more[2], of_rows, (sizes[A], sizes[B]))
    return Order("blocks", check.ratio, check.message, clusters)


Three = tuple[FloatArray, FloatArray, FloatArray]


def _scaled(sums: Sums, read: tuple[int, int], of: tuple[int, int]) -> Three:
    """EA, EB and EG, from mean squares."""
    n, m = (np.full((1, 1, 1), float(count)) for count in read)
    a, b, g = components(sums, n, m, *of)
    big_n, big_m = float(of[A]), float(of[B])
    return a[0] * big_n * big_m**2, b[0] * big_n**2 * big_m, g[0] * big_n * big_m


def _above_0(matrix: FloatArray) -> FloatArray:
    """The nearest matrix that can be a covariance."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    clipped: FloatArray = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return clipped


def agreed(first: Order, second: Order) -> Order:
    """What two samples of the same tables say together: blocks if both do."""
    if second.use == "rows" or first.clusters is None:
        return second
    if second.clusters is None:
        return first
    return replace(first, inflation=(first.inflation + second.inflation) / 2, clusters=first.clusters.mean(second.clusters))


class _Sampled:
    """The rows of a sample that can join: code, block, values of the functions."""

    def __init__(self, side: Side, batches: Sequence[pa.RecordBatch], functions: Functions) -> None:
        self.blocks = len(batches)
        self.rows = sum(batch.num_rows for batch in batches)
        words = [side.numbered(batch)[0] for batch in batches]
        self.block: Int64Array = np.repeat(np.arange(len(words)), [len(part) for part in words])
        every = np.concatenate(words) if words else np.zeros((0, side.width), np.int64)
        self.codes: Int64Array = every[:, 0]
        self.values: FloatArray = np.ones((len(every), 1))
        if isinstance(functions, Products):
            factors = functions.left if side.number == A else functions.right
            self.values = np.stack([_product(every, factor) for factor in factors], axis=1)

    def keep(self, keys: Int64Array) -> None:
        place = np.minimum(np.searchsorted(keys, self.codes), len(keys) - 1)
        there = keys[place] == self.codes
        self.cells: Int64Array = place[there]
        self.block, self.values = self.block[there], self.values[there]

    def by_block(self, function: int, keys: int) -> FloatArray:
        """Sums of a function by block and key, (blocks, keys)."""
        at = self.block * keys + self.cells
        sums: FloatArray = np.bincount(at, self.values[:, function], self.blocks * keys).astype(np.float64)
        return sums.reshape(self.blocks, keys)


def _product(words: Int64Array, factor: tuple[int, ...]) -> FloatArray:
    value = np.ones(len(words))
    for word in factor:
        value = value * words[:, word].copy().view(np.float64)
    return value


def _blocks(a: _Sampled, b: _Sampled, keys: int) -> Sums:
    """The sums with each block as one row."""
    f = np.stack([a.by_block(k, keys) @ b.by_block(k, keys).T for k in range(a.values.shape[1])])
    x, y = f.sum(axis=2), f.sum(axis=1)
    flat = f.reshape(len(f), -1)
    pairs = np.bincount(a.cells, minlength=keys) @ np.bincount(b.cells, minlength=keys)
    return Sums(f.sum(axis=(1, 2))[None], (x @ x.T)[None], (y @ y.T)[None], (flat @ flat.T)[None], np.array([pairs], np.int64))
