"""Small tables for the tests of online aggregation, and what their joins come to by other means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.online.joins.dbo import DBO
from millrace.online.joins.grace import Grace
from millrace.online.joins.hash_ripple import HashRipple
from millrace.online.joins.hmj import HMJ
from millrace.online.joins.prjoin import PRJoin
from millrace.online.joins.ripple import Ripple
from millrace.online.joins.rpj import RPJ
from millrace.online.joins.sms import SMS
from millrace.online.joins.xjoin import XJoin
from millrace.online.pair_functions import Functions, Pairs, Products
from millrace.online.protocol import Input, OnlineJoin
from millrace.online.storage.inputs import ArrayInput
from millrace.online.storage.spill import FileSpill

ALGORITHMS: dict[str, Callable[..., OnlineJoin]] = {
    "grace": Grace,
    "prjoin": PRJoin,
    "ripple": Ripple,
    "hash_ripple": HashRipple,
    "sms": SMS,
    "dbo": DBO,
    "xjoin": XJoin,
    "hmj": HMJ,
    "rpj": RPJ,
}

COUNT_AND_SUM = Products(left=((), ()), right=((), (1,)))  # COUNT(*) and SUM(b.value)


def records(codes: Any, values: Any = None) -> Int64Array:
    """Records of a key code and a double."""
    codes = np.asarray(codes, np.int64)
    numbers = np.zeros(len(codes)) if values is None else np.asarray(values, np.float64)
    words: Int64Array = np.stack([codes, numbers.view(np.int64)], axis=1)
    return words


@dataclass(frozen=True)
class Tables:
    a: Int64Array
    b: Int64Array

    @property
    def bytes(self) -> int:
        return self.a.nbytes + self.b.nbytes

    def expected(self) -> tuple[int, float]:
        """COUNT(*) and SUM(b.value), key by key."""
        rows_a = Counter(self.a[:, 0].tolist())
        count, total = 0, 0.0
        for code, value in zip(self.b[:, 0].tolist(), self.b[:, 1].view(np.float64).tolist(), strict=True):
            count += rows_a[code]
            total += rows_a[code] * value
        return count, total


def _values(random: np.random.Generator, count: int) -> Any:
    return random.integers(-1000, 1000, count).astype(np.float64)


def tables(kind: str, rows: int = 8_000, seed: int = 1) -> Tables:
    """Whole numbers as values: their sums are exact in any order."""
    random = np.random.default_rng(seed)
    a = b = np.zeros(0, np.int64)
    if kind == "one to one":
        a, b = random.permutation(rows), random.permutation(rows)
    elif kind == "foreign key":
        a, b = random.permutation(rows // 2), random.integers(0, rows // 2, rows)
    elif kind == "duplicates":
        a, b = random.integers(0, rows // 20, rows), random.integers(0, rows // 20, rows)
    elif kind == "skew":
        hot = random.random(rows) < 0.3
        a, b = random.zipf(1.3, rows) % 100_003, np.where(hot, 7, random.integers(0, rows, rows))
    elif kind == "no match":
        a, b = random.integers(0, rows, rows) * 2, random.integers(0, rows, rows) * 2 + 1
    elif kind == "empty b":
        a = random.permutation(rows)
    elif kind == "one key":
        a, b = np.full(300, 5), np.full(rows, 5)
    elif kind == "few rows":
        a, b = np.array([3, 1, 3]), np.array([3, 2])
    elif kind == "extreme codes":
        pool = np.array([np.iinfo(np.int64).min, np.iinfo(np.int64).max, -0x6A09E667F3BCC909, 0, -1], np.int64)
        a, b = random.choice(pool, 50), random.choice(pool, 60)
    elif kind != "empty":
        raise ValueError(kind)
    return Tables(records(a, _values(random, len(a))), records(b, _values(random, len(b))))


KINDS = (
    "one to one", "foreign key", "duplicates", "skew", "no match", "empty", "empty b", "one key", "few rows", "extreme codes",
)  # fmt: skip


def join_of(
    name: str, a: Input | Int64Array, b: Input | Int64Array, functions: Functions = COUNT_AND_SUM, *, memory: int = 1 << 20,
    spill: Any = None, budget: Budget | None = None, **options: Any,
) -> OnlineJoin:  # fmt: skip
    inputs = [ArrayInput(side) if isinstance(side, np.ndarray) else side for side in (a, b)]
    return ALGORITHMS[name](*inputs, functions, budget or Budget(memory), spill or FileSpill(), **options)


class Collected:
    """A sink that remembers every pair, and the functions COUNT(*) and SUM(a.value * b.value) by the general path."""

    def __init__(self, *, same: bool = False) -> None:
        self.pairs: list[tuple[int, ...]] = []
        words = (0,) if same else ()
        self.functions = Pairs(self._evaluate, 2, same_a=words, same_b=words, sink=self._sink)

    @staticmethod
    def _evaluate(a: Int64Array, b: Int64Array) -> tuple[Any, None]:
        product = a[:, 1].view(np.float64) * b[:, 1].view(np.float64)
        return np.stack([np.ones(len(a)), product], axis=1), None

    def _sink(self, a: Int64Array, b: Int64Array) -> None:
        self.pairs += [tuple(pair) for pair in np.concatenate([a, b], axis=1).tolist()]


def all_pairs(data: Tables) -> Counter[tuple[int, ...]]:
    """Every pair with equal keys, with how often it occurs."""
    by_code: dict[int, list[list[int]]] = {}
    for row in data.a.tolist():
        by_code.setdefault(row[0], []).append(row)
    return Counter(tuple(one + row) for row in data.b.tolist() for one in by_code.get(row[0], []))
