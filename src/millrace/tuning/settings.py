"""The best settings of a join for a stream: disk buffer, pinned pages, and, if wanted, which join.

    choose: all joins as they would set themselves up  -->  the best of them  -->  the same with other disk buffers, other pins

A join sets its disk buffer up as if all keys were wanted alike, and its pinned pages for Zipf's law with exponent 1. Here both
are tried for the stream as it is. The window takes what they leave, and a front stage finds its share by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.catalog import algorithm, check_memory, make_join
from millrace.core.budget import Budget
from millrace.core.errors import BudgetError
from millrace.core.protocols import JoinSpec, Relation, SemiStreamJoin
from millrace.core.unitcosts import UnitCosts
from millrace.cost.expected import StreamShape
from millrace.tuning.choose import CostsOf, Forecast, choose, forecast

_BUFFERS = 0.125, 0.25, 0.5, 2.0, 4.0, 8.0  # times the disk buffer that the join would choose
_EXPONENTS = 0.0, 0.5, 0.75, 1.25, 1.5, 2.0  # to divide the memory of X-HYBRIDJOIN by
# What depends on how keys come. Other joins set themselves up as well for one stream as for another.
_CHOSEN = {"hybridjoin": ("buffer_pages",), "chybridjoin": ("buffer_pages",), "xhybridjoin": ("buffer_pages", "pinned_pages")}
_FINALISTS = 2
_CLOSE = 0.8


@dataclass(frozen=True)
class Setting:
    """A join and its parameters. `tuples_per_second`: as forecast for the stream for which it was found."""

    strategy: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    tuples_per_second: float = 0.0

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value}" for name, value in self.parameters.items() if name not in ("costs", "hot"))
        return f"{self.strategy}({given})"

    def same_as(self, other: Setting) -> bool:
        return self.strategy == other.strategy and dict(self.parameters) == dict(other.parameters)


@dataclass(frozen=True)
class Tuner:
    """Finds settings for a table and a memory. `parameters`: those that stay as they are, for one strategy only."""

    relation: Relation
    spec: JoinSpec
    memory_bytes: int
    strategies: tuple[str, ...] | None = None  # None: all that run in process
    costs_of: CostsOf | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def costs(self, strategy: str) -> UnitCosts:
        return self.costs_of(strategy) if self.costs_of is not None else UnitCosts()

    def rate(self, setting: Setting, stream: StreamShape) -> float:
        """Tuples a second that this setting would give with another stream. An error if the memory does not do any more."""
        return self._forecast(setting, stream).tuples_per_second

    def best(self, stream: StreamShape) -> Setting:
        """The setting with the highest rate. An error if the memory does for none."""
        ranking = choose(
            self.relation, self.spec, self.memory_bytes, stream, costs_of=self.costs_of, strategies=self.strategies
        ).ranking if not self.parameters else (self._only(stream),)  # fmt: skip
        close = [one for one in ranking[:_FINALISTS] if one.tuples_per_second >= _CLOSE * ranking[0].tuples_per_second]
        found = [setting for one in close for setting in self._variants(one, stream)]
        return max(found, key=lambda one: one.tuples_per_second)

    def make(self, setting: Setting, budget: Budget, **more: Any) -> SemiStreamJoin:
        return make_join(setting.strategy, self.relation, self.spec, budget, **self._given(setting), **more)

    def check(self, setting: Setting) -> None:
        """An error if the memory is too small for it. Nothing is made."""
        check_memory(setting.strategy, self.relation, self.spec, Budget(self.memory_bytes), **self._given(setting))

    def _given(self, setting: Setting) -> dict[str, Any]:
        given = {**self.parameters, **setting.parameters}
        if self.costs_of is not None and "costs" in algorithm(setting.strategy).told:
            given.setdefault("costs", self.costs_of(setting.strategy))
        return given

    def _only(self, stream: StreamShape) -> Forecast:
        assert self.strategies is not None
        return self._forecast(Setting(self.strategies[0]), stream)

    def _forecast(self, setting: Setting, stream: StreamShape, **more: Any) -> Forecast:
        return forecast(
            setting.strategy, self.relation, self.spec, self.memory_bytes, stream, costs_of=self.costs_of,
            **{**self.parameters, **setting.parameters, **more},
        )  # fmt: skip

    def _variants(self, one: Forecast, stream: StreamShape) -> Iterator[Setting]:
        """The join as it sets itself up, and in other ways."""
        yield self._setting(one)
        for given in self._tries(one):
            try:
                yield self._setting(self._forecast(Setting(one.strategy), stream, **given))
            except BudgetError:
                continue  # a disk buffer so large leaves no window

    def _tries(self, one: Forecast) -> Iterable[dict[str, Any]]:
        if one.strategy == "xhybridjoin":
            return [{"zipf_exponent": exponent} for exponent in _EXPONENTS] if "zipf_exponent" not in self.parameters else []
        if one.strategy in _CHOSEN and "buffer_pages" not in self.parameters:
            now = one.expected.settings["buffer_pages"]
            pages = {max(1, min(round(now * times), max(1, self.relation.pages))) for times in _BUFFERS}
            return [{"buffer_pages": count} for count in sorted(pages - {int(now)})]
        return []

    def _setting(self, found: Forecast) -> Setting:
        """What to give the join, so that it sets itself up like this."""
        chosen = _CHOSEN.get(found.strategy, ())
        given = {name: int(found.expected.settings[name]) for name in chosen if name not in self.parameters}
        return Setting(found.strategy, given, found.tuples_per_second)
