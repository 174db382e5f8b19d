"""The reference: a join so plain that it is obviously right. Every other join is compared with the reference.

    relation rows  ->  dictionary: key -> list of row numbers
    stream rows    ->  one look-up each, in order

Keys are made comparable here, row by row, as Python values. The key codec is not used, so codec and reference can't share a
mistake. A null equals nothing, NaN equals NaN, -0.0 equals 0.0. Decimals and times are equal by value whatever their scale or
unit, and integers whatever their width. The reference holds everything in memory and is slow; use it for tests.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millrace.core.protocols import JoinSpec

Pair = tuple[int, "int | None"]  # stream row, relation row (None: nothing of the relation is put out)

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_SHOWN = 5  # rows of a difference that are spelled out


def reference_join(stream: pa.Table | Iterable[pa.RecordBatch], relation_rows: pa.Table, spec: JoinSpec) -> pa.Table:
    """The rows that joining `stream` with `relation_rows` must give, in the order of the stream.

    >>> stream = pa.table({"id": [2, 9, None]})
    >>> rows = pa.table({"id": [1, 2], "price": [10, 20]})
    >>> spec = JoinSpec(stream.schema, (("id", "id"),), "left", ("id",), ("price",))
    >>> reference_join(stream, rows, spec).to_pylist()
    [{'id': 2, 'price': 20}, {'id': 9, 'price': None}, {'id': None, 'price': None}]
    """
    table = as_table(stream, spec.stream_schema)
    pairs = reference_pairs(table, relation_rows, spec)
    waiting = table.take(pa.array([pair[0] for pair in pairs], pa.int64()))
    found = relation_rows.take(pa.array([pair[1] for pair in pairs], pa.int64()))
    fields = [table.schema.field(name) for name in spec.carry]
    for name in spec.columns:
        field = relation_rows.schema.field(name)
        fields.append(field.with_nullable(True) if spec.how == "left" else field)
    columns = [waiting.column(name) for name in spec.carry] + [found.column(name) for name in spec.columns]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def reference_pairs(stream: pa.Table, relation_rows: pa.Table, spec: JoinSpec) -> list[Pair]:
    """Pairs of stream row and relation row that go out, for each `how`."""
    found: dict[Hashable, list[int]] = defaultdict(list)
    for number, key in enumerate(comparable_keys(relation_rows, [pair[1] for pair in spec.on])):
        if key is not None:
            found[key].append(number)
    pairs: list[Pair] = []
    for number, key in enumerate(comparable_keys(stream, [pair[0] for pair in spec.on])):
        matches = [] if key is None else found.get(key, [])
        if spec.how == "semi":
            pairs += [(number, None)] if matches else []
        elif spec.how == "anti":
            pairs += [] if matches else [(number, None)]
        elif matches:
            pairs += [(number, match) for match in matches]
        elif spec.how == "left":
            pairs.append((number, None))
    return pairs


def comparable_keys(table: pa.Table, names: Sequence[str]) -> list[Hashable | None]:
    """One hashable value per row, equal where the keys are equal; None where a key column is null."""
    columns = [_values(table.column(name), _comparable) for name in names]
    return [None if any(value is None for value in row) else row for row in zip(*columns, strict=True)]


def as_table(stream: pa.Table | Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    return stream if isinstance(stream, pa.Table) else pa.Table.from_batches(list(stream), schema)


@dataclass(frozen=True, repr=False)
class Comparison:
    """How two tables differ as multisets of rows. It is true if they do not differ; `print` shows the differences."""

    names: tuple[str, ...]
    only_left: Counter[Hashable]
    only_right: Counter[Hashable]
    problem: str = ""

    def __bool__(self) -> bool:
        return not (self.problem or self.only_left or self.only_right)

    def __str__(self) -> str:
        if self.problem or self:
            return self.problem or "the same rows"
        lines = [f"rows of ({', '.join(self.names)}) that differ:"]
        for side, rows in (("left", self.only_left), ("right", self.only_right)):
            lines.append(f"  only {side}: {rows.total()}")
            lines += [f"    {count} x {row}" for row, count in list(rows.items())[:_SHOWN]]
            lines += ["    ..."] if len(rows) > _SHOWN else []
        return "\n".join(lines)

    __repr__ = __str__


def same_rows(left: pa.Table, right: pa.Table) -> Comparison:
    """Compare two tables as multisets of rows: order and chunks do not matter, but how often a row occurs does.

    Values must be the same, not only equal as keys: 0.0 and -0.0 differ. NaN is the same as NaN, and 1.5 is the
    same decimal as 1.50.

    >>> same_rows(pa.table({"x": [1, 2, 2]}), pa.table({"x": [2, 1, 1]}))
    rows of (x) that differ:
      only left: 1
        1 x (2,)
      only right: 1
        1 x (1,)
    """
    names = tuple(left.schema.names)
    if names != tuple(right.schema.names):
        problem = f"different columns: left has {list(names)}, right has {right.schema.names}"
        return Comparison(names, Counter(), Counter(), problem)
    if not names and left.num_rows != right.num_rows:
        problem = f"no columns, and {left.num_rows} rows left but {right.num_rows} right"
        return Comparison(names, Counter(), Counter(), problem)
    ours, theirs = _rows(left), _rows(right)
    return Comparison(names, ours - theirs, theirs - ours)


def _rows(table: pa.Table) -> Counter[Hashable]:
    return Counter(zip(*(_values(column, _faithful) for column in table.columns), strict=True))


def _values(column: pa.ChunkedArray, plain: Callable[[Any], Hashable]) -> list[Hashable]:
    """Python values of a column; times as nanoseconds, because Python's own times stop at microseconds."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        factor = _NANOSECONDS[kind.unit]
        return [None if value is None else value * factor for value in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_floating(kind) or pa.types.is_nested(kind):
        return [plain(value) for value in column.to_pylist()]
    return column.to_pylist()


def _comparable(value: Any) -> Hashable:
    """A key value in a form where equal keys are equal."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value  # -0.0 and 0.0 are equal, and hash alike, by themselves
    return value


def _faithful(value: Any) -> Hashable:
    """A value in a form where only the same values are equal."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else (value if value else str(value))
    if isinstance(value, dict):
        return tuple((name, _faithful(inner)) for name, inner in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(_faithful(inner) for inner in value)
    return value
