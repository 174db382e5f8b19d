"""The functions that run inside a task: batches of the JVM go in, joined rows come out.

    keys_in   key batches -> [ group ] -> hosts of all tables -> structs in stream order
    rows_in   row batches -> one host with all tables          -> joined rows, in the order they are found or in stream order

`keys_in` is the function of an iterator `arrow_udf`: the stream's own columns stay in the JVM. `rows_in` is the function of a
`mapInArrow`, for conditions and for tables with many rows to a key.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from millrace.core.rowbytes import fitting
from millrace.spark.countscolumn import beside_rows, counts_row, with_last_row
from millrace.spark.host import EMIT_BYTES, EMIT_ROWS, GroupHost, Joined, LookupHost, RowsHost, TaskTable, keys_host
from millrace.spark.plan import JoinPlan
from millrace.spark.sockets import acknowledge_quickly

KeysHost = LookupHost | GroupHost


@dataclass(frozen=True)
class KeysPass:
    """Several tables looked up for the same rows, in one trip to Python: the function of an `arrow_udf`."""

    plans: tuple[JoinPlan, ...]

    def keys_in(self, batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        """(key columns of each table ..., timestamp of the batch) in; one struct per row out, with the fields of each table
        in turn, named by their place, or a plain value if that is all."""
        group: list[tuple[pa.Array, ...]] = []
        rows = held_bytes = most_rows = most_bytes = 0
        hosts: list[KeysHost] = []
        acknowledge_quickly()
        for columns, last in _told_apart(
            batches, ahead=any(plan.asked.hot_keys and plan.counters is None for plan in self.plans)
        ):
            if not hosts:
                hosts = [keys_host(plan, columns[-1][0].value) for plan in self.plans]
                most_rows = min((host.holds_rows for host in hosts if host.holds_rows), default=0)
                most_bytes = min(host.table.plan.memory.key_bytes for host in hosts)
            if rows and rows + len(columns[0]) > most_rows:
                yield from self._structs(hosts, _whole(group), last=False)
                group, rows, held_bytes = [], 0, 0
            for host, keys in zip(hosts, self._keys(columns), strict=True):
                host.table.count_keys(keys)
            group.append(columns[:-1])
            rows += len(columns[0])
            held_bytes += sum(column.nbytes for column in columns[:-1])
            if rows >= most_rows or held_bytes >= most_bytes:
                yield from self._structs(hosts, _whole(group), last)
                group, rows, held_bytes = [], 0, 0
        if rows:
            yield from self._structs(hosts, _whole(group), last=True)
        _close([host.table for host in hosts])

    def _keys(self, columns: Sequence[pa.Array]) -> Iterator[Sequence[pa.Array]]:
        """The key columns of each table."""
        at = 0
        for plan in self.plans:
            width = len(plan.asked.spec.stream_schema)
            yield columns[at : at + width]
            at += width

    def _structs(self, hosts: Sequence[KeysHost], columns: Sequence[pa.Array], last: bool) -> Iterator[pa.Array]:
        """Structs of rows, as many at a time as all tables have ready. `last`: no more rows come."""
        turns = [_Turn(host, keys, last) for host, keys in zip(hosts, self._keys(columns), strict=True)]
        left = len(columns[0])
        while left:
            rows = min(turn.ready() for turn in turns)
            arrays = [array for turn in turns for array in turn.take(rows)]
            left -= rows
            if len(arrays) == 1:
                yield arrays[0]
                continue
            yield pa.StructArray.from_arrays(arrays, [f"c{i}" for i in range(len(arrays))])


class _Turn:
    """A table's part in a group: the rows that its host has joined, and how many of them went back."""

    def __init__(self, host: KeysHost, keys: Sequence[pa.Array], last: bool) -> None:
        self._host = host
        self._keys = keys
        self._last = last
        self._next = 0  # keys that were joined
        self._joined: Joined | None = None
        self._at = 0

    def ready(self) -> int:
        """Rows that can go back next."""
        if self._joined is None or self._at == self._joined.rows:
            self._joined = None  # before the next
            self._joined = self._host.join([column.slice(self._next) for column in self._keys])
            self._next += self._joined.rows
            self._at = 0
        rows = min(self._joined.rows - self._at, self._host.emit_rows)
        if self._joined.sizes is not None:
            rows = max(1, min(rows, fitting(self._joined.sizes[self._at : self._at + rows], EMIT_BYTES)))
        return rows

    def take(self, rows: int) -> list[pa.Array]:
        """What goes back for the next rows; with the last of a group go its counts, if they travel with the rows."""
        assert self._joined is not None
        start, self._at = self._at, self._at + rows
        columns = self._joined.columns(start, self._at)
        table = self._host.table
        if table.plan.counters is None:
            last = self._last and self._next == len(self._keys[0])
            columns = [*columns, with_last_row(rows, table.stats(last=last) if self._at == self._joined.rows else None)]
        return columns


@dataclass(frozen=True)
class RowsPass:
    """Several tables joined one behind the other, in one trip of whole rows to Python: the function of a `mapInArrow`."""

    plans: tuple[JoinPlan, ...]

    def rows_in(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """(stream columns ..., timestamp of the batch) in; (stream and table columns ...) out, and, if there are plans without
        `counters`, (..., is a row, counts of each of those)."""
        host: RowsHost | None = None
        acknowledge_quickly()
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if host is None:
                host = RowsHost(self.plans, batch.column(batch.num_columns - 1)[0].value)
            rows = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=self.plans[0].asked.spec.stream_schema)
            host.count_keys(rows)
            for output in host.feed(rows):
                yield from self._rows_out(output.columns)
        if host is None:
            _close([])
            return
        for output in host.drain():
            yield from self._rows_out(output.columns)
        if self._noted:
            counts = [table.stats() for table in host.tables if table.plan.counters is None]
            yield _positional(counts_row(host.output_schema, counts))
        _close(host.tables)

    @property
    def _noted(self) -> int:
        """Tables whose counts go with the rows."""
        return sum(plan.counters is None for plan in self.plans)

    def _rows_out(self, columns: Sequence[pa.Array]) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(columns[0]), EMIT_ROWS):
            part = [column.slice(start, EMIT_ROWS) for column in columns]
            yield _positional([*part, *(beside_rows(len(part[0]), self._noted) if self._noted else [])])


def _told_apart(batches: Iterable[tuple[pa.Array, ...]], *, ahead: bool) -> Iterator[tuple[tuple[pa.Array, ...], bool]]:
    """Batches that have rows, each with whether it is the last. Only a look ahead can tell; without, none is said to be."""
    held: tuple[pa.Array, ...] | None = None
    for columns in batches:
        if len(columns[0]) == 0:
            continue
        if not ahead:
            yield columns, False
            continue
        if held is not None:
            yield held, False
        held = columns
    if held is not None:
        yield held, True


def _whole(group: list[tuple[pa.Array, ...]]) -> list[pa.Array]:
    """The columns of a group of batches."""
    return [pa.concat_arrays(columns) if len(columns) > 1 else columns[0] for columns in zip(*group, strict=True)]


def _positional(columns: list[pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(columns, [f"c{i}" for i in range(len(columns))])


def _close(tables: Sequence[TaskTable]) -> None:
    """The end of a task, which had no tables if it had no rows."""
    for table in tables:
        table.close()
    if tables:
        pa.default_memory_pool().release_unused()
        _settle()
    acknowledge_quickly()


_settled = False


def _settle() -> None:
    """Freeze all loaded objects for the garbage collector, once in a worker's life.

    Spark's workers collect garbage after every task. Compiled kernels and libraries are never garbage, and going through them
    takes longer than many a task.
    """
    global _settled
    if not _settled:
        gc.collect()
        gc.freeze()
        _settled = True
