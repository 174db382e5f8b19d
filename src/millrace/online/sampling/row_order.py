"""Whether rows come in random order, and how much variance blocks add if only blocks of rows do.

Rows of some blocks of either side are looked at before the start. If no column differs between blocks more than by chance, and
blocks of one side do not meet blocks of the other of their own, rows are as good as random. Otherwise the sampled rows are
joined, and the variance of blocks is estimated from them. With qA = (1-p)/p and qB = (1-r)/r, p and r the shares that have been
read, the variance of a total is

    V = qA EA + qB EB + qA qB EG

with other E for rows and for blocks (`clusters`). What blocks add is the difference; how much wider intervals get depends on
how far reading has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from millrace.core.arrays import FloatArray
from millrace.core.errors import ParameterError
from millrace.online.pair_functions import Functions
from millrace.online.protocol import A, B
from millrace.online.question.sides import Side
from millrace.online.sampling.block_variance import FEWEST_BLOCKS, Matches, Sampled
from millrace.online.sampling.rank_tests import columns_in_order
from millrace.online.statistics.estimators import Totals
from millrace.online.statistics.pieces_snapshot import PiecesSnapshot
from millrace.online.tables.sources import Source

ORDERS = ("auto", "random", "blocks")
Chosen = Literal["auto", "random", "blocks"]
_RANKED_ROWS = 1024  # of a block: as many tell whether a column differs
_UNKNOWN = (
    "rows do not come in random order, and some blocks do not show how much that matters, so there is no interval until the "
    'end. Scramble the table once; if rows do come in random order, say order="random"'
)
_WIDER = (
    "rows do not come in random order: {what}. Intervals count blocks instead. Scramble the table once for narrower ones; "
    'order="random" switches this off'
)


@dataclass(frozen=True)
class Clusters:
    """What blocks add to V: `a`, `b`, `g` (K, K) with qA, qB and qA qB. `rows`: EA, EB and EG of rows in random order.

    They are without bias, and by chance below 0 in some direction. Who asks for a variance takes 0 there, once samples have
    been pooled and for each of the three by itself.

    The first `functions` of the K are those of the question, the others count the pairs of some groups.
    """

    a: FloatArray
    b: FloatArray
    g: FloatArray
    rows: tuple[FloatArray, FloatArray, FloatArray]
    block_rows: tuple[int, int]  # 1: this side comes in random order
    functions: int
    degrees: float  # of freedom: blocks with a match in the sample, less one

    def added(self, p: float, r: float) -> tuple[tuple[FloatArray, FloatArray, FloatArray], FloatArray]:
        """With these shares read: what blocks add, three of (K, K), and the ratio of both variances to that of rows, (K,)."""
        qa, qb = (1 - p) / p, (1 - r) / r
        more = (qa * self.a, qb * self.b, qa * qb * self.g)
        one, two, both = (np.diagonal(each) for each in self.rows)
        rows = qa * one + qb * two + qa * qb * both
        blocks = sum(np.maximum(np.diagonal(each), 0.0) for each in more)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(rows > 0, 1 + blocks / rows, 1.0)
        return more, ratio

    def pooled(self, other: Clusters) -> Clusters:
        """Of two samples, each by its degrees of freedom. They may be of the same blocks, so that these do not add up."""
        if len(self.a) != len(other.a):
            return self
        share = self.degrees / (self.degrees + other.degrees)
        mine, theirs = ((each.a, each.b, each.g, *each.rows) for each in (self, other))
        a, b, g, *rows = (share * one + (1 - share) * two for one, two in zip(mine, theirs, strict=True))
        degrees = max(self.degrees, other.degrees)
        return replace(self, a=a, b=b, g=g, rows=(rows[0], rows[1], rows[2]), degrees=degrees)


@dataclass(frozen=True)
class Order:
    """`inflation`: about how many times the variance of rows it is; NaN: nobody knows, so that there is no interval."""

    use: Literal["rows", "blocks"]
    inflation: float = 1.0
    message: str | None = None
    clusters: Clusters | None = field(default=None, repr=False, compare=False)

    def applied(self, totals: Totals, pieces: PiecesSnapshot, of_a: int, of_b: int) -> tuple[Totals, Order]:
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
        functions = self.clusters.functions
        covariance, added = totals.covariance, totals.added
        if len(totals.value) == 1 and totals.value.shape[1] == functions:
            # of finished partitions there is no doubt, whatever block their rows are in
            added += tuple(each[None, :functions, :functions] * open_.mean() ** 2 for each in more)
        else:  # groups, or functions that were not sampled: by the largest ratio of those that were
            covariance = covariance * ratio.max()
        degrees = min(totals.degrees, self.clusters.degrees, 2 * (blocks - 1))  # few blocks are not normal, either
        widened = replace(totals, covariance=covariance, degrees=degrees, added=added)
        return widened, replace(self, inflation=float(ratio.max()))


UNKNOWN = Order("blocks", float("nan"), _UNKNOWN)


def check_sources(
    sources: tuple[Source, Source], samples: tuple[Sequence[pa.RecordBatch], Sequence[pa.RecordBatch]],
    sizes: tuple[Sequence[int], Sequence[int]], sides: tuple[Side, Side], functions: Functions, chosen: Chosen,
) -> Order:  # fmt: skip
    """From a sample of each side: batches that are parts of blocks, and how many rows those have."""
    if chosen not in ORDERS:
        raise ParameterError(f"order must be one of {', '.join(ORDERS)}; got {chosen!r}")
    if chosen == "random" or all(source.random for source in sources) or 0 in (sources[A].rows, sources[B].rows):
        return Order("rows")
    ordered = [
        set() if source.random else columns_in_order([batch[:_RANKED_ROWS] for batch in sample], neighbours=False)
        for source, sample in zip(sources, samples, strict=True)
    ]
    found = [Sampled(*each) for each in zip(sides, sources, samples, sizes, strict=True)]
    matches = Matches(found[A], found[B], functions)
    why = _difference(sources, sides, ordered, found, matches)
    if why is None and chosen == "auto":
        return Order("rows")
    if why is not None and not isinstance(why, str):
        mates, what = why
        return _with_mates(matches, mates, sources, what)
    if matches.blocks < FEWEST_BLOCKS or not np.isfinite(matches.values).all():
        return UNKNOWN
    rows, blocks = matches.expected(sources)
    more = [block - row for block, row in zip(blocks, rows, strict=True)]
    return _order(matches, more, rows, sources, why or "it was said so")


def _order(
    matches: Matches, more: list[FloatArray], rows: list[FloatArray], sources: tuple[Source, Source], what: str
) -> Order:
    sizes = [1 if source.random else source.block_rows for source in sources]
    clusters = Clusters(
        more[0], more[1], more[2], (rows[0], rows[1], rows[2]), (sizes[A], sizes[B]), matches.functions, matches.blocks - 1.0
    )
    share = 0.1  # an inflation to show: with so much of either side read
    return Order("blocks", float(clusters.added(share, share)[1].max()), _WIDER.format(what=what), clusters)


Mates = tuple[tuple[float, float], str]


def _difference(
    sources: tuple[Source, Source], sides: tuple[Side, Side], ordered: list[set[str]], found: list[Sampled], matches: Matches
) -> str | Mates | None:
    """What tells that blocks differ: in words, or (how many rows of the same key lie in the block of a row, words)."""
    values = [f"{('left', 'right')[side]}.{name}" for side in (A, B) for name in sorted(ordered[side] - set(sides[side].key))]
    if values:
        return f"blocks differ in {', '.join(values)}"
    keys = [bool(ordered[side] & set(sides[side].key)) for side in (A, B)]
    if all(keys):
        return "both tables are ordered by their keys"
    if not any(source.random for source in sources) and matches.meet_their_own:
        return "blocks of one table meet blocks of the other of their own"
    if any(keys) and matches.check() == "blocks":
        return "blocks of keys differ in what they meet"
    mates = [found[side].mates() if keys[side] else 0.0 for side in (A, B)]
    if any(mates):
        return (mates[A], mates[B]), "rows of the same key lie together"
    return None


def _with_mates(matches: Matches, mates: tuple[float, float], sources: tuple[Source, Source], what: str) -> Order:
    """Rows of one key are read together, and meet the same rows of the other side: each counts for itself and its mates."""
    if matches.blocks < FEWEST_BLOCKS or not np.isfinite(matches.values).all():
        return UNKNOWN
    rows, _ = matches.expected(sources)
    rows = [_above_0(each) for each in rows]
    a, b = mates
    more = [a * rows[0], b * rows[1], ((1 + a) * (1 + b) - 1) * rows[2]]
    return _order(matches, more, rows, sources, what)


def _above_0(matrix: FloatArray) -> FloatArray:
    """The nearest matrix that can be a covariance."""
    if not np.isfinite(matrix).all():
        return np.full_like(matrix, np.nan)
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    clipped: FloatArray = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return clipped


def agreed(first: Order, second: Order) -> Order:
    """What two samples of the same tables say together: blocks if both do."""
    if second.use == "rows" or first.clusters is None:
        return second
    if second.clusters is None:
        return first
    return replace(first, inflation=(first.inflation + second.inflation) / 2, clusters=first.clusters.pooled(second.clusters))
