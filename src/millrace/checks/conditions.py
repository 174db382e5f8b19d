"""The laws for joins by a condition: each law is checked with a condition that means the same as equal keys.

    between   product between id and id             near      product and id at most 0 apart
    similar   product similar to id to a degree of 1   expr      product = id

So the reference stays a plain join on equal keys, and shares nothing with the join that is checked. A key that a condition
can't compare (a text in a range, for example) is joined by equality. Other tests check the meaning of ranges, bands and
degrees.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from millrace.checks.run import Make
from millrace.checks.samples import KEY_TYPES, KeyType
from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.conditions import Condition, Kind, between, expr, near, similar
from millrace.core.errors import BudgetError, SchemaError
from millrace.core.protocols import JoinSpec, Relation, SemiStreamJoin, Withdrawn
from millrace.core.step import Step
from millrace.joins.emit import LONG_ROW_SHARE, LONG_ROWS_FROM
from millrace.joins.matching.expr import SQL_BYTES

_TEXT = next(kind for kind in KEY_TYPES if kind.name == "string")


class ByCondition:
    """Builds a join by a condition where a law asks for a join on equal keys. `sql`: an expression in SQL, not in Arrow."""

    def __init__(self, make: Make, condition: Kind, *, sql: bool = False) -> None:
        self._make = make
        self._sql = sql
        self.condition = condition
        self.kind: KeyType = _TEXT if condition == "similar" else KEY_TYPES[0]
        self.sees_nulls = condition != "expr"

    def __call__(self, relation: Relation, spec: JoinSpec, budget: Budget, /) -> SemiStreamJoin:
        spec.check_against(relation)
        condition = self._equal(spec, relation.schema)
        if condition is None:
            return self._make(relation, spec, budget)
        by_condition = replace(spec, on=(), condition=condition)
        if self._sql:
            return _Beside(self._make, relation, by_condition, budget)
        return self._make(relation, by_condition, budget)

    def _equal(self, spec: JoinSpec, schema: pa.Schema) -> Condition | None:
        """Equal keys, as a condition; None if the condition can't compare keys of this type."""
        (mine, theirs), others = spec.on[-1], spec.on[:-1]
        if self.condition == "expr":
            if self._sql:
                return expr(" AND ".join(f"stream.{one} = master.{other}" for one, other in spec.on))
            parts = [pc.field(f"stream.{one}") == pc.field(f"master.{other}") for one, other in spec.on]
            made: Condition = expr(reduce(lambda one, other: one & other, parts))
        elif self.condition == "similar":
            made = similar(mine, theirs, 1.0)
        elif self.condition == "near":
            made = near(mine, theirs, 0, on=others or None)
        else:
            made = between(mine, theirs, theirs, on=others or None)
        kind = schema.field(theirs).type
        if self.condition in ("near", "expr") and pa.types.is_floating(kind):
            return None  # NaN is a key like any other, but neither near to itself nor, in Arrow, equal to itself
        if self.condition == "similar" and others:
            return None
        try:
            made.check(spec.stream_schema, schema)
        except (SchemaError, ValueError):
            return None
        return made


# The engine, and the part of this memory that a join sets aside for long rows.
_ENGINE_BYTES = SQL_BYTES + (SQL_BYTES - LONG_ROWS_FROM) // (LONG_ROW_SHARE - 1)


class _Beside:
    """A join whose SQL engine has memory beside the budget of the law, because budgets of laws are small."""

    def __init__(self, make: Make, relation: Relation, spec: JoinSpec, budget: Budget) -> None:
        try:
            self.join = make(relation, spec, Budget(budget.memory_bytes + _ENGINE_BYTES))
        except BudgetError as small:
            needed = small.needed_bytes - _ENGINE_BYTES
            raise BudgetError(f"too small: give memory={needed} or more beside the engine", needed) from small

    @property
    def pending(self) -> int:
        return self.join.pending

    @property
    def longest_wait(self) -> int:
        return self.join.longest_wait

    @property
    def bytes_used(self) -> int:
        return self.join.bytes_used - _ENGINE_BYTES

    def offer(self, batch: pa.RecordBatch) -> int:
        return self.join.offer(batch)

    def step(self) -> Step:
        return self.join.step()

    def withdraw(self, numbers: Int64Array) -> Withdrawn:
        return self.join.withdraw(numbers)
