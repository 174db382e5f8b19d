"""How a plan is made: every table of a call is checked, its join chosen, and its memory divided.

Errors that can be seen beforehand are raised here, on the driver: names and types that do not fit, a budget that is too
small, damage to an index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField

from millrace.catalog import BROADCAST, algorithm, check_condition
from millrace.core.budget import format_bytes
from millrace.core.conditions import Between, Condition, Expr, Pairs
from millrace.core.errors import BudgetError, ParameterError, SchemaError, StrategyError
from millrace.core.keys import KeyCodec
from millrace.core.least_memory import fits, least_memory
from millrace.core.protocols import How, JoinSpec, Relation
from millrace.joins.matching.matcher import try_matcher
from millrace.relations.folder import now_us
from millrace.spark.arguments import check_name, checked_hot_keys, checked_how, checked_on, chosen_columns, in_key_order
from millrace.spark.broadcast_size import Room, broadcast_plan, is_small
from millrace.spark.choosing import Hints, Ranked, candidates, clearly_faster, costs_of_plan, forecast_of, ranked
from millrace.spark.labels import new_label
from millrace.spark.lookups import Lookup, check_table
from millrace.spark.master import MasterTable
from millrace.spark.memory_split import Shape
from millrace.spark.plan import Asked, JoinPlan, Plan, one_range_each
from millrace.spark.planned import PlannedTable
from millrace.spark.schema import arrow_type, case_sensitive, check_key_types, column_field, session_zone, spelled
from millrace.tuning.skew import Skew

_NO_BYTES = 2048  # smaller numbers than this are surely not meant as bytes


def make_plan(
    stream: DataFrame, lookups: Sequence[Lookup], memory_bytes: int, *, strategy: str, read: str, ordered: bool,
    partitions: int | None, front: Mapping[str, Any] | None = None, hints: Hints | None = None,
) -> tuple[Plan, tuple[Ranked, ...]]:  # fmt: skip
    """The plan of a call, and for each table what else could serve it, and how fast. `memory_bytes`: memory of one task for all
    tables together. With a strategy that was named, only this strategy is ranked."""
    if hints is None:
        hints = Hints.of(stream.sparkSession, Skew.unknown(), None, partitions)
    part = max(1, memory_bytes // len(lookups))
    asked: list[Asked] = []
    for number, lookup in enumerate(lookups, 1):
        with _named(number, len(lookups)):
            one = _asked(stream, lookup, part, len(lookups), strategy, read, ordered)
            asked.append(replace(one, front=tuple((front or {}).items())))
    room = partial(Room.of, stream.sparkSession, len(lookups))
    found = _all_ranked(asked, hints, room, free=strategy == "auto")
    if strategy == "auto" and hints.arrivals_per_second:
        found = _with_broadcasts(asked, found, hints, room(), streaming=stream.isStreaming)
    return Plan(tuple(one.chosen.plan for one in found), partitions), found


def _all_ranked(asked: Sequence[Asked], hints: Hints, room: Callable[[], Room], *, free: bool) -> tuple[Ranked, ...]:
    """All tables of a call. `free`: the call leaves the joins free."""
    rankings: dict[int, Ranked] = {}
    added: list[pa.DataType] = []  # columns that lie behind those of the stream by then
    for place in sorted(range(len(asked)), key=lambda place: asked[place].shape == "rows"):  # in the order in which they run
        one = asked[place]
        with _named(place + 1, len(asked)):
            if one.shape == "rows":
                one = replace(one, spec=_behind(one.spec, added))
            rankings[place] = _ranked(one, hints, room, free=free and one.condition is None and one.strategy != BROADCAST)
        added += _added_types(one)
    return tuple(rankings[place] for place in range(len(asked)))


def _with_broadcasts(
    asked: Sequence[Asked], found: tuple[Ranked, ...], hints: Hints, room: Room, *, streaming: bool
) -> tuple[Ranked, ...]:
    """The same call with broadcasts of all tables that are small enough, if this is clearly faster. All their rows can be
    counted: an `Observation` of a batch DataFrame counts only where no key has several rows."""

    def small_enough(one: Asked, relation: Relation) -> bool:
        counted = streaming or one.table.unique
        return one.condition is None and not one.hot_keys and counted and is_small(one, relation, room)

    small = [small_enough(one, ranking.chosen.relation) for one, ranking in zip(asked, found, strict=True)]
    if not any(small):
        return found
    changed = [as_broadcast(one) if sent else one for one, sent in zip(asked, small, strict=True)]
    other = _all_ranked(changed, hints, lambda: replace(room, sampled=False), free=True)
    if not clearly_faster(other, found, hints):
        return found
    return tuple(
        replace(new, forecasts=(new.chosen, *old.forecasts), refused=old.refused) if sent else new
        for new, old, sent in zip(other, found, small, strict=True)
    )


@contextmanager
def _named(number: int, count: int) -> Iterator[None]:
    """An error says which of several look-ups it means."""
    try:
        yield
    except (ParameterError, SchemaError) as wrong:
        if count == 1:
            raise
        raise type(wrong)(f"look-up {number} of {count}: {wrong}") from wrong


def _asked(stream: DataFrame, lookup: Lookup, memory_bytes: int, tables: int, strategy: str, read: str, ordered: bool) -> Asked:
    """One look-up, checked."""
    how = checked_how(lookup.how)
    on = checked_on(lookup.on)
    condition, pairs = (None, on) if isinstance(on, tuple) else (on, on.on)
    hot_keys = checked_hot_keys(lookup.hot_keys)
    if hot_keys and condition is not None:
        raise ParameterError(
            f"hot_keys counts keys that are equal, and a {condition.kind} condition has none: leave hot_keys out, or give "
            "hot_keys=0 to this Lookup"
        )
    sensitive = case_sensitive(stream)
    for mine, _ in pairs:
        column_field(stream, mine, "stream")  # what the stream lacks is said before what the table does
    table = _planned_table(stream, lookup, () if condition else tuple(theirs for _, theirs in pairs), read)
    if condition is None:
        named = [(mine, spelled(theirs, table.key, sensitive)) for mine, theirs in pairs]
        pairs = in_key_order(named, table.key, lookup.on)
    else:
        condition = condition.in_zone(session_zone(stream))
        condition.check(_named_schema(stream, condition), table.schema)
        _check_null_keys(table, condition)
    fields = [column_field(stream, mine, "stream") for mine, _ in pairs]
    check_key_types(fields)
    pairs = tuple((field.name, theirs) for field, (_, theirs) in zip(fields, pairs, strict=True))
    single = condition is not None and strategy == "auto" and _one_range_each(stream, table, condition)
    if single:
        fields = [column_field(stream, cast(Between, condition).value, "stream")]
    columns = chosen_columns(lookup.columns, table.schema, pairs, how, sensitive)
    name = _strategy(strategy, table, condition)
    if condition is None:
        _check_keys(table, fields)
    shape = _shape(how, table, condition, single)
    spec = _spec(stream, fields, pairs, condition, how, shape, tuple(dict.fromkeys(column for column, _ in columns)))
    label = new_label(lookup.name or table.name, streaming=stream.isStreaming)
    on = pairs if condition is None else ()
    asked = Asked(
        table, on, how, columns, shape, name, ordered, spec, memory_bytes, tables, label, condition, hot_keys=hot_keys
    )
    return as_broadcast(asked) if name == BROADCAST else asked


def _planned_table(stream: DataFrame, lookup: Lookup, key: tuple[str, ...], read: str) -> PlannedTable:
    check_table(lookup.table)
    check_name(lookup.name)
    return lookup.table.planned(stream, read) if isinstance(lookup.table, MasterTable) else lookup.table.planned(stream, key)


def as_broadcast(asked: Asked) -> Asked:
    """The same look-up by Spark's own join: by key, however many rows a key has. No row of the stream goes to Python."""
    if asked.hot_keys:
        raise ParameterError(
            "hot_keys counts keys on their way to Python, and with strategy 'broadcast' they stay in Spark: leave hot_keys "
            "out, or choose another strategy"
        )
    schema = pa.schema([pa.field(f"k{i}", kind) for i, kind in enumerate(asked.key_types)])
    found: How = "semi" if asked.how in ("semi", "anti") else "inner"
    spec = JoinSpec(schema, tuple((f"k{i}", theirs) for i, (_, theirs) in enumerate(asked.on)), found, (), asked.fetched)
    return replace(asked, strategy=BROADCAST, shape="flag" if found == "semi" else "row", spec=spec)


def _strategy(wanted: str, table: PlannedTable, condition: Condition | None) -> str:
    """The name of the join. A condition scans the table: R-MESHJOIN needs one pass for a whole group."""
    if wanted == BROADCAST:
        if condition is not None:
            raise StrategyError(
                f"strategy 'broadcast' serves equal keys only, not {condition.kind!r}: leave strategy out, or name one that "
                "scans the table, such as rmeshjoin"
            )
        return wanted
    row = algorithm((table.strategy if condition is None else "rmeshjoin") if wanted == "auto" else wanted)
    check_condition(row, "equality" if condition is None else condition.kind)
    return row.name


def _shape(how: How, table: PlannedTable, condition: Condition | None, single: bool) -> Shape:
    if condition is not None and not single:
        return "rows"
    return "flag" if how in ("semi", "anti") else "row" if single or table.unique else "array" if table.few else "rows"


def _spec(
    stream: DataFrame, fields: Sequence[StructField], pairs: Pairs, condition: Condition | None, how: How, shape: Shape,
    columns: tuple[str, ...],
) -> JoinSpec:  # fmt: skip
    """The join as the workers see it: columns of the stream are named by their places. Where keys travel, the join puts out
    only matches; the JVM then treats rows without a match as a left or anti join asks for."""
    if shape == "rows":
        schema = pa.schema([pa.field(f"s{i}", arrow_type(field.name, field.dataType)) for i, field in enumerate(stream.schema)])
        on = tuple((f"s{stream.columns.index(name)}", theirs) for name, theirs in pairs) if condition is None else ()
        return JoinSpec(schema, on, how, tuple(schema.names), columns, condition and _placed(condition, stream))
    schema = pa.schema([pa.field(f"k{i}", arrow_type(field.name, field.dataType)) for i, field in enumerate(fields)])
    found: How = "semi" if shape == "flag" else "inner"
    if isinstance(condition, Between):
        return JoinSpec(schema, (), found, (), columns, replace(condition, value="k0"))
    return JoinSpec(schema, tuple((f"k{i}", theirs) for i, (_, theirs) in enumerate(pairs)), found, (), columns)


def _behind(spec: JoinSpec, added: Sequence[pa.DataType]) -> JoinSpec:
    """The same join, for rows that have the columns of earlier tables too. No expression can name these columns by chance."""
    more = [pa.field(f"__millrace_added{i}", kind) for i, kind in enumerate(added)]
    schema = pa.schema([*spec.stream_schema, *more])
    return replace(spec, stream_schema=schema, carry=tuple(schema.names))


def _added_types(asked: Asked) -> list[pa.DataType]:
    """Types of the columns that a table adds, as a later join of whole rows gets them: through the JVM, or unchanged."""
    schema = asked.table.schema
    if asked.shape == "rows":
        return [schema.field(column).type for column in asked.fetched]
    return [arrow_type(name, from_arrow_type(schema.field(column).type)) for column, name in asked.columns]


def _ranked(asked: Asked, hints: Hints, room: Callable[[], Room], *, free: bool) -> Ranked:
    """The plans of all joins that can serve this, if the call leaves the join free; otherwise of the join that was named.
    If the budget is too small, the error says how much is enough."""
    relation = asked.table.open(now_us(), asked.table_columns)
    if asked.strategy == BROADCAST:
        plan = broadcast_plan(asked, relation, room(), hints.tasks.cores)
        return Ranked((forecast_of(plan, relation, hints),), (), hints.rows_of_task)

    def made(one: Asked, relation: Relation) -> JoinPlan:
        plan = JoinPlan.of(one, relation, costs=costs_of_plan(one.strategy, relation, one.table.path, hints))
        plan.check_memory(relation)
        return plan

    names = candidates(asked, relation) if free else [asked.strategy]

    def least(name: str) -> int:
        one = replace(asked, strategy=name)
        return least_memory(partial(fits, lambda given: made(replace(one, memory_bytes=given), relation)), asked.memory_bytes)

    try:
        found = ranked(asked, relation, made, hints, names)
    except BudgetError:
        raise _too_small(asked, min(map(least, names))) from None
    if asked.spec.condition is not None and found.chosen.plan.access == "join":
        try_matcher(relation, asked.spec)
    return found


def _too_small(asked: Asked, needed: int) -> BudgetError:
    whose = "this join" if asked.tables == 1 else f"each of {asked.tables} joins"
    given, needed = asked.given_bytes, needed * asked.tables
    small = f"; memory={given} means bytes: write memory='{given}m' for megabytes" if given < _NO_BYTES else ""
    return BudgetError(
        f"the memory budget of {format_bytes(given)} is too small for {whose}; give memory={needed} or more, or fewer "
        f"columns with columns={small}",
        needed,
    )


def _check_keys(table: PlannedTable, fields: Sequence[StructField]) -> None:
    """Raise an error if keys of the stream and of the table can't be compared."""
    codec = KeyCodec(tuple(table.schema.field(name).type for name in table.key))
    codec.check([(field.name, arrow_type(field.name, field.dataType)) for field in fields])


def _one_range_each(stream: DataFrame, table: PlannedTable, condition: Condition) -> bool:
    """Whether each row lies in at most one range of the table, so that ranges can be looked up like keys."""
    if not isinstance(condition, Between) or table.key != (condition.low,) or condition.high not in table.schema.names:
        return False
    field = column_field(stream, condition.value, "stream")
    relation: Relation = table.open(now_us(), (condition.low, condition.high))
    return one_range_each(relation, condition, arrow_type(field.name, field.dataType))


def _check_null_keys(table: PlannedTable, condition: Condition) -> None:
    """A built table has no rows with a null key. Equal keys can't match such rows, but a condition may: then raise an error."""
    may_match = isinstance(condition, Expr) or (isinstance(condition, Between) and condition.open_ended)
    compared = [name for name in table.key if name in condition.table_columns(table.schema)]
    if table.null_keys and may_match and compared:
        raise SchemaError(
            f"{table.null_keys} rows without a {compared[0]!r} were left out when the table was built, and this condition may "
            "hold for them: build it with another key, or use the Parquet files as a ParquetTable"
        )


def _named_schema(stream: DataFrame, condition: Condition) -> pa.Schema:
    """The stream columns of a condition, under their own names. Inside a task they are named by their places."""
    names = condition.stream_columns(pa.schema([]))
    kinds = [arrow_type(name, column_field(stream, name, "stream").dataType) for name in names]
    return pa.schema(list(zip(names, kinds, strict=True)))


def _placed(condition: Condition, stream: DataFrame) -> Condition:
    """The condition over columns that are named by their places, as they travel."""
    if isinstance(condition, Expr):
        return condition.renamed(tuple((name, f"s{i}") for i, name in enumerate(stream.columns)))
    names = {}
    for mine in condition.stream_columns(pa.schema([])):
        field = column_field(stream, mine, "stream")
        names[mine] = f"s{stream.columns.index(field.name)}"
    return condition.renamed(names)
