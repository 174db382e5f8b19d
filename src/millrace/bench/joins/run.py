"""One join at work in phases: it gets into its stride, runs as fast as it can, keeps up with a slower stream, drains.

    warm-up     tuples that don't count: the window fills, and gets the mix of keys that stays in it
    saturated   there is always another tuple to take: the rate, reads, processing times
    profiled    the same, with its kernels timed one by one; on a real disk only
    paced       tuples arrive one by one at a share of that rate: how long they wait to be taken
    doubled     the table grows to twice its rows; the rate right then, and once the join is in its stride again; if asked for
    drain       no more tuples come: the join empties its window by itself

*Processing time* runs from a tuple's entry to its leaving, *waiting time* from its arrival to its entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.bench.joins.clock import HostClock
from millrace.bench.joins.kernels import kernels_timed
from millrace.core.arrays import FloatArray
from millrace.core.host import Host
from millrace.core.ledger import Ledger
from millrace.core.protocols import SemiStreamJoin
from millrace.core.step import Step, StepCounts
from millrace.relations.generated import KEY, SURROGATE_KEY, SURROGATE_OFFSET
from millrace.streams import Workload
from millrace.tuning.timed import Clocked

BATCH_ROWS = 65_536
_SETTLING = 8  # times the tuples of a phase
_SETTLING_SECONDS = 30.0
_AT_ONCE = 64  # tuples answered at once that count as one
_PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Limits:
    """When a phase is over: after `tuples` that left the window, or after `seconds` if that is sooner.

    The window is what takes time to get into its stride. So of the tuples that a join answers at once, from rows it keeps, 64
    count as one.
    """

    tuples: float = inf
    seconds: float = inf

    def share(self, tuples: float, seconds: float) -> float:
        """How much of the phase is over; 1 when all is."""
        return max(tuples / self.tuples, seconds / self.seconds)


class Feed:
    """The stream, batch by batch; what a join did not take is offered again."""

    def __init__(self, stream: Workload) -> None:
        self._stream = stream
        self._batch = stream.draw(0)
        self.taken = 0
        self.key_sum = 0

    def next(self, most: int) -> pa.RecordBatch:
        """Up to `most` tuples, at least one."""
        if self._batch.num_rows == 0:
            self._batch = self._stream.draw(BATCH_ROWS)
        return self._batch.slice(0, most)

    def take(self, count: int) -> None:
        if count:
            self.key_sum += int(pc.sum(self._batch.column(KEY).slice(0, count)).as_py())
        self._batch = self._batch.slice(count)
        self.taken += count


class JoinRun:
    """Drives a join by a clock."""

    def __init__(self, join: SemiStreamJoin, stream: Workload, clock: HostClock) -> None:
        self.join = join
        self.clock = clock
        self.feed = Feed(stream)
        self.host = Host(Clocked(join, clock))
        self.rows_out = 0
        self.surrogate_sum = 0
        self._step_times = np.zeros(1024)  # when the tuples that entered in each step did so

    @property
    def ledger(self) -> Ledger:
        return self.host.ledger

    def warm_up(self, limits: Limits) -> None:
        """Run at full speed; nothing counts. A join that shares its memory out by what it sees goes on until it has done so,
        for several times as many tuples at most."""
        self._run_for(limits, [])
        first, start = self._progress, self.clock.now
        longer = Limits(_SETTLING * limits.tuples, max(_SETTLING_SECONDS, limits.seconds))
        while not getattr(self.join, "settled", True) and longer.share(self._progress - first, self.clock.now - start) < 1:
            self._run_for(Limits(tuples=1), [])

    def saturate(self, limits: Limits) -> dict[str, Any]:
        """Measure at full speed."""
        before, start, cpu = self.ledger.totals, self.clock.now, self.clock.cpu
        processing: list[FloatArray] = []
        self._run_for(limits, processing)
        counts = _difference(self.ledger.totals, before)
        seconds = self.clock.now - start
        tuples = counts.removed
        return {
            "tuples": tuples,
            "seconds": seconds,
            "tuples_per_second": tuples / seconds,
            "cpu_ns_per_tuple": (self.clock.cpu - cpu) / tuples * 1e9,
            "counts": counts.as_dict(),
            "pages_per_tuple": counts.pages_read / tuples,
            "seeks_per_tuple": counts.seeks / tuples,
            "index_reads_per_tuple": counts.index_reads / tuples,
            "processing_seconds": percentiles(processing),
        }

    def profile(self, limits: Limits, reading: Callable[[], bool]) -> dict[str, Any]:
        """Processor time of compiled kernels for each tuple, at full speed; those that `reading` calls are left out."""
        first = self.ledger.totals.removed
        with kernels_timed(left_out=reading) as times:
            self._run_for(limits, [])
        tuples = self.ledger.totals.removed - first
        each = {name: seconds / tuples * 1e9 for name, seconds in sorted(times.seconds.items(), key=lambda item: -item[1])}
        return {"kernel_ns_per_tuple": sum(each.values()), "kernels": each}

    def pace(self, rate: float, limits: Limits) -> dict[str, Any]:
        """Let `rate` tuples a second arrive, evenly; the first half of the phase does not count.

        Here the phase is over when so many tuples have entered, and some of the second half have, and some have left.
        """
        start, began, left = self.clock.now, self.feed.taken, 0
        waiting: list[FloatArray] = []
        processing: list[FloatArray] = []
        while (share := limits.share(self.feed.taken - began, self.clock.now - start)) < 1 or not waiting or not left:
            entered = self.feed.taken - began
            arrived = int((self.clock.now - start) * rate) + 1
            if arrived <= entered and not self.host.waiting:
                self.clock.skip_to(start + entered / rate)
                arrived = entered + 1
            taken = self._offer(arrived - entered)
            moment = self.clock.now - start
            times = self._step()
            if share >= 0.5:
                processing.append(times)
                left += len(times)
                if taken:
                    waiting.append(np.maximum(0.0, moment - np.arange(entered, entered + taken) / rate))
        return {
            "arrivals_per_second": rate,
            "waiting_seconds": percentiles(waiting),
            "processing_seconds": percentiles(processing),
        }

    def double(self, relation: Any, limits: Limits) -> dict[str, Any]:
        """Let the table grow to twice its rows, none of which the stream asks for, and measure."""
        self._run_for(limits, [])  # the phase before was slower
        relation.grow(2 * relation.rows)
        first = self.saturate(limits)
        self.warm_up(limits)
        return {"first": first, "settled": self.saturate(limits)}

    def drain(self, pages: int) -> dict[str, Any]:
        """Step without input until nothing is pending; every row must have come out, and be the right one."""
        before, start, pending, steps = self.ledger.totals, self.clock.now, self.host.waiting, self.ledger.steps
        while self.host.waiting:
            self._step()
        counts = _difference(self.ledger.totals, before)
        return {
            "tuples": pending,
            "steps": self.ledger.steps - steps,
            "seconds": self.clock.now - start,
            "pages_read": counts.pages_read,
            "passes": counts.pages_read / pages,
        }

    @property
    def rows_right(self) -> bool:
        """Whether every tuple taken came out with the row of its key, once: each key is in the table once."""
        found = self.surrogate_sum == self.feed.key_sum and self.rows_out == self.feed.taken
        return found and self.ledger.matched == self.feed.taken

    @property
    def _progress(self) -> float:
        """Tuples that have left; see `Limits`. Each tuple answered at once met one row."""
        totals = self.ledger.totals
        at_once = totals.pinned_matches + totals.front_hits
        return totals.removed - at_once + at_once / _AT_ONCE

    def _run_for(self, limits: Limits, processing: list[FloatArray]) -> None:
        """To its limits, and until some tuples have left."""
        first, start = self._progress, self.clock.now
        while limits.share(self._progress - first, self.clock.now - start) < 1 or self._progress == first:
            while self._offer(BATCH_ROWS) == BATCH_ROWS:
                pass
            processing.append(self._step())

    def _offer(self, most: int) -> int:
        """Offer up to `most` tuples until the join takes no more; returns how many it took."""
        taken = 0
        while taken < most:
            batch = self.feed.next(most - taken)
            count = self.host.offer(batch)
            self.feed.take(count)
            taken += count
            if count < batch.num_rows:
                break
        return taken

    def _step(self) -> FloatArray:
        """One step; returns the processing times of the tuples that left."""
        number = self.ledger.steps
        if number == len(self._step_times):
            self._step_times = np.concatenate((self._step_times, np.zeros(number)))
        self._step_times[number] = self.clock.now
        step = self.host.step()
        self._check(step)
        return self.clock.now - self._step_times[step.entered]

    def _check(self, step: Step) -> None:
        rows = step.output.num_rows
        if rows:
            self.rows_out += rows
            self.surrogate_sum += int(pc.sum(step.output.column(SURROGATE_KEY)).as_py()) - rows * SURROGATE_OFFSET


def percentiles(parts: list[FloatArray]) -> dict[str, float] | None:
    """p50, p95, p99 and the mean, in seconds; None of nothing."""
    values = np.concatenate(parts) if parts else np.zeros(0)
    if len(values) == 0:
        return None
    found = np.percentile(values, _PERCENTILES)
    return {**{f"p{p}": float(v) for p, v in zip(_PERCENTILES, found, strict=True)}, "mean": float(values.mean())}


def _difference(later: StepCounts, earlier: StepCounts) -> StepCounts:
    before = earlier.as_dict()
    return StepCounts(**{name: value - before[name] for name, value in later.as_dict().items()})
