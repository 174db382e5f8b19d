"""Whether other settings are worth a change: all tuples have to leave first, and pinned pages are read again.

A change is made if

    the forecast promises clearly more      than the forecast for the present settings, and than what was measured
    two looks in a row agree                or the gain is large, or the join has nothing to do anyway
    the join does not keep up               where the host says how fast tuples arrive
    or the table has grown                  the present settings were made for a smaller one

After a change nothing is changed until the new settings have shown what they give. What settings gave for a stream is kept: for
a stream like this one it counts instead of the forecast. So a change that does not give what was promised is undone, and not
tried again. Each change in a short time makes the next one wait longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millrace.core.errors import BudgetError
from millrace.tuning.settings import Setting, Tuner
from millrace.tuning.watch import Seen

_BETTER = 1.1  # times the rate
_MUCH_BETTER = 1.5
_KEEPS_UP = 1.25  # times the arrivals
_WARM_LOOKS = 1  # after a change: the window fills, a front stage learns
_SHORT = 32  # looks
_KEPT = 16  # settings that have shown what they give


@dataclass(frozen=True)
class Wanted:
    """The settings to change to, and why."""

    setting: Setting
    why: str


Decide = Callable[[Setting, Seen], Wanted | None]  # present settings, what was seen -> other settings


@dataclass(frozen=True)
class _Shown:
    """What a setting gave for a stream, once it was in its stride and busy."""

    setting: Setting
    seen: Seen
    rate: float


class Judge:
    """Decides at each look. `arrivals_per_second`: how fast tuples come, if the host knows."""

    def __init__(self, tuner: Tuner, arrivals_per_second: float | None = None) -> None:
        self._tuner = tuner
        self.arrivals_per_second = arrivals_per_second
        self._rows = tuner.relation.rows  # for which the present settings were made
        self._chosen: tuple[Seen, Setting] | None = None  # the best settings by forecast, and for which stream
        self._doubtful: str | None = None  # the strategy that one look found better
        self._shown: list[_Shown] = []  # the newest last
        self._looks = 0
        self._changes: list[int] = []  # looks at which a change was made

    def __call__(self, now: Setting, seen: Seen) -> Wanted | None:
        if not seen.counts.removed:
            return None
        self._looks += 1
        wanted = self._decided(now, seen)
        if wanted is not None:
            self._changes.append(self._looks)
            self._rows, self._doubtful = seen.rows, None
        return wanted

    def _decided(self, now: Setting, seen: Seen) -> Wanted | None:
        if seen.grown_from(self._rows):
            self._shown = []
            return Wanted(self._tuner.best(seen.stream()), f"the table has {seen.rows:,} rows, and had {self._rows:,}")
        self._changes = [look for look in self._changes if self._looks - look <= _SHORT]
        since = self._looks - self._changes[-1] if self._changes else self._looks
        if since <= _WARM_LOOKS:
            return None
        if seen.join_bound:
            self._note(_Shown(now, seen, seen.rate(self._tuner.costs(now.strategy))))
        if self._changes and since < len(self._changes):
            return None
        return self._better(now, seen)

    def _note(self, shown: _Shown) -> None:
        self._shown = [one for one in self._shown if not (one.setting.same_as(shown.setting) and one.seen.like(shown.seen))]
        self._shown = [*self._shown, shown][-_KEPT:]

    def _better(self, now: Setting, seen: Seen) -> Wanted | None:
        """Settings that promise clearly more than the present ones."""
        shown = [one for one in self._shown if one.seen.like(seen)]
        mine = next((one.rate for one in shown if one.setting.same_as(now)), 0.0)
        best = max(shown, key=lambda one: one.rate, default=None)
        if best is not None and mine and best.rate >= _BETTER * mine and not self._keeps_up(mine):
            return self._sure(best.setting, best.rate / mine, seen, "gave")
        rate = max(mine, self._forecast(now, seen))
        if self._keeps_up(rate):
            return None
        promised = self._best(seen)
        if any(one.setting.same_as(promised) for one in shown) or promised.tuples_per_second < _BETTER * rate:
            self._doubtful = None
            return None
        return self._sure(promised, promised.tuples_per_second / rate, seen, "promises")

    def _sure(self, wanted: Setting, gain: float, seen: Seen, verb: str) -> Wanted | None:
        """The change, if it is worth it without a second look, or if this is the second look."""
        if gain < _MUCH_BETTER and seen.join_bound and self._doubtful != wanted.strategy:
            self._doubtful = wanted.strategy
            return None
        about = f"{seen.skew}; {seen.absent:.0%} without a match, rows of hot keys {seen.order}"
        return Wanted(wanted, f"{wanted.strategy} {verb} {gain:.2f}x the rate for such a stream: {about}")

    def _keeps_up(self, rate: float) -> bool:
        return self.arrivals_per_second is not None and rate >= _KEEPS_UP * self.arrivals_per_second

    def _best(self, seen: Seen) -> Setting:
        if self._chosen is None or not self._chosen[0].like(seen):
            self._chosen = seen, self._tuner.best(seen.stream())
        return self._chosen[1]

    def _forecast(self, now: Setting, seen: Seen) -> float:
        try:
            return self._tuner.rate(now, seen.stream())
        except BudgetError:  # the table has grown a little, and the memory would not do for these settings any more
            return 0.0
