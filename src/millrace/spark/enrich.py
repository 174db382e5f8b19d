"""`enrich`: a DataFrame, streaming or not, with the columns of a table too big for memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa
from pyspark.errors import PySparkAssertionError
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    StringType,
    StructField,
    StructType,
)

from millrace.catalog import algorithm, check_condition, make_join
from millrace.core.budget import Budget, format_bytes
from millrace.core.conditions import Between, Condition, Expr, Pairs
from millrace.core.errors import BudgetError, ParameterError, SchemaError
from millrace.core.keys import KeyCodec
from millrace.core.protocols import How, Relation
from millrace.relations.folder import now_us
from millrace.spark.arguments import (
    check_choices,
    check_frame,
    check_name,
    check_observation,
    checked_how,
    checked_memory,
    checked_on,
    checked_partitions,
    chosen_columns,
    in_key_order,
    wrong_table,
)
from millrace.spark.counters import TaskCounters, counters_for
from millrace.spark.labels import new_label, note_observation
from millrace.spark.master import MasterTable
from millrace.spark.parquet import ParquetTable
from millrace.spark.planned import PlannedTable
from millrace.spark.references import Renumbered
from millrace.spark.schema import (
    arrow_type,
    case_sensitive,
    check_key_types,
    column_field,
    free_names,
    named_column,
    session_zone,
    spelled,
    with_collation,
)
from millrace.spark.spread import spread_rows
from millrace.spark.task import EnrichTask, OnePass, RowsPass, Shape, in_place, one_range_each, plan_group
from millrace.spark.workers import use_this_python

_NO_BYTES = 2048  # smaller numbers than this are surely not meant as bytes

On = str | Sequence[Any] | Mapping[str, str] | Condition


@dataclass(frozen=True)
class Lookup:
    """One of several tables that `enrich` looks up in one pass. `on`, `how` and `columns` are as there; no `how`: that of the
    call."""

    table: MasterTable | ParquetTable
    on: On
    how: str | None = None
    columns: Sequence[str] | Mapping[str, str] | None = None
    name: str | None = None


def enrich(
    stream: DataFrame,
    table: MasterTable | ParquetTable | Sequence[Lookup],
    on: On | None = None,
    how: str = "inner",
    *,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    memory: int | str = "256m",
    strategy: str = "auto",
    read: str = "auto",
    partitions: int | None = None,
    ordered: bool = False,
    name: str | None = None,
    observation: Observation | None = None,
) -> DataFrame:
    """Join `stream` with `table` and return the result as a DataFrame.

    table       a `MasterTable`, a `ParquetTable`, or several as a list of `Lookup`: all of them in one trip to Python (those
                that need whole rows there, as most conditions do, in another)
    on          a column of both sides, a list of them, a pair (stream column, table column), a dict stream -> table, or a
                condition: mr.between, mr.near, mr.similar, mr.expr
    how         inner, left, semi (rows whose key is in the table) or anti (rows whose key is not); Spark's names for them serve
                too, such as left_outer
    columns     table columns to add; a dict gives them new names. Default: all, but a key of the same name only once. They come
                behind those of the stream, table by table in the order given
    memory      bytes that one task may use, such as "256m"; several tables share it
    strategy    auto, or the name of a join: see `millrace.catalog`
    read        auto, mmap (pages used in place), direct (past the page cache) or buffered
    partitions  shuffle the stream into this many tasks first; needed when the source has too few
    ordered     rows of a partition come in the order of the stream; tables with at most 16 rows to a key do so in any case
    name        under which the counts of each micro-batch are reported; `observation` does it for a batch DataFrame

    Every error that can be seen beforehand is raised here, before anything runs.
    """
    check_frame(stream, "stream")
    lookups = _lookups(table, on, how, columns, name)
    check_choices(strategy, read, ordered)
    check_observation(observation, stream, len(lookups))
    spread = None if partitions is None else checked_partitions(partitions)
    memory_bytes = max(1, checked_memory(memory) // len(lookups))
    use_this_python(stream.sparkSession)
    calls = _calls(stream, lookups, memory_bytes, strategy, read, ordered)
    if observation is not None:
        note_observation(observation, calls[0].label)
    if spread is not None:
        stream = spread_rows(stream, calls[0].on, spread)
    keyed = [call for call in calls if call.shape != "rows"]
    rows = _by_key(stream, keyed, observation) if keyed else stream
    return rows if len(keyed) == len(calls) else _by_row(rows, stream, calls, observation)


def _calls(
    stream: DataFrame, lookups: Sequence[Lookup], memory_bytes: int, strategy: str, read: str, ordered: bool
) -> list[_Call]:
    """The look-ups, checked; an error says which of several it means."""
    calls = []
    for number, lookup in enumerate(lookups, 1):
        try:
            calls.append(_Call.of(stream, lookup, memory_bytes, len(lookups), strategy, read, ordered))
        except (ParameterError, SchemaError) as wrong:
            if len(lookups) == 1:
                raise
            raise type(wrong)(f"look-up {number} of {len(lookups)}: {wrong}") from wrong
    return calls


@dataclass(frozen=True)
class _Call:
    """An `enrich` call, checked."""

    table: PlannedTable
    on: Pairs  # nothing, with a condition
    condition: Condition | None
    how: How
    columns: Pairs  # (table column, name in the output); a table column may come twice, and so may a name
    key_types: tuple[pa.DataType, ...]
    memory_bytes: int
    tables: int  # that have as much, of what was given
    strategy: str
    shape: Shape
    ordered: bool
    label: str  # of its reports

    @staticmethod
    def of(stream: DataFrame, lookup: Lookup, memory_bytes: int, tables: int, strategy: str, read: str, ordered: bool) -> _Call:
        how = checked_how(lookup.how)
        on = checked_on(lookup.on)
        condition, pairs = (None, on) if isinstance(on, tuple) else (on, on.on)
        sensitive = case_sensitive(stream)
        for mine, _ in pairs:
            column_field(stream, mine, "stream")  # what the stream lacks is said before what the table does
        table = _planned(stream, lookup, () if condition else tuple(theirs for _, theirs in pairs), read)
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
        call = _Call(
            table=table,
            on=pairs if condition is None else (),
            condition=condition,
            how=how,
            columns=chosen_columns(lookup.columns, table.schema, pairs, how, sensitive),
            key_types=tuple(arrow_type(field.name, field.dataType) for field in fields),
            memory_bytes=memory_bytes,
            tables=tables,
            strategy=_strategy(strategy, table, condition),
            shape=_shape(how, table, condition, single),
            ordered=ordered,
            label=new_label(lookup.name or table.name, streaming=stream.isStreaming),
        )
        call.try_out(call.task(stream))
        return call

    @property
    def key_columns(self) -> list[str]:
        """Stream columns that are looked up."""
        return [self.condition.value] if isinstance(self.condition, Between) else [mine for mine, _ in self.on]

    @property
    def fetched(self) -> tuple[str, ...]:
        """Table columns that come back from the workers, each once."""
        return tuple(dict.fromkeys(column for column, _ in self.columns))

    def added(self, places: Sequence[str]) -> list[Column]:
        """The columns of the output, from where those that were fetched lie."""
        where = dict(zip(self.fetched, places, strict=False))
        schema = self.table.schema
        return [with_collation(F.col(where[column]), schema.field(column)).alias(name) for column, name in self.columns]

    def task(self, stream: DataFrame, counters: TaskCounters | None = None, added: Sequence[pa.DataType] = ()) -> EnrichTask:
        """`added`: the types of columns that tables before this one put behind those of the stream."""
        if self.shape == "rows":
            mine = [pa.field(f"s{i}", arrow_type(field.name, field.dataType)) for i, field in enumerate(stream.schema)]
            # what an expression can't name by chance
            schema = pa.schema([*mine, *(pa.field(f"__millrace_added{i}", kind) for i, kind in enumerate(added))])
            on = tuple((f"s{stream.columns.index(name)}", theirs) for name, theirs in self.on)
            condition = self.condition and _placed(self.condition, stream)
        else:
            condition = None
            schema = pa.schema([pa.field(f"k{i}", kind) for i, kind in enumerate(self.key_types)])
            on = tuple((f"k{i}", theirs) for i, (_, theirs) in enumerate(self.on))
            if isinstance(self.condition, Between):
                condition = replace(self.condition, value="k0")
        return EnrichTask(
            self.table, schema, on, self.how, self.fetched, self.shape, self.memory_bytes, self.strategy, counters,
            self.ordered, condition, self.tables,
        )  # fmt: skip

    def try_out(self, task: EnrichTask) -> None:
        """Make the join once, here: keys that can't be compared, a budget that is too small, damage to the index."""
        if self.condition is None:
            KeyCodec(tuple(self.table.schema.field(name).type for name in self.table.key)).check(
                [(mine, kind) for (mine, _), kind in zip(self.on, self.key_types, strict=True)]
            )
        relation = self.table.open(now_us(), task.table_columns)
        needed = self.memory_bytes
        while (more := self._lacking(relation, task, needed)) is not None:
            needed = max(more, needed + needed // 32)  # with more memory in all, more goes into putting rows in order
        if needed > self.memory_bytes:
            whose = "this join" if self.tables == 1 else f"each of {self.tables} joins"
            given, needed = self.memory_bytes * self.tables, needed * self.tables
            small = f"; memory={given} means bytes: write memory='{given}m' for megabytes" if given < _NO_BYTES else ""
            raise BudgetError(
                f"the memory budget of {format_bytes(given)} is too small for {whose}; give memory={needed} or more, or fewer "
                f"columns with columns={small}",
                needed,
            )

    def _lacking(self, relation: Relation, task: EnrichTask, memory_bytes: int) -> int | None:
        """None when the join can be made with this much memory; what it asks for otherwise."""
        budget, spec = Budget(memory_bytes // task.shares), task.spec()
        try:
            plan_group(relation, spec, budget, task)
            if in_place(relation, task) is None:
                make_join(self.strategy, relation, spec, budget)
        except BudgetError as small:
            return small.needed_bytes * task.shares
        return None

    def counters(self, stream: DataFrame, observation: Observation | None) -> TaskCounters | None:
        return counters_for(stream, self.label) if observation is None else None

    def fields(self, task: EnrichTask) -> list[DataType]:
        """Types of what comes back for a row."""
        kinds = [from_arrow_type(self.table.schema.field(name).type) for name in self.fetched]
        if self.shape == "array":
            kinds = [ArrayType(StructType([StructField(f"c{i}", kind) for i, kind in enumerate(kinds)]))]
        elif task.flagged:
            kinds = [BooleanType(), *kinds]
        return kinds if task.counters is not None else [*kinds, StringType()]


def _by_row(rows: DataFrame, stream: DataFrame, calls: Sequence[_Call], observation: Observation | None) -> DataFrame:
    """Whole rows to the workers, joined rows back. Columns go by position, under names of our own until the end.

    `rows` is the stream, and behind its columns what the calls by key have added. Columns of tables leave in the order of
    `calls`, whatever they are called.
    """
    carried, own = rows.schema.fields, len(stream.columns)
    added = [arrow_type(field.name, field.dataType) for field in carried[own:]]
    by_row = [call for call in calls if call.shape == "rows"]
    tasks: list[EnrichTask] = []
    fields = list(carried)
    for call in by_row:
        task = call.task(stream, call.counters(stream, observation), added)
        if call.tables > 1:
            call.try_out(task)  # its rows may be longer than those of the stream, which were tried out before
        tasks.append(task)
        kinds = [call.table.schema.field(column).type for column in call.fetched]
        added = [*added, *kinds]
        fields += [StructField("", from_arrow_type(kind)) for kind in kinds]
    watched = [call for call, task in zip(by_row, tasks, strict=True) if task.counters is None]
    real = f"c{len(fields)}"
    if watched:
        fields += [StructField("", BooleanType()), *(StructField("", StringType()) for _ in watched)]
    inside = [StructField(f"c{i}", f.dataType, True, f.metadata) for i, f in enumerate(fields)]
    again = Renumbered(rows)
    plain = again.frame.select("*", _batch_time(_zero())).toDF(*[f"s{i}" for i in range(len(carried) + 1)])
    joined = plain.mapInArrow(RowsPass(tuple(tasks)).rows_in, StructType(inside))  # it takes no odd or repeated names
    for call, field in zip(watched, inside[len(inside) - len(watched) :], strict=True):
        joined = _observed(joined, observation or call.label, field.name)
    if watched:
        joined = joined.where(F.col(real))
    mine = iter(again.restore(joined, [f"c{i}" for i in range(len(carried))]))
    theirs = iter(f"c{i}" for i in range(len(carried), len(fields)))
    columns = list(itertools.islice(mine, own))
    for call in calls:
        if call.shape == "rows":
            columns += call.added(list(itertools.islice(theirs, len(call.fetched))))
        else:
            columns += itertools.islice(mine, len(call.columns))
    return joined.select(*columns)


def _by_key(stream: DataFrame, calls: Sequence[_Call], observation: Observation | None) -> DataFrame:
    """Keys to the workers, structs back, or plain values if it is but one; the stream's own columns stay where they are.

    The place of the time is computed in a projection of its own, which the optimizer can't merge into the call. Without
    it a columnar source feeds the call directly, and Spark 4.3 then turns every row with all that was added into columns
    once more, only to read rows from them again.
    """
    tasks = [call.task(stream, call.counters(stream, observation)) for call in calls]
    kinds = [call.fields(task) for call, task in zip(calls, tasks, strict=True)]
    fields = list(itertools.chain(*kinds))
    starts = [0, *itertools.accumulate(len(some) for some in kinds)]
    added = [name for call in calls for _, name in call.columns]
    beside, zero, *matches = free_names([*stream.columns, *added], 2 + len(calls))
    if len(fields) == 1:
        found, places = _called(tasks, fields[0]), [beside]
    else:
        found = _called(tasks, StructType([StructField(f"c{i}", kind) for i, kind in enumerate(fields)]))
        places = [f"{beside}.c{i}" for i in range(len(fields))]
    keys = [named_column(stream, mine) for call in calls for mine in call.key_columns]
    joined = stream.withColumn(zero, _zero()).withColumn(beside, found(*keys, _batch_time(F.col(zero))))
    for call, task, end in zip(calls, tasks, starts[1:], strict=True):
        if task.counters is None:
            joined = _observed(joined, observation or call.label, places[end - 1])
    theirs: list[Column] = []
    for call, task, match, start in zip(calls, tasks, matches, starts, strict=False):
        first = F.col(places[start])
        columns = places[start + int(task.flagged) :]
        if call.shape == "array":
            explode = F.explode if call.how == "inner" else F.explode_outer
            joined = joined.withColumn(match, explode(first))
            columns = [f"{match}.c{i}" for i in range(len(call.fetched))]
        elif call.how != "left":
            joined = joined.where(~first if call.how == "anti" else first)
        theirs += call.added(columns)
    mine = [named_column(stream, name) for name in stream.columns] if _unambiguous(stream) else [F.col("*")]
    selected = joined.select(*mine, *theirs)
    return selected if _unambiguous(stream) else selected.drop(beside, zero, *matches)


def _called(tasks: Sequence[EnrichTask], returned: DataType) -> Callable[..., Column]:
    """The function that runs in the workers: keys and the time of the batch in, `returned` out."""
    return cast(Callable[..., Column], F.arrow_udf(OnePass(tuple(tasks)).keys_in, returned).asNondeterministic())


def _observed(rows: DataFrame, by: Observation | str, column: str) -> DataFrame:
    """Rows whose counts, in `column`, are collected on the side."""
    try:
        return rows.observe(by, F.collect_list(F.col(column)).alias("stats"))
    except PySparkAssertionError:
        raise ParameterError("this observation is in use already: make a new Observation for each call of enrich") from None


def _lookups(table: Any, on: On | None, how: str, columns: Any, name: str | None) -> list[Lookup]:
    """What was asked for, as a list of look-ups."""
    check_name(name)
    checked_how(how)
    if isinstance(table, Lookup):
        raise ParameterError("a Lookup goes into a list, of one or of several: write [mr.Lookup(...)]")
    if not isinstance(table, (list, tuple)):
        _check_table(table)
        return [Lookup(table, cast(On, on), how, columns, name)]  # without `on`, an error says what it must be
    wrong = next((one for one in table if not isinstance(one, Lookup)), None)
    if wrong is not None or not table:
        got = f"a {type(wrong).__name__} in it" if table else "none"
        raise ParameterError(f"several tables are given as a list of mr.Lookup(table, on=...); got {got}")
    if on is not None or columns is not None:
        raise ParameterError("with several tables, give on= and columns= to each Lookup")
    return [replace(one, how=how if one.how is None else one.how, name=name if one.name is None else one.name) for one in table]


def _check_table(table: Any) -> None:
    if not isinstance(table, (MasterTable, ParquetTable)):
        raise wrong_table(table)


def _planned(stream: DataFrame, lookup: Lookup, key: tuple[str, ...], read: str) -> PlannedTable:
    _check_table(lookup.table)
    check_name(lookup.name)
    return lookup.table.planned(stream, read) if isinstance(lookup.table, MasterTable) else lookup.table.planned(stream, key)


def _strategy(wanted: str, table: PlannedTable, condition: Condition | None) -> str:
    """The join by its name. With a condition the table is scanned, and R-MESHJOIN does that in one pass for a whole group."""
    row = algorithm((table.strategy if condition is None else "rmeshjoin") if wanted == "auto" else wanted)
    check_condition(row, "equality" if condition is None else condition.kind)
    return row.name


def _shape(how: str, table: PlannedTable, condition: Condition | None, single: bool) -> Shape:
    if condition is not None and not single:
        return "rows"
    return "flag" if how in ("semi", "anti") else "row" if single or table.unique else "array" if table.few else "rows"


def _one_range_each(stream: DataFrame, table: PlannedTable, condition: Condition) -> bool:
    """Whether each row lies in one range of the table at most, so that it can be looked up as a key is."""
    if not isinstance(condition, Between) or table.key != (condition.low,) or condition.high not in table.schema.names:
        return False
    field = column_field(stream, condition.value, "stream")
    relation = table.open(now_us(), (condition.low, condition.high))
    return one_range_each(relation, condition, arrow_type(field.name, field.dataType))


def _check_null_keys(table: PlannedTable, condition: Condition) -> None:
    """Rows without a key are not in a table that was built. Equal keys can't match them, but a condition may."""
    may_match = isinstance(condition, Expr) or (isinstance(condition, Between) and condition.open_ended)
    compared = [name for name in table.key if name in condition.table_columns(table.schema)]
    if table.null_keys and may_match and compared:
        raise SchemaError(
            f"{table.null_keys} rows without a {compared[0]!r} were left out when the table was built, and this condition may "
            "hold for them: build it with another key, or use the Parquet files as a ParquetTable"
        )


def _named_schema(stream: DataFrame, condition: Condition) -> pa.Schema:
    """The stream columns of a condition under the names that it gives them: inside a task they are named by their places."""
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


def _zero() -> Column:
    """0, which Spark knows only when a task runs."""
    return F.spark_partition_id().bitwiseAND(0)


def _batch_time(place: Column) -> Column:
    """The time of the micro-batch; `place` is `_zero()` or a column of it.

    Spark writes a plain timestamp into the code that it generates, and then has to compile and warm up that code anew in
    every micro-batch, which takes longer than the join of a small one. The function of a `zip_with` is interpreted, so a
    timestamp in it stays out of the code, and of all functions that are, this one costs least for each row. That the place
    in the array is not known beforehand keeps the time from being folded.
    """
    one = F.array(F.lit(0))
    return F.zip_with(one, one, lambda _, __: F.current_timestamp())[place]


def _unambiguous(frame: DataFrame) -> bool:
    names = [name.lower() for name in frame.columns]
    return len(set(names)) == len(names)
