"""The questions of `millrace bench estimate`: what the two tables look like, and what is asked of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.streams.permutation import Permutation

GROUPS = 100
VALUE = "left.value * right.value"


@dataclass(frozen=True)
class Shape:
    """`left`, `right`: which tables, by name; shapes share them."""

    title: str
    left: str = "unique"
    right: str = "refers"
    where: str | None = None
    group_by: str | None = None

    def sql(self, left: str, right: str) -> str:
        """For DuckDB, over folders of Parquet files."""
        chosen = "NULL" if self.group_by is None else f'"left".{self.group_by}'
        joined = f"""FROM read_parquet('{left}/*.parquet') AS "left" JOIN read_parquet('{right}/*.parquet') AS "right" """
        text = f'SELECT {chosen}, sum({VALUE}) {joined} ON "left".key = "right".key WHERE {self.where or "true"} GROUP BY ALL'
        return text.replace("left.", '"left".').replace("right.", '"right".')


SHAPES = {
    "foreign-key": Shape("each key once on the left, the right refers to them, rows of both in random order"),
    "many-to-many": Shape("each key four times on either side, on average", left="quarter", right="quarter"),
    "groups": Shape(f"as foreign-key, by {GROUPS} groups; all of them count", left="grouped", group_by="bucket"),
    "where": Shape("as foreign-key, with a condition that a tenth of the right meets", where="right.value > 1.67"),
    "sorted": Shape("as foreign-key, but the left lies in the order of its keys", left="sorted"),
}


def chunks(table: str, rows: int, chunk_rows: int, seed: int) -> Iterator[pa.Table]:
    """A table, some rows at a time."""
    names = ("unique", "refers", "quarter-left", "quarter-right", "grouped", "sorted")
    random = np.random.default_rng([seed, names.index(table)])
    scattered = Permutation(rows, seed)
    for first in range(0, rows, chunk_rows):
        numbers = np.arange(first, min(rows, first + chunk_rows), dtype=np.int64)
        if table in ("unique", "grouped"):
            key = scattered.apply(numbers)
        elif table == "sorted":
            key = numbers
        else:
            key = random.integers(0, rows if table == "refers" else max(1, rows // 4), len(numbers))
        columns: dict[str, Any] = {"key": key, "value": random.gamma(4.0, 0.25, len(numbers))}
        if table == "grouped":
            columns["bucket"] = random.integers(0, GROUPS, len(numbers))
        yield pa.table(columns)
