"""Spark's own broadcast hash join of a stream with the version of a table that a micro-batch sees.

    stream rows ------------------------------------------------> BroadcastHashJoin --> joined rows
    one row for each part of the table, and the time of the batch          ^
        --> workers read the version of that time --> rows of the table ---+  collected, hashed, and sent to every executor

The stream never leaves the JVM. The table is read anew in every micro-batch: nothing of an earlier version can stay. Spark
writes the time of the batch into the whole plan of a micro-batch, so the table has the time that the stream has, in retries
and replays too.

`broadcast_counts` says how rows of the stream are counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, DecimalType, StructField, StructType

from millrace.core.budget import format_bytes
from millrace.core.errors import TableVersionError
from millrace.core.protocols import How, PageRun, Relation
from millrace.core.step import StepCounts
from millrace.cost.broadcast import SentTable
from millrace.spark.batch_time import batch_time, zero
from millrace.spark.broadcast_counts import counts_before, counts_behind, counts_of_one_row, fixed_part
from millrace.spark.host import EMIT_BYTES, EMIT_ROWS
from millrace.spark.labels import entering
from millrace.spark.plan import Asked, JoinPlan
from millrace.spark.schema import column_field, named_column
from millrace.spark.sockets import acknowledge_quickly

_READ_BYTES = 4 << 20  # of pages that are read at a time
_HOWS: dict[How, str] = {"inner": "inner", "left": "left_outer", "semi": "left_semi", "anti": "left_anti"}


class _Types(NamedTuple):
    wanted: DataType
    there: DataType


# --- on the driver


def sent_columns(asked: Asked) -> tuple[str, ...]:
    """Table columns that are sent: the key, and what is put out."""
    return tuple(dict.fromkeys((*asked.table.key, *asked.fetched)))


def broadcast_joined(
    rows: DataFrame, stream: DataFrame, join: JoinPlan, names: Sequence[str], observation: Observation | None
) -> DataFrame:
    """`rows`, which have the columns of the stream, joined with the table. `names`: those of the columns that are added, one
    for each of `sent_columns`. A semi or an anti join adds none."""
    asked = join.asked
    sent = TablePass(join, tuple(names), reported=stream.isStreaming, one_row=observation is not None)
    cast = dict(_other_decimals(stream, asked, names))
    table = F.broadcast(_exact(_sent_frame(stream.sparkSession, sent), cast))
    equal = [named_column(stream, mine) == F.col(name) for (mine, _), name in zip(asked.on, names, strict=False)]
    same = reduce(Column.__and__, equal)
    if observation is not None:
        joined = rows.join(table, same, _HOWS["left"]).observe(observation, counts_of_one_row(stream, asked, names[0]))
    elif stream.isStreaming:
        entered = rows.observe(entering(asked.label), counts_before(stream, asked))
        kind = _HOWS["left" if asked.how == "inner" else asked.how]
        joined = entered.join(table, same, kind).observe(asked.label, counts_behind(asked, names[0]))
    else:
        joined = rows.join(table, same, _HOWS[asked.how])  # nobody could read counts
    if observation is not None or (stream.isStreaming and asked.how == "inner"):
        joined = _as_asked(joined, asked, names)
    if asked.how in ("inner", "left"):
        for name, (_, kind_there) in cast.items():
            joined = joined.withColumn(name, F.col(name).cast(kind_there))
    return joined


def _as_asked(joined: DataFrame, asked: Asked, names: Sequence[str]) -> DataFrame:
    """The rows of a left join that `how` asks for."""
    if asked.how == "left":
        return joined
    kept = joined.where(F.col(names[0]).isNull() if asked.how == "anti" else F.col(names[0]).isNotNull())
    return kept if asked.how == "inner" else kept.drop(*names)


def _sent_frame(session: SparkSession, sent: TablePass) -> DataFrame:
    """The rows of the table as the batch sees them."""
    join, count = sent.join, sent.join.sent.parts if sent.join.sent is not None else 1
    schema = join.asked.table.schema
    kinds = [from_arrow_type(schema.field(column).type) for column in sent_columns(join.asked)]
    fields = StructType([StructField(name, kind) for name, kind in zip(sent.names, kinds, strict=True)])
    parts = session.range(0, count, 1, count).select("id", batch_time(zero()))
    return parts.mapInArrow(sent.parts_in, fields)


def _other_decimals(stream: DataFrame, asked: Asked, names: Sequence[str]) -> Iterator[tuple[str, _Types]]:
    """Columns with a key that is a decimal of another type than the stream's: the stream's type, and the table's."""
    for (mine, theirs), name in zip(asked.on, names, strict=False):
        wanted, kind = column_field(stream, mine, "stream").dataType, from_arrow_type(asked.table.schema.field(theirs).type)
        if isinstance(wanted, DecimalType) and wanted != kind:
            yield name, _Types(wanted, kind)


def _exact(table: DataFrame, decimals: Mapping[str, _Types]) -> DataFrame:
    """The table with decimal keys of the stream's type. Spark would look for a type that holds both sides, and where there is
    none it rounds. A key that the stream's type can't hold is equal to nothing."""
    for name, (wanted, kind) in decimals.items():
        cast = F.col(name).try_cast(wanted)
        table = table.withColumn(name, F.when(cast.try_cast(kind) == F.col(name), cast))
    return table


# --- in a worker


@dataclass(frozen=True)
class TablePass:
    """The function of a `mapInArrow` that reads a table."""

    join: JoinPlan
    names: tuple[str, ...]  # of the columns that go back
    reported: bool  # a streaming query has reports
    one_row: bool = False  # rows are counted as if no key had several rows in the table

    def parts_in(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """(number of a part, time of the batch) in; the rows of the part out."""
        acknowledge_quickly()
        for batch in batches:
            for part, time in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                yield from self._part(part, time.value)
        acknowledge_quickly()

    def _part(self, part: int, timestamp_us: int) -> Iterator[pa.RecordBatch]:
        asked, sent = self.join.asked, self.join.sent
        assert sent is not None
        relation = asked.table.open_in_task(timestamp_us, asked.table_columns)
        self.join.on_host(relation)
        self._check(relation, sent)
        first, end = (relation.pages * number // sent.parts for number in (part, part + 1))
        counts = StepCounts()
        for run in _runs(relation, first, end):
            counts += StepCounts(pages_read=len(run.pages), bytes_read=len(run.pages) * relation.page_bytes)
            yield from self._rows(run)
        if self.reported and self.join.counters is not None:
            self.join.counters.send(self._stats(relation, counts, sent))

    def _rows(self, run: PageRun) -> Iterator[pa.RecordBatch]:
        """All rows of some pages, a bounded number of bytes at a time."""
        columns, start = sent_columns(self.join.asked), 0
        while start < run.rows:
            batch = run.take(np.arange(start, min(run.rows, start + EMIT_ROWS)), columns, EMIT_BYTES)
            start += batch.num_rows
            yield pa.RecordBatch.from_arrays(batch.columns, list(self.names))

    def _check(self, relation: Relation, sent: SentTable) -> None:
        """Raise an error if the version of this batch is not what the query was planned for. A table that has grown would take
        the memory of the driver, and with it all of its queries."""
        name = self.join.asked.table.name
        if relation.rows * sent.row_bytes > sent.limit_bytes:
            size, limit = format_bytes(relation.rows * sent.row_bytes), format_bytes(sent.limit_bytes)
            raise TableVersionError(
                f"{name} takes about {size} as a broadcast in the version of this batch ({relation.rows:,} rows), and {limit} "
                "were planned at most: start the query again, with more memory= or another strategy"
            )
        version = getattr(relation, "version", None)
        if self.one_row and version is not None and version.longest_run > 1:
            raise TableVersionError(
                f"a key has {version.longest_run} rows in the version of this batch and had one when its rows began to be "
                "counted: start the query again"
            )

    def _stats(self, relation: Relation, counts: StepCounts, sent: SentTable) -> str:
        """What reports say of the table."""
        version, take = getattr(relation, "version", None), getattr(relation, "take_io_counts", None)
        told = {
            "table_version": version.number if version is not None else None,
            "read": getattr(relation, "mode", None),
            "memory_bytes": relation.rows * sent.row_bytes,
        }
        return json.dumps(counts.as_dict() | fixed_part() | told | (take() if take is not None else {}))


def _runs(relation: Relation, first: int, end: int) -> Iterator[PageRun]:
    """Pages from `first` to before `end`, some at a time."""
    most = max(1, _READ_BYTES // max(1, relation.page_bytes))
    while first < end:
        run = relation.read(first, min(most, end - first))
        first += len(run.pages)
        yield run
