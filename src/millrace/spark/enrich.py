"""`enrich`: a DataFrame, streaming or not, with the columns of a table too big for memory."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, MapType, StringType, StructField, StructType

from millrace.catalog import algorithm, make_join
from millrace.core.budget import Budget, parse_bytes
from millrace.core.errors import ParameterError, SchemaError
from millrace.core.protocols import HOWS, How
from millrace.spark.master import MasterTable
from millrace.spark.registry import choose_mode, open_relation
from millrace.spark.reports import PREFIX
from millrace.spark.schema import arrow_type, check_key_types, column_field
from millrace.spark.task import EnrichTask, Shape, plan_group

_FOUND = "__millrace"
_numbers = itertools.count(1)

On = str | Sequence[Any] | Mapping[str, str]


def enrich(
    stream: DataFrame,
    table: MasterTable,
    on: On,
    *,
    how: str = "inner",
    columns: Sequence[str] | Mapping[str, str] | None = None,
    memory: int | str = "256m",
    strategy: str = "auto",
    read: str = "auto",
    partitions: int | None = None,
    name: str | None = None,
    observation: Observation | None = None,
) -> DataFrame:
    """Join `stream` with `table` and return the result as a DataFrame.

    on          a column of both sides, a list of them, a pair (stream column, table column), or a dict stream -> table
    how         inner, left, semi (rows whose key is in the table) or anti (rows whose key is not)
    columns     table columns to add; a dict gives them new names. Default: all, but a key of the same name only once
    memory      bytes that one task may use, such as "256m"
    strategy    auto, or the name of a join: see `millrace.catalog`
    read        auto, mmap (pages used in place), direct (past the page cache) or buffered
    partitions  shuffle the stream into this many tasks first; needed when the source has too few
    name        under which the counts of each micro-batch are reported; `observation` does it for a batch DataFrame

    Every error that can be seen beforehand is raised here, before anything runs.
    """
    call = _Call.of(stream, table, on, how, columns, memory, strategy, read)
    if partitions is not None:
        stream = _spread(stream, call.on, partitions)
    task = call.task()
    found = F.arrow_udf(task.keys_in, call.return_type()).asNondeterministic()
    keys = [_column(stream, mine) for mine, _ in call.on]
    joined = stream.withColumn(_FOUND, found(*keys, F.current_timestamp()))
    stats = F.collect_list(F.col(f"{_FOUND}.stats")).alias("stats")
    label = f"{PREFIX}{name or Path(table.path).name}#{next(_numbers)}"
    joined = joined.observe(observation if observation is not None else label, stats)
    return call.select(stream, joined)


@dataclass(frozen=True)
class _Call:
    """An `enrich` call, checked."""

    table: MasterTable
    on: tuple[tuple[str, str], ...]
    how: How
    columns: dict[str, str]  # table column -> name in the output
    memory_bytes: int
    strategy: str
    read: str
    key_fields: tuple[StructField, ...]
    table_schema: pa.Schema
    shape: Shape

    @staticmethod
    def of(
        stream: DataFrame, table: MasterTable, on: On, how: str, columns: Any, memory: int | str, strategy: str, read: str
    ) -> _Call:
        if not isinstance(table, MasterTable):
            raise ParameterError(f"the table must be a MasterTable; got {type(table).__name__}")
        if how not in HOWS:
            raise ParameterError(f"how must be one of {', '.join(HOWS)}; got {how!r}")
        version = table.latest
        pairs = _pairs(on, version.key)
        fields = tuple(column_field(stream, mine, "stream") for mine, _ in pairs)
        check_key_types(fields)
        pairs = tuple((field.name, theirs) for field, (_, theirs) in zip(fields, pairs, strict=True))
        chosen = _columns(columns, version.schema, pairs, how)
        shape: Shape = "flag" if how in ("semi", "anti") else "row" if version.unique else "rows"
        call = _Call(
            table, pairs, cast(How, how), chosen, parse_bytes(memory), _strategy(strategy), read, fields, version.schema, shape
        )
        call.check_budget()
        return call

    def task(self) -> EnrichTask:
        return EnrichTask(
            open_table=partial(open_relation, self.table.path, read=self.read),
            on=self.on,
            key_types=tuple(arrow_type(field.name, field.dataType) for field in self.key_fields),
            how=self.how,
            columns=tuple(self.columns),
            column_types=tuple(self.table_schema.field(column).type for column in self.columns),
            shape=self.shape,
            memory_bytes=self.memory_bytes,
            strategy=self.strategy,
        )

    def check_budget(self) -> None:
        """Make the join once, here: a budget that is too small, keys that can't be compared, damage to the index."""
        version = self.table.latest
        choose_mode(version, self.read)
        relation = self.table.relation("buffered" if self.read == "auto" else cast(Any, self.read), version)
        try:
            task, budget = self.task(), Budget(self.memory_bytes)
            spec = task.spec()
            spec.check_against(relation)
            plan_group(relation, spec, budget, self.shape)
            make_join(self.strategy, relation, spec, budget)
        finally:
            relation.close()

    def return_type(self) -> StructType:
        stats = StructField("stats", StringType())
        if self.shape == "flag":
            return StructType([StructField("c0", BooleanType()), stats])
        inner = [(name, _spark_type(self.table_schema.field(name).type)) for name in self.columns]
        if self.shape == "row":
            fields = [StructField(f"c{i}", kind) for i, (_, kind) in enumerate(inner, 1)]
            return StructType([StructField("c0", BooleanType()), *fields, stats])
        row = StructType([StructField(name, kind) for name, kind in inner])
        return StructType([StructField("c0", ArrayType(row)), stats])

    def select(self, stream: DataFrame, joined: DataFrame) -> DataFrame:
        """Rows as the join says, and columns as Spark's own join would give them: the stream's, then the table's."""
        mine = [_column(stream, name) for name in stream.columns] if _unambiguous(stream) else [F.col("*")]
        if self.shape == "rows":
            return self._exploded(joined, mine)
        met = F.col(f"{_FOUND}.c0")
        if self.how in ("inner", "semi"):
            joined = joined.where(met)
        elif self.how == "anti":
            joined = joined.where(~met)
        theirs = []
        if self.shape == "row":
            theirs = [F.col(f"{_FOUND}.c{i}").alias(name) for i, name in enumerate(self.columns.values(), 1)]
        if not _unambiguous(stream):
            return joined.select(*mine, *theirs).drop(_FOUND)
        return joined.select(*mine, *theirs)

    def _exploded(self, joined: DataFrame, mine: list[Column]) -> DataFrame:
        explode = F.explode if self.how == "inner" else F.explode_outer
        opened = joined.withColumn(_FOUND, explode(F.col(f"{_FOUND}.c0")))
        theirs = [F.col(_FOUND).getField(column).alias(name) for column, name in self.columns.items()]
        return opened.select(*mine, *theirs).drop(_FOUND)


def _pairs(on: On, key: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """`on` as (stream, table) pairs in the order of the table's key."""
    if isinstance(on, str):
        pairs = [(on, on)]
    elif isinstance(on, Mapping):
        pairs = list(on.items())
    elif isinstance(on, tuple) and len(on) == 2 and all(isinstance(part, str) for part in on):
        pairs = [(on[0], on[1])]
        if set(on) == set(key) and len(key) == 2:
            pairs = [(name, name) for name in on]
    elif isinstance(on, Sequence):
        pairs = [(part, part) if isinstance(part, str) else (part[0], part[1]) for part in on]
    else:
        raise ParameterError(f"on must be a column, a list, a pair or a dict of stream -> table columns; got {on!r}")
    theirs = {table: mine for mine, table in pairs}
    if set(theirs) != set(key) or len(pairs) != len(key):
        raise SchemaError(
            f"on must give a stream column for each key column of the table ({', '.join(key)}); got "
            f"{', '.join(table for _, table in pairs)}"
        )
    return tuple((theirs[name], name) for name in key)


def _columns(
    columns: Sequence[str] | Mapping[str, str] | None, schema: pa.Schema, on: tuple[tuple[str, str], ...], how: str
) -> dict[str, str]:
    """Table columns of the output and their names there."""
    if how in ("semi", "anti"):
        if columns:
            raise ParameterError(f"a {how} join puts out stream columns only; leave columns= out")
        return {}
    if columns is None:
        same = {theirs for mine, theirs in on if mine == theirs}
        return {name: name for name in schema.names if name not in same}
    if isinstance(columns, str):
        raise ParameterError(f"columns must be a list of names; got the text {columns!r}: write [{columns!r}]")
    chosen = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    for name in chosen:
        if name not in schema.names:
            raise SchemaError(f"the table has no column {name!r}; it has {', '.join(schema.names)}")
    return chosen


def _strategy(strategy: str) -> str:
    if strategy == "auto":
        return "sweepjoin"
    algorithm(strategy)
    return strategy


def _spark_type(kind: pa.DataType) -> Any:
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(kind)


def _column(frame: DataFrame, name: str) -> Column:
    return frame["`" + name.replace("`", "``") + "`"]


def _unambiguous(frame: DataFrame) -> bool:
    names = [name.lower() for name in frame.columns]
    return len(set(names)) == len(names)


def _spread(stream: DataFrame, on: tuple[tuple[str, str], ...], partitions: int) -> DataFrame:
    """Shuffle by key; rows without one, which match nothing, are spread by what else they hold."""
    if partitions < 1:
        raise ParameterError(f"partitions must be at least 1; got {partitions}")
    keys = [_column(stream, mine) for mine, _ in on]
    missing = keys[0].isNull()
    for key in keys[1:]:
        missing = missing | key.isNull()
    others = [_column(stream, field.name) for field in stream.schema if not isinstance(field.dataType, MapType)]
    return stream.repartition(partitions, F.when(missing, F.xxhash64(*others)).otherwise(F.xxhash64(*keys)))

