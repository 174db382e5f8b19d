"""`expr`: any condition over both sides. SQL text is evaluated by DuckDB, an Arrow expression by Arrow.

    SELECT slot, row FROM stream JOIN master ON <expression>        once for each page that is read

DuckDB finds out by itself whether it can hash, sort, or has to try all pairs. Arrow tries all pairs, a block at a time. A
pair for which the expression is null is no match.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.conditions import MASTER, STREAM, Expr
from millrace.core.errors import ParameterError, SchemaError
from millrace.core.keys import Codes
from millrace.core.protocols import JoinSpec, PageRun, Relation
from millrace.core.rowbytes import sizes_of
from millrace.joins.matching.matcher import Found, MatcherBytes, Remembered
from millrace.joins.sizing import rows_per_page
from millrace.structures.window import Window, row_bytes

SQL_BYTES = 48 << 20  # what DuckDB may use for a page; it refuses to work with much less
_LEAST_PAIRS, _MOST_PAIRS = 1 << 6, 1 << 16  # of a block in Arrow
_PAIR_BYTES = 256  # what a pair is taken to need when a share of the memory is made out
_FETCH_ROWS = 8192
_SLOT, _ROW = "__millrace_slot", "__millrace_row"
_EMPTY = np.zeros(0, np.int64)


class _ExpressionMatcher(Remembered, ABC):
    """What both have in common: the columns of either side, and pairs taken in portions."""

    reversed_ranges = 0
    _failures: tuple[type[Exception], ...] = (pa.ArrowException,)  # of an evaluation

    def __init__(self, relation: Relation, spec: JoinSpec, window: Window, budget: Budget) -> None:
        assert isinstance(spec.condition, Expr)
        self._expression, self._zone = spec.condition.expression, spec.condition.zone
        spelled = {column: name for name, column in spec.condition.names}
        self._columns = list(spec.condition.stream_columns(spec.stream_schema))
        self._names = [spelled.get(column, column) for column in self._columns]
        self._table_columns = list(spec.condition.table_columns(relation.schema))
        self._window = window
        self._present = budget.array("slots of an expression", window.capacity, np.bool_)
        sizes = self.bytes_of(relation, spec, spec.condition, budget.memory_bytes)
        self._block_pairs = _pairs(budget.memory_bytes)
        budget.reserve("expression", sizes.fixed + window.capacity * (sizes.per_slot - 1))
        self._waiting: pa.Table | None = None  # None: who waits has changed
        self._parts: Iterator[tuple[Int64Array, Int64Array]] = iter(())
        self._left: tuple[Int64Array, Int64Array] = (_EMPTY, _EMPTY)
        # bound once to no rows, so that what is wrong with it is said before anything is read
        stream = pa.Table.from_batches([], pa.schema([spec.stream_schema.field(name) for name in self._columns]))
        table = pa.Table.from_batches([], pa.schema([relation.schema.field(name) for name in self._table_columns]))
        everything = _Sides(spec.stream_schema.names, spelled, relation.schema.names)
        twice = next((name for name in self._names if [n.lower() for n in self._names].count(name.lower()) > 1), None)
        if twice is not None:
            raise SchemaError(f"the stream has several columns {twice!r}, so an expression can't name one: rename all but one")
        self._bind(_numbered(stream.rename_columns(self._names), _SLOT, _EMPTY), _numbered(table, _ROW, _EMPTY), everything)

    @classmethod
    def bytes_of(cls, relation: Relation, spec: JoinSpec, condition: Expr, memory_bytes: int) -> MatcherBytes:
        stream = row_bytes(pa.schema([spec.stream_schema.field(n) for n in condition.stream_columns(spec.stream_schema)]))
        table = row_bytes(pa.schema([relation.schema.field(n) for n in condition.table_columns(relation.schema)]))
        engine = SQL_BYTES if condition.is_sql else _pairs(memory_bytes) * 2 * (stream + table + 16)
        return MatcherBytes(1 + 2 * (stream + 8), rows_per_page(relation) * (8 + 2 * table), engine)

    def encode(self, batch: pa.RecordBatch) -> Codes:
        """Any tuple may match, nulls in it or not."""
        return Codes(np.zeros(batch.num_rows, np.int64), np.ones(batch.num_rows, np.bool_), np.zeros(batch.num_rows, np.bool_))

    def begin(self, run: PageRun) -> None:
        if self._waiting is None:
            slots = np.flatnonzero(self._present)
            self._waiting = _numbered(self._waiting_rows(slots), _SLOT, slots)
        rows = np.arange(run.rows)
        page = pa.Table.from_batches([run.take(rows, self._table_columns)]) if self._table_columns else _nothing(run.rows)
        self._parts = self._evaluated(self._waiting, _numbered(page, _ROW, rows))
        self._left = (_EMPTY, _EMPTY)

    def next(self, limit: int) -> Found:
        slots, rows = self._left
        while len(slots) < limit:
            part = self._next_part()
            if part is None:
                self._left = (_EMPTY, _EMPTY)
                return slots, rows, True
            slots, rows = np.concatenate((slots, part[0])), np.concatenate((rows, part[1]))
        self._left = (slots[limit:], rows[limit:])
        return slots[:limit], rows[:limit], False

    def _next_part(self) -> tuple[Int64Array, Int64Array] | None:
        try:
            return next(self._parts, None)
        except self._failures as failed:
            if isinstance(failed, MemoryError):
                raise
            raise ParameterError(
                f"the expression {self._text} fails for some rows: {_first_line(failed)}; write it so that it is true, false "
                "or null for every pair of rows, for instance with try_cast"
            ) from failed

    @property
    def _text(self) -> str:
        return repr(self._expression) if isinstance(self._expression, str) else str(self._expression)

    def _unusable(self, reason: str, everything: _Sides) -> SchemaError:
        return SchemaError(f"can't evaluate the expression {self._text}: {reason}; {everything}")

    def _waiting_rows(self, slots: Int64Array) -> pa.Table:
        if not self._columns:
            return _nothing(len(slots))
        assert self._window.rows is not None
        waiting = self._window.rows.take(slots).select(self._columns)
        return pa.Table.from_batches([waiting]).rename_columns(self._names)

    @abstractmethod
    def _bind(self, stream: pa.Table, table: pa.Table, everything: _Sides) -> None:
        """Check the expression; `stream` and `table` have no rows."""

    @abstractmethod
    def _evaluated(self, stream: pa.Table, table: pa.Table) -> Iterator[tuple[Int64Array, Int64Array]]:
        """Slots and rows for which the expression is true, in portions."""


class SqlMatcher(_ExpressionMatcher):
    """An expression in SQL, evaluated by a DuckDB of our own."""

    def _bind(self, stream: pa.Table, table: pa.Table, everything: _Sides) -> None:
        try:
            import duckdb
        except ModuleNotFoundError as missing:
            raise ParameterError("mr.expr with SQL text needs DuckDB: pip install 'millrace-spark[conditions]'") from missing
        config: dict[str, Any] = {"memory_limit": f"{SQL_BYTES >> 20}MiB", "threads": 1, "enable_external_access": False}
        self._database = duckdb.connect(":memory:", config=config)
        self._failures = (duckdb.Error, pa.ArrowException)
        self._query = f"SELECT {_SLOT}, {_ROW} FROM stream JOIN master ON ({self._expression}\n)"
        try:
            self._database.execute("SET TimeZone = $zone", {"zone": _duckdb_zone(self._zone)})
            self._run(stream, table).fetchall()
            (kind,) = self._database.sql(f"SELECT ({self._expression}\n) FROM stream, master").types
        except duckdb.Error as wrong:
            raise self._unusable(_first_line(wrong), everything) from wrong
        if str(kind) not in ("BOOLEAN", '"NULL"'):
            raise self._unusable(f"it is {kind}, and a condition must be true or false", everything)

    def _run(self, stream: pa.Table, table: pa.Table) -> Any:
        self._database.register("stream", stream)
        self._database.register("master", table)
        return self._database.sql(self._query)

    def _evaluated(self, stream: pa.Table, table: pa.Table) -> Iterator[tuple[Int64Array, Int64Array]]:
        if not stream.num_rows:
            return
        answer = self._run(stream, table)
        newest = getattr(answer, "to_arrow_reader", None)  # what newer releases call it
        for batch in newest(_FETCH_ROWS) if newest is not None else answer.fetch_record_batch(_FETCH_ROWS):
            yield batch.column(0).to_numpy(zero_copy_only=False), batch.column(1).to_numpy(zero_copy_only=False)


class ArrowMatcher(_ExpressionMatcher):
    """An Arrow expression, tried on all pairs."""

    def _bind(self, stream: pa.Table, table: pa.Table, everything: _Sides) -> None:
        try:
            kept = _crossed(stream, table).filter(self._expression)
        except pa.ArrowException as wrong:
            raise self._unusable(_first_line(wrong).split(" in stream.")[0], everything) from wrong
        assert kept.num_rows == 0

    def _evaluated(self, stream: pa.Table, table: pa.Table) -> Iterator[tuple[Int64Array, Int64Array]]:
        if not stream.num_rows:
            return
        longest = _longest(stream) + _longest(table)
        pairs = max(1, min(self._block_pairs, self._block_pairs * _PAIR_BYTES // max(1, longest)))
        width = min(stream.num_rows, pairs)
        height = max(1, pairs // width)
        for at in range(0, table.num_rows, height):
            for start in range(0, stream.num_rows, width):
                kept = _crossed(stream.slice(start, width), table.slice(at, height)).filter(self._expression)
                yield kept.column(STREAM + _SLOT).to_numpy(), kept.column(MASTER + _ROW).to_numpy()


class _Sides:
    """Which columns there are, for an error."""

    def __init__(self, stream: Sequence[str], spelled: dict[str, str], table: Sequence[str]) -> None:
        self._stream = [spelled.get(name, name) for name in stream]
        self._table = table

    def __str__(self) -> str:
        return f"stream has {', '.join(self._stream)}; master has {', '.join(self._table)}"


def _pairs(memory_bytes: int) -> int:
    """Pairs of a block: an eighth of the memory, within reason."""
    return max(_LEAST_PAIRS, min(memory_bytes // 8 // _PAIR_BYTES, _MOST_PAIRS))


def _first_line(failed: Exception) -> str:
    """The first line of an error, without the query that we made of an expression."""
    return next(iter(str(failed).splitlines()), type(failed).__name__)


def _duckdb_zone(zone: str) -> str:
    return f"GMT{zone}" if zone.startswith(("+", "-")) else zone


def _longest(table: pa.Table) -> int:
    """Bytes of the longest row."""
    batches = [batch for batch in table.to_batches() if batch.num_rows]
    return max((int(sizes_of(batch.columns, batch.num_rows).max()) for batch in batches), default=0)


def _numbered(table: pa.Table, name: str, numbers: Int64Array) -> pa.Table:
    return table.append_column(name, pa.array(numbers, pa.int64()))


def _nothing(rows: int) -> pa.Table:
    """A table with one column that nobody asks for: a table without columns has no rows."""
    return pa.table({"__millrace_none": pa.nulls(rows, pa.int8())})


def _crossed(stream: pa.Table, table: pa.Table) -> pa.Table:
    """All pairs, with the names that an expression uses."""
    left = np.tile(np.arange(stream.num_rows), table.num_rows)
    right = np.repeat(np.arange(table.num_rows), stream.num_rows)
    mine, theirs = stream.take(pa.array(left)), table.take(pa.array(right))
    names = [*(STREAM + name for name in mine.column_names), *(MASTER + name for name in theirs.column_names)]
    return pa.Table.from_arrays([*mine.columns, *theirs.columns], names)
