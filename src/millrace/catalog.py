"""The catalogue: one literal table of all semi-stream joins, in the order of their invention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import pyarrow as pa

from millrace.core.budget import Budget
from millrace.core.conditions import Condition, Kind
from millrace.core.errors import BudgetError, ParameterError, StrategyError
from millrace.core.least_memory import fits, least_memory
from millrace.core.protocols import How, JoinSpec, Relation, SemiStreamJoin
from millrace.cost.expected import Expected
from millrace.joins.cache_share import DRAINED_SHARE, FIRST_SHARE
from millrace.joins.chybridjoin import CHybridJoin
from millrace.joins.cinlj import CachedIndexNestedLoopJoin
from millrace.joins.cmeshjoin import CMeshJoin
from millrace.joins.csweepjoin import CSweepJoin
from millrace.joins.hybridjoin import HybridJoin
from millrace.joins.inlj import IndexNestedLoopJoin
from millrace.joins.meshjoin import MeshJoin
from millrace.joins.partitionjoin import PartitionJoin
from millrace.joins.reading import has_index
from millrace.joins.rmeshjoin import RMeshJoin
from millrace.joins.several import Several
from millrace.joins.ssij import SemiStreamedIndexJoin
from millrace.joins.sweepjoin import SweepJoin
from millrace.joins.xhybridjoin import XHybridJoin

ConditionName = Literal["equality"] | Kind
HostName = Literal["process", "spark"]
Told = Literal["costs", "window_tuples"]  # what a host may know that a join can use: see `Algorithm.told`

_FRONT_PARAMETERS = ("cache_share", "threshold", "hot")  # of every join with a front stage

CONDITIONS: tuple[ConditionName, ...] = ("equality", "between", "near", "similar", "expr")


@dataclass(frozen=True)
class Algorithm:
    """One semi-stream join. `strategy=` takes its name, which is also the name of its module and of its page."""

    name: str
    join: Callable[..., SemiStreamJoin]  # a class: called with relation, spec, budget, and the parameters of its own
    paper: str
    needs_index: bool
    conditions: tuple[ConditionName, ...]
    hosts: tuple[HostName, ...]
    # Parameters that a host gives to the join. `told`: unit costs of the table's disk, and rows of a group, if the host knows
    # them. `drained`: fixed values for a host that empties the join after each group of rows.
    told: tuple[Told, ...] = ()
    drained: Mapping[str, Any] = field(default_factory=dict)
    instant: bool = False  # if pages lie in memory, a look-up in place gives the same rows sooner
    cached: bool = False  # has a front stage; takes `cache_share`, `threshold`, and `hot`, the rows of an earlier one

    def parameters(self, **known: Any) -> dict[str, Any]:
        """The parameters of a join, for a host that drains the join and knows `known`."""
        names = (*self.told, *(_FRONT_PARAMETERS if self.cached else ()))
        return {**self.drained, **{name: known[name] for name in names if name in known}}

    @property
    def divide(self) -> Callable[..., Any]:
        """Takes what `join` takes, and shares the budget out as the join does. No array is made."""
        found: Callable[..., Any] = self.join.divide  # type: ignore[attr-defined]
        return found

    @property
    def expect(self) -> Callable[..., Expected]:
        """Takes what `join` takes, and the shape of the stream behind the budget. Says what the join will do; no array is
        made."""
        found: Callable[..., Expected] = self.join.expect  # type: ignore[attr-defined]
        return found


_CACHING = "Naeem, Dobbie, Lutteroth, Weber, Skewed Distributions in Semi-Stream Joins: How Much Can Caching Help?"

ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm(
        name="inlj",
        join=IndexNestedLoopJoin,
        paper="Polyzotis et al., ICDE 2007, section 2 (the baseline)",
        needs_index=True,
        conditions=("equality",),
        hosts=("process", "spark"),
        drained={"tuples_per_step": None, "pool_bytes": "rest"},
    ),
    Algorithm(
        name="meshjoin",
        join=MeshJoin,
        paper="Polyzotis et al., Supporting Streaming Updates in an Active Data Warehouse, ICDE 2007",
        needs_index=False,
        conditions=CONDITIONS,
        hosts=("process", "spark"),
        told=("costs",),
    ),
    Algorithm(
        name="rmeshjoin",
        join=RMeshJoin,
        paper="Naeem, Dobbie, Weber, Alam, R-MESHJOIN for Near-real-time Data Warehousing, DOLAP 2010",
        needs_index=False,
        conditions=CONDITIONS,
        hosts=("process", "spark"),
        told=("costs",),
    ),
    Algorithm(
        name="hybridjoin",
        join=HybridJoin,
        paper="Naeem, Dobbie, Weber, HYBRIDJOIN for Near-Real-Time Data Warehousing, IJDWM 7(4), 2011",
        needs_index=True,
        conditions=("equality",),
        hosts=("process", "spark"),
        told=("costs",),
    ),
    Algorithm(
        name="xhybridjoin",
        join=XHybridJoin,
        paper="Naeem, Dobbie, Weber, Efficient Processing of Streaming Updates with Archived Master Data, KAIS, 2013",
        needs_index=True,
        conditions=("equality",),
        hosts=("process", "spark"),
        told=("costs",),
    ),
    Algorithm(
        name="sweepjoin",
        join=SweepJoin,
        paper="ours",
        needs_index=True,
        conditions=("equality",),
        hosts=("process", "spark"),
        told=("costs", "window_tuples"),
        instant=True,
    ),
    Algorithm(
        name="cinlj",
        join=CachedIndexNestedLoopJoin,
        paper=_CACHING,
        needs_index=True,
        conditions=("equality",),
        hosts=("process", "spark"),
        drained={"tuples_per_step": None, "pool_bytes": "rest", "cache_share": DRAINED_SHARE, "fill_first": True},
        cached=True,
    ),
    Algorithm(
        name="cmeshjoin",
        join=CMeshJoin,
        paper=_CACHING,
        needs_index=False,
        conditions=("equality",),
        hosts=("process", "spark"),
        told=("costs",),
        drained={"cache_share": FIRST_SHARE, "fill_first": True},
        cached=True,
    ),
    Algorithm(
        name="chybridjoin",
        join=CHybridJoin,
        paper=_CACHING,
        needs_index=True,
        conditions=("equality",),
        hosts=("process", "spark"),
        told=("costs",),
        drained={"cache_share": DRAINED_SHARE, "fill_first": True},
        cached=True,
    ),
    Algorithm(
        name="csweepjoin",
        join=CSweepJoin,
        paper="ours",
        needs_index=True,
        conditions=("equality",),
        hosts=("process", "spark"),
        told=("costs", "window_tuples"),
        drained={"cache_share": DRAINED_SHARE, "fill_first": True},
        instant=True,
        cached=True,
    ),
    Algorithm(
        name="ssij",
        join=SemiStreamedIndexJoin,
        paper="Bornea et al., Semi-Streamed Index Join for Near-Real Time Execution of ETL Transformations, ICDE 2011",
        needs_index=True,
        conditions=("equality",),
        hosts=("process",),
        told=("costs",),
    ),
    Algorithm(
        name="partitionjoin",
        join=PartitionJoin,
        paper="Chakraborty, Singh, A Partition-based Approach to Support Streaming Updates over Persistent Data, IPDPS 2009",
        needs_index=True,
        conditions=("equality",),
        hosts=("process",),
        told=("costs",),
    ),
)


# Spark's own join, which has no loop that a host could run: a strategy on Spark, and no row above.
BROADCAST = "broadcast"


def spark_strategies() -> tuple[str, ...]:
    """What `strategy=` may name on Spark, beside auto.

    >>> spark_strategies()[0], spark_strategies()[-1]
    ('inlj', 'broadcast')
    """
    return (*(row.name for row in ALGORITHMS if "spark" in row.hosts), BROADCAST)


def algorithm(name: str) -> Algorithm:
    """The row of this name.

    >>> algorithm("meshjoin").needs_index
    False
    """
    for row in ALGORITHMS:
        if row.name == name:
            return row
    if name == BROADCAST:
        raise StrategyError(f"strategy 'broadcast' is Spark's own join, for enrich; here choose one of {_names(ALGORITHMS)}")
    raise StrategyError(f"there is no strategy {name!r}; choose one of {_names(ALGORITHMS)}")


def make_join(name: str, relation: Relation, spec: JoinSpec, budget: Budget, **parameters: Any) -> SemiStreamJoin:
    """Make a join by its name; an error if the join needs an index and the relation has none."""
    return _serving(name, relation, spec).join(relation, spec, budget, **parameters)


def check_memory(name: str, relation: Relation, spec: JoinSpec, budget: Budget, **parameters: Any) -> None:
    """An error if the budget is too small for the join, or if the join can't serve the table. Nothing is made."""
    _serving(name, relation, spec).divide(relation, spec, budget, **parameters)


def _serving(name: str, relation: Relation, spec: JoinSpec) -> Algorithm:
    """The row of that name, if its join can serve this."""
    row = algorithm(name)
    check_condition(row, "equality" if spec.condition is None else spec.condition.kind)
    if row.needs_index and not has_index(relation):
        able = tuple(other for other in ALGORITHMS if not other.needs_index)
        raise StrategyError(
            f"strategy {name!r} needs an index on the key, and this table has none: use {_names(able)}, "
            "or build a master table from it"
        )
    return row


@dataclass(frozen=True)
class TableLookup:
    """One of several relations that a stream is joined with in one pass. `on` is as in `JoinSpec`."""

    relation: Relation
    on: tuple[tuple[str, str], ...] = ()
    how: How = "inner"
    columns: tuple[str, ...] = ()
    condition: Condition | None = None
    strategy: str = "sweepjoin"


def make_lookups(stream_schema: pa.Schema, carry: tuple[str, ...], lookups: Sequence[TableLookup], budget: Budget) -> Several:
    """A join with several relations. Each relation gets an equal part of `budget`.

    A fifth of each part is set aside for rows that wait between the joins.
    """

    def part_of(memory_bytes: int) -> Budget:
        return Budget(max(1, memory_bytes // len(lookups) * 4 // 5))

    def checked(memory_bytes: int) -> None:
        for one, spec in specs:
            check_memory(one.strategy, one.relation, spec, part_of(memory_bytes))

    specs = list(zip(lookups, _specs(stream_schema, carry, lookups), strict=True))
    try:
        checked(budget.free_bytes)
    except BudgetError as small:
        needed = budget.used_bytes + least_memory(partial(fits, checked), budget.free_bytes)
        text = f"the memory budget is too small for {len(lookups)} tables: give memory={needed} or more"
        raise BudgetError(text, needed) from small
    joins = [make_join(one.strategy, one.relation, spec, part_of(budget.free_bytes)) for one, spec in specs]
    budget.reserve("joins with several tables", budget.free_bytes // len(lookups) * len(lookups))
    return Several(joins)


def _specs(stream_schema: pa.Schema, carry: tuple[str, ...], lookups: Sequence[TableLookup]) -> Iterator[JoinSpec]:
    """The spec of each join in the chain. A column of the stream is carried while a later join compares it."""
    schema = stream_schema
    for number, lookup in enumerate(lookups):
        later = {name for other in lookups[number + 1 :] for name in _stream_columns(other, schema)}
        kept = tuple(name for name in schema.names if name in carry or name in later or name not in stream_schema.names)
        clash = set(kept) & set(lookup.columns)
        if clash:
            raise ParameterError(f"several tables have a column {min(clash)!r}: rename it in one of them")
        spec = JoinSpec(schema, lookup.on, lookup.how, kept, lookup.columns, lookup.condition)
        yield spec
        schema = spec.output_schema(lookup.relation)


def _stream_columns(lookup: TableLookup, schema: pa.Schema) -> tuple[str, ...]:
    if lookup.condition is not None:
        return lookup.condition.stream_columns(schema)
    return tuple(mine for mine, _ in lookup.on)


def check_condition(row: Algorithm, condition: ConditionName) -> None:
    """Raise an error if the join does not serve this condition."""
    if condition not in row.conditions:
        able = tuple(other for other in ALGORITHMS if condition in other.conditions)
        why = ": a front stage answers equal keys only" if row.cached else ""
        raise StrategyError(f"strategy {row.name!r} does not serve {condition!r}{why}; use {_names(able)}")


def _names(rows: tuple[Algorithm, ...]) -> str:
    return ", ".join(row.name for row in rows)
