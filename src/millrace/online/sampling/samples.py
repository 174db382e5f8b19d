"""A look at some rows before a run starts: how many groups there may be, how long texts are, about where values lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.arrays import FloatArray
from millrace.core.errors import ParameterError
from millrace.online.protocol import A, B
from millrace.online.question.evaluate import doubles, evaluate, plain
from millrace.online.question.expressions import Expression, products
from millrace.online.question.query import MOST_GROUPS, Question, Room
from millrace.online.question.sides import Grouping, NeedsRoom
from millrace.online.sampling.block_variance import SAMPLE_BLOCKS
from millrace.online.statistics.aggregates import functions_needed
from millrace.online.tables.sources import Source

Batches = Sequence[pa.RecordBatch]
_BLOCK_ROWS = 8192
_MOST_BLOCKS = 256
_SAMPLE_ROWS, _MORE_ROWS = 1 << 12, 1 << 20  # of small blocks more are taken: of so many rows in all
Sizes = Sequence[int]
Look = Literal["first", "more", "most"]


def block_sizes(
    sources: tuple[Source, Source], question: Question, memory_bytes: int, seed: int, look: Look = "first"
) -> tuple[Sizes, Sizes]:
    """How many rows the blocks of a sample have."""

    def of(side: int) -> Sizes:
        blocks, _ = _extent(sources[side], question.columns(side), memory_bytes, look)
        return sources[side].sampled_rows(blocks, 2 * seed + side)

    return of(A), of(B)


def take_samples(
    sources: tuple[Source, Source], question: Question, memory_bytes: int, seed: int, look: Look = "first"
) -> tuple[Batches, Batches]:
    """Parts of blocks of either side, an eighth of the memory at most. They go before the join takes any."""

    def of(side: int) -> Batches:
        columns = question.columns(side)
        return sources[side].sample(columns, *_extent(sources[side], columns, memory_bytes, look), 2 * seed + side)

    return of(A), of(B)


def _extent(source: Source, columns: Sequence[str], memory_bytes: int, look: Look) -> tuple[int, int]:
    """How many blocks, and how many rows of each at most. No more blocks than there are: rows of the others have their room.

    How much blocks differ in what they bring shows the better the more of them there are. Whether values of a block are alike
    shows in two pairs of the same two blocks, which are four rows: with a share s of the rows, s^4 of all such are there. So
    "more" blocks are as many as fit with half of their rows, and the "most" are for blocks that seldom meet.
    """
    room = memory_bytes // (16 * max(1, source.row_bytes(columns)))
    blocks = SAMPLE_BLOCKS if source.random else max(1, min(source.blocks, _blocks(source, room, look)))
    return blocks, max(16, min(_BLOCK_ROWS, room // blocks))


def _blocks(source: Source, room: int, look: Look) -> int:
    """Small blocks are many, and say little each."""
    rows = _SAMPLE_ROWS if look == "first" else _MORE_ROWS
    blocks = min(_MOST_BLOCKS, rows * source.blocks // max(1, source.rows))
    if look == "more":
        blocks = min(blocks, 2 * room // min(_BLOCK_ROWS, source.block_rows))
    return max(SAMPLE_BLOCKS, blocks)


def room_for(question: Question, samples: tuple[Batches, Batches]) -> Room:
    """Twice what the sample shows, or as much more as there may be."""
    seen = [_groups(side, question.groups[side], samples[side]) for side in (A, B)]
    check_groups(seen[A], seen[B])
    groups = [each if not question.groups[side] else each + max(8, each) for side, each in enumerate(seen)]
    if groups[A] * groups[B] > MOST_GROUPS:
        more = math.sqrt(MOST_GROUPS / (seen[A] * seen[B]))
        groups = [min(each, int(more * number)) for each, number in zip(groups, seen, strict=True)]
    longest = max((_longest(batch) for side in (A, B) for batch in samples[side]), default=0)
    return Room((groups[A], groups[B]), max(16, -(-2 * longest // 8) * 8))


def check_groups(a: int, b: int) -> None:
    if a * b > MOST_GROUPS:
        raise ParameterError(
            f"group_by gives room for {a * b:,} groups or more, and {MOST_GROUPS:,} is the limit; group by a column with "
            "fewer values"
        )


def _groups(side: int, columns: Sequence[str], batches: Batches) -> int:
    if not columns:
        return 1
    grouping = Grouping(side, MOST_GROUPS)
    try:
        for batch in batches:
            grouping.codes([plain(batch.column(name)) for name in columns])
    except NeedsRoom as many:
        check_groups(many.groups, 1)
    return max(1, len(grouping.keys))


def _longest(batch: pa.RecordBatch) -> int:
    texts = [plain(column) for column in batch.columns]
    lengths = [
        pc.max(pc.binary_length(column)).as_py() or 0
        for column in texts
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type)
    ]
    return max(lengths, default=0)


def _short(mean: float, deviation: float) -> float:
    """A number near the mean with few digits, so that whole numbers stay whole when it is taken off."""
    if not (math.isfinite(mean) and math.isfinite(deviation)):  # numbers too large to be added up
        return 0.0
    if not deviation > 0:
        return mean
    step = 2.0 ** math.floor(math.log2(deviation))
    return round(mean / step) * step


def pilots(question: Question, samples: tuple[Batches, Batches]) -> dict[str, float]:
    """About the mean of what variances are asked of, to save digits; by label."""
    found: dict[str, float] = {}
    for label, value in question.values.items():
        if functions_needed(question.aggregations[label].name) == 3 and len(value.sides) == 1:
            (side,) = value.sides
            numbers = _numbers(value, samples[side])
            finite = numbers[np.isfinite(numbers)]
            with np.errstate(over="ignore", invalid="ignore"):
                found[label] = _short(float(np.mean(finite)), float(np.std(finite))) if len(finite) else 0.0
    return found


def never_negative(question: Question, samples: tuple[Batches, Batches]) -> frozenset[str]:
    """The labels of sums of which no part is below 0 in any of these rows."""
    found = set()
    for label, value in question.values.items():
        terms = products(value) if question.aggregations[label].name == "SUM" else None
        if terms and all(
            (_numbers(factor, samples[side]) >= 0).all()
            for term in terms
            for side, factor in enumerate(term)
            if factor is not None
        ):
            found.add(label)
    return frozenset(found)


def _numbers(value: Expression, batches: Batches) -> FloatArray:
    """An expression over one side in sampled rows, where it is not null."""
    parts = [
        evaluate(value, lambda _, name, batch=batch: plain(batch.column(name)), batch.num_rows)  # type: ignore[misc]
        for batch in batches
    ]
    return np.concatenate([doubles(part).drop_null().to_numpy(zero_copy_only=False) for part in parts] or [np.zeros(0)])
