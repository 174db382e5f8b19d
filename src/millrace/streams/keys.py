"""Which keys a stream carries: Zipf, uniform, and Zipf inside an interval that moves through the domain.

Every generator is a frozen set of parameters with a position. The keys depend on the parameters only, never on how the
draws are cut: 100 keys and then 50 are the same as 150 at once. `dataclasses.replace(keys)` is the same stream from its
start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol, overload

import numpy as np
import numpy.typing as npt

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.errors import ParameterError
from millrace.streams.draws import BLOCK_KEYS, Spool, generator
from millrace.streams.parameters import check_domain, check_number, check_seed, check_whole
from millrace.streams.permutation import Permutation
from millrace.streams.zipf import ExactZipf, PaperZipf

Method = Literal["exact", "paper"]
_METHODS: dict[str, type[ExactZipf] | type[PaperZipf]] = {"exact": ExactZipf, "paper": PaperZipf}


class KeyDistribution(Protocol):
    """An endless, repeatable sequence of keys from 1 to `domain`."""

    @property
    def domain(self) -> int: ...

    def draw(self, n: int) -> Int64Array:
        """The next `n` keys."""


@dataclass(frozen=True)
class ZipfKeys:
    """Keys 1..`domain` whose ranks follow Zipf's law, P(rank k) ~ k^-`exponent`.

    Naeem, Dobbie and Weber, "HYBRIDJOIN for near-real-time data warehousing", section 5, for the benchmark; Hörmann and
    Derflinger 1996 for the exact method.

    `exponent` is 0 (uniform) or anything above, 1 and more included. `method`:

    - "exact" is Zipf's law itself, by rejection-inversion: no table, so a domain of billions costs nothing;
    - "paper" is the generator as printed: the inverse of the integral of x^-e from 1 to `domain`, rounded down. With
      exponent 1 that is P(k) = ln((k+1)/k)/ln(domain), which gives rank 1 only 0.69 of the weight that 1/k would, while
      far ranks get nearly all of it, and *the last rank never comes*: its area, from `domain` to `domain` + 1, is
      outside the integral.

    Key = rank, so that the hot keys are neighbours, as that benchmark assumes; `scatter` places the ranks all over the
    domain by a seeded permutation, as in a table that knows nothing of frequencies.

    >>> keys = ZipfKeys(domain=1000, exponent=1.0, seed=7)
    >>> drawn = keys.draw(100_000)
    >>> int(drawn.min()), bool(drawn.max() <= 1000)
    (1, True)
    >>> round(keys.mass(200), 3)  # near the 80/20 rule: the share of the first 20 % of the keys
    0.785
    >>> bool(abs((drawn <= 200).mean() - keys.mass(200)) < 0.005)
    True
    """

    domain: int
    exponent: float = 1.0
    method: Method = "exact"
    scatter: bool = False
    seed: int = 0
    _spool: Spool = field(init=False, repr=False, compare=False)
    _places: Permutation | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.method not in _METHODS:
            raise ParameterError(f"method must be one of {', '.join(_METHODS)}; got {self.method!r}")
        check_domain(self.domain, least=2 if self.method == "paper" else 1)
        check_number("exponent", self.exponent, 0.0)
        check_seed(self.seed)
        if not isinstance(self.scatter, bool):
            raise ParameterError(f"scatter must be True or False; got {self.scatter!r}")
        sampler = _METHODS[self.method](self.domain, float(self.exponent), generator("zipf", self.seed))
        object.__setattr__(self, "_spool", Spool(sampler))
        object.__setattr__(self, "_places", Permutation(self.domain, self.seed) if self.scatter else None)

    def draw(self, n: int) -> Int64Array:
        """The next `n` keys."""
        check_whole("n", n, 0)
        ranks = self._spool.take(n)
        if self._places is not None:
            for start in range(0, n, BLOCK_KEYS):
                ranks[start : start + BLOCK_KEYS] = self.keys_of(ranks[start : start + BLOCK_KEYS])
        return ranks

    def keys_of(self, ranks: Int64Array) -> Int64Array:
        """The keys that have these ranks (rank 1 is the most frequent)."""
        return ranks if self._places is None else self._places.apply(ranks - 1) + 1

    def ranks_of(self, keys: Int64Array) -> Int64Array:
        """The ranks of these keys."""
        return keys if self._places is None else self._places.invert(keys - 1) + 1

    @overload
    def probability(self, rank: int) -> float: ...
    @overload
    def probability(self, rank: Int64Array) -> FloatArray: ...
    def probability(self, rank: int | Int64Array) -> float | FloatArray:
        """Share of the stream that a rank gets, for the method in use."""
        _check_ranks("rank", rank, 1, self.domain)
        return _plain(rank, _METHODS[self.method].probability(rank, self.domain, float(self.exponent)))

    @overload
    def mass(self, ranks: int) -> float: ...
    @overload
    def mass(self, ranks: Int64Array) -> FloatArray: ...
    def mass(self, ranks: int | Int64Array) -> float | FloatArray:
        """Share of the stream on the first `ranks` ranks: what a cache of the hottest `ranks` keys would answer."""
        _check_ranks("ranks", ranks, 0, self.domain)
        return _plain(ranks, _METHODS[self.method].mass(ranks, self.domain, float(self.exponent)))


def _check_ranks(name: str, ranks: npt.ArrayLike, least: int, most: int) -> None:
    given = np.asarray(ranks)
    if given.dtype.kind not in "iu" or (given.size and (given.min() < least or given.max() > most)):
        raise ParameterError(f"{name} must be whole numbers from {least} to {most}; got {ranks!r}")


def _plain(given: int | Int64Array, result: FloatArray) -> float | FloatArray:
    """A number for a number, an array for an array."""
    return result if isinstance(given, np.ndarray) else float(result)


class _UniformSampler:
    def __init__(self, domain: int, random: np.random.Generator) -> None:
        self._domain, self._random = domain, random

    def block(self) -> Int64Array:
        return self._random.integers(1, self._domain, size=BLOCK_KEYS, endpoint=True)


@dataclass(frozen=True)
class UniformKeys:
    """Every key from 1 to `domain` with the same probability: a stream without locality.

    The case that Naeem, Dobbie and Weber, "HYBRIDJOIN for near-real-time data warehousing", section 5, start from.

    >>> np.unique(UniformKeys(domain=6, seed=1).draw(1000)).tolist()
    [1, 2, 3, 4, 5, 6]
    """

    domain: int
    seed: int = 0
    _spool: Spool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_domain(self.domain)
        check_seed(self.seed)
        object.__setattr__(self, "_spool", Spool(_UniformSampler(self.domain, generator("uniform", self.seed))))

    def draw(self, n: int) -> Int64Array:
        """The next `n` keys."""
        check_whole("n", n, 0)
        return self._spool.take(n)


class _MovingSampler:
    """Blocks that end where an interval ends; each visit to an interval has a fresh Zipf generator of its own."""

    def __init__(self, locality: TemporalLocalityKeys) -> None:
        self._locality = locality
        self._visit = -1
        self._left = 0
        self._below = 0

    def block(self) -> Int64Array:
        if not self._left:
            self._enter(self._visit + 1)
        count = min(self._left, BLOCK_KEYS)
        self._left -= count
        return self._zipf.draw(count) + self._below

    def _enter(self, visit: int) -> None:
        locality = self._locality
        first, last = locality.bounds(visit % locality.intervals)
        seed = int(generator("locality", locality.seed, visit).integers(1 << 62))
        self._zipf = ZipfKeys(last - first + 1, locality.exponent, seed=seed)
        self._visit, self._left, self._below = visit, locality.tuples_per_interval, first - 1


@dataclass(frozen=True)
class TemporalLocalityKeys:
    """Zipf keys inside an interval of the domain, which moves on after `tuples_per_interval` tuples.

    Naeem, Dobbie, Lutteroth and Weber, "Skewed distributions in semi-stream joins: How much can caching help?", section
    5.2.1, "Temporal locality": the domain [1, R/N] is cut into 25 intervals, the stream of 50 million tuples into as
    many parts, and part I draws from interval I with skew 1. After the last interval the stream starts at the first one
    again, with new draws.

    Differs from the paper: its text lets part I, counted from 1, cover I to I + 1 times the width, which leaves the
    domain at the last part; here it is I - 1 to I.

    >>> keys = TemporalLocalityKeys(domain=1000, intervals=4, tuples_per_interval=500, seed=5)
    >>> first, second = keys.draw(500), keys.draw(500)
    >>> bool(first.max() <= 250), bool(250 < second.min() and second.max() <= 500)
    (True, True)
    """

    domain: int
    intervals: int = 25
    tuples_per_interval: int = 2_000_000
    exponent: float = 1.0
    seed: int = 0
    _spool: Spool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_domain(self.domain)
        check_whole("intervals", self.intervals, 1, self.domain)
        check_whole("tuples_per_interval", self.tuples_per_interval, 1)
        check_number("exponent", self.exponent, 0.0)
        check_seed(self.seed)
        object.__setattr__(self, "_spool", Spool(_MovingSampler(self)))

    def bounds(self, interval: int) -> tuple[int, int]:
        """First and last key of an interval, counted from 0; widths differ by one at most."""
        check_whole("interval", interval, 0, self.intervals - 1)
        return self.domain * interval // self.intervals + 1, self.domain * (interval + 1) // self.intervals

    def draw(self, n: int) -> Int64Array:
        """The next `n` keys."""
        check_whole("n", n, 0)
        return self._spool.take(n)
