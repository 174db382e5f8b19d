"""Any data, any schedule, any parameters: what Hypothesis may choose."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from millrace.catalog import algorithm
from millrace.checks.samples import cut
from millrace.core.protocols import HOWS, JoinSpec
from millrace.relations.memory import MemoryRelation


@dataclass(frozen=True)
class Keys:
    """Key columns by name, with the type each has in the relation and in the stream, and values to choose from."""

    columns: tuple[tuple[str, pa.DataType, pa.DataType, tuple[Any, ...]], ...]


def _key(name: str, relation: pa.DataType, stream: pa.DataType, *values: Any) -> tuple[Any, ...]:
    return (name, relation, stream, values)


_INTEGERS = (0, 1, 2, 3, 5, 8, 13, -1, 100, 127)
_WORDS = ("", "a", "b", "aa", "ab", "word", "longer than eight bytes", "é")
KEYS: dict[str, Keys] = {
    "int64": Keys((_key("k", pa.int64(), pa.int64(), *_INTEGERS, 2**63 - 1, -(2**63)),)),
    "int8 for int64": Keys((_key("k", pa.int64(), pa.int8(), *_INTEGERS),)),
    "string": Keys((_key("k", pa.string(), pa.large_string(), *_WORDS),)),
    "float": Keys((_key("k", pa.float64(), pa.float32(), 0.0, -0.0, float("nan"), 1.5, -1.5, float("inf")),)),
    "decimal": Keys((_key("k", pa.decimal128(12, 2), pa.decimal128(30, 4), *(Decimal(i) / 4 for i in range(-4, 8))),)),
    "composite": Keys((_key("k", pa.string(), pa.string(), *_WORDS[:3]), _key("n", pa.int64(), pa.int32(), *range(4)))),
}


@dataclass(frozen=True)
class Case:
    """One join to try."""

    relation: pa.Table
    stream: pa.Table
    spec: JoinSpec
    rows_per_page: int
    sizes: tuple[int, ...]
    steps_per_batch: int | None
    extra_bytes: int  # beyond the smallest budget
    buffer_pages: int | None
    pinned_pages: int | None
    tuples_per_step: int
    pool_bytes: int | str | None
    counts: list[int] | None  # rows come in the order of these, not of their keys

    def pages(self) -> MemoryRelation:
        return MemoryRelation(self.relation, [pair[1] for pair in self.spec.on], self.rows_per_page, counts=self.counts)

    def batches(self) -> list[pa.RecordBatch]:
        return list(cut(self.stream, self.sizes))

    def parameters(self, name: str) -> dict[str, Any]:
        """Those that the join of that name takes."""
        chosen = {"buffer_pages": self.buffer_pages, "pinned_pages": self.pinned_pages,
                  "tuples_per_step": self.tuples_per_step, "pool_bytes": self.pool_bytes}  # fmt: skip
        taken = inspect.signature(algorithm(name).join).parameters
        return {name: value for name, value in chosen.items() if name in taken and value is not None}


@st.composite
def cases(draw: st.DrawFn, *, most_rows: int = 60) -> Case:
    keys = KEYS[draw(st.sampled_from(sorted(KEYS)))]
    how = draw(st.sampled_from(HOWS))
    known = [draw(st.lists(st.sampled_from(values), min_size=1, max_size=6)) for _, _, _, values in keys.columns]
    rows, tuples = draw(st.integers(0, 40)), draw(st.integers(0, most_rows))
    relation = {
        "price": pa.array([i if i % 3 else None for i in range(rows)], pa.int32()),
        "label": pa.array([f"row {i}" * (i % 4) for i in range(rows)]),
    }
    stream = {"event": pa.array(range(tuples), pa.int64())}
    for (name, kind, stream_kind, values), some in zip(keys.columns, known, strict=True):
        relation[name] = _column(draw, kind, some, rows)
        stream[f"s_{name}"] = _column(draw, stream_kind, values, tuples)
    table = pa.table(stream)
    there = draw(st.permutations(["price", "label"]))[: draw(st.integers(0, 2))]
    columns = tuple(there) if how in ("inner", "left") else ()
    carry = tuple(draw(st.permutations(list(stream)))[: draw(st.integers(0, len(stream)))])
    on = tuple((f"s_{name}", name) for name, _, _, _ in keys.columns)
    return Case(
        relation=pa.table(relation),
        stream=table,
        spec=JoinSpec(table.schema, on, how, carry, columns),
        rows_per_page=draw(st.integers(1, 9)),
        sizes=(*draw(st.lists(st.sampled_from([0, 0, 1, 2, 5, 20]), max_size=6)), draw(st.integers(1, 40))),
        steps_per_batch=draw(st.sampled_from([1, 1, 0, 2, 5, None])),
        extra_bytes=draw(st.sampled_from([0, 100, 1_000, 5_000, 100_000])),
        buffer_pages=draw(st.none() | st.integers(1, 6)),
        pinned_pages=draw(st.none() | st.integers(0, 6)),
        tuples_per_step=draw(st.integers(1, 9)),
        pool_bytes=draw(st.sampled_from([None, "rest", 20_000])),
        counts=draw(st.none() | st.lists(st.integers(0, 3), min_size=rows, max_size=rows)),
    )


def _column(draw: st.DrawFn, kind: pa.DataType, values: Sequence[Any], rows: int) -> pa.Array:
    """Rows that repeat a few values, with a null now and then."""
    choices = [*values, *values, *values, None]
    return pa.array(draw(st.lists(st.sampled_from(choices), min_size=rows, max_size=rows)), kind)


@dataclass(frozen=True)
class Plain:
    """Unique integer keys 0, 2, 4, ... in the relation; stream keys that are there, odd ones that are not."""

    relation: MemoryRelation
    stream: pa.Table
    spec: JoinSpec
    sizes: tuple[int, ...]
    extra_bytes: int
    buffer_pages: int

    @cached_property
    def absent(self) -> list[bool]:
        """Whether the key of each tuple is not in the relation."""
        return [key % 2 == 1 for key in self.stream.column("k").to_pylist()]

    @cached_property
    def page(self) -> list[int | None]:
        """The page that each tuple needs to see: None where the index says that its key is on none."""
        first, last = self.relation.locate(self.stream.column("k").to_numpy())
        return [int(page) if page <= end else None for page, end in zip(first, last, strict=True)]


@st.composite
def plain_cases(draw: st.DrawFn, *, absent: bool, most_rows: int = 80) -> Plain:
    """What the theorems of the papers are about: one row per key."""
    rows = draw(st.integers(1, 40))
    table = pa.table({"k": pa.array(range(0, 2 * rows, 2), pa.int64()), "v": pa.array(range(rows), pa.int64())})
    key = st.integers(0, rows - 1).map(lambda i: 2 * i)
    if absent:
        key = key | st.integers(0, rows - 1).map(lambda i: 2 * i + 1)
    tuples = draw(st.integers(1, most_rows))
    stream = pa.table({"k": pa.array(draw(st.lists(key, min_size=tuples, max_size=tuples)), pa.int64())})
    return Plain(
        relation=MemoryRelation(table, "k", draw(st.integers(1, 6))),
        stream=stream,
        spec=JoinSpec(stream.schema, (("k", "k"),), "left", ("k",), ("v",)),
        sizes=(*draw(st.lists(st.sampled_from([0, 1, 2, 5, 20]), max_size=5)), draw(st.integers(1, 80))),
        extra_bytes=draw(st.sampled_from([0, 50, 200, 500, 1_000, 100_000])),
        buffer_pages=draw(st.integers(1, 4)),
    )
