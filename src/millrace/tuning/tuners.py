"""The best settings of one join for a budget, and the least memory that keeps up with a stream.

Every join divides its memory by its own equations (`divide`). A tuner does not trust them: it asks the join what it expects to
do with each of a grid of settings, and then with settings ever closer to the best of them. So it also says how far the join's
own choice is from the best.

    buffer_pages   1 2 3 4 6 8 12 ...                 every setting of one parameter with every setting of the other,
    pinned_pages   0 1 2 3 4 6 8 12 ...               then the neighbours of the best pair

Nothing is read, no array is made, and no join runs. Where nobody has measured what a step takes, it takes a little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from millrace.catalog import algorithm, check_memory
from millrace.core.budget import Budget, format_bytes
from millrace.core.errors import BudgetError, ParameterError, RateError
from millrace.core.protocols import JoinSpec, Relation
from millrace.core.unitcosts import UnitCosts
from millrace.cost.expected import StreamShape
from millrace.joins.sizing import costs_with_calls
from millrace.tuning.arrivals import checked_arrivals
from millrace.tuning.choose import Forecast, forecast, own_parameters

CLOSE = 0.02  # of the best rate: nearer than this the join's own choice is as good
_REFINED = 5  # times that settings closer to the best are tried
_RUNG = 1.25  # of the amounts of memory that are tried one after the other, to the one before
_MEMORY_CLOSE = 1.02  # the amount found is at most this many times the least
_TABLES = 4  # times the bytes of the table: more memory than this is not tried
_MOST_MEMORY = 1 << 44

_SHARES = (1 / 128, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75)

Parameters = Mapping[str, Any]


class _Knob(NamedTuple):
    """A parameter of a join. `kind`: whole numbers of pages, a share, or a few values."""

    name: str
    kind: str
    values: tuple[Any, ...] = ()


_BUFFER = _Knob("buffer_pages", "pages")
_PINNED = _Knob("pinned_pages", "pages from 0")
_SHARE = _Knob("cache_share", "share", _SHARES)
_BLOCK_SHARE = _Knob("cache_share", "share", (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9))
_POOL = _Knob("pool_bytes", "one of", (None, "rest"))
_AT_ONCE = _Knob("tuples_per_step", "one of", (1, 64, None))
_INDEX_SHARE = _Knob("cache_share", "share", (0.1, 0.25, 0.5, 0.75, 0.9))

KNOBS: Mapping[str, tuple[_Knob, ...]] = {
    "inlj": (_POOL, _AT_ONCE),
    "meshjoin": (_BUFFER,),  # w follows: as many tuples as there is room for
    "rmeshjoin": (_BUFFER,),
    "hybridjoin": (_BUFFER,),
    "xhybridjoin": (_BUFFER, _PINNED),
    "sweepjoin": (_BUFFER,),
    "cinlj": (_INDEX_SHARE, _POOL, _AT_ONCE),
    "cmeshjoin": (_BUFFER, _SHARE),
    "chybridjoin": (_BUFFER, _SHARE),
    "csweepjoin": (_BUFFER, _SHARE),
    "ssij": (_BUFFER, _BLOCK_SHARE),
    "partitionjoin": (_BUFFER, _BLOCK_SHARE),
}
"""What may be set, by join."""


class Point(NamedTuple):
    """A setting on a curve."""

    value: float
    tuples_per_second: float


@dataclass(frozen=True)
class Tuned:
    """What a join can do with a budget.

    `own`: with the sizes that the join chooses. `best`: with the best settings found, which are `parameters`. `curves`: for
    each parameter that is a number, the rate over its values, with the other parameters as in `best`.
    """

    own: Forecast
    best: Forecast
    parameters: Parameters
    memory_bytes: int
    curves: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)

    @property
    def strategy(self) -> str:
        return self.best.strategy

    @property
    def shortfall(self) -> float:
        """By what part the rate of the join's own choice is below the best."""
        return max(0.0, 1.0 - self.own.tuples_per_second / self.best.tuples_per_second)

    @property
    def own_is_best(self) -> bool:
        """Whether nothing need be set: the join's own choice is nearly as good."""
        return self.shortfall <= CLOSE

    @property
    def chosen(self) -> Forecast:
        """The join's own choice, if it is nearly as good as the best."""
        return self.own if self.own_is_best else self.best

    @property
    def chosen_parameters(self) -> Parameters:
        """What to give to the join for this."""
        return {} if self.own_is_best else self.parameters


@dataclass(frozen=True)
class Enough:
    """The least memory found with which a join keeps up."""

    memory_bytes: int
    forecast: Forecast


def tune(
    name: str, relation: Relation, spec: JoinSpec, memory_bytes: int, stream: StreamShape, *, costs: UnitCosts | None = None
) -> Tuned:
    """The settings with the highest expected rate. An error if the budget is too small for the join."""
    costs = costs_with_calls(costs)
    check_page(relation, memory_bytes, lambda: floor(name, relation, spec))
    check_memory(name, relation, spec, Budget(memory_bytes), **own_parameters(name, stream, costs))
    asked = _Asked(name, relation, spec, memory_bytes, stream, costs)
    own = asked({})
    assert own is not None
    knobs = _worth_turning(name, relation)
    best, given = own, {knob.name: value for knob in knobs if (value := _setting_of(own, knob)) is not None}
    choices = [_first_values(knob, relation, memory_bytes) for knob in knobs]
    for _ in range(1 + _REFINED):
        for values in product(*choices):
            one = {knob.name: value for knob, value in zip(knobs, values, strict=True)}
            found = asked(one)
            if found is not None and found.tuples_per_second > best.tuples_per_second:
                best, given = found, one
        choices = [asked.around(knob, given.get(knob.name)) for knob in knobs]
    return Tuned(own, best, {} if best is own else given, memory_bytes, asked.curves(knobs, given))


class _Asked:
    """What a join expects of settings; each is asked once."""

    def __init__(
        self, name: str, relation: Relation, spec: JoinSpec, memory_bytes: int, stream: StreamShape, costs: UnitCosts
    ) -> None:
        self._name, self._relation, self._spec = name, relation, spec
        self._memory_bytes, self._stream, self._costs = memory_bytes, stream, costs
        self._found: dict[tuple[tuple[str, Any], ...], Forecast | None] = {}

    def __call__(self, given: Parameters) -> Forecast | None:
        """None where the budget is too small for these settings."""
        key = tuple(sorted(given.items()))
        if key not in self._found:
            self._found[key] = self._forecast(given)
        return self._found[key]

    def _forecast(self, given: Parameters) -> Forecast | None:
        try:
            return forecast(
                self._name, self._relation, self._spec, self._memory_bytes, self._stream,
                costs_of=lambda _: self._costs, **given,
            )  # fmt: skip
        except BudgetError:
            return None

    def tried(self, knob: _Knob, value: Any) -> list[Any]:
        """All values of a parameter that were asked for, and this one."""
        every = (dict(key).get(knob.name) for key in self._found)
        return sorted({value, *(one for one in every if one is not None)})

    def around(self, knob: _Knob, value: Any) -> tuple[Any, ...]:
        """The best value, and values between it and its neighbours among those tried."""
        if knob.kind == "one of":
            return (value,)
        if value is None:
            return knob.values
        tried = self.tried(knob, value)
        place = tried.index(value)
        below, above = tried[max(0, place - 1)], tried[min(len(tried) - 1, place + 1)]
        between = (below + value) / 2, value, (value + above) / 2
        if knob.kind == "share":
            return between
        return tuple(sorted({max(below, value - 1), *(int(one) for one in between), min(above, value + 1)}))

    def curves(self, knobs: Sequence[_Knob], best: Parameters) -> dict[str, tuple[Point, ...]]:
        """The rate over each parameter that is a number, with the others as they are best."""
        found = {}
        for knob in knobs:
            if knob.kind == "one of" or best.get(knob.name) is None:
                continue
            others = {name: value for name, value in best.items() if name != knob.name}
            values = self.tried(knob, best[knob.name])
            points = [(value, self({**others, knob.name: value})) for value in values]
            found[knob.name] = tuple(Point(float(value), one.tuples_per_second) for value, one in points if one is not None)
        return found


def _worth_turning(name: str, relation: Relation) -> tuple[_Knob, ...]:
    """Where pages are used in place there is no front stage, no pool and nothing to pin."""
    if name not in KNOBS:
        raise ParameterError(f"nothing is known of the parameters of {algorithm(name).name!r}")
    return tuple(knob for knob in KNOBS[name] if not relation.resident or knob.name in ("buffer_pages", "tuples_per_step"))


def _first_values(knob: _Knob, relation: Relation, memory_bytes: int) -> tuple[Any, ...]:
    if knob.kind in ("one of", "share"):
        return knob.values
    most = max(1, relation.pages)
    if not relation.resident:
        most = min(most, max(1, memory_bytes // max(1, relation.page_bytes)))
    steps = max(2, int(np.ceil(np.log(most) / np.log(1.6))) + 1)
    sizes = {int(size) for size in np.geomspace(1, most, steps).round()} | {1, most}
    return tuple(sorted(sizes | {0} if knob.kind == "pages from 0" else sizes))


def _setting_of(own: Forecast, knob: _Knob) -> Any:
    value = own.expected.settings.get(knob.name)
    return value if value is None or knob.kind == "share" else int(value)


def floor(name: str, relation: Relation, spec: JoinSpec, **parameters: Any) -> int:
    """The least memory with which the join can be made."""
    needed = 1
    for _ in range(64):  # an error may name what only the part lacked that was looked at first
        try:
            check_memory(name, relation, spec, Budget(needed), **parameters)
        except BudgetError as small:
            needed = max(small.needed_bytes, needed + 1)
        else:
            return needed
    raise AssertionError(f"no memory is enough for {name}")


def check_page(relation: Relation, memory_bytes: int, least: Callable[[], int]) -> None:
    """An error where not even one page fits: other memory helps, and so do other pages."""
    if not relation.resident and relation.page_bytes > memory_bytes:
        needed = least()
        raise BudgetError(
            f"the memory budget of {format_bytes(memory_bytes)} is less than one page of the table, "
            f"{format_bytes(relation.page_bytes)}; give memory={needed} or more, or build the table with smaller pages "
            "(--page-bytes)",
            needed,
        )


def least_memory_for(
    name: str, relation: Relation, spec: JoinSpec, arrivals_per_second: float, stream: StreamShape, *,
    costs: UnitCosts | None = None, most_bytes: int | None = None, **parameters: Any,
) -> Enough:  # fmt: skip
    """The least memory with which the join is expected to keep up with so many tuples a second, and what it does then.

    More memory need not mean a higher rate, as where a page more fits but fewer tuples do. So amounts are tried from the least
    upwards, each a quarter more than the one before, and only then the amounts between the first that does and the one below.
    If none does, up to several times the bytes of the table or `most_bytes`, the error names the highest rate and its memory.
    """
    checked_arrivals(arrivals_per_second, name="arrivals", none_arrive=False)
    costs = costs_with_calls(costs)

    def asked(memory: int) -> Forecast:
        return forecast(name, relation, spec, memory, stream, costs_of=lambda _: costs, **parameters)

    tried: list[tuple[int, Forecast]] = []
    least = floor(name, relation, spec, **{**own_parameters(name, stream, costs), **parameters})
    for memory in _rungs(least, relation, most_bytes):
        tried.append((memory, asked(memory)))
        if tried[-1][1].tuples_per_second >= arrivals_per_second:
            break
    else:
        raise _out_of_reach(name, arrivals_per_second, tried)
    (high, found), low = tried[-1], tried[-2][0] if len(tried) > 1 else tried[-1][0]
    while high > _MEMORY_CLOSE * low:
        middle = (low + high) // 2
        one = asked(middle)
        if one.tuples_per_second >= arrivals_per_second:
            high, found = middle, one
        else:
            low = middle
    return Enough(high, found)


def _rungs(least: int, relation: Relation, most_bytes: int | None) -> Iterator[int]:
    most = most_bytes or min(_MOST_MEMORY, max(_TABLES * relation.pages * relation.page_bytes, 64 * least))
    memory = least
    while memory < most:
        yield memory
        memory = max(memory + 1, int(memory * _RUNG))
    if most >= least:
        yield most


def _out_of_reach(name: str, arrivals_per_second: float, tried: Sequence[tuple[int, Forecast]]) -> RateError:
    best = max(one.tuples_per_second for _, one in tried)
    memory = next(memory for memory, one in tried if one.tuples_per_second >= (1 - CLOSE) * best)
    return RateError(
        f"{name} can't take {arrivals_per_second:,.0f} rows a second, whatever its memory; at most {best:,.0f}, with "
        f"memory={memory}: choose another join, or spread the stream over more tasks",
        best,
        memory,
    )
