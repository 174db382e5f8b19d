"""The plan of an `enrich` call: everything is decided once, on the driver, before anything runs.

    enrich --> Plan --> print                     people read it
                    --> dataframe                 Spark's part: what travels to the workers and back
                    --> task, host                a worker follows it

`planning` makes a plan, and workers follow it. If the machine of a worker can't follow the plan (the table can't be mapped
there, for example), the worker makes a new plan for its machine by the same function. Reports count this as `plan_changes`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from millrace.catalog import BROADCAST, algorithm, check_memory, make_join
from millrace.core.budget import Budget, format_bytes
from millrace.core.conditions import Between, Condition, Pairs, equal_keys
from millrace.core.errors import BudgetError, SchemaError, TableError, TableVersionError
from millrace.core.instant_lookup import InstantLookup
from millrace.core.protocols import How, JoinSpec, Relation, SemiStreamJoin
from millrace.core.unitcosts import UnitCosts
from millrace.core.wording import counted
from millrace.cost.broadcast import SentTable
from millrace.cost.expected import Expected, StreamShape
from millrace.joins.emit import mean_row_bytes
from millrace.relations.files import ReadMode
from millrace.relations.key_lookup import InPlace
from millrace.relations.range_lookup import RangesInPlace, serves
from millrace.relations.stored import StoredRelation
from millrace.spark.counters import TaskCounters
from millrace.spark.key_sketch import sketch_bytes
from millrace.spark.memory_split import Access, GroupRows, MemorySplit, RowSizes, Shape, divide
from millrace.spark.planned import MAX_ARRAY_ROWS, PlannedTable
from millrace.structures.window import row_bytes

_ORDERING = "rows being put in order"
_HOT_KEYS = "counters of hot keys"
_READS: dict[ReadMode | None, str] = {
    None: "the files are scanned in place",
    "mmap": "pages are used in place",
    "direct": "pages are read past the page cache",
    "buffered": "pages are read through the page cache",
}
_TRAVELS: dict[Shape, str] = {
    "flag": "keys go to Python; whether a row matched comes back",
    "row": "keys go to Python; the one match of a row comes back",
    "array": "keys go to Python; the few matches of a row come back as an array",
    "rows": "whole rows go to Python; joined rows come back",
}


@dataclass(frozen=True)
class Asked:
    """What a call wants of one table, checked, and the join that does it."""

    table: PlannedTable
    on: Pairs  # (stream column, table column); nothing, with a condition
    how: How
    columns: Pairs  # (table column, name in the output); a table column may come twice, and so may a name
    shape: Shape
    strategy: str
    ordered: bool  # rows come in stream order; all shapes but `rows` do anyway
    spec: JoinSpec  # the join itself, over columns that are named by their places
    memory_bytes: int
    tables: int  # that share the memory of the call, each with as much
    label: str  # name of the call in reports
    condition: Condition | None = None  # as it was written
    front: tuple[tuple[str, Any], ...] = ()  # what the call says of the front stage: share and threshold
    hot_keys: int = 0  # keys that a report keeps, for `mr.hot_keys`

    @property
    def key_columns(self) -> list[str]:
        """Stream columns that are looked up."""
        return [self.condition.value] if isinstance(self.condition, Between) else [mine for mine, _ in self.on]

    @property
    def key_types(self) -> list[pa.DataType]:
        """Types of the stream columns that must be equal to the key."""
        return [self.spec.stream_schema.field(mine).type for mine, _ in self.spec.on]

    @property
    def fetched(self) -> tuple[str, ...]:
        """Table columns that come back from the workers, each once."""
        return tuple(dict.fromkeys(column for column, _ in self.columns))

    @property
    def table_columns(self) -> tuple[str, ...]:
        """Columns that are put out or compared, beside the key."""
        compared = self.spec.condition.table_columns(self.table.schema) if self.spec.condition is not None else ()
        return tuple(dict.fromkeys((*self.fetched, *compared)))

    @property
    def flagged(self) -> bool:
        """Whether a struct starts with a flag: did the row match? A left join that adds columns needs no flag."""
        return self.shape == "flag" or (self.shape == "row" and (self.how == "inner" or not self.columns))

    @property
    def in_order(self) -> bool:
        """Whether whole rows are put in the order of the stream."""
        return self.ordered and self.shape == "rows"

    @property
    def given_bytes(self) -> int:
        """Memory of a task in all."""
        return self.memory_bytes * self.tables

    def sizes(self, relation: Relation) -> RowSizes:
        found = row_bytes(pa.schema([relation.schema.field(name) for name in self.spec.columns]))
        if self.spec.columns:
            found = max(found, mean_row_bytes(relation))
        matches = (self.table.longest_run or 1) if self.shape == "array" else 1
        return RowSizes(row_bytes(self.spec.stream_schema), found, matches)

    def access(self, relation: Relation) -> Access:
        """A look-up, if pages lie in memory and one row of the table answers a key; otherwise a join. A broadcast, if that was
        named: then Spark joins."""
        if self.strategy == BROADCAST:
            return "broadcast"
        if self.shape == "rows" or not isinstance(relation, StoredRelation):
            return "join"
        if isinstance(self.spec.condition, Between):
            return "range look-up"
        if not algorithm(self.strategy).instant or not relation.resident or relation.disk_index is not None:
            return "join"  # a search in an index on disk is done for many keys at once, by a join
        any_row_will_do = relation.codec.exact or relation.unique
        return "key look-up" if self.shape == "row" or (self.shape == "flag" and any_row_will_do) else "join"


@dataclass(frozen=True)
class JoinPlan:
    """One table of an `enrich` call. Travels to the workers."""

    asked: Asked
    read: ReadMode | None  # None: the table can be read in one way only
    access: Access
    memory: MemorySplit
    group: GroupRows
    counters: TaskCounters | None = None  # where the counts of a task go; None: into the rows themselves
    costs: UnitCosts | None = None  # that the join chooses its sizes by; None: each worker finds them out
    sent: SentTable | None = None  # what is sent to the executors; only of a broadcast

    @staticmethod
    def of(asked: Asked, relation: Relation, counters: TaskCounters | None = None, costs: UnitCosts | None = None) -> JoinPlan:
        """The plan for a machine on which the table is open as `relation`."""
        access = asked.access(relation)
        memory, group = divide(
            asked.memory_bytes, asked.shape, access, asked.sizes(relation), in_order=asked.in_order, resident=relation.resident
        )
        return JoinPlan(asked, getattr(relation, "mode", None), access, memory, group, counters, costs)

    def on_host(self, relation: Relation) -> JoinPlan:
        """This plan, if the machine of a task can follow it; otherwise a new plan for the machine."""
        self._check(relation)
        same_read = getattr(relation, "mode", None) == self.read
        if self.access == "broadcast":
            return self  # in whichever way the rows are read
        if same_read and (self.access == "join" or self.asked.access(relation) == self.access):
            return self
        return JoinPlan.of(self.asked, relation, self.counters)

    def budget(self) -> Budget:
        """The budget of a join or look-up. The memory for putting rows in order is already reserved."""
        budget = Budget(self.memory.join_bytes)
        if self.asked.shape != "rows":
            budget.reserve(_ORDERING, self.memory.ordering_bytes)
        if self.asked.hot_keys:
            budget.reserve(_HOT_KEYS, sketch_bytes(self.asked.hot_keys, self.asked.key_types))
        return budget

    def lookup(self, relation: Relation) -> InstantLookup:
        """The look-up that answers keys at once."""
        spec = self.asked.spec
        assert isinstance(relation, StoredRelation)
        if isinstance(spec.condition, Between):
            return RangesInPlace(relation, spec.columns, spec.condition, spec.stream_schema.field(0).type)
        return InPlace(relation, spec.columns)

    def join(self, relation: Relation, budget: Budget, **known: object) -> SemiStreamJoin:
        """An empty join. `known`: what the host can tell the join beside the rows of a group."""
        return make_join(self.asked.strategy, relation, self.asked.spec, budget, **self._parameters(**known))

    def check_memory(self, relation: Relation) -> None:
        """An error if the memory is too small for what `budget` sets aside and for the join. Nothing is made."""
        budget = self.budget()
        if self.access == "join":
            check_memory(self.asked.strategy, relation, self.asked.spec, budget, **self._parameters())

    def expect(self, relation: Relation, stream: StreamShape, rows: float) -> Expected:
        """What the join is expected to do with so many rows of a task. No array is made."""
        known = {} if self.costs is None else {"costs": self.costs}
        parameters = self._parameters(**known)
        return algorithm(self.asked.strategy).expect(relation, self.asked.spec, self.budget(), stream, rows=rows, **parameters)

    def _parameters(self, **known: object) -> dict[str, Any]:
        if self.asked.shape != "rows":
            known["window_tuples"] = self.group.most
        known |= dict(self.asked.front)
        return algorithm(self.asked.strategy).parameters(**known)

    def in_all(self, small: BudgetError) -> BudgetError:
        """A budget error of one join, reworded for the whole memory of the call."""
        parts = (2 if self.asked.in_order else 1) * self.asked.tables
        if parts == 1:
            return small
        reason, needed = str(small).split("; give memory=")[0], small.needed_bytes * parts
        given = format_bytes(self.asked.given_bytes)
        return BudgetError(f"{reason} (of {given}, a join has one part of {parts}); give memory={needed} or more", needed)

    def _check(self, relation: Relation) -> None:
        """Raise an error if the version of this batch no longer fits the plan of the query."""
        asked = self.asked
        for name in (*asked.table_columns, *asked.table.key):
            kind = asked.table.schema.field(name).type
            if name not in relation.schema.names or relation.schema.field(name).type != kind:
                raise SchemaError(
                    f"the table's column {name!r} is not {kind} any more in the version of this batch; start the query again"
                )
        if asked.spec.condition is not None:
            if asked.shape != "rows":
                self._check_ranges(relation, asked.spec.condition)
            return
        if self.access == "broadcast":
            return
        most = {"row": 1, "array": MAX_ARRAY_ROWS}.get(asked.shape)
        version = getattr(relation, "version", None)
        if most is not None and version is not None and version.longest_run > most:
            raise TableVersionError(
                f"a key had at most {most} rows in the table when this query was planned and has {version.longest_run} in the "
                "version of this batch; start the query again"
            )

    def _check_ranges(self, relation: Relation, condition: Condition) -> None:
        if not relation.resident:
            raise TableError(
                "the table was mapped when this query was planned and can't be on this host; give read='mmap', or "
                "strategy='rmeshjoin' to scan it"
            )
        if not one_range_each(relation, condition, self.asked.spec.stream_schema.field(0).type):
            raise TableVersionError("ranges overlap in the version of this batch and did not before; start the query again")

    def __str__(self) -> str:
        asked, memory = self.asked, self.memory
        by = asked.condition if asked.condition is not None else equal_keys(asked.on)
        columns = ", ".join(name if name == column else f"{column} as {name}" for column, name in asked.columns) or "none"
        told = [f"{asked.table.name} ({asked.table.path})", f"  join     {asked.how}, on {by}", f"  columns  {columns}"]
        if self.sent is not None:
            return "\n".join([*told, *self._sent(self.sent)])
        doing = f"strategy {asked.strategy}" if self.access == "join" else f"a {self.access}, at once"
        return "\n".join([
            *told,
            f"  by       {doing}; {_READS[self.read]}",
            f"  travels  {_TRAVELS[asked.shape]}{', in the order of the stream' if asked.in_order else ''}",
            *self._front(),
            f"  memory   {format_bytes(memory.given_bytes)}: {self._memory()}",
            f"  rows     {self._group()}",
            *([f"  counts   the {counted(asked.hot_keys, 'most frequent key')} of each task"] if asked.hot_keys else []),
        ])  # fmt: skip

    def _sent(self, sent: SentTable) -> list[str]:
        """What Spark does."""
        size, most = format_bytes(sent.bytes), format_bytes(sent.limit_bytes)
        return [
            f"  by       strategy broadcast, Spark's own join: the table is sent to every executor; {_READS[self.read]}",
            "  travels  nothing of the stream goes to Python; the table is read in every micro-batch",
            f"  memory   about {size}, once in the driver and in each executor; {most} at most",
            f"  rows     {counted(sent.rows, 'row')} of the table, read by {counted(sent.parts, 'task')}",
        ]

    def _front(self) -> list[str]:
        """What the front stage of a cached join does."""
        row = algorithm(self.asked.strategy)
        if not row.cached:
            return []
        share = self._parameters()["cache_share"]
        if self.access != "join" or self.read == "mmap" or share == 0:
            return ["  front    no front stage: " + ("cache_share is 0" if share == 0 else "pages are used in place")]
        return [f"  front    {share:.0%} of the join's memory for rows that are wanted often"]

    def _memory(self) -> str:
        memory, ordering = self.memory, format_bytes(self.memory.ordering_bytes)
        if self.asked.shape == "rows":
            join = f"{format_bytes(memory.join_bytes)} for the join"
            return f"{join}, {ordering} for rows that wait for their turn" if self.asked.in_order else join
        if self.access != "join":
            return f"{ordering} for rows that are looked up, {format_bytes(memory.limit_bytes)} at most"
        join = format_bytes(max(0, memory.join_bytes - memory.ordering_bytes))
        return f"{join} for the join, {ordering} for rows being put in order"

    def _group(self) -> str:
        if self.asked.shape == "rows" and not self.asked.in_order:
            return "taken as they come"
        return f"{counted(self.group.start, 'row')} at a time, between {self.group.least:,} and {self.group.most:,}"


@dataclass(frozen=True)
class Plan:
    """An `enrich` call."""

    joins: tuple[JoinPlan, ...]  # in the order of the call
    partitions: int | None  # tasks that the stream is shuffled into; None: as many as the source has

    @property
    def by_key(self) -> tuple[JoinPlan, ...]:
        """Joins for which only keys travel. They run first, all in one trip to Python."""
        return tuple(join for join in self.joins if join.asked.shape != "rows" and join.access != "broadcast")

    @property
    def broadcast(self) -> tuple[JoinPlan, ...]:
        """Joins that are Spark's own. They run behind the joins by key."""
        return tuple(join for join in self.joins if join.access == "broadcast")

    @property
    def by_row(self) -> tuple[JoinPlan, ...]:
        """Joins for which whole rows travel, one behind the other, in another trip."""
        return tuple(join for join in self.joins if join.asked.shape == "rows")

    def __str__(self) -> str:
        given = format_bytes(self.joins[0].asked.given_bytes)
        tasks = "one task for each partition of the source" if self.partitions is None else counted(self.partitions, "task")
        return "\n".join([f"{given} for each task, {tasks}", *(str(join) for join in self.joins)])

    def counted_by(self, counters: tuple[TaskCounters | None, ...]) -> Plan:
        """The same plan, with the counters that take the counts of each join."""
        joins = [replace(join, counters=way) for join, way in zip(self.joins, counters, strict=True)]
        return replace(self, joins=tuple(joins))


def one_range_each(relation: Relation, condition: Condition, value: pa.DataType) -> bool:
    """Whether every row of the stream lies in at most one range, so that ranges can be looked up like keys."""
    if not isinstance(condition, Between) or not isinstance(relation, StoredRelation):
        return False
    return serves(relation, condition, value)
