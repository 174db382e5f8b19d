"""Whether rows lie in random order, as far as the columns themselves tell: rank tests, which no heavy tail disturbs.

Segments of rows that lie together differ if their mean ranks vary more than chance lets them (Kruskal and Wallis, 1952).
Neighbours resemble each other if their ranks go together (Wald and Wolfowitz, 1943; Bartels, 1982): sorted rows, and rows of
one key side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.arrays import FloatArray, Int64Array
from millrace.online.question.evaluate import plain

SURE = 4.0  # standard deviations: one column in 30,000 that is in random order is taken for another


def columns_in_order(segments: Sequence[pa.RecordBatch], *, neighbours: bool) -> set[str]:
    """Columns whose values depend on the segment they are in, or (`neighbours`) on the row before."""
    found: set[str] = set()
    filled = [segment for segment in segments if segment.num_rows]
    if not filled:
        return found
    lengths = np.array([segment.num_rows for segment in filled])
    for name in filled[0].schema.names:
        ranks = _ranks(pa.concat_arrays([plain(segment.column(name)) for segment in filled]))
        if ranks is None:
            continue
        if _between(ranks, lengths) > SURE or (neighbours and abs(_neighbours(ranks, lengths)) > SURE):
            found.add(name)
    return found


def _ranks(column: pa.Array) -> FloatArray | None:
    """Of mean 0 and variance 1; None: all values are the same. Equal values have one rank, NULL is the last."""
    if pa.types.is_nested(column.type):
        column = column.is_valid()
    coded = column.dictionary_encode(null_encoding="encode")
    values = coded.dictionary
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    order = pc.array_sort_indices(values).to_numpy(zero_copy_only=False)
    rank = np.empty(len(order))
    rank[order] = np.arange(len(order))
    every = rank[coded.indices.to_numpy(zero_copy_only=False)]
    deviation = float(every.std())
    return (every - every.mean()) / deviation if deviation > 0 else None


def _between(ranks: FloatArray, lengths: Int64Array) -> float:
    """Chi-squared of the means of segments, as a normal deviate (Wilson and Hilferty, 1931)."""
    freedom = len(lengths) - 1
    if freedom < 1:
        return 0.0
    sums = np.add.reduceat(ranks, np.concatenate(([0], np.cumsum(lengths)[:-1])))
    square = float((sums**2 / lengths).sum()) * (1 - 1 / len(ranks))
    part = 2 / (9 * freedom)
    return float(((square / freedom) ** (1 / 3) - (1 - part)) / math.sqrt(part))


def _neighbours(ranks: FloatArray, lengths: Int64Array) -> float:
    """Their serial correlation over its standard deviation."""
    inside = np.ones(len(ranks) - 1, np.bool_)
    inside[np.cumsum(lengths)[:-1] - 1] = False
    count = int(inside.sum())
    if count < 16:
        return 0.0
    return float((ranks[:-1] * ranks[1:])[inside].sum() + count / len(ranks)) / math.sqrt(count)
