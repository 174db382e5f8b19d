"""When tuples arrive: a count for every time step. How long a step is, is for whoever drives the stream to say.

Every process is a frozen set of parameters with a position, and gives the same counts however the steps are cut.
"""

from __future__ import annotations

import copy
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.errors import ParameterError
from millrace.streams.draws import generator
from millrace.streams.parameters import check_number, check_seed, check_whole


class Arrivals(Protocol):
    """An endless, repeatable sequence of counts."""

    def arrivals(self, steps: int) -> Int64Array:
        """How many tuples arrive in each of the next `steps` steps."""


def _increments(reached: FloatArray) -> Int64Array:
    """Whole tuples between one running total and the next: what is cut off one count is in the following one."""
    whole = np.floor(reached).astype(np.int64)
    return whole[1:] - whole[:-1]


class _Clock:
    """A position in steps."""

    def __init__(self) -> None:
        self.step = 0


@dataclass(frozen=True)
class SteadyArrivals:
    """The same count in every step; a fraction is spread evenly.

    The constant arrival rate that the cost model of MESHJOIN assumes: Polyzotis et al., "Meshing streaming updates with
    persistent data in an active data warehouse".

    >>> SteadyArrivals(per_step=2.5).arrivals(4).tolist()
    [2, 3, 2, 3]
    """

    per_step: float
    _clock: _Clock = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_number("per_step", self.per_step, 0.0, 1e9)
        object.__setattr__(self, "_clock", _Clock())

    def arrivals(self, steps: int) -> Int64Array:
        """How many tuples arrive in each of the next `steps` steps."""
        check_whole("steps", steps, 0)
        first = self._clock.step
        self._clock.step += steps
        reached = np.arange(first, first + steps + 1, dtype=np.float64) * float(self.per_step)
        return _increments(reached)


class _Sources:
    """The on/off sources of `BurstyArrivals`, in a priority queue by the time at which each toggles next."""

    def __init__(self, sources: int, random: np.random.Generator) -> None:
        self._random = random
        self._step = 0
        self._bandwidth = 0  # of the sources that are on
        self._queue: list[tuple[float, int, bool]] = []  # (toggle time, bandwidth, on)
        for i in range(1, sources + 1):
            bandwidth = 1 << i
            state, stretch, share = random.random(3)
            on = bool(state < 0.5)
            # A stretch that is under way at a random moment is found with a chance in proportion to its length.
            self._queue.append((bandwidth * math.sqrt(stretch) * share, bandwidth, on))
            self._bandwidth += bandwidth if on else 0
        heapq.heapify(self._queue)

    def bandwidths(self, steps: int) -> Int64Array:
        totals = np.empty(steps, dtype=np.int64)
        for index in range(steps):
            self._step += 1
            while self._queue[0][0] < self._step:
                self._toggle()
            totals[index] = self._bandwidth
        return totals

    def _toggle(self) -> None:
        due, bandwidth, on = self._queue[0]
        self._bandwidth += -bandwidth if on else bandwidth
        heapq.heapreplace(self._queue, (due + self._random.random() * bandwidth, bandwidth, not on))


class _Emitted:
    """Sources, and how many units of bandwidth they have given so far (an exact count: rounding does not add up)."""

    def __init__(self, sources: _Sources) -> None:
        self.sources = sources
        self.total = 0


@dataclass(frozen=True)
class BurstyArrivals:
    """Bursts of all lengths: `sources` on/off sources, where source i = 1, 2, ... has bandwidth 2^i.

    Naeem, Dobbie and Weber, "HYBRIDJOIN for near-real-time data warehousing", section 5, figure 7.

    1. Each source has its own state, on or off, and the time of its next toggle; a priority queue holds them by that
       time.
    2. In every step, each source whose time has come toggles, and its next toggle is set a random share (0 to 1) of
       bandwidth steps later: strong sources change rarely, weak ones often.
    3. The count of the step is the total bandwidth of the sources that are on.

    With the ten sources of the paper: 0 to 2046 tuples a step, 1023 on average. Averaging over m steps hardly
    smooths the stream until m nears the longest period, 2^`sources` steps (the strongest source has three quarters of
    the variance); from there on the variance falls as 1/m. So it is self-similar up to that scale, and no further.
    `mean_per_step` scales the counts to a wished average.

    Differs from the paper: the printed code has one on/off flag for all sources, toggles at most one of them in a step,
    and starts with all of them off and due; here each has its own flag, all that are due toggle, and the process starts
    in its stationary state, so no warm-up is needed.

    >>> counts = BurstyArrivals(seed=1).arrivals(20_000)
    >>> bool(counts.min() >= 0), int(counts.max())
    (True, 2046)
    >>> bool(900 < counts.mean() < 1150)
    True
    """

    sources: int = 10
    mean_per_step: float | None = None
    seed: int = 0
    _emitted: _Emitted = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_whole("sources", self.sources, 1, 30)
        if self.mean_per_step is not None:
            check_number("mean_per_step", self.mean_per_step, 0.0, 1e9, open_below=True)
        check_seed(self.seed)
        object.__setattr__(self, "_emitted", _Emitted(_Sources(self.sources, generator("bursty", self.seed))))

    @property
    def full_bandwidth(self) -> int:
        """Tuples in a step with all sources on, before scaling."""
        return (2 << self.sources) - 2

    def arrivals(self, steps: int) -> Int64Array:
        """How many tuples arrive in each of the next `steps` steps."""
        check_whole("steps", steps, 0)
        bandwidths = self._emitted.sources.bandwidths(steps)
        if self.mean_per_step is None:
            return bandwidths
        reached = self._emitted.total + np.concatenate(([0], np.cumsum(bandwidths)))
        self._emitted.total = int(reached[-1])
        return _increments(reached * (2 * self.mean_per_step / self.full_bandwidth))


@dataclass(frozen=True)
class PausedArrivals:
    """Another process, with pauses in which nothing arrives: steps `start` to `stop` - 1 of each (start, stop).

    An intermittent source, which HYBRIDJOIN (section 5) is made for: MESHJOIN would leave tuples waiting for an
    open-ended time. The inner process stands still in a pause and goes on afterwards where it was: tuples are delayed,
    not lost. It is copied, so what is drawn here does not move the process that was given.

    >>> PausedArrivals(SteadyArrivals(per_step=3), pauses=[(1, 3)]).arrivals(5).tolist()
    [3, 0, 0, 3, 3]
    """

    inner: Arrivals
    pauses: Sequence[tuple[int, int]]
    _own: Arrivals = field(init=False, repr=False, compare=False)
    _clock: _Clock = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            pauses = tuple((start, stop) for start, stop in self.pauses)
        except (TypeError, ValueError):
            raise ParameterError(f"pauses must be pairs of steps (start, stop); got {self.pauses!r}") from None
        for start, stop in pauses:
            check_whole("start of a pause", start, 0)
            check_whole("stop of a pause", stop, start + 1)
        object.__setattr__(self, "pauses", pauses)
        object.__setattr__(self, "_own", copy.deepcopy(self.inner))
        object.__setattr__(self, "_clock", _Clock())

    def arrivals(self, steps: int) -> Int64Array:
        """How many tuples arrive in each of the next `steps` steps."""
        check_whole("steps", steps, 0)
        first = self._clock.step
        self._clock.step += steps
        flowing = np.ones(steps, dtype=np.bool_)
        for start, stop in self.pauses:
            flowing[max(start - first, 0) : max(stop - first, 0)] = False
        counts = np.zeros(steps, dtype=np.int64)
        counts[flowing] = self._own.arrivals(int(flowing.sum()))
        return counts
