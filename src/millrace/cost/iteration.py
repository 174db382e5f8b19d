"""What one iteration of a join is expected to do, term by term, and what that takes.

The names are those of `StepCounts` and of `UnitCosts`, so that prediction and measurement are compared term by term. All
numbers are means, so they need not be whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.core.unitcosts import UnitCosts


@dataclass(frozen=True)
class IterationCost:
    """Means of one iteration in the long run, with tuples always at hand."""

    steps: float = 1.0  # calls of the join's step: more than one where its output does not hold all matches
    tuples_in: float = 0.0
    reads: float = 0.0  # calls of the disk
    pages_read: float = 0.0
    bytes_read: float = 0.0
    seeks: float = 0.0
    index_reads: float = 0.0
    probes: float = 0.0
    matches: float = 0.0
    removed: float = 0.0
    front_lookups: float = 0.0
    front_hits: float = 0.0
    pinned_matches: float = 0.0

    def __add__(self, other: IterationCost) -> IterationCost:
        return IterationCost(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def times(self, count: float) -> IterationCost:
        """So many iterations."""
        return IterationCost(**{name: value * count for name, value in vars(self).items()})

    def read_seconds(self, costs: UnitCosts) -> float:
        """c_IO."""
        return (
            self.seeks * costs.seek
            + self.bytes_read * costs.read_byte
            + self.reads * costs.request
            + self.index_reads * costs.index_read
        )

    def work_seconds(self, costs: UnitCosts) -> float:
        """All other terms of c_loop."""
        return costs.work(self, self.steps)

    def seconds(self, costs: UnitCosts) -> float:
        """c_loop."""
        return self.read_seconds(costs) + self.work_seconds(costs)

    def rate(self, costs: UnitCosts) -> float:
        """mu: tuples a second."""
        seconds = self.seconds(costs)
        return self.removed / seconds if seconds > 0 else float("inf")

    def each(self) -> dict[str, float]:
        """Every count for a tuple."""
        return {name: value / max(self.removed, 1e-300) for name, value in vars(self).items()}
