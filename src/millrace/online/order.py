"""Whether rows come in random order, and by how much intervals must be wider if only blocks of rows do.

A few rows of some blocks of either side are joined, and the variance that their blocks show is compared with the one that their
rows show. What blocks show grows with their length as in any sample by clusters: with b rows of a block seen and B in all,

    1 + (ratio - 1) B/b

times the variance of rows in random order (Kish, Survey Sampling, 1965).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from millrace.core.errors import ParameterError
from millrace.core.step import Int64Array
from millrace.online.estimators import rectangle
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
class Order:
    """`inflation`: what variances of rows are multiplied by; NaN: nobody knows, so that there is no interval."""

    use: Literal["rows", "blocks"]
    inflation: float = 1.0
    message: str | None = None


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
    check = check_order(
        rectangle(rows, a.rows, b.rows, sources[A].rows, sources[B].rows),
        rectangle(_blocks(a, b, len(keys)), a.blocks, b.blocks, *whole),
        min(each.blocks for each, source in zip(found, sources, strict=True) if not source.random),
    )
    if check.use == "rows" and chosen == "auto":
        return Order("rows")
    if not np.isfinite(check.ratio):
        return Order("blocks", float("nan"), _UNKNOWN)
    longer = max(
        source.block_rows * each.blocks / each.rows for source, each in zip(sources, found, strict=True) if not source.random
    )
    return Order("blocks", 1 + max(0.0, check.ratio - 1) * max(1.0, longer), check.message)


def agreed(first: Order, second: Order) -> Order:
    """What two samples of the same tables say together: blocks if both do."""
    if second.use == "rows" or not np.isfinite(first.inflation):
        return second
    if not np.isfinite(second.inflation):
        return first
    return Order("blocks", (first.inflation + second.inflation) / 2, first.message)


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
