"""The general path: the matches of a rectangle are made, in portions, and handed to a function.

    held rows of the build side  [ record | record | record | ... ]
    heads by hash, links         rows of one bucket, newest first
    portion                      (held row, probing row), at most so many; then `evaluate`, sums, and the sink for what is new

Sums per row are kept sparsely, as (row, group) -> sum of f: only rows that matched have any.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.budget import Budget
from millrace.core.compiled import kernel
from millrace.core.errors import ParameterError
from millrace.online.pair_functions import Pairs
from millrace.online.protocol import A
from millrace.online.statistics.totals import Sums
from millrace.online.storage.moments import hashed, slot_of

_MOST, _LEAST = 1 << 14, 1 << 6
_COMPACT = 1 << 12  # sums of rows beyond which those of the same row are added up


def portion_rows(rows: int) -> int:
    """Matches made at a time, by a join that holds so many rows."""
    return max(_LEAST, min(_MOST, rows // 8))


class RowSums:
    """Sums of f by (row, group), and at the end the sums of their products by group."""

    def __init__(self, functions: int, groups: int) -> None:
        self._functions, self._groups = functions, groups
        self._ids: list[Int64Array] = []
        self._values: list[FloatArray] = []
        self._held = 0  # after the last compaction
        self._fresh = 0

    def add(self, rows: Int64Array, groups: Int64Array, values: FloatArray) -> None:
        self._ids.append(rows * self._groups + groups)
        self._values.append(values)
        self._fresh += len(rows)
        if self._fresh > max(_COMPACT, self._held):
            self._compact()

    def _compact(self) -> None:
        if not self._ids:
            return
        ids, place = np.unique(np.concatenate(self._ids), return_inverse=True)
        values = np.concatenate(self._values)
        sums = [np.bincount(place, values[:, k], len(ids)) for k in range(self._functions)]
        self._ids, self._values = [ids], [np.stack(sums, axis=1)]
        self._held, self._fresh = len(ids), 0

    def add_squares(self, out: FloatArray) -> None:
        """Add the sums over rows of X X', per group, to `out` (groups, functions, functions)."""
        self._compact()
        if self._ids:
            groups, values = self._ids[0] % self._groups, self._values[0]
            for k in range(self._functions):
                for j in range(self._functions):
                    out[:, k, j] += np.bincount(groups, values[:, k] * values[:, j], self._groups)


class PairRectangle:
    """One rectangle at a time, as `MomentRectangle`; rows of the build side are held themselves."""

    def __init__(self, functions: Pairs, widths: tuple[int, int], rows: int, budget: Budget, name: str = "held rows") -> None:
        self._functions, self._widths = functions, widths
        self.rows = rows
        self._held: Int64Array = budget.array(name, rows * max(widths), np.int64)
        self._heads = budget.array(f"{name} heads", rows + 1, np.int32)
        self._links = budget.array(f"{name} links", rows, np.int32)
        self._portion = budget.array(f"{name} portion", 2 * portion_rows(rows), np.int64).reshape(2, -1)
        pairs = f"{name} pairs"
        budget.reserve(pairs, self.sizes(functions, widths, rows, name)[pairs])
        self._names = (budget, name)
        self.start(A, rows)

    @staticmethod
    def sizes(functions: Pairs, widths: tuple[int, int], rows: int, name: str = "held rows") -> dict[str, int]:
        """Bytes of each array, and of the pairs that are worked on."""
        portion = portion_rows(rows)
        return {
            name: rows * max(widths) * 8, f"{name} heads": 4 * (rows + 1), f"{name} links": 4 * rows,
            f"{name} portion": 2 * portion * 8, f"{name} pairs": portion * _pair_words(functions, widths) * 8,
        }  # fmt: skip

    def start(self, build: int, rows: int, part: int = 0, parts: int = 1, block: tuple[int, int] | None = None) -> None:
        """A new rectangle; of all keys one of `parts` parts, and with `block` only such rows of the build side, by number."""
        self._build, self._part, self._parts, self._block = build, part, parts, block
        self._capacity = max(1, min(self.rows, rows))
        self._heads[: self._capacity] = 0
        self._count = self._count_old = self._seen = 0
        f = self._functions
        self._sums = Sums.zeros(f.groups, f.functions)
        self._held_sums, self._probing_sums = RowSums(f.functions, f.groups), RowSums(f.functions, f.groups)

    def add(self, side: int, words: Int64Array, old: int = 0) -> bool:
        """Rows of one side, of which the first `old` have met all old rows of the other before."""
        if side != self._build:
            self._probe(words, old)
            return True
        if self._block is not None:
            low, high = (min(max(0, bound - self._seen), len(words)) for bound in self._block)
            self._seen += len(words)
            words, old = words[low:high], max(0, min(old, high) - low)
        width = self._widths[side]
        held = self._held[: self.rows * width].reshape(self.rows, width)
        added, added_old = _hold(
            words, old, held, self._count, self._capacity, self._heads, self._links, self._part, self._parts
        )
        if added < 0:
            return False
        self._count += added
        self._count_old += added_old
        return True

    def _probe(self, words: Int64Array, old: int) -> None:
        width = self._widths[self._build]
        held = self._held[: self.rows * width].reshape(self.rows, width)
        row = link = 0
        while row < len(words):
            found, row, link = _matches(
                words, held, self._heads, self._links, self._capacity, self._part, self._parts, row, link, self._portion
            )
            self._take(words, held, self._portion[0, :found], self._portion[1, :found], old)
        self._probing_sums.add_squares(self._sums.sy if self._build == A else self._sums.sx)
        self._probing_sums = RowSums(self._functions.functions, self._functions.groups)  # these rows will not come again

    def _take(self, words: Int64Array, held: Int64Array, ours: Int64Array, theirs: Int64Array, old: int) -> None:
        f, swapped = self._functions, self._build != A
        first, second = held[ours], words[theirs]
        left, right = (second, first) if swapped else (first, second)
        for one, other in zip(f.same_a, f.same_b, strict=True):
            same = left[:, one] == right[:, other]
            if not same.all():
                left, right, ours, theirs = left[same], right[same], ours[same], theirs[same]
        if not len(ours):
            return
        values, groups = f.evaluate(left, right)
        if values.shape != (len(ours), f.functions):
            shape = values.shape
            raise ParameterError(f"evaluate gave values of shape {shape} for {len(ours)} pairs of {f.functions} functions")
        groups = np.zeros(len(ours), np.int64) if groups is None else groups
        if groups.min() < 0 or groups.max() >= f.groups:
            raise ParameterError(f"a pair has a group outside 0 to {f.groups - 1}; declare as many groups as there are")
        sums = self._sums
        sums.pairs += np.bincount(groups, minlength=f.groups)
        for k in range(f.functions):
            sums.t[:, k] += np.bincount(groups, values[:, k], f.groups)
            for j in range(f.functions):
                sums.q[:, k, j] += np.bincount(groups, values[:, k] * values[:, j], f.groups)
        self._held_sums.add(ours.copy(), groups, values)
        self._probing_sums.add(theirs.copy(), groups, values)
        if f.sink is not None:
            new = (ours >= self._count_old) | (theirs >= old)
            if new.any():
                f.sink(left[new], right[new])

    def finish(self) -> Sums:
        """The sums by now; more rows of the other side may follow."""
        sums = self._sums + Sums.zeros(self._functions.groups, self._functions.functions)
        self._held_sums.add_squares(sums.sx if self._build == A else sums.sy)
        return sums

    def release(self) -> None:
        budget, name = self._names
        for part in ("", " heads", " links", " portion", " pairs"):
            budget.release(name + part)


def _pair_words(functions: Pairs, widths: tuple[int, int]) -> int:
    """Of one match while it is worked on: both records, its values and their products, its groups and sums."""
    return sum(widths) + 4 * functions.functions + 6


@kernel
def _hold(words: Any, old: Any, held: Any, count: Any, capacity: Any, heads: Any, links: Any, part: Any, parts: Any) -> Any:
    added = added_old = 0
    for i in range(len(words)):
        word = hashed(words[i, 0])
        if parts > 1 and np.int64(word & np.uint64(parts - 1)) != part:
            continue
        if count + added == capacity:
            return -1, 0
        place = count + added
        for j in range(words.shape[1]):
            held[place, j] = words[i, j]
        slot = slot_of(word, capacity)
        links[place] = heads[slot]
        heads[slot] = place + 1
        added += 1
        if i < old:
            added_old += 1
    return added, added_old


@kernel
def _matches(
    words: Any, held: Any, heads: Any, links: Any, capacity: Any, part: Any, parts: Any, row: Any, link: Any, portion: Any
) -> Any:
    """Pairs from (row, link) on until the portion is full; where to go on."""
    found, most = 0, portion.shape[1]
    while row < len(words):
        code = words[row, 0]
        word = hashed(code)
        if parts > 1 and np.int64(word & np.uint64(parts - 1)) != part:
            row += 1
            continue
        if link == 0:
            link = np.int64(heads[slot_of(word, capacity)])
        while link != 0:
            if held[link - 1, 0] == code:
                if found == most:
                    return found, row, link
                portion[0, found] = link - 1
                portion[1, found] = row
                found += 1
            link = np.int64(links[link - 1])
        row += 1
    return found, row, 0
