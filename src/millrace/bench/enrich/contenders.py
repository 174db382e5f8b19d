"""Who runs in the enrichment benchmark: one small class each.

A contender makes itself ready (loads a store, persists a table, builds a master table), hands out the function that
enriches a stream, and cleans up. Everything it does before the stream starts is set-up and reported as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from millrace.bench.data import MASTER_SCHEMA, TEXT_WIDTHS, Say, made_once
from millrace.bench.enrich import stores
from millrace.bench.enrich.microbatch import Transform
from millrace.bench.options import EnrichOptions
from millrace.core.budget import parse_bytes
from millrace.relations.folder import FORMAT

SORT_MERGE_PARTITIONS = 8
"""Shuffle partitions of the sort-merge joins: four tasks a core, small enough to sort without spilling in 6 GB."""


@dataclass(frozen=True)
class Workload:
    """What every contender works on: the session, the master data as Parquet, and where to keep built stores."""

    spark: SparkSession
    options: EnrichOptions
    master: Path
    folder: Path
    say: Say

    def store(self, kind: str) -> Path:
        return self.folder / f"{kind}-{self.options.rows}-{self.options.seed}"

    @property
    def table(self) -> DataFrame:
        return self.spark.read.parquet(str(self.master)).select("key", *self.options.columns)


@dataclass(frozen=True)
class Ready:
    """A contender that can be run.

    `files` is the folder it reads in every micro-batch, `service_pid` the process it depends on beside Spark, and
    `joins` says whether it really enriches, so that its rows can be compared with those of the others.
    """

    transform: Transform
    files: Path | None = None
    service_pid: int | None = None
    joins: bool = True


class Contender(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> Mapping[str, str]:
        """Spark settings for its queries, beside those of the session."""

    def missing(self) -> str | None:
        """Why it can't run on this machine, with what to do about it; None if it can."""

    def ready(self, work: Workload) -> AbstractContextManager[Ready]: ...


@dataclass(frozen=True)
class Plain:
    """A contender that needs nothing installed."""

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)

    def missing(self) -> str | None:
        return None


class ReadOnly(Plain):
    """The stream straight into the sink."""

    @contextmanager
    def ready(self, work: Workload) -> Iterator[Ready]:
        yield Ready(lambda stream: stream, joins=False)


class IdentityMap(Plain):
    """Floor of `mapInArrow`: rows come back with constants of the same width for the master columns."""

    @contextmanager
    def ready(self, work: Workload) -> Iterator[Ready]:
        constants = _constants(work.options.columns)

        def append(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa  # in here: pickled by value, the worker need not import this package

            cached: dict[int, list[pa.Array]] = {}
            for batch in batches:
                size = batch.num_rows
                if size not in cached:
                    cached[size] = [pa.repeat(value, size) for value in constants]
                yield pa.RecordBatch.from_arrays([*batch.columns, *cached[size]], names=[*batch.schema.names, *columns])

        columns = work.options.columns
        yield Ready(lambda stream: stream.mapInArrow(append, output_schema(stream, columns)), joins=False)


class IdentityUdf(Plain):
    """Floor of the iterator `arrow_udf`: the key goes to Python, a struct of constants comes back."""

    @contextmanager
    def ready(self, work: Workload) -> Iterator[Ready]:
        columns = work.options.columns

        def transform(stream: DataFrame) -> DataFrame:
            # Made for each query: a function keeps the worker environment of its first use.
            look_up = constants_for(columns)
            named = stream.withColumn("__master", look_up("key"))
            return named.select(*stream.columns, *(F.col(f"__master.{name}") for name in columns))

        yield Ready(transform, joins=False)


@dataclass(frozen=True)
class SparkJoin(Plain):
    """Spark's stream-static join with the table as `prepare` leaves it."""

    prepare: Callable[[DataFrame], DataFrame] = lambda table: table

    @contextmanager
    def ready(self, work: Workload) -> Iterator[Ready]:
        table = self.prepare(work.table)
        if table.is_cached:
            table.count()
        try:
            yield Ready(lambda stream: stream.join(table, "key", work.options.how), work.master)
        finally:
            if table.is_cached:
                table.unpersist(blocking=True)


class RocksDb:
    """A RocksDB folder on local disk, a block cache of the same size as the memory budget."""

    name: ClassVar[str] = "rocksdb"
    settings: ClassVar[Mapping[str, str]] = {}

    def missing(self) -> str | None:
        return None if find_spec("rocksdict") else "not installed: pip install rocksdict"

    @contextmanager
    def ready(self, work: Workload) -> Iterator[Ready]:
        target = work.store("rocksdb")

        def build() -> None:
            work.say(f"loading {work.options.rows:,} rows into RocksDB")
            stores.build_rocksdb(work.master, target)

        made_once(target, {"rows": work.options.rows, "seed": work.options.seed}, build)
        options = work.options
        look_up = stores.RocksLookup(str(target), parse_bytes(options.memory), options.columns, options.how)
        yield Ready(lambda stream: stream.mapInArrow(look_up, output_schema(stream, options.columns)), target)


class Redis:
    """A Redis server on this machine, which the benchmark starts, loads and ends."""

    name: ClassVar[str] = "redis"
    settings: ClassVar[Mapping[str, str]] = {}

    def missing(self) -> str | None:
        return stores.redis_missing() or (None if find_spec("redis") else "not installed: pip install redis")

    @contextmanager
    def ready(self, work: Workload) -> Iterator[Ready]:
        options = work.options
        with stores.redis_server() as server:
            work.say(f"loading {options.rows:,} rows into Redis")
            stores.load_redis(work.master, server.socket_path)
            look_up = stores.RedisLookup(server.socket_path, options.columns, options.how)
            yield Ready(
                lambda stream: stream.mapInArrow(look_up, output_schema(stream, options.columns)),
                service_pid=server.pid,
            )


@dataclass(frozen=True)
class Millrace:
    """`millrace.enrich` with one strategy."""

    strategy: str
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"millrace-{self.strategy}"

    def missing(self) -> str | None:
        return None

    @contextmanager
    def ready(self, work: Workload) -> Iterator[Ready]:
        table = open_master_table(work)
        options = work.options

        def transform(stream: DataFrame) -> DataFrame:
            import millrace as mr

            enriched: DataFrame = mr.enrich(
                stream,
                table,
                on="key",
                how=options.how,
                columns=list(options.columns),
                memory=options.memory,
                strategy=self.strategy,
            )
            return enriched

        yield Ready(transform, work.store("millrace"))


def open_master_table(work: Workload) -> Any:
    """The millrace table of this master data, built unless it is there."""
    import millrace as mr

    target = work.store("millrace")

    def build() -> None:
        work.say(f"building the millrace table of {work.options.rows:,} rows")
        mr.MasterTable.build(work.spark.read.parquet(str(work.master)), key="key", path=str(target))

    made_once(target, {"rows": work.options.rows, "seed": work.options.seed, "format": FORMAT}, build)
    return mr.MasterTable.open(str(target))


def contenders(options: EnrichOptions) -> list[Contender]:
    """The contenders asked for, in the order they run."""
    sort_merge = {
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.shuffle.partitions": str(SORT_MERGE_PARTITIONS),
    }
    every: dict[str, list[Contender]] = {
        "read-only": [ReadOnly("read-only")],
        "spark-defaults": [SparkJoin("spark-defaults", {"spark.sql.shuffle.partitions": str(SORT_MERGE_PARTITIONS)})],
        "spark-sort-merge": [SparkJoin("spark-sort-merge", sort_merge)],
        "spark-persisted": [SparkJoin("spark-persisted", sort_merge, in_memory)],
        "spark-persisted-bucketed": [SparkJoin("spark-persisted-bucketed", sort_merge, in_memory_sorted)],
        "rocksdb": [RocksDb()],
        "redis": [Redis()],
        "identity-map": [IdentityMap("identity-map")],
        "identity-udf": [IdentityUdf("identity-udf")],
        "millrace": [Millrace(strategy) for strategy in options.strategies],
        "spark-broadcast": [SparkJoin("spark-broadcast", {}, F.broadcast)],
    }
    return [contender for name, group in every.items() if name in options.contenders for contender in group]


def in_memory(table: DataFrame) -> DataFrame:
    return table.persist(StorageLevel.MEMORY_ONLY)


def in_memory_sorted(table: DataFrame) -> DataFrame:
    """Persisted as the join wants it, so that only the stream is shuffled and sorted."""
    return in_memory(table.repartition(SORT_MERGE_PARTITIONS, "key").sortWithinPartitions("key"))


def master_schema(columns: tuple[str, ...]) -> StructType:
    return from_arrow_schema(pa.schema([MASTER_SCHEMA.field(name) for name in columns]))


def output_schema(stream: DataFrame, columns: tuple[str, ...]) -> StructType:
    return StructType([*stream.schema.fields, *master_schema(columns).fields])


def constants_for(columns: tuple[str, ...]) -> Callable[..., Column]:
    """A function of any arguments that looks nothing up: the same struct for every row, as wide as the data."""
    constants = _constants(columns)

    def structs(arguments: Iterator[Any]) -> Iterator[pa.Array]:
        import pyarrow as pa  # in here: pickled by value, the worker need not import this package

        cached: dict[int, pa.Array] = {}
        for given in arguments:
            size = len(given[0] if isinstance(given, tuple) else given)  # one argument comes by itself
            if size not in cached:
                fields = [pa.repeat(value, size) for value in constants]
                cached[size] = pa.StructArray.from_arrays(fields, names=list(columns))
            yield cached[size]

    # Annotations of a nested function are read by Spark to tell an iterator function from a scalar one.
    structs.__annotations__ = {"arguments": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
    return cast(Callable[..., Column], F.arrow_udf(structs, returnType=master_schema(columns)).asNondeterministic())


def _constants(columns: tuple[str, ...]) -> list[Any]:
    """A typed scalar per column, as wide as the data."""
    return [
        pa.scalar("x" * TEXT_WIDTHS[name] if name in TEXT_WIDTHS else 1, MASTER_SCHEMA.field(name).type) for name in columns
    ]
