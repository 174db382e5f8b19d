"""What a sample of blocks of either side tells about the variance of a total that is read block by block.

With P(s, t) the sum of f(a,b) f(a',b') over all a, a' that are s = 0 the same row, 1 two rows of one block, 2 rows of two
blocks, and b, b' that are t, a dot for the sum over 0, 1 and 2, and T = P(.,.) the square of the total, the variance of T^
(`order`) rests on

    rows      EA = P(0,.) - T/N              EB = P(.,0) - T/M              EG = P(0,0) - P(0,.)/M - P(.,0)/N + T/NM
    blocks    the same with P(0,.) + P(1,.) instead of P(0,.), the like of B, and numbers of blocks instead of N and M

each times N/(N-1) and the like. Every P is estimated without bias, by the chance that two such rows are both in a sample of
blocks and then of their rows (Horvitz and Thompson, 1952).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.arrays import FloatArray, Int64Array
from millrace.online.pair_functions import Functions, Products
from millrace.online.protocol import A, B
from millrace.online.question.recorder import Recorder
from millrace.online.question.sides import Side
from millrace.online.statistics.estimators import rectangle
from millrace.online.statistics.intervals import check_order
from millrace.online.statistics.totals import Sums
from millrace.online.tables.sources import Source

SAMPLE_BLOCKS = 16
_MOST_PAIRS = 200_000  # of sampled rows
FEWEST_BLOCKS = 5  # with a match, to tell how much they differ
_MOST_FUNCTIONS = 8
_MOST_GROUPS = 8


class Sampled:
    """The rows of a sample that can join: words, block, and how many rows each stands for in its block."""

    def __init__(self, side: Side, source: Source, batches: Sequence[pa.RecordBatch], sizes: Sequence[int]) -> None:
        if source.random:  # any rows are a block
            batches = [piece for batch in batches for piece in _pieces(batch, -(-SAMPLE_BLOCKS // max(1, len(batches))))]
            sizes = [batch.num_rows for batch in batches]
        self.side, self.random = side, source.random
        self.rows = np.array([batch.num_rows for batch in batches], np.int64)  # of a block, sampled
        self.sizes = np.array(sizes[: len(batches)], np.int64)
        self.of_blocks = max(float(len(batches)), source.rows / max(1.0, self.sizes.mean()) if source.random else source.blocks)
        recorder = Recorder(side)
        words = [recorder.numbered(batch)[0] for batch in batches]
        self.block: Int64Array = np.repeat(np.arange(len(words)), [len(part) for part in words])
        self.words: Int64Array = np.concatenate(words) if words else np.zeros((0, side.width), np.int64)

    @property
    def codes(self) -> Int64Array:
        return self.words[:, 0]

    @property
    def weight(self) -> FloatArray:
        """Rows of the block for a row of the sample."""
        per_block: FloatArray = self.sizes / np.maximum(1, self.rows)
        return per_block[self.block]

    @property
    def shares(self) -> FloatArray:
        """The chance that a row's block is in the sample; for two rows of one block; for rows of two blocks."""
        count = len(self.rows)
        share = count / self.of_blocks
        both = share * (count - 1) / max(1e-9, self.of_blocks - 1)
        length, sampled = float(self.sizes.mean()), float(self.rows.mean())
        without = (1 - 1 / sampled) / (1 - 1 / length) if min(length, sampled) > 1 else 1.0  # drawn without putting back
        return np.array([share, share * without, both])

    def thinned(self, share: float) -> None:
        """Leave some rows away, of every block alike."""
        chosen = np.random.default_rng(0).random(len(self.words)) < share
        self.words, self.block = self.words[chosen], self.block[chosen]
        self.rows = np.maximum(1, np.rint(self.rows * share)).astype(np.int64)

    def mates(self) -> float:
        """How many more rows of its own key lie in the block of a row than would by chance; 0 if none are sure to."""
        _, key = np.unique(self.codes, return_inverse=True)
        _, here = np.unique(self.block * (int(key.max(initial=0)) + 1) + key, return_counts=True)
        every = np.bincount(key)
        rows = self.rows.astype(np.float64)
        within, across = float((here * (here - 1.0)).sum()), float((every * (every - 1.0)).sum())
        chances = float((rows * (rows - 1)).sum()), float(rows.sum() * (rows.sum() - 1))
        if not 0 < chances[0] < chances[1]:
            return 0.0
        by_chance = (across - within) / (chances[1] - chances[0])
        expected = by_chance * chances[0]
        if within <= expected + 6 * np.sqrt(expected) + 8:
            return 0.0
        return float((within / chances[0] - by_chance) * (self.sizes.mean() - 1))


def _pieces(batch: pa.RecordBatch, count: int) -> list[pa.RecordBatch]:
    length = max(1, -(-batch.num_rows // count))
    return [batch.slice(first, length) for first in range(0, batch.num_rows, length)]


class Matches:
    """The pairs of two samples, with the values of the functions, and of counts of some groups."""

    def __init__(self, a: Sampled, b: Sampled, functions: Functions) -> None:
        self.sampled = (a, b)
        common = _common(a.codes, b.codes)
        many = _pairs_of(a.codes[common[A]], b.codes[common[B]])
        if many > _MOST_PAIRS:
            for each in (a, b):
                each.thinned(float(np.sqrt(_MOST_PAIRS / many)))
            common = _common(a.codes, b.codes)
        at = _joined(a.codes[common[A]], b.codes[common[B]])
        self.a, self.b = common[A][at[A]], common[B][at[B]]
        self.pairs = len(self.a)
        self.values, groups = _values(functions, a.words[self.a], b.words[self.b])
        self.functions = min(self.values.shape[1], _MOST_FUNCTIONS)
        self.values = self.values[:, : self.functions]
        if groups is not None and self.pairs:
            kinds, counts = np.unique(groups, return_counts=True)
            some = kinds[np.argsort(-counts)[:_MOST_GROUPS]]
            self.values = np.concatenate([self.values, (groups[:, None] == some).astype(np.float64)], axis=1)

    @property
    def blocks(self) -> int:
        """With a match, of the side that has fewer."""
        at = (self.sampled[A].block[self.a], self.sampled[B].block[self.b])
        return min(len(np.unique(block)) for block, each in zip(at, self.sampled, strict=True) if not each.random)

    def check(self) -> str:
        """Whether what blocks of keys meet differs, as the variance between blocks tells."""
        a, b = self.sampled
        level = self._levels(self.values)
        count = np.array([self.pairs], np.int64)
        t = self.values.sum(axis=0)[None]
        of = [1000 * max(1, len(each.words)) for each in (a, b)]  # no finite population: both levels alike
        rows = Sums(t, level.xa[None], level.yb[None], level.q[None], count)
        blocks = Sums(t, level.xi[None], level.yj[None], level.f[None], count)
        few = min(len(each.rows) for each in (a, b) if not each.random)
        sampled, counts = [int(each.rows.sum()) for each in (a, b)], [len(each.rows) for each in (a, b)]
        return check_order(
            rectangle(rows, *sampled, *of), rectangle(blocks, *counts, *(1000 * n for n in counts)), max(1, few)
        ).use

    @property
    def meet_their_own(self) -> bool:
        """Two pairs are of the same two blocks more often than chance lets them."""
        if not self.pairs:
            return False
        n = _classes(self._levels(np.ones((self.pairs, 1))))
        chance = 1.0
        for each in self.sampled:
            rows = each.rows.astype(np.float64)
            same, every = float((rows * (rows - 1)).sum()), float(rows.sum() * (rows.sum() - 1))
            if every <= same:
                return False
            chance *= same / (every - same)
        expected = float(n[2, 2, 0, 0]) * chance
        return float(n[1, 1, 0, 0]) > 2 * expected + 6 * np.sqrt(max(0.0, expected)) + 8

    def _levels(self, values: FloatArray, ea: FloatArray | None = None, eb: FloatArray | None = None) -> _Levels:
        one = np.ones(self.pairs)
        return _Levels(self.sampled, (self.a, self.b), values, one if ea is None else ea, one if eb is None else eb)

    def expected(self, sources: tuple[Source, Source]) -> tuple[list[FloatArray], list[FloatArray]]:
        """EA, EB and EG of rows and of blocks."""
        a, b = self.sampled
        n = _classes(self._levels(self.values, a.weight[self.a], b.weight[self.b]))
        p = n / (a.shares[:, None] * b.shares)[:, :, None, None]
        of_rows = [float(source.rows) for source in sources]
        of_blocks = [rows if each.random else each.of_blocks for rows, each in zip(of_rows, self.sampled, strict=True)]
        last = [1 if each.random else 2 for each in self.sampled]
        rows = _squares(p, (1, 1), (of_rows[A], of_rows[B]))
        return rows, _squares(p, (last[A], last[B]), (of_blocks[A], of_blocks[B]))


def _squares(p: FloatArray, last: tuple[int, int], units: tuple[float, float]) -> list[FloatArray]:
    """EA, EB and EG where classes before `last` are of one unit."""
    i, j = last
    big_n, big_m = units
    total = p.sum(axis=(0, 1))
    x, y, q = p[:i].sum(axis=(0, 1)), p[:, :j].sum(axis=(0, 1)), p[:i, :j].sum(axis=(0, 1))
    more = [each / (each - 1) if each > 1 else 0.0 for each in units]
    return [
        (x - total / big_n) * more[0],
        (y - total / big_m) * more[1],
        (q - x / big_m - y / big_n + total / (big_n * big_m)) * more[0] * more[1],
    ]


class _Levels:
    """Sums of squares (K, K) of G = f ea eb over rows, blocks, and rows by block of the other side; those that end in _a
    or _b count a row for `ea` or `eb` others, not for their square."""

    def __init__(
        self, sampled: tuple[Sampled, Sampled], at: tuple[Int64Array, Int64Array], values: FloatArray, ea: FloatArray,
        eb: FloatArray,
    ) -> None:  # fmt: skip
        a, b = at
        i, j = sampled[A].block[a], sampled[B].block[b]
        g = values * (ea * eb)[:, None]
        blocks_a, blocks_b = (max(1, len(each.rows)) for each in sampled)
        self.q, self.q_a, self.q_b, self.q_ab = (_square(g, weight) for weight in (None, 1 / ea, 1 / eb, 1 / (ea * eb)))
        self.xaj, self.xaj_a = _grouped(a * blocks_b + j, g, 1 / ea)
        self.xa, self.xa_a = _grouped(a, g, 1 / ea)
        self.ybi, self.ybi_b = _grouped(b * blocks_a + i, g, 1 / eb)
        self.yb, self.yb_b = _grouped(b, g, 1 / eb)
        self.f = _grouped(i * blocks_b + j, g)[0]
        self.xi, self.yj = _grouped(i, g)[0], _grouped(j, g)[0]
        total = g.sum(axis=0)
        self.t: FloatArray = np.outer(total, total)


def _classes(e: _Levels) -> FloatArray:
    """Sums of products by how a and a', b and b' stand to each other, (3, 3, K, K)."""
    n: FloatArray = np.empty((3, 3, *e.q.shape))
    n[0, 0], n[0, 1], n[0, 2] = e.q_ab, e.xaj_a - e.q_a, e.xa_a - e.xaj_a
    n[1, 0], n[2, 0] = e.ybi_b - e.q_b, e.yb_b - e.ybi_b
    n[1, 1] = e.f - e.xaj - e.ybi + e.q
    n[1, 2] = e.xi - e.f - (e.xa - e.xaj)
    n[2, 1] = e.yj - e.f - (e.yb - e.ybi)
    n[2, 2] = e.t - e.xi - e.yj + e.f
    return n


def _square(g: FloatArray, weight: FloatArray | None = None) -> FloatArray:
    squares: FloatArray = g.T @ (g if weight is None else g * weight[:, None])
    return squares


def _grouped(place: Int64Array, g: FloatArray, weight: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
    """Squares of the sums by place, plain and weighted. The weight is the same for all of a place."""
    _, first, number = np.unique(place, return_index=True, return_inverse=True)
    sums: FloatArray = np.stack([np.bincount(number, column, len(first)).astype(np.float64) for column in g.T], axis=1)
    return _square(sums), _square(sums, None if weight is None else weight[first])


def _common(one: Int64Array, other: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Places of codes that are on both sides: few, mostly, and quicker to find by hashing than the pairs by sorting."""
    b = np.flatnonzero(pc.is_in(pa.array(other), pa.array(one)))
    a = np.flatnonzero(pc.is_in(pa.array(one), pa.array(other[b])))
    return a, b


def _pairs_of(one: Int64Array, other: Int64Array) -> int:
    keys, counts = np.unique(one, return_counts=True)
    places = np.searchsorted(keys, other)
    there = places < len(keys)
    there[there] = keys[places[there]] == other[there]
    return int(counts[places[there]].sum())


def _joined(one: Int64Array, other: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Places of all pairs with equal codes."""
    order = np.argsort(one, kind="stable")
    first, last = (np.searchsorted(one[order], other, side) for side in ("left", "right"))
    count = last - first
    b: Int64Array = np.repeat(np.arange(len(other)), count)
    start = np.repeat(first - np.concatenate(([0], np.cumsum(count)[:-1])), count)
    return order[start + np.arange(len(b))], b


def _values(functions: Functions, a: Int64Array, b: Int64Array) -> tuple[FloatArray, Int64Array | None]:
    """Of pairs: the functions, and the group."""
    if not isinstance(functions, Products):
        return functions.evaluate(a, b)
    values = np.stack(
        [_product(a, left) * _product(b, right) for left, right in zip(functions.left, functions.right, strict=True)], axis=1
    )
    if functions.group_a is None and functions.group_b is None:
        return values, None
    group = np.zeros(len(a), np.int64) if functions.group_a is None else a[:, functions.group_a]
    return values, group * functions.groups_b + (0 if functions.group_b is None else b[:, functions.group_b])


def _product(words: Int64Array, factor: tuple[int, ...]) -> FloatArray:
    value = np.ones(len(words))
    for word in factor:
        value = value * words[:, word].copy().view(np.float64)
    return value
