"""The fast path: the sums of a rectangle of pairs from moments per key, without making a pair.

For f_k(a, b) = u_k(a) v_k(b) on equal keys, U_k and UU_kl the sums of u_k and u_k u_l over the rows of A with a key, V_k, VV_kl
those of B, a key adds  U_k V_k to t,  UU_kl V_k V_l to sx,  VV_kl U_k U_l to sy,  UU_kl VV_kl to q.

    slot   [ code | number of its entry, from 1 on; 0: free ]                                  open addressing
    entry  [ 1, sums of products of words of A | 1, sums of products of words of B ]           one per key of the build side

Entries lie densely, in the order of their keys' arrival; sums that several functions share are kept once (`Monomials`). With
groups a slot has the heads of two chains of entries instead, one per group that the key occurs in on a side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.compiled import kernel
from millrace.core.errors import ParameterError
from millrace.core.memoryaccess import prefetch
from millrace.online.pair_functions import Factor, Products
from millrace.online.protocol import A
from millrace.online.statistics.totals import Sums

EMPTY = np.int64(-0x6A09E667F3BCC909)  # a code that has this value gets the slot behind the others
_AHEAD = 32  # rows whose slots are asked for at once
_SLOTS_PER_KEY = 1.75


class Monomials:
    """The products of words whose sums one side needs: 1, every factor, and every product of two factors.

    >>> side = Monomials([(), (1,), (1, 1)])
    >>> side.products
    ((), (1,), (1, 1), (1, 1, 1), (1, 1, 1, 1))
    >>> side.first.tolist(), side.second[1].tolist()
    ([0, 1, 2], [1, 2, 3])
    """

    def __init__(self, factors: Sequence[Factor]) -> None:
        plain = [tuple(sorted(factor)) for factor in factors]
        twice = [[tuple(sorted(one + other)) for other in plain] for one in plain]
        wanted = {(), *plain, *(product for row in twice for product in row)}
        for product in tuple(wanted):
            wanted.update(product[:length] for length in range(len(product)))  # so that each is a shorter one times a word
        self.products = tuple(sorted(wanted, key=lambda product: (len(product), product)))
        at = {product: number for number, product in enumerate(self.products)}
        self.parents = np.array([at[product[:-1]] if product else 0 for product in self.products], np.int64)
        self.words = np.array([product[-1] if product else 0 for product in self.products], np.int64)
        self.first = np.array([at[product] for product in plain], np.int64)
        self.second = np.array([[at[product] for product in row] for row in twice], np.int64)

    def __len__(self) -> int:
        return len(self.products)


@lru_cache(maxsize=64)
def _count(factors: tuple[Factor, ...]) -> int:
    """How many sums a side needs: asked again and again while memory is divided."""
    return len(Monomials(factors))


class MomentRectangle:
    """One rectangle at a time: `start`, `add` all rows of the build side, then those of the other, `finish`."""

    def __init__(
        self, functions: Products, rows: int, budget: Budget, name: str = "key moments", *, sure: bool = False
    ) -> None:
        """Room for `rows` keys of the build side; `sure`: whatever groups they have."""
        self._functions = functions
        self._sides = (Monomials(functions.left), Monomials(functions.right))
        self._grouped = functions.groups > 1
        self.rows = rows
        table, entries = _shapes(functions, rows, sure)
        self._table: Int64Array = budget.array(f"{name} table", math.prod(table), np.int64).reshape(table)
        self._entries: Int64Array = budget.array(f"{name} entries", math.prod(entries), np.int64).reshape(entries)
        self._names = (budget, name)
        self._state = np.zeros(2, np.int64)  # keys, entries
        self.start(A, rows)

    @staticmethod
    def sizes(functions: Products, rows: int, name: str = "key moments", *, sure: bool = False) -> dict[str, int]:
        """Bytes of each array."""
        table, entries = _shapes(functions, rows, sure)
        return {f"{name} table": 8 * math.prod(table), f"{name} entries": 8 * math.prod(entries)}

    def start(self, build: int, rows: int, part: int = 0, parts: int = 1) -> None:
        """A new rectangle: about so many rows of side `build` come first; of all keys, only those of one of `parts` parts."""
        self._build, self._part, self._parts = build, part, parts
        self._capacity = min(len(self._table) - 1, _slots(rows))
        if self._grouped:
            self._table[: self._capacity, 0] = EMPTY
            self._table[self._capacity] = 0  # the slot of the code that means empty
        else:
            self._table[: self._capacity] = 0
        self._state[:] = 0

    def add(self, side: int, words: Int64Array, old: int = 0) -> bool:
        """Rows of one side. False: more keys than there is room for; this rectangle must be started anew, in parts."""
        monomials = self._sides[side]
        values = words.view(np.float64)
        building = side == self._build
        common = (self._capacity, monomials.parents, monomials.words, building, self._part, self._parts, self._state)
        if not self._grouped:
            start = 0 if side == A else len(self._sides[0])
            entries = self._entries.view(np.float64)
            return bool(_add_plain(words, values, self._table, entries, start, self._room(), *common))
        f = self._functions
        word, groups = (f.group_a, f.groups_a) if side == A else (f.group_b, f.groups_b)
        result = _add_grouped(
            words, values, -1 if word is None else word, groups, self._table, 1 + side, self._entries,
            self._entries.view(np.float64), self._room(), *common,
        )  # fmt: skip
        if result < 0:
            raise ParameterError(f"a row has a group outside 0 to {groups - 1}; declare as many groups as there are")
        return bool(result)

    def join_parts(self, rows: tuple[Int64Array, Int64Array], parts: Int64Array) -> Sums | None:
        """The sums over several rectangles of rows at hand, one after the other: (first row of A, end, first row of B, end).
        None: there are groups, or one of them has more keys than there is room for."""
        if self._grouped:
            return None
        f = self._functions
        sums = Sums.zeros(f.groups, f.functions)
        left, right = self._sides
        a, b = rows
        fits = _join_parts(
            a, b, a.view(np.float64), b.view(np.float64), parts, self._table, self._entries.view(np.float64), self._state,
            left.parents, left.words, right.parents, right.words,
            left.first, left.second, right.first, right.second, sums.t, sums.sx, sums.sy, sums.q, sums.pairs,
        )  # fmt: skip
        return sums if fits else None

    def _room(self) -> int:
        return int(self._capacity / _SLOTS_PER_KEY)

    def finish(self) -> Sums:
        """The sums by now; more rows of the other side may follow."""
        f = self._functions
        sums = Sums.zeros(f.groups, f.functions)
        left, right = self._sides
        out = (left.first, left.second, right.first, right.second, sums.t, sums.sx, sums.sy, sums.q, sums.pairs)
        if self._grouped:
            _finish_grouped(
                self._table, self._capacity, self._entries, self._entries.view(np.float64), f.groups_b, *out,
            )  # fmt: skip
        else:
            _finish_plain(self._entries.view(np.float64), int(self._state[0]), len(left), *out)
        return sums

    def release(self) -> None:
        budget, name = self._names
        budget.release(f"{name} table")
        budget.release(f"{name} entries")


def _shapes(functions: Products, rows: int, sure: bool) -> tuple[tuple[int, int], tuple[int, int]]:
    """Of the table and of the entries: how many, and words of each."""
    left, right = _count(functions.left), _count(functions.right)
    size = _slots(rows) + 1
    if functions.groups > 1:
        return (size, 3), (_entries(functions, size, sure), 2 + max(left, right))
    return (size, 2), (_dense(rows), left + right)


def _entries(functions: Products, slots: int, sure: bool) -> int:
    """Entries of groups; one key with all groups always fits, so that parts by key come to an end."""
    every = functions.groups_a + functions.groups_b
    return max(every + 2, slots * (every if sure else 2))


def _dense(rows: int) -> int:
    """Entries without groups: as many as keys that `_room` lets in, and number 0."""
    return rows + 16


def _slots(rows: int) -> int:
    return int(rows * _SLOTS_PER_KEY) + 16


@kernel
def hashed(code: Any) -> Any:
    """Its low bits choose a part, its high bits a slot; partitions are chosen by another hash."""
    word = np.uint64(code)
    word ^= word >> np.uint64(32)
    word *= np.uint64(0xD6E8FEB86659FD93)
    word ^= word >> np.uint64(29)
    word *= np.uint64(0xFF51AFD7ED558CCD)
    word ^= word >> np.uint64(32)
    return word


@kernel
def slot_of(word: Any, capacity: Any) -> Any:
    return np.int64(((word >> np.uint64(32)) * np.uint64(capacity)) >> np.uint64(32))


@kernel
def _add_plain(
    words: Any, values: Any, table: Any, entries: Any, start: Any, room: Any,
    capacity: Any, parents: Any, factors: Any, building: Any, part: Any, parts: Any, state: Any,
) -> Any:  # fmt: skip
    """Some rows at a time: ask for their slots, find their entries and ask for these, add. Arrays are flat and places unsigned:
    an index that can't be negative need not be looked at twice."""
    zero, one, two, eight, ahead = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(8), np.uint64(_AHEAD)
    count, width, entry, sums = (
        np.uint64(len(words)), np.uint64(words.shape[1]), np.uint64(entries.shape[1]), np.uint64(len(parents)),
    )  # fmt: skip
    records, numbers, slots, totals = words.reshape(-1), values.reshape(-1), table.reshape(-1), entries.reshape(-1)
    slots_at, totals_at = np.uint64(table.ctypes.data), np.uint64(entries.ctypes.data)
    limit, first, keys = two * np.uint64(capacity), np.uint64(start), state[0]
    powers = len(parents) == 3 and factors[1] == factors[2] and parents[2] == 1  # a word, and its square
    factor = np.uint64(factors[1]) if powers else zero
    places = np.empty(_AHEAD, np.int64)
    product = np.ones(len(parents))
    base = zero
    while base < count:
        end = min(base + ahead, count)
        i = base
        while i < end:
            word = hashed(records[i * width])
            if parts > 1 and np.int64(word & np.uint64(parts - 1)) != part:
                places[i - base] = -1
            else:
                at = two * np.uint64(slot_of(word, capacity))
                prefetch(np.int64(slots_at + eight * at))
                places[i - base] = np.int64(at)
            i += one
        i = base
        while i < end:
            if places[i - base] >= 0:
                at, code = np.uint64(places[i - base]), records[i * width]
                while slots[at + one] != 0 and slots[at] != code:
                    at += two
                    if at == limit:
                        at = zero
                number = slots[at + one]
                if number == 0 and building:
                    if keys >= room:
                        return False
                    keys += 1
                    number = keys
                    slots[at] = code
                    slots[at + one] = number
                    d = zero
                    while d < entry:
                        totals[np.uint64(number) * entry + d] = 0.0
                        d += one
                elif number != 0:
                    place = np.uint64(number) * entry + first
                    prefetch(np.int64(totals_at + eight * place))
                    prefetch(np.int64(totals_at + eight * (place + sums - one)))
                places[i - base] = number
            else:
                places[i - base] = 0
            i += one
        i = base
        while i < end:
            number, row = places[i - base], i * width
            i += one
            if number == 0:
                continue
            at = np.uint64(number) * entry + first
            totals[at] += 1.0
            if powers:
                value = numbers[row + factor]
                totals[at + one] += value
                totals[at + two] += value * value
            else:
                d = one
                while d < sums:
                    product[d] = product[parents[d]] * numbers[row + np.uint64(factors[d])]
                    totals[at + d] += product[d]
                    d += one
        base = end
    state[0] = keys
    return True


@kernel
def _finish_plain(
    entries: Any, keys: Any, b: Any,
    first_a: Any, second_a: Any, first_b: Any, second_b: Any, t: Any, sx: Any, sy: Any, q: Any, pairs: Any,
) -> None:  # fmt: skip
    functions = len(first_a)
    if functions == 1:
        places = (first_a[0], b + first_b[0], second_a[0, 0], b + second_b[0, 0])
        one_t, one_sx, one_sy, one_q, one_pairs = _finish_one(entries, keys, b, *places)
        t[0, 0] += one_t
        sx[0, 0, 0] += one_sx
        sy[0, 0, 0] += one_sy
        q[0, 0, 0] += one_q
        pairs[0] += one_pairs
        return
    for key in range(1, keys + 1):
        if entries[key, 0] == 0.0 or entries[key, b] == 0.0:
            continue
        pairs[0] += np.int64(entries[key, 0]) * np.int64(entries[key, b])
        for k in range(functions):
            u, v = entries[key, first_a[k]], entries[key, b + first_b[k]]
            t[0, k] += u * v
            for j in range(functions):
                uu, vv = entries[key, second_a[k, j]], entries[key, b + second_b[k, j]]
                sx[0, k, j] += uu * (v * entries[key, b + first_b[j]])
                sy[0, k, j] += vv * (u * entries[key, first_a[j]])
                q[0, k, j] += uu * vv


@kernel
def _finish_one(entries: Any, keys: Any, b: Any, at_u: Any, at_v: Any, at_uu: Any, at_vv: Any) -> Any:
    """The same for one function."""
    t = sx = sy = q = 0.0
    pairs = np.int64(0)
    for key in range(1, keys + 1):
        of_a, of_b = entries[key, 0], entries[key, b]
        if of_a == 0.0 or of_b == 0.0:
            continue
        u, v, uu, vv = entries[key, at_u], entries[key, at_v], entries[key, at_uu], entries[key, at_vv]
        pairs += np.int64(of_a) * np.int64(of_b)
        t += u * v
        sx += uu * (v * v)
        sy += vv * (u * u)
        q += uu * vv
    return t, sx, sy, q, pairs


@kernel
def _join_parts(
    words_a: Any, words_b: Any, values_a: Any, values_b: Any, parts: Any, table: Any, entries: Any, state: Any,
    parents_a: Any, factors_a: Any, parents_b: Any, factors_b: Any,
    first_a: Any, second_a: Any, first_b: Any, second_b: Any, t: Any, sx: Any, sy: Any, q: Any, pairs: Any,
) -> Any:  # fmt: skip
    b = len(parents_a)
    for number in range(len(parts)):
        low_a, end_a, low_b, end_b = parts[number]
        rows = min(end_a - low_a, end_b - low_b)
        capacity = min(len(table) - 1, int(rows * _SLOTS_PER_KEY) + 16)
        room = int(capacity / _SLOTS_PER_KEY)
        table[:capacity] = 0
        state[:] = 0
        for turn in range(2):
            building = turn == 0
            if building == (end_a - low_a <= end_b - low_b):
                fits = _add_plain(
                    words_a[low_a:end_a], values_a[low_a:end_a], table, entries, 0, room,
                    capacity, parents_a, factors_a, building, 0, 1, state,
                )  # fmt: skip
            else:
                fits = _add_plain(
                    words_b[low_b:end_b], values_b[low_b:end_b], table, entries, b, room,
                    capacity, parents_b, factors_b, building, 0, 1, state,
                )  # fmt: skip
            if not fits:
                return False
        _finish_plain(entries, state[0], b, first_a, second_a, first_b, second_b, t, sx, sy, q, pairs)
    return True


@kernel
def _add_grouped(
    words: Any, values: Any, group_word: Any, groups: Any, table: Any, head: Any, entries: Any, cells: Any, room: Any,
    capacity: Any, parents: Any, factors: Any, building: Any, part: Any, parts: Any, state: Any,
) -> Any:  # fmt: skip
    sums = len(parents)
    product = np.ones(sums)
    for i in range(len(words)):
        code = words[i, 0]
        word = hashed(code)
        if parts > 1 and np.int64(word & np.uint64(parts - 1)) != part:
            continue
        group = words[i, group_word] if group_word >= 0 else 0
        if group < 0 or group >= groups:
            return -1
        slot = slot_of(word, capacity)
        if code == EMPTY:
            slot = capacity
        else:
            while table[slot, 0] != code and table[slot, 0] != EMPTY:
                slot += 1
                if slot == capacity:
                    slot = 0
            if table[slot, 0] == EMPTY:
                if not building:
                    continue
                if state[0] >= room:
                    return 0
                state[0] += 1
                table[slot, 0] = code
                table[slot, 1] = 0
                table[slot, 2] = 0
        entry = table[slot, head]  # entry + 1; 0: none
        while entry != 0 and entries[entry - 1, 1] != group:
            entry = entries[entry - 1, 0]
        if entry == 0:
            if state[1] == len(entries):
                return 0
            state[1] += 1
            entry = state[1]
            entries[entry - 1, 0] = table[slot, head]
            entries[entry - 1, 1] = group
            for d in range(sums):
                cells[entry - 1, 2 + d] = 0.0
            table[slot, head] = entry
        cells[entry - 1, 2] += 1.0
        for d in range(1, sums):
            product[d] = product[parents[d]] * values[i, factors[d]]
            cells[entry - 1, 2 + d] += product[d]
    return 1


@kernel
def _finish_grouped(
    table: Any, capacity: Any, entries: Any, cells: Any, groups_b: Any,
    first_a: Any, second_a: Any, first_b: Any, second_b: Any, t: Any, sx: Any, sy: Any, q: Any, pairs: Any,
) -> None:  # fmt: skip
    functions = len(first_a)
    for slot in range(capacity + 1):
        if slot < capacity and table[slot, 0] == EMPTY:
            continue
        one = table[slot, 1]
        while one != 0:
            a = one - 1
            other = table[slot, 2]
            while other != 0:
                b = other - 1
                g = entries[a, 1] * groups_b + entries[b, 1]
                pairs[g] += np.int64(cells[a, 2]) * np.int64(cells[b, 2])
                for k in range(functions):
                    u, v = cells[a, 2 + first_a[k]], cells[b, 2 + first_b[k]]
                    t[g, k] += u * v
                    for j in range(functions):
                        uu, vv = cells[a, 2 + second_a[k, j]], cells[b, 2 + second_b[k, j]]
                        sx[g, k, j] += uu * (v * cells[b, 2 + first_b[j]])
                        sy[g, k, j] += vv * (u * cells[a, 2 + first_a[j]])
                        q[g, k, j] += uu * vv
                other = entries[b, 0]
            one = entries[a, 0]
