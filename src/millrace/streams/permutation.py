"""A seeded permutation of 0..domain-1, computed in both directions without a table."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from millrace.core.arrays import Int64Array, UInt64Array
from millrace.streams.draws import generator
from millrace.streams.parameters import check_domain, check_seed

_ROUNDS = 6
_HALF_WORD = np.uint64(32)
_FOLD = np.uint64(29)
_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)


class Permutation:
    """Generalised Feistel network with cycle walking: Black and Rogaway, "Ciphers with arbitrary finite domains",
    CT-RSA 2002.

    A number is split into digits (left, right) of an a x b rectangle with a = ceil(sqrt(domain)) and b =
    ceil(domain/a). Each round adds a hash of one digit to the other, modulo its range, which can be undone. The
    rectangle is less than a larger than the domain; the few numbers that land in the excess walk on until they are
    inside.

    >>> permutation = Permutation(10, seed=3)
    >>> bool((np.sort(permutation.apply(np.arange(10))) == np.arange(10)).all())
    True
    >>> permutation.invert(permutation.apply(np.array([0, 7]))).tolist()
    [0, 7]
    """

    def __init__(self, domain: int, seed: int) -> None:
        check_domain(domain)
        check_seed(seed)
        self._domain = domain
        rows = math.isqrt(domain - 1) + 1
        self._rows, self._columns = np.uint64(rows), np.uint64(-(-domain // rows))
        self._round_keys: UInt64Array = generator("scatter", seed).integers(
            0, 1 << 64, size=_ROUNDS, dtype=np.uint64, endpoint=False
        )

    def apply(self, numbers: Int64Array) -> Int64Array:
        """The places of `numbers`."""
        return self._walk(numbers, range(_ROUNDS), forward=True)

    def invert(self, places: Int64Array) -> Int64Array:
        """The numbers at `places`."""
        return self._walk(places, range(_ROUNDS - 1, -1, -1), forward=False)

    def _walk(self, numbers: Int64Array, rounds: Iterable[int], *, forward: bool) -> Int64Array:
        rounds = tuple(rounds)
        result = self._network(numbers.astype(np.uint64), rounds, forward)
        outside = np.flatnonzero(result >= np.uint64(self._domain))
        while len(outside):
            result[outside] = self._network(result[outside], rounds, forward)
            outside = outside[result[outside] >= np.uint64(self._domain)]
        return result.astype(np.int64)

    def _network(self, numbers: UInt64Array, rounds: tuple[int, ...], forward: bool) -> UInt64Array:
        left, right = np.divmod(numbers, self._columns)
        for index in rounds:
            if index % 2 == 0:
                left = self._shift(left, self._hash(right, index, self._rows), self._rows, forward)
            else:
                right = self._shift(right, self._hash(left, index, self._columns), self._columns, forward)
        return left * self._columns + right

    def _hash(self, digit: UInt64Array, index: int, span: np.uint64) -> UInt64Array:
        """A number below `span` (at most 2^24, so that the product with 32 bits fits a word)."""
        mixed = (digit + self._round_keys[index]) * _MULTIPLIER
        mixed ^= mixed >> _FOLD
        mixed *= _MULTIPLIER
        scaled: UInt64Array = ((mixed >> _HALF_WORD) * span) >> _HALF_WORD
        return scaled

    @staticmethod
    def _shift(digit: UInt64Array, by: UInt64Array, span: np.uint64, forward: bool) -> UInt64Array:
        total: UInt64Array = digit + by if forward else digit + (span - by)
        total -= np.where(total >= span, span, np.uint64(0))
        return total
