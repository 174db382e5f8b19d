"""Seeded random numbers in blocks, so that what is drawn does not depend on how the draws are cut."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from millrace.core.arrays import Int64Array

# Keys made at a time: temporaries of a block stay in the processor's cache.
BLOCK_KEYS = 1 << 14

# One number per use of a seed: generators that are given the same seed must not draw the same numbers.
USES = ("zipf", "uniform", "locality", "scatter", "bursty", "marks", "payload")


def generator(use: str, seed: int, part: int = 0) -> np.random.Generator:
    """Random numbers for one use of `seed`; `part` tells apart several uses of one kind."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(USES.index(use), part))))


class Sampler(Protocol):
    """Makes the next block of keys: at least one, in an order that depends on the seed only."""

    def block(self) -> Int64Array: ...


class Spool:
    """Hands out the blocks of a sampler in pieces of any length; the rest of a block waits for the next call."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._rest: Int64Array = np.empty(0, dtype=np.int64)

    def take(self, count: int) -> Int64Array:
        taken = np.empty(count, dtype=np.int64)
        filled = 0
        while filled < count:
            if not len(self._rest):
                self._rest = self._sampler.block()
            piece = self._rest[: count - filled]
            taken[filled : filled + len(piece)] = piece
            self._rest = self._rest[len(piece) :]
            filled += len(piece)
        return taken
