"""Joining two sets of rows in a given memory, whatever their keys: at once, in parts by key, or (one key too big) in blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.online.pair_functions import Functions, Products
from millrace.online.protocol import A, B
from millrace.online.statistics.totals import Sums
from millrace.online.storage.moments import MomentRectangle
from millrace.online.storage.pairs import PairRectangle

_MOST_PARTS = 1 << 10  # then one key is taken to be what does not fit


class Rectangle(Protocol):
    """Joins rows of A with rows of B: those of the build side are added first."""

    rows: int  # of the build side (fast path: keys of it) that there is room for

    def start(self, build: int, rows: int, part: int = 0, parts: int = 1) -> None: ...

    def add(self, side: int, words: Int64Array, old: int = 0) -> bool: ...

    def finish(self) -> Sums: ...

    def release(self) -> None: ...


def make_rectangle(
    functions: Functions, widths: tuple[int, int], rows: int, budget: Budget, name: str = "join", *, sure: bool = False
) -> Rectangle:
    """`sure`: with room for all groups of any `rows` keys, so that `add` never fails."""
    if isinstance(functions, Products):
        return MomentRectangle(functions, rows, budget, f"{name} moments", sure=sure)
    return PairRectangle(functions, widths, rows, budget, f"{name} rows")


def rectangle_sizes(
    functions: Functions, widths: tuple[int, int], rows: int, name: str = "join", *, sure: bool = False
) -> dict[str, int]:
    """What `make_rectangle` takes, by name."""
    if isinstance(functions, Products):
        return MomentRectangle.sizes(functions, rows, f"{name} moments", sure=sure)
    return PairRectangle.sizes(functions, widths, rows, f"{name} rows")


def rectangle_bytes(functions: Functions, widths: tuple[int, int], rows: int, *, sure: bool = False) -> int:
    return sum(rectangle_sizes(functions, widths, rows, sure=sure).values())


def rectangle_rows(functions: Functions, widths: tuple[int, int], count: int, *, sure: bool = False, per_row: int = 0) -> int:
    """How many rows of the build side there is room for in so many bytes, with `per_row` more kept beside each."""
    low, high = 0, max(0, count) // 8
    while low < high:
        middle = (low + high + 1) // 2
        if rectangle_bytes(functions, widths, middle, sure=sure) + per_row * middle <= count:
            low = middle
        else:
            high = middle - 1
    return low


Chunk = tuple[Int64Array, int]  # rows of one side, and how many of them are old
Source = Callable[[int], Iterable[Chunk]]  # the rows of a side, in the order of their arrival; each call reads them again


def join_all(rectangle: Rectangle, source: Source, rows: tuple[int, int], build: int | None = None) -> Sums:
    """All pairs of two sets of rows, of which there are `rows`. The build side is the smaller set unless given.

    More keys than there is room for: in parts by key, each of which reads both sets again; a part that does not fit is split
    before any pair of it is made, so none is made twice. One key with more rows than there is room for (only where pairs are
    made): in blocks of build rows; then the sums of squares over the other side are not known (NaN), and all others are right.
    """
    if build is None:
        build = A if rows[A] <= rows[B] else B
    if 0 in rows:
        rectangle.start(build, 1)
        return rectangle.finish()
    total: Sums | None = None
    left = [(0, 1)]  # part, of how many
    while left:
        part, parts = left.pop()
        rectangle.start(build, rows[build] if parts == 1 else rectangle.rows, part, parts)
        sums = _probed(rectangle, source, build) if _built(rectangle, source, build) else None
        if sums is not None:
            pass
        elif parts < _MOST_PARTS or not isinstance(rectangle, PairRectangle):
            left += [(part + parts, 2 * parts), (part, 2 * parts)]
            continue
        else:
            sums = _in_blocks(rectangle, source, build, rows[build], part, parts)
        total = sums if total is None else total + sums
    assert total is not None
    return total


def join_parts(rectangle: Rectangle, rows: tuple[Int64Array, Int64Array], parts: Int64Array) -> Sums:
    """Sums over several rectangles, one or more, of rows of A and B at hand: (first row of A, end, first row of B, end)."""
    if isinstance(rectangle, MomentRectangle):
        at_once = rectangle.join_parts(rows, parts)
        if at_once is not None:
            return at_once
    total: Sums | None = None
    for bounds in parts.reshape(-1, 2, 2).tolist():
        (a, _), (b, _) = chosen = [(rows[side][low:end], 0) for side, (low, end) in enumerate(bounds)]
        sums = join_all(rectangle, partial(_one_chunk, chosen), (len(a), len(b)))
        total = sums if total is None else total + sums
    assert total is not None
    return total


def _one_chunk(chosen: list[Chunk], side: int) -> Iterable[Chunk]:
    return chosen[side : side + 1]


def _built(rectangle: Rectangle, source: Source, build: int) -> bool:
    return all(rectangle.add(build, words, old) for words, old in source(build))


def _probed(rectangle: Rectangle, source: Source, build: int) -> Sums | None:
    """None: groups of the other side did not fit (where pairs are made, there is always room to probe)."""
    for words, old in source(1 - build):
        if not rectangle.add(1 - build, words, old):
            return None
    return rectangle.finish()


def _in_blocks(rectangle: PairRectangle, source: Source, build: int, rows: int, part: int, parts: int) -> Sums:
    total: Sums | None = None
    for low in range(0, rows, rectangle.rows):
        rectangle.start(build, rectangle.rows, part, parts, block=(low, low + rectangle.rows))
        if not _built(rectangle, source, build):
            raise AssertionError("a block has no more rows than there is room for")
        sums = _probed(rectangle, source, build)
        assert sums is not None
        (sums.sy if build == A else sums.sx)[:] = np.nan
        total = sums if total is None else total + sums
    assert total is not None
    return total
