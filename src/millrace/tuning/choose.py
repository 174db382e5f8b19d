"""Which join is best for a table, a stream and a budget: what `strategy="auto"` means in process.

Every join of the catalogue that can serve is asked what it expects to do (`Algorithm.expect`). The join with the highest rate
is chosen. Nothing is read and no array is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import signature
from typing import Any

from millrace.catalog import ALGORITHMS, Algorithm, HostName, algorithm, check_condition, make_join
from millrace.core.budget import Budget, format_bytes
from millrace.core.errors import BudgetError, ParameterError, StrategyError
from millrace.core.protocols import JoinSpec, Relation, SemiStreamJoin
from millrace.core.unitcosts import UnitCosts
from millrace.cost.expected import Expected, StreamShape
from millrace.joins.reading import has_index

CostsOf = Callable[[str], UnitCosts]  # unit costs for a join of this name


@dataclass(frozen=True)
class Forecast:
    """What one join would do."""

    strategy: str
    expected: Expected
    tuples_per_second: float

    @property
    def pages_per_1000_tuples(self) -> float:
        counts = self.expected.iteration
        return 1000.0 * counts.pages_read / max(counts.removed, 1e-300)


@dataclass(frozen=True)
class Choice:
    """All joins that can serve, the fastest first, and why the others can't."""

    ranking: tuple[Forecast, ...]
    refused: tuple[tuple[str, str], ...]  # strategy, reason

    @property
    def best(self) -> Forecast:
        return self.ranking[0]

    @property
    def strategy(self) -> str:
        return self.best.strategy


def choose(
    relation: Relation, spec: JoinSpec, memory_bytes: int, stream: StreamShape, *,
    costs_of: CostsOf | None = None, rows: float | None = None, host: HostName = "process",
    strategies: Iterable[str] | None = None,
) -> Choice:  # fmt: skip
    """Rank the joins. `rows`: for a host that empties the join after so many rows; None: a stream that never ends.

    If no join fits the budget, the error names the least memory with which one does.
    """
    ranking, refused, needs = [], [], []
    for row in _candidates(host, strategies):
        try:
            check_condition(row, "equality" if spec.condition is None else spec.condition.kind)
            _check_index(row, relation)
            ranking.append(forecast(row.name, relation, spec, memory_bytes, stream, costs_of=costs_of, rows=rows))
        except BudgetError as small:
            needs.append(small.needed_bytes)
            refused.append((row.name, f"needs memory={small.needed_bytes}"))
        except StrategyError as unable:
            refused.append((row.name, str(unable)))
    if not ranking:
        if not needs:
            raise StrategyError(f"no join can serve this: {refused[0][1] if refused else 'none was named'}")
        least = min(needs)
        raise BudgetError(
            f"the memory budget of {format_bytes(memory_bytes)} is too small for every join; give memory={least} or more", least
        )
    order = sorted(ranking, key=lambda one: -one.tuples_per_second)
    return Choice(tuple(order), tuple(refused))


def forecast(
    name: str, relation: Relation, spec: JoinSpec, memory_bytes: int, stream: StreamShape, *,
    costs_of: CostsOf | None = None, rows: float | None = None, **parameters: Any,
) -> Forecast:  # fmt: skip
    """What the join of this name would do."""
    row = algorithm(name)
    costs = costs_of(name) if costs_of is not None else UnitCosts()
    if rows is None:
        given = {**own_parameters(name, stream, costs), **parameters}
    else:  # a host on Spark tells its joins less of the stream
        known = {"costs": costs} if "costs" in row.told else {}
        given = {**row.drained, **known, **parameters, "rows": rows}
    expected = row.expect(relation, spec, Budget(memory_bytes), stream, **given)
    return Forecast(name, expected, float(expected.rate(costs)))


def own_parameters(name: str, stream: StreamShape | None, costs: UnitCosts | None) -> dict[str, Any]:
    """What a join in process is told, so that it chooses its sizes for this stream and this disk."""
    row = algorithm(name)
    known: dict[str, Any] = {"costs": costs} if costs is not None and "costs" in row.told else {}
    if stream is not None and "zipf_exponent" in signature(row.join).parameters:
        # where the first pages do not hold the hottest rows, pinned pages are worth no more than others
        known["zipf_exponent"] = stream.popularity.estimated_exponent() if stream.order == "sorted" else 0.0
    return known


def make_best_join(
    strategy: str, relation: Relation, spec: JoinSpec, budget: Budget, stream: StreamShape | None = None, *,
    costs_of: CostsOf | None = None, follow: bool = False, **parameters: Any,
) -> SemiStreamJoin:  # fmt: skip
    """`make_join`, and for `strategy="auto"` the join with the highest expected rate. `stream`: what is known of it; without,
    all keys count as wanted alike. `follow`: settings follow the stream while the join runs (see `tuning.follow`)."""
    if follow:
        from millrace.tuning.follow import FollowingJoin  # late: it chooses by what stands here

        return FollowingJoin(relation, spec, budget, strategy, stream=stream, costs_of=costs_of, **parameters)
    if strategy == "auto":
        stream = stream or StreamShape.zipf(0.0, relation.rows)
        strategy = choose(relation, spec, budget.free_bytes, stream, costs_of=costs_of).strategy
    known = own_parameters(strategy, stream, costs_of(strategy) if costs_of is not None else None)
    return make_join(strategy, relation, spec, budget, **{**known, **parameters})


def _candidates(host: HostName, strategies: Iterable[str] | None) -> list[Algorithm]:
    if strategies is not None:
        names = list(strategies)
        if not names:
            raise ParameterError("name at least one strategy to choose from")
        return [algorithm(name) for name in names]
    return [row for row in ALGORITHMS if host in row.hosts]


def _check_index(row: Algorithm, relation: Relation) -> None:
    if row.needs_index and not has_index(relation):
        raise StrategyError("needs an index on the key, and the table has none")
