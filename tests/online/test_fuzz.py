"""Every algorithm on random cases: keys, sizes, widths, budgets, functions, stores, stalls, filters, bad estimates of rows.

The reference makes all matches with NumPy. Values are whole numbers, so that sums are exact in any order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.online.inputs import StallingInput
from tests.online.tables import ALGORITHMS

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.devices import VirtualClock, VirtualDevice, device
from millrace.core.errors import BudgetError
from millrace.online.pair_functions import Functions, Pairs, Products
from millrace.online.protocol import Input, OnlineJoin
from millrace.online.storage.inputs import ArrayInput
from millrace.online.storage.spill import FileSpill, Spill, VirtualSpill

KEYS = ("even", "duplicates", "hot", "zipf", "no match", "empty a", "empty b", "one key", "few", "sorted")


def keys_of(kind: str, random: np.random.Generator) -> tuple[Any, Any]:
    na, nb = (int(random.choice([5, 100, 1000, 3000]) * random.uniform(0.5, 1.5)) for _ in "ab")
    most = max(na, nb)
    a, b = random.integers(0, most, na), random.integers(0, most, nb)
    if kind == "duplicates":
        a, b = a % (most // 20 + 1), b % (most // 20 + 1)
    elif kind == "hot":
        a, b = np.where(random.random(na) < 0.3, 7, a), np.where(random.random(nb) < 0.1, 7, b)
    elif kind == "zipf":
        a, b = random.zipf(1.5, na) % 1000, random.zipf(1.3, nb) % 1000
    elif kind == "no match":
        a, b = 2 * a, 2 * b + 1
    elif kind == "empty a":
        a = a[:0]
    elif kind == "empty b":
        b = b[:0]
    elif kind == "one key":
        a, b = np.full(min(na, 300), 5), np.full(min(nb, 500), 5)
    elif kind == "few":
        a, b = a[:3] % 2, b[:2] % 2
    elif kind == "sorted":
        a, b = np.sort(a), np.sort(b)
    return a, b


class Case:
    """One random case: the same for every algorithm."""

    def __init__(self, seed: int, folder: Path) -> None:
        random = self.random = np.random.default_rng(seed)
        self.groups = (3, 2)
        codes = keys_of(KEYS[seed % len(KEYS)], random)
        self.sides = [self._records(codes[side], int(random.choice([4, 13, 60])), self.groups[side]) for side in (0, 1)]
        self.keep = [random.random(len(side)) < (0.6 if seed % 3 == 0 else 1.1) for side in self.sides]
        self.path = ("moments", "groups", "pairs", "pairs by group")[seed // 2 % 4]
        self.portions = [random.choice([0, 0, 3, 50, 500], random.integers(0, 50)).tolist() for _ in "ab"]
        self.misjudged = float(random.choice([1.0, 1.0, 0.3, 3.0]))
        self.memory = int(max(64, sum(side.nbytes for side in self.sides) * random.choice([0.01, 0.03, 0.1, 0.3, 2.0])))
        self.store, self.folder = seed % 4, folder
        self.found: list[Int64Array] = []

    def _records(self, codes: Any, width: int, groups: int) -> Int64Array:
        words = self.random.integers(-5, 5, (len(codes), width))
        words[:, 0], words[:, 2], words[:, 3] = codes, self.random.integers(0, groups, len(codes)), np.arange(len(codes))
        words[:, 1] = self.random.integers(-99, 99, len(codes)).astype(np.float64).view(np.int64)
        return words

    def inputs(self) -> list[Input]:
        made: list[Input] = []
        for side, keep, portions in zip(self.sides, self.keep, self.portions, strict=True):
            made.append(StallingInput(ArrayInput(side, keep), iter(portions)))
            made[-1].rows = int(len(side) * self.misjudged)
        return made

    def functions(self) -> Functions:
        one, other = ((), (1,)), ((), (1,))
        if self.path == "moments":
            return Products(one, other)
        if self.path == "groups":
            return Products(one, other, group_a=2, groups_a=self.groups[0], group_b=2, groups_b=self.groups[1])
        groups = self.groups[0] * self.groups[1] if self.path == "pairs by group" else 1
        return Pairs(self._evaluate, 2, groups=groups, same_a=(0,), same_b=(0,), sink=self._sink)

    def _evaluate(self, a: Int64Array, b: Int64Array) -> tuple[Any, Any]:
        values = np.stack([np.ones(len(a)), a[:, 1].view(np.float64) * b[:, 1].view(np.float64)], axis=1)
        return values, a[:, 2] * self.groups[1] + b[:, 2] if "group" in self.path else None

    def _sink(self, a: Int64Array, b: Int64Array) -> None:
        self.found.append(np.concatenate([a, b], axis=1))

    def spill(self) -> Spill:
        if self.store < 2:
            return FileSpill(self.folder if self.store else ".", mode="buffered" if self.store else "direct")
        return VirtualSpill(VirtualDevice(device("prjoin-disk"), VirtualClock()), overlapped=self.store == 2)

    def join(self, name: str, threads: int) -> tuple[OnlineJoin, Budget]:
        options = {"threads": threads} if name == "prjoin" else {}
        budget = Budget(self.memory)
        try:
            return ALGORITHMS[name](*self.inputs(), self.functions(), budget, self.spill(), **options), budget
        except BudgetError as small:
            budget = Budget(small.needed_bytes)  # which is enough
            return ALGORITHMS[name](*self.inputs(), self.functions(), budget, self.spill(), **options), budget

    def matches(self) -> tuple[Int64Array, Int64Array]:
        a, b = (side[keep] for side, keep in zip(self.sides, self.keep, strict=True))
        at_a, at_b = np.nonzero(a[:, 0][:, None] == b[:, 0][None, :])
        return a[at_a], b[at_b]

    def check(self, name: str, threads: int = 1) -> None:
        self.found.clear()
        join, budget = self.join(name, threads)
        done = False
        while not done:
            progress = join.step()
            done = progress.done
        join.close()
        a, b = self.matches()
        values, groups = self._evaluate(a, b)
        count = join.pieces.groups
        groups = np.zeros(len(a), np.int64) if groups is None else groups
        expected = np.stack([np.bincount(groups, values[:, k], count) for k in (0, 1)], axis=1)
        np.testing.assert_array_equal(join.pieces.answer(), expected)
        assert join.pieces.exact.all()
        assert budget.peak_bytes <= budget.memory_bytes
        assert [progress.counters.rows_a, progress.counters.rows_b] == [len(side) for side in self.sides]
        if "pairs" in self.path:
            found = np.concatenate(self.found) if self.found else np.zeros((0, a.shape[1] + b.shape[1]), np.int64)
            every = np.concatenate([a, b], axis=1)
            np.testing.assert_array_equal(found[np.lexsort(found.T)], every[np.lexsort(every.T)])


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("first", range(0, 80, 20))
def test_random_cases_end_with_the_answer_and_each_pair_once(name: str, first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 20):
        case = Case(seed, tmp_path)
        for threads in (1, 2) if name == "prjoin" else (1,):
            try:
                case.check(name, threads)
            except Exception as wrong:
                wrong.add_note(f"case {seed}, {threads} threads, memory {case.memory}, {case.path}")
                raise


@pytest.mark.parametrize("name", ALGORITHMS)
def test_some_random_cases_end_with_the_answer(name: str, tmp_path: Path) -> None:
    for seed in (107, 115):
        Case(seed, tmp_path).check(name)


@pytest.mark.parametrize("name", ["sms", "dbo"])
def test_runs_that_are_more_than_there_is_memory_for_become_fewer(name: str, tmp_path: Path) -> None:
    Case(40, tmp_path).check(name)
