"""A join that sheds, driven by a clock: tuples arrive faster than it can serve, and then no more come.

overload    tuples arrive at a rate of their own, whether they are served or not; the first half does not count
drain       all that waits or was shed is joined
"""

from __future__ import annotations

from typing import Any

from millrace.bench.joins.clock import HostClock
from millrace.bench.joins.run import JoinRun, Limits
from millrace.joins.shedding.overloaded import Overloaded
from millrace.joins.shedding.store import Nowhere
from millrace.streams import Workload


class OverloadRun(JoinRun):
    """Drives a join that sheds. The ledger is checked after every step."""

    def __init__(self, join: Overloaded, stream: Workload, clock: HostClock) -> None:
        super().__init__(join, stream, clock)
        self.shedding = join
        self.longest_age = 0.0

    def overload(self, rate: float, limits: Limits) -> dict[str, Any]:
        """Let `rate` tuples a second arrive until so many have come; returns what was served in the second half."""
        start, middle = self.clock.now, None
        while (share := limits.share(self.feed.taken, self.clock.now - start)) < 1 or middle is None:
            if middle is None and share >= 0.5:
                middle = self.clock.now, self.ledger.totals.removed, self.feed.taken, self.shedding.deferred
            arrived = int((self.clock.now - start) * rate) + 1
            if arrived > self.feed.taken:
                self._offer(arrived - self.feed.taken)
            elif not self.host.waiting:
                self.clock.skip_to(start + self.feed.taken / rate)
            self._age()
        then, served, arrived, outside = middle
        seconds, tuples = self.clock.now - then, self.ledger.totals.removed - served
        return {
            "tuples": tuples,
            "seconds": seconds,
            "tuples_per_second": tuples / seconds,
            "arrivals_per_second": rate,
            "share_shed": (self.shedding.deferred - outside) / max(1, self.feed.taken - arrived),
            "outside": self.shedding.deferred,
        }

    def empty(self) -> dict[str, Any]:
        """No more tuples come; all that are left are joined."""
        start, steps = self.clock.now, self.ledger.steps
        while self.host.waiting:
            self._age()
        return {"steps": self.ledger.steps - steps, "seconds": self.clock.now - start, "left_outside": self.shedding.deferred}

    @property
    def joined_once(self) -> bool:
        """Whether every tuple came out once, with its row; those that were dropped not at all."""
        if isinstance(self.shedding.sink, Nowhere):
            return self.rows_out == self.ledger.matched == self.feed.taken - self.shedding.deferred
        return self.rows_right and self.shedding.deferred == 0

    def _age(self) -> None:
        times = self._step()
        if len(times):
            self.longest_age = max(self.longest_age, float(times.max()))
