"""Fixed pairs of tables on which intervals are tried out: seeded, small, and as different as joins are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.errors import ParameterError
from millrace.online.statistics.totals import KeyMoments, Sums, sums_of_keys


@dataclass(frozen=True)
class Population:
    """Two tables: the keys of each row, as numbers from 0, and f(a, b) = u(a) v(b) on equal keys, K functions of each."""

    name: str
    keys_a: Int64Array  # (N,)
    keys_b: Int64Array  # (M,)
    u: FloatArray  # (N, K)
    v: FloatArray  # (M, K)

    def __post_init__(self) -> None:
        if len(self.keys_a) != len(self.u) or len(self.keys_b) != len(self.v) or self.u.shape[1:] != self.v.shape[1:]:
            raise ParameterError("a population needs values for every row, of the same functions on both sides")
        if not len(self.keys_a) or not len(self.keys_b) or min(self.keys_a.min(), self.keys_b.min()) < 0:
            raise ParameterError("a population needs rows on both sides, with keys numbered from 0")

    @property
    def of_a(self) -> int:
        return len(self.keys_a)

    @property
    def of_b(self) -> int:
        return len(self.keys_b)

    @property
    def keys(self) -> int:
        return int(max(self.keys_a.max(), self.keys_b.max())) + 1

    @property
    def positive(self) -> bool:
        """No function of any pair is negative."""
        return bool((self.u >= 0).all() and (self.v >= 0).all())

    def joined(self, rows_a: Int64Array | slice, rows_b: Int64Array | slice) -> tuple[KeyMoments, KeyMoments]:
        """Moments of some rows of both sides."""
        left = KeyMoments.of(self.keys_a[rows_a], self.u[rows_a], self.keys)
        return left, KeyMoments.of(self.keys_b[rows_b], self.v[rows_b], self.keys)

    def first_functions(self, count: int) -> Population:
        """With the first functions only."""
        return replace(self, u=self.u[:, :count], v=self.v[:, :count])

    def answer(self) -> Sums:
        return sums_of_keys(*self.joined(slice(None), slice(None)))


def population(name: str, keys_a: Int64Array, keys_b: Int64Array, values_b: FloatArray, pilot: float = 0.0) -> Population:
    """Functions 1, v - pilot and (v - pilot)^2 of a value of B: what all aggregates need."""
    off = values_b - pilot
    v = np.stack((np.ones_like(off), off, off**2), axis=1)
    return Population(name, keys_a, keys_b, np.ones((len(keys_a), 3)), v)


def _zipf_keys(random: np.random.Generator, rows: int, keys: int, exponent: float) -> Int64Array:
    weights = np.arange(1, keys + 1) ** -exponent
    drawn: Int64Array = random.choice(keys, rows, p=weights / weights.sum())
    return drawn


def one_to_one_lognormal(rows: int = 8000, seed: int = 1) -> Population:
    random = np.random.default_rng(seed)
    keys = np.arange(rows)
    return population("1-1, lognormal values", keys, keys, random.lognormal(0.0, 0.5, rows))


def one_to_one_pareto(rows: int = 8000, seed: int = 2) -> Population:
    random = np.random.default_rng(seed)
    keys = np.arange(rows)
    return population("1-1, Pareto 1.5 values", keys, keys, 1 + random.pareto(1.5, rows))


def foreign_key(exponent: float, keys: int = 1000, rows: int = 10_000, seed: int = 3) -> Population:
    """A has each key once; the rows of B refer to them, uniformly (0) or by Zipf's law."""
    random = np.random.default_rng(seed)
    shape = "uniform" if exponent == 0 else f"Zipf {exponent} on one side"
    drawn = _zipf_keys(random, rows, keys, exponent)
    return population(f"key/foreign key, {shape}", np.arange(keys), drawn, random.gamma(4.0, 0.25, rows))


def many_to_many(exponent: float = 0.0, keys: int = 300, rows: int = 6000, seed: int = 4) -> Population:
    random = np.random.default_rng(seed)
    shape = "" if exponent == 0 else f", Zipf {exponent} on both sides"
    a, b = (_zipf_keys(random, rows, keys, exponent) for _ in range(2))
    return population(f"many-to-many{shape}", a, b, random.gamma(4.0, 0.25, rows))


POPULATIONS: dict[str, Callable[[], Population]] = {
    "one-to-one": one_to_one_lognormal,
    "foreign-key": lambda: foreign_key(0.0),
    "many-to-many": many_to_many,
    "many-to-many-zipf": lambda: many_to_many(0.5),
    "foreign-key-zipf-0.7": lambda: foreign_key(0.7),
    "foreign-key-zipf-0.8": lambda: foreign_key(0.8),
    "one-to-one-pareto": one_to_one_pareto,
}
