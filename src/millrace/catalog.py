"""What exists: one literal table of the semi-stream joins, in the order in which they were invented."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from millrace.core.budget import Budget
from millrace.core.errors import StrategyError
from millrace.core.protocols import JoinSpec, Relation, SemiStreamJoin
from millrace.joins.hybridjoin import HybridJoin
from millrace.joins.inlj import IndexNestedLoopJoin
from millrace.joins.meshjoin import MeshJoin
from millrace.joins.reading import has_index
from millrace.joins.rmeshjoin import RMeshJoin
from millrace.joins.sweepjoin import SweepJoin

Condition = Literal["equality"]
Host = Literal["process", "spark"]


@dataclass(frozen=True)
class Algorithm:
    """One semi-stream join: `strategy=` takes its name, which is also the name of its module and of its page."""

    name: str
    join: Callable[..., SemiStreamJoin]  # called with relation, spec, budget, and the parameters of its own
    paper: str
    needs_index: bool
    conditions: tuple[Condition, ...]
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
        conditions=("equality",),
        hosts=("process", "spark"),
    ),
    Algorithm(
        name="rmeshjoin",
        join=RMeshJoin,
        paper="Naeem, Dobbie, Weber, Alam, R-MESHJOIN for Near-real-time Data Warehousing, DOLAP 2010",
        needs_index=False,
        conditions=("equality",),
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
    if row.needs_index and not has_index(relation):
        able = tuple(other for other in ALGORITHMS if not other.needs_index)
        raise StrategyError(
            f"strategy {name!r} needs an index on the key, and this table has none: use {_names(able)}, "
            "or build a master table from it"
        )
    return row.join(relation, spec, budget, **parameters)


def _names(rows: tuple[Algorithm, ...]) -> str:
    return ", ".join(row.name for row in rows)
