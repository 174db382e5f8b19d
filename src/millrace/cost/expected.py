"""The workload that a prediction is for, and the prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from millrace.core.errors import ParameterError
from millrace.core.unitcosts import UnitCosts
from millrace.cost.iteration import IterationCost
from millrace.cost.pages import Order, PageDemand
from millrace.cost.popularity import Popularity


@dataclass(frozen=True)
class StreamShape:
    """What is known of a stream before it comes.

    `popularity`: of the keys of the relation. `order`: where the rows of keys that come often lie. `absent`: share of the
    stream on keys that the relation does not have. `sigma`: rows of the relation that any other tuple meets.
    """

    popularity: Popularity
    order: Order = "scattered"
    absent: float = 0.0
    sigma: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.absent <= 1:
            raise ParameterError(f"absent must be a share from 0 to 1; got {self.absent}")
        if not self.sigma >= 0:
            raise ParameterError(f"sigma must be 0 rows or more; got {self.sigma}")

    @staticmethod
    def zipf(exponent: float, rows: int, order: Order = "scattered") -> StreamShape:
        return StreamShape(Popularity.zipf(exponent, max(1, rows)), order)

    def demand(self, rows: int, pages: int) -> PageDemand:
        return PageDemand(self.popularity, max(1, rows), max(1, pages), self.order)

    def without(self, keys: int) -> StreamShape:
        """What is left of the stream behind a front stage that answers the keys which come most often."""
        return StreamShape(_without(self.popularity, keys), self.order, self.absent, self.sigma)


@lru_cache(maxsize=64)
def _without(popularity: Popularity, keys: int) -> Popularity:
    """Always the same object, so that what was found for it is found again."""
    return popularity.without(keys)


@dataclass(frozen=True)
class Expected:
    """What a join is expected to do with a budget."""

    iteration: IterationCost
    window_tuples: int  # tuples that can wait at once
    memory: Mapping[str, int]  # bytes of each part
    settings: Mapping[str, float] = field(default_factory=dict)  # what was chosen: buffer_pages, cache_share, ...
    answered: float = 0.0  # share of the stream that a front stage answers

    def rate(self, costs: UnitCosts) -> float:
        """mu: tuples a second."""
        return self.iteration.rate(costs)

    def seconds_each(self, costs: UnitCosts) -> float:
        """Seconds for a tuple."""
        return 1.0 / self.rate(costs)
