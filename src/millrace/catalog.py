"""What exists: one literal table of the semi-stream joins, in the order in which they were invented."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from millrace.core.budget import Budget
from millrace.core.conditions import Condition, Kind
from millrace.core.errors import BudgetError, ParameterError, StrategyError
from millrace.core.protocols import How, JoinSpec, Relation, SemiStreamJoin
from millrace.joins.hybridjoin import HybridJoin
from millrace.joins.inlj import IndexNestedLoopJoin
from millrace.joins.meshjoin import MeshJoin
from millrace.joins.reading import has_index
from millrace.joins.rmeshjoin import RMeshJoin
from millrace.joins.several import Several
from millrace.joins.sweepjoin import SweepJoin
from millrace.joins.xhybridjoin import XHybridJoin

ConditionName = Literal["equality"] | Kind
Host = Literal["process", "spark"]

CONDITIONS: tuple[ConditionName, ...] = ("equality", "between", "near", "similar", "expr")


@dataclass(frozen=True)
class Algorithm:
    """One semi-stream join: `strategy=` takes its name, which is also the name of its module and of its page."""

    name: str
    join: Callable[..., SemiStreamJoin]  # called with relation, spec, budget, and the parameters of its own
    paper: str
    needs_index: bool
    conditions: tuple[ConditionName, ...]
    hosts: tuple[Host, ...]


ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm(
        name="inlj",
        join=IndexNestedLoopJoin,
        paper="Polyzotis et al., ICDE 2007, section 2 (the baseline)",
        needs_index=True,
        conditions=("equality",),
        hosts=("process", "spark"),
    ),
    Algorithm(
        name="meshjoin",
        join=MeshJoin,
        paper="Polyzotis et al., Supporting Streaming Updates in an Active Data Warehouse, ICDE 2007",
        needs_index=False,
        conditions=CONDITIONS,
        hosts=("process", "spark"),
    ),
    Algorithm(
        name="rmeshjoin",
        join=RMeshJoin,
        paper="Naeem, Dobbie, Weber, Alam, R-MESHJOIN for Near-real-time Data Warehousing, DOLAP 2010",
        needs_index=False,
        conditions=CONDITIONS,
        hosts=("process", "spark"),
    ),
    Algorithm(
        name="hybridjoin",
        join=HybridJoin,
        paper="Naeem, Dobbie, Weber, HYBRIDJOIN for Near-Real-Time Data Warehousing, IJDWM 7(4), 2011",
        needs_index=True,
        conditions=("equality",),
        hosts=("process", "spark"),
    ),
    Algorithm(
        name="xhybridjoin",
        join=XHybridJoin,
        paper="Naeem, Dobbie, Weber, Efficient Processing of Streaming Updates with Archived Master Data, KAIS, 2013",
        needs_index=True,
        conditions=("equality",),
        hosts=("process", "spark"),
    ),
    Algorithm(
        name="sweepjoin",
        join=SweepJoin,
        paper="ours",
        needs_index=True,
        conditions=("equality",),
        hosts=("process", "spark"),
    ),
)


def algorithm(name: str) -> Algorithm:
    """The row of that name.

    >>> algorithm("meshjoin").needs_index
    False
    """
    for row in ALGORITHMS:
        if row.name == name:
            return row
    raise StrategyError(f"there is no strategy {name!r}; choose one of {_names(ALGORITHMS)}")


def make_join(name: str, relation: Relation, spec: JoinSpec, budget: Budget, **parameters: Any) -> SemiStreamJoin:
    """A join by its name; an error if the relation lacks what the join needs."""
    row = algorithm(name)
    check_condition(row, "equality" if spec.condition is None else spec.condition.kind)
    if row.needs_index and not has_index(relation):
        able = tuple(other for other in ALGORITHMS if not other.needs_index)
        raise StrategyError(
            f"strategy {name!r} needs an index on the key, and this table has none: use {_names(able)}, "
            "or build a master table from it"
        )
    return row.join(relation, spec, budget, **parameters)


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
    """A join with several relations, which share `budget`: every relation an equal part of it.

    A fifth of each part is set aside for what waits between the joins.
    """
    joins: list[SemiStreamJoin] = []
    part = budget.free_bytes // len(lookups)
    schema = stream_schema
    for number, lookup in enumerate(lookups):
        later = {name for other in lookups[number + 1 :] for name in _stream_columns(other, schema)}
        kept = tuple(name for name in schema.names if name in carry or name in later or name not in stream_schema.names)
        clash = set(kept) & set(lookup.columns)
        if clash:
            raise ParameterError(f"several tables have a column {min(clash)!r}: rename it in one of them")
        spec = JoinSpec(schema, lookup.on, lookup.how, kept, lookup.columns, lookup.condition)
        try:
            joins.append(make_join(lookup.strategy, lookup.relation, spec, Budget(part * 4 // 5)))
        except BudgetError as small:
            needed = -(-small.needed_bytes * 5 // 4) * len(lookups)
            text = f"the memory budget is too small for {len(lookups)} tables: give memory={needed} or more"
            raise BudgetError(text, needed) from small
        schema = spec.output_schema(lookup.relation)
    budget.reserve("joins with several tables", part * len(lookups))
    return Several(joins)


def _stream_columns(lookup: TableLookup, schema: pa.Schema) -> tuple[str, ...]:
    if lookup.condition is not None:
        return lookup.condition.stream_columns(schema)
    return tuple(mine for mine, _ in lookup.on)


def check_condition(row: Algorithm, condition: ConditionName) -> None:
    """The join serves this condition."""
    if condition not in row.conditions:
        able = tuple(other for other in ALGORITHMS if condition in other.conditions)
        raise StrategyError(f"strategy {row.name!r} does not serve {condition!r}; use {_names(able)}")


def _names(rows: tuple[Algorithm, ...]) -> str:
    return ", ".join(row.name for row in rows)
