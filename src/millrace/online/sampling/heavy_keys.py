"""Heavy keys of a run: their moments on both sides as the join has met them, for a V^ that knows of rows still to come.

    sample --> the heaviest keys of either side          none where all keys are alike: then nothing here costs anything
    input  --> `Watched` adds up the rows of these keys as they are read
    join   --> when a partition has been joined, its keys' moments are those that its sums hold
    report --> `widened` (`tails.py`) of all groups and partitions; what the largest row brings

    other keys --> their rows in sum, all of them as one: they fill bins in which rows are missing (`tails.Rest`)

The fast path only: other functions have no moments. Of large tables a sample shows the heavy keys, and rows whose values are
much larger than any in the sample stay unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.budget import Budget
from millrace.core.compiled import kernel
from millrace.online.pair_functions import Factor, Products
from millrace.online.protocol import A, B, Batch, Input
from millrace.online.question.recorder import Recorder
from millrace.online.question.sides import Side
from millrace.online.statistics.pieces_snapshot import PiecesSnapshot
from millrace.online.statistics.tails import Rest, widened
from millrace.online.statistics.totals import KeyMoments, Sums
from millrace.online.storage.moments import Monomials, hashed

MOST_KEYS = 512  # of each side
_LEAST_KEYS = 4
_SAMPLE_ROWS = 2048  # of a batch
_HEAVY, _TIMES_MEAN = 1e-3, 4.0  # of the sum of squares over keys: a key that counts
_MOST_CELLS = 1 << 16  # keys by groups that a report takes, at most, and at most a sixteenth of the memory:
_CELL_BYTES = 16 * 64  # for each product of two functions
_MEMORY_PART = 32


def heavy_codes(sides: tuple[Side, Side], samples: tuple[Sequence[pa.RecordBatch], Sequence[pa.RecordBatch]],
                functions: Products) -> Int64Array:  # fmt: skip
    """Codes of the heaviest keys of either side, heaviest first; none where no key stands out."""
    found: list[Int64Array] = []
    for side, batches, factors in zip(sides, samples, (functions.left, functions.right), strict=True):
        recorder = Recorder(side)
        words = [recorder.numbered(batch.slice(0, _SAMPLE_ROWS))[0] for batch in batches]
        if words:
            found.append(heaviest(np.concatenate(words), factors))
    return in_turn(found)


def in_turn(found: Sequence[Int64Array]) -> Int64Array:
    """Codes of several lists, one of each in turn, so that each keeps its heaviest; every code once."""
    longest = max((len(codes) for codes in found), default=0)
    every = np.concatenate([np.zeros(0, np.int64), *(codes[i : i + 1] for i in range(longest) for codes in found)])
    return every[np.sort(np.unique(every, return_index=True)[1])]


def heaviest(words: Int64Array, factors: Sequence[Factor]) -> Int64Array:
    """Codes of the keys with the largest squares of sums, if any stand out."""
    codes, place = np.unique(words[:, 0], return_inverse=True)
    if not len(codes):
        return codes
    weight = np.zeros(len(codes))
    for factor in factors:
        value = np.ones(len(words))
        with np.errstate(over="ignore", invalid="ignore"):  # numbers so large tell nothing about keys
            for word in factor:
                value = value * words[:, word].copy().view(np.float64)
            squares = np.bincount(place, value, len(codes)) ** 2
            total = squares.sum()
        if np.isfinite(total) and total > 0:
            weight += squares / total / len(factors)
    if not weight.max() >= max(_HEAVY, _TIMES_MEAN * weight.mean()):
        return codes[:0]
    return codes[np.argsort(-weight, kind="stable")[:MOST_KEYS]]


class HeavyKeys:
    """Moments by key and group of a side: `now` as read, `met` as joined. The last is of all other keys together, as read when
    a partition was last joined."""

    @staticmethod
    def divide(codes: Int64Array, functions: Products, budget: Budget) -> int:
        """Set aside what is kept of these keys: of how many of them, the first ones, there is room for."""
        count = min(len(codes), most_keys(functions, budget.memory_bytes))
        for i, shape in enumerate(_shapes(functions, count)):
            budget.reserve_all({f"heavy keys {what} {i}": 8 * math.prod(shape) for what in ("read", "joined")})
        budget.reserve("heavy keys slots", 4 * _slots(count))
        return count

    def __init__(self, codes: Int64Array, functions: Products, budget: Budget) -> None:
        count = self.divide(codes, functions, budget)
        self.codes = np.ascontiguousarray(codes[:count])
        self._functions = functions
        self._sides = (Monomials(functions.left), Monomials(functions.right))
        self._groups = (functions.groups_a, functions.groups_b)
        self._words = (functions.group_a, functions.group_b)
        self.now, self.met = (
            tuple(budget.array(f"heavy keys {what} {i}", math.prod(shape), np.float64).reshape(shape)
                  for i, shape in enumerate(_shapes(functions, count)))
            for what in ("read", "joined")
        )  # fmt: skip
        self._table = budget.array("heavy keys slots", _slots(count), np.int32)
        self._table[:] = -1
        self._most_cells = min(_MOST_CELLS, budget.memory_bytes // (_CELL_BYTES * functions.functions**2))
        _place(self.codes, self._table)
        self._joined_at: Int64Array = np.zeros((0, 2), np.int64)
        self._partition: Int64Array = np.zeros(count, np.int64)

    def watched(self, side: int, wrapped: Input) -> Input:
        return Watched(wrapped, lambda words: self.add(side, words))

    def add(self, side: int, words: Int64Array) -> None:
        monomials, group = self._sides[side], self._words[side]
        _add(
            words, words.view(np.float64), -1 if group is None else group, self.codes, self._table, monomials.parents,
            monomials.words, self.now[side],
        )  # fmt: skip

    def joined(self, rows_a: Int64Array, rows_b: Int64Array, partition_of: Callable[[Int64Array], Int64Array]) -> None:
        """Which partitions have been joined since the last call is told by the rows read when they were."""
        at = np.stack((rows_a, rows_b), axis=1)
        if self._joined_at.shape != at.shape:
            self._joined_at = np.zeros_like(at)
        new = (at != self._joined_at).any(axis=1)
        if new.any():
            self._partition = partition_of(self.codes)
            theirs = np.append(new[self._partition], True)
            for now, met in zip(self.now, self.met, strict=True):
                met[theirs] = now[theirs]
            self._joined_at = at

    def _moments(self, side: int, groups: Int64Array, keys: int) -> KeyMoments:
        """Of the first keys, group after group."""
        monomials = self._sides[side]
        cells = np.swapaxes(self.met[side][:keys, groups], 0, 1).reshape(-1, len(monomials))
        return KeyMoments(cells[:, 0].astype(np.int64), cells[:, monomials.first], cells[:, monomials.second])

    def _rest(self, side: int, groups: Int64Array, keys: int) -> tuple[FloatArray, FloatArray]:
        """Of the keys after the first ones and all others: rows, and the mean second moment of one, by group."""
        monomials = self._sides[side]
        cells = self.met[side][keys:, groups].sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return cells[:, 0], cells[:, monomials.second] / cells[:, 0, None, None]

    def widened(self, sums: Sums, groups: Int64Array, share_a: FloatArray, share_b: FloatArray) -> tuple[Sums, FloatArray]:
        """The sums of partitions (P, G, K) with SX~ and SY~, and the largest X^2 or Y^2 of a row as it counts in V^, (G, K, K).

        `groups`: which groups the G are. `share_a`, `share_b` (P,): of the rows of each partition that were joined.
        """
        parts, count = sums.t.shape[:2]
        keys = min(len(self.codes), self._most_cells // max(1, count))  # the heaviest come first
        if keys < _LEAST_KEYS or not count:
            return sums, np.full(sums.sx.shape[1:], np.nan)
        group_a, group_b = groups // self._groups[B], groups % self._groups[B]
        left, right = self._moments(A, group_a, keys), self._moments(B, group_b, keys)
        pool = np.repeat(np.arange(count), keys)
        of = np.tile(self._partition[:keys], count)
        p, r = share_a[of], share_b[of]
        flat = Sums(*(np.swapaxes(array, 0, 1).reshape(count * parts, *array.shape[2:]) for array in _arrays(sums)))
        # pairs of other keys, as they would be in the end, for each of their rows on the other side: rows for a key
        with np.errstate(divide="ignore", invalid="ignore"):
            theirs = flat.pairs - np.bincount(pool * parts + of, left.rows * right.rows, count * parts)
            pairs = (np.maximum(theirs, 0).reshape(count, parts) / (share_a * share_b)).sum(axis=1)
            (rows_a, second_a), (rows_b, second_b) = self._rest(A, group_a, keys), self._rest(B, group_b, keys)
            rest_a = Rest(pairs / (rows_b / share_b.max()), second_a)
            rest_b = Rest(pairs / (rows_a / share_a.max()), second_b)
        wide = widened(
            flat, left, right, pool * parts + of, pool=pool, share_a=p, share_b=r, rest_a=rest_a, rest_b=rest_b
        )  # fmt: skip
        back = [np.swapaxes(array.reshape(count, parts, *array.shape[1:]), 0, 1) for array in _arrays(wide)]
        return replace(sums, sx=back[1], sy=back[2]), _largest(left, right, p, r, keys)

    def applied(
        self, pieces: PiecesSnapshot, groups: Int64Array, of_a: int, of_b: int, *, ended: bool
    ) -> tuple[PiecesSnapshot, FloatArray]:
        """Pieces of some groups with SX~ and SY~, and what the largest row brings; `ended` as for `answers.totals_of`."""
        if ended:
            p, r = (
                np.where(pieces.exact | (total == 0), 1.0, own / np.maximum(total, 1))
                for own, total in ((pieces.own_a, pieces.total_a), (pieces.own_b, pieces.total_b))
            )
        else:
            p, r = pieces.rows_a / max(1, of_a), pieces.rows_b / max(1, of_b)
        wide, largest = self.widened(pieces.sums, groups, p, r)
        return pieces.with_sums(wide), largest


def _shapes(functions: Products, count: int) -> list[tuple[int, int, int]]:
    """Of the moments of either side: keys and one for all others, groups, sums."""
    sides = ((functions.groups_a, functions.left), (functions.groups_b, functions.right))
    return [(count + 1, groups, len(Monomials(factors))) for groups, factors in sides]


def _slots(count: int) -> int:
    """Of the hash table of keys."""
    return 1 << (2 * count).bit_length()


def _arrays(sums: Sums) -> tuple[Any, ...]:
    return sums.t, sums.sx, sums.sy, sums.q, sums.pairs


def _largest(left: KeyMoments, right: KeyMoments, p: FloatArray, r: FloatArray, keys: int) -> FloatArray:
    """Of rows that have met: (1-p) X X' or (1-r) Y Y' over (pr)^2, of the row for which its trace is largest, by group."""
    groups, functions = len(p) // max(1, keys), left.first.shape[1]
    found = np.zeros((groups, functions, functions))
    best = np.zeros((groups, functions))
    for one, other, share in ((left, right, p), (right, left, r)):
        met = (one.rows > 0) & (other.rows > 0)
        scale = np.zeros(len(share))
        scale[met] = (1 - share[met]) / (p[met] * r[met]) ** 2 / one.rows[met]
        squares = scale[:, None, None] * one.second * (other.first[:, :, None] * other.first[:, None, :])
        squares = squares.reshape(groups, keys, functions, functions)
        diagonal = np.diagonal(squares, axis1=2, axis2=3).max(axis=1)
        row = np.argmax(np.diagonal(squares, axis1=2, axis2=3).sum(axis=2), axis=1)
        larger = diagonal.sum(axis=1) > best.sum(axis=1)
        found[larger] = squares[np.arange(groups), row][larger]
        best[larger] = diagonal[larger]
    return found


def most_keys(functions: Products, memory_bytes: int) -> int:
    """How many keys may be watched in a small part of the memory; too few are none."""
    each = 16 + 2 * 8 * (
        functions.groups_a * len(Monomials(functions.left)) + functions.groups_b * len(Monomials(functions.right))
    )  # fmt: skip
    count = min(2 * MOST_KEYS, memory_bytes // _MEMORY_PART // each)
    return count if count >= _LEAST_KEYS else 0


class Watched:
    """An input whose records are shown to somebody as they are read."""

    def __init__(self, wrapped: Input, see: Callable[[Int64Array], None]) -> None:
        self._wrapped, self._see = wrapped, see
        self.rows, self.width = wrapped.rows, wrapped.width

    @property
    def ended(self) -> bool:
        return self._wrapped.ended

    def read(self, rows: int) -> Batch:
        batch = self._wrapped.read(rows)
        if len(batch.words):
            self._see(batch.words)
        return batch


@kernel
def _place(codes: Any, table: Any) -> None:
    mask = len(table) - 1
    for i in range(len(codes)):
        slot = np.int64(hashed(codes[i])) & mask
        while table[slot] >= 0:
            slot = (slot + 1) & mask
        table[slot] = i


@kernel
def _add(words: Any, values: Any, group_word: Any, codes: Any, table: Any, parents: Any, factors: Any, cells: Any) -> None:
    mask, sums = len(table) - 1, len(parents)
    product = np.ones(sums)
    for i in range(len(words)):
        code = words[i, 0]
        slot = np.int64(hashed(code)) & mask
        while table[slot] >= 0 and codes[table[slot]] != code:
            slot = (slot + 1) & mask
        key = table[slot] if table[slot] >= 0 else len(codes)  # all other keys together
        group = words[i, group_word] if group_word >= 0 else 0
        cells[key, group, 0] += 1.0
        for d in range(1, sums):
            product[d] = product[parents[d]] * values[i, factors[d]]
            cells[key, group, d] += product[d]
