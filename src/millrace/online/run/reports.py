"""What a run says while it goes on: estimates with intervals, how far it is, and when it will be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from millrace.core.errors import ParameterError
from millrace.online.sampling.row_order import Order
from millrace.online.statistics.intervals import Estimate, Estimates

_SHOWN = 12  # groups
_REPORT_BYTES, _ESTIMATE_BYTES = 1500, 40


@dataclass(frozen=True)
class Report:
    """`report["revenue"]` is an `Estimate` with value, low, high and half_width; with groups `report["revenue", group]` is."""

    number: int
    seconds: float  # that the run has worked
    rows_read: tuple[int, int]  # of the left and the right input
    rows: tuple[int, int]  # in all
    pairs: int  # that have been joined
    exact: bool
    estimates: Mapping[str, Estimates]
    groups: tuple[Any, ...] | None  # None: there is no group_by
    order: Order
    target: float  # relative half-width
    seconds_to_target: float | None  # None: not known
    seconds_to_exact: float | None
    temporary_bytes: int

    @cached_property
    def _places(self) -> dict[Any, int]:
        return {group: number for number, group in enumerate(self.groups or ())}

    @property
    def held_bytes(self) -> int:
        """About what the report takes in memory."""
        groups = len(self.groups or (None,))
        return _REPORT_BYTES + groups * (8 + _ESTIMATE_BYTES * len(self.estimates))

    def __getitem__(self, name: Any) -> Any:
        """The estimate of an aggregate; with groups, of one group, or for the name alone a dict of all."""
        if isinstance(name, str) and name in self.estimates:
            found = self.estimates[name]
            if self.groups is None:
                return found[0]
            return {group: found[number] for number, group in enumerate(self.groups)}
        if self.groups is not None and isinstance(name, tuple) and len(name) == 2 and name[0] in self.estimates:
            if name[1] in self._places:
                return self.estimates[name[0]][self._places[name[1]]]
            raise KeyError(f"no group {name[1]!r} has been seen; there are {', '.join(map(repr, self.groups[:_SHOWN]))}")
        raise KeyError(f"there is no {name!r}; the report has {', '.join(self.estimates)}")

    @property
    def relative_half_width(self) -> float:
        """The largest of all aggregates and groups: half the interval over the value."""
        if self.exact:
            return 0.0
        widths = [relative_widths(each) for each in self.estimates.values()]
        every = np.concatenate(widths) if widths else np.zeros(0)
        return float(every.max()) if len(every) else float("inf")

    @property
    def share_read(self) -> float:
        total = sum(self.rows)
        return sum(self.rows_read) / total if total else 1.0

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know about these intervals, each once."""
        found = [self.order.message] if self.order.message and not self.exact else []
        for each in self.estimates.values():
            for number in range(min(len(each), _SHOWN)):
                found += each[number].warnings
        return tuple(dict.fromkeys(found))

    @property
    def variance_of(self) -> str:
        """Which variance the intervals rest on: of rows, or of blocks of rows."""
        return self.order.use

    def __str__(self) -> str:
        state = "exact" if self.exact else f"{self.share_read:.1%} read"
        lines = [f"{self.seconds:.2f} s, {state}, {self.pairs:,} pairs" + self._forecast()]
        for name, each in self.estimates.items():
            if self.groups is None:
                lines.append(f"  {name} = {shown(each[0])}")
            else:
                lines += [f"  {name}[{group!r}] = {shown(each[i])}" for i, group in enumerate(self.groups[:_SHOWN])]
                if len(self.groups) > _SHOWN:
                    lines.append(f"  ... {len(self.groups) - _SHOWN} more groups")
        return "\n".join(lines + [f"  note: {warning}" for warning in self.warnings])

    def _forecast(self) -> str:
        if self.exact:
            return ""
        parts = []
        if self.seconds_to_target is not None:
            parts.append(f"within {self.target:.2g} in about {self.seconds_to_target:.1f} s")
        if self.seconds_to_exact is not None:
            parts.append(f"exact in about {self.seconds_to_exact:.1f} s")
        return "; " + ", ".join(parts) if parts else ""


def relative_widths(each: Estimates) -> Any:
    """Half of each interval over its value; infinite where there is none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        widths = each.half_width / np.abs(each.value)
    return np.where(np.isnan(widths), np.inf, widths)


def shown(estimate: Estimate) -> str:
    """A value with its interval."""
    if estimate.exact:
        return f"{estimate.value:,.10g}"
    if not np.isfinite(estimate.half_width):
        return f"{estimate.value:,.6g} (no interval yet)"
    return f"{estimate.value:,.6g} in [{estimate.low:,.6g}, {estimate.high:,.6g}]"


@dataclass(frozen=True)
class Held:
    """How the early intervals of one aggregate, over all groups, stand against the exact end."""

    held: int
    intervals: int

    @property
    def share(self) -> float:
        return self.held / self.intervals if self.intervals else float("nan")


def against_the_end(history: list[Report]) -> dict[str, Held]:
    """How many of the early intervals hold the exact answer, by aggregate."""
    if not history or not history[-1].exact:
        raise ParameterError("the exact answer is not known yet; run to the end first, with run.exact()")
    end = history[-1]
    outcome: dict[str, Held] = {}
    for name, exact in end.estimates.items():
        held = made = 0
        for report in history[:-1]:
            early = report.estimates[name]
            groups = report.groups if report.groups is not None else (None,)
            for number, group in enumerate(groups):
                truth = float(exact.value[end._places[group] if end.groups is not None else 0])
                if np.isfinite(early.high[number]):
                    made += 1
                    held += bool(early.low[number] <= truth <= early.high[number])
        outcome[name] = Held(held, made)
    return outcome
