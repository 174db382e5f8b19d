"""What a table takes if it is sent to every executor, and how much may be sent.

A broadcast lies in the driver, which collects and builds it, and once in every executor. It must fit into

    memory=                       the part of this table
    a quarter of the driver       its memory; it holds the rows, the hash table, and the hash table as it is sent
    a quarter of an executor      its memory; a local master has no executors
    spark.driver.maxResultSize    what a driver collects at most
    spark.sql.maxBroadcastTableSize

and with strategy="auto" into spark.sql.autoBroadcastJoinThreshold as well. Several tables share all of these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from millrace.core.budget import format_bytes, parse_bytes
from millrace.core.errors import BudgetError, MillraceError, ParameterError, StrategyError
from millrace.core.protocols import PageRun, Relation
from millrace.core.rowbytes import has_fixed_width, sizes_of
from millrace.cost.broadcast import SLOT_BYTES, SentTable, parts_for, spark_row_bytes
from millrace.joins.emit import mean_row_bytes
from millrace.relations.stored import StoredRelation
from millrace.spark.memory_split import GroupRows, MemorySplit
from millrace.spark.plan import Asked, JoinPlan
from millrace.spark.workers import local_context

_SHARE = 4  # of the memory of a JVM
_SAMPLES = 4  # pages whose rows are measured
_MOST_SAMPLED = 4_096  # rows of a page
_UNLIMITED = 1 << 62
_LONG_DECIMAL = 18  # digits: a longer decimal lies beside the row
_LIMITS = (("spark.driver.maxResultSize", "1g"), ("spark.sql.maxBroadcastTableSize", "8g"))
_THRESHOLD, _DEFAULT_THRESHOLD = "spark.sql.autoBroadcastJoinThreshold", "10485760b"
_DISABLED = "spark.sql.optimizer.disableHints"


@dataclass(frozen=True)
class Room:
    """What this session can send, for each table of the call."""

    limit_bytes: int
    by: str  # the narrowest of the limits, and its value
    auto_bytes: int  # that strategy="auto" sends
    hints: bool  # whether Spark does what it is told
    sampled: bool = True  # a few pages tell how long rows are; otherwise the files do, with all columns

    @staticmethod
    def of(session: SparkSession, tables: int) -> Room:
        limits = [(_setting(session, name, default), name) for name, default in _LIMITS]
        jvms = ["driver"] if local_context(session) is not None else ["driver", "executor"]
        for jvm in jvms:
            name = f"spark.{jvm}.memory"
            limits.append((_setting(session, name, "1g") // _SHARE, f"a quarter of {name}"))
        most, by = min(limits)
        auto = min(most, _setting(session, _THRESHOLD, _DEFAULT_THRESHOLD, unlimited=0))
        hints = str(session.conf.get(_DISABLED, "false")).lower() != "true"
        return Room(most // tables, f"{by} ({format_bytes(most)})", auto // tables if hints else 0, hints)


def broadcast_plan(asked: Asked, relation: Relation, room: Room, cores: int) -> JoinPlan:
    """The plan of a broadcast; an error if the table is too big, or if this session can't be told to send it."""
    if not room.hints:
        raise StrategyError(
            f"strategy 'broadcast' needs {_DISABLED}=false, and this session has true: unset it, or choose another strategy"
        )
    sent = estimated(asked, relation, min(room.limit_bytes, asked.memory_bytes), cores, sampled=room.sampled)
    _check(asked, sent, room)
    none = MemorySplit(asked.memory_bytes, 0, 0, 0, 0)  # no task holds rows
    return JoinPlan(asked, getattr(relation, "mode", None), "broadcast", none, GroupRows(1, 1, 1), sent=sent)


def _check(asked: Asked, sent: SentTable, room: Room) -> None:
    size = f"{asked.table.name} takes about {format_bytes(sent.bytes)} as a broadcast ({sent.rows:,} rows)"
    instead = "or fewer columns with columns=, or another strategy"
    if sent.bytes > room.limit_bytes:
        shared = f", shared by {asked.tables} tables," if asked.tables > 1 else ""
        raise StrategyError(f"{size}, and more than {room.by}{shared} can't be sent: raise this setting, {instead}")
    if sent.bytes > asked.memory_bytes:
        needed = sent.bytes * asked.tables
        given = format_bytes(asked.given_bytes)
        raise BudgetError(f"{size}, more than its part of memory={given}: give memory={needed} or more, {instead}", needed)


def is_small(asked: Asked, relation: Relation, room: Room) -> bool:
    """Whether strategy="auto" may send the table. Nothing is read of it."""
    return estimated(asked, relation, 0, 1, sampled=False).bytes <= min(room.auto_bytes, asked.memory_bytes)


def estimated(asked: Asked, relation: Relation, limit_bytes: int, cores: int, *, sampled: bool) -> SentTable:
    """The table as it would be sent, whatever its size."""
    key, names = asked.table.key, tuple(dict.fromkeys((*asked.table.key, *asked.fetched)))
    variable = _variable_bytes(relation, names, sampled=sampled)
    if len(key) > 1 or not pa.types.is_integer(relation.schema.field(key[0]).type):  # the key once more, as a row of its own
        variable += SLOT_BYTES * (1 + len(key)) + _variable_bytes(relation, key, sampled=sampled)
    row_bytes = spark_row_bytes(len(names), variable)
    return SentTable(relation.rows, row_bytes, limit_bytes, parts_for(relation.rows * row_bytes, relation.pages, cores))


def _variable_bytes(relation: Relation, names: tuple[str, ...], *, sampled: bool) -> float:
    """Bytes of a row that lie beside its slots: texts, long decimals, lists."""
    fields = [relation.schema.field(name) for name in names]
    long = sum(2 * SLOT_BYTES for field in fields if _long_decimal(field.type))
    texts = tuple(field.name for field in fields if not has_fixed_width(field.type))
    if not texts or not relation.rows:
        return float(long)
    return long + (_sampled(relation, texts) if sampled else mean_row_bytes(relation))


def _long_decimal(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind) and kind.precision > _LONG_DECIMAL)


def _sampled(relation: Relation, texts: tuple[str, ...]) -> float:
    """Bytes of these columns in a row, on average. Each value is filled up to whole slots, by half a slot on average."""
    apart = relation.reads_apart() if isinstance(relation, StoredRelation) else relation
    rows = total = 0.0
    for page in sorted({relation.pages * turn // _SAMPLES for turn in range(_SAMPLES)}):
        run: PageRun = apart.read(page, 1)
        batch = run.take(np.arange(min(run.rows, _MOST_SAMPLED)), texts)
        rows += batch.num_rows
        total += float(sizes_of(batch.columns, batch.num_rows).sum()) + batch.num_rows * len(texts) * SLOT_BYTES / 2
        total += sum(column.nbytes for column in batch.columns if pa.types.is_nested(column.type))  # which Spark spreads out
    return total / max(1.0, rows)


def _setting(session: SparkSession, name: str, default: str, unlimited: int = _UNLIMITED) -> int:
    """Bytes of a setting. 0 and less mean: no limit."""
    told = str(session.conf.get(name, default) or default).strip()
    if name.endswith(".memory") and told.isdigit():
        told += "m"  # as Spark reads this setting
    try:
        if told.startswith("-") or float(told.rstrip("bB") or 1) == 0:
            return unlimited
    except ValueError:
        pass  # a number with a unit
    try:
        return parse_bytes(told)
    except MillraceError as wrong:
        raise ParameterError(f"{name}: {wrong}") from None
