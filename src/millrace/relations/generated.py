"""A relation that is computed, not stored: rows with the keys 1, 2, 3, ... as many as wanted, at no cost in memory.

What a simulated device is tried with: 8 million rows of 120 bytes would be a gigabyte, and only what is taken is made.
`generated_rows` makes the same rows for a table that is to be stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.errors import ParameterError, SchemaError
from millrace.core.keys import KeyCodec
from millrace.core.protocols import PageRuns
from millrace.core.rowbytes import within

KEY = "key"
SURROGATE_KEY = "surrogate_key"
SURROGATE_OFFSET = 500_000_000_000
SCHEMA = pa.schema(
    [
        (KEY, pa.int64()),
        (SURROGATE_KEY, pa.int64()),
        ("price", pa.float64()),
        ("supplier_id", pa.int32()),
        ("description", pa.string()),
    ]
)
_NUMBER_BYTES = 8 + 8 + 8 + 4
LEAST_ROW_BYTES = _NUMBER_BYTES + 4  # the description has a few letters at least


def generated_rows(keys: Int64Array, row_bytes: int, columns: Sequence[str] = SCHEMA.names) -> pa.RecordBatch:
    """The rows of these keys: three numbers of 8 bytes, one of 4, and text that fills them up to `row_bytes`."""
    make: dict[str, Callable[[], Any]] = {
        KEY: lambda: pa.array(keys),
        SURROGATE_KEY: lambda: pa.array(keys + SURROGATE_OFFSET),
        "price": lambda: pa.array((keys % 50_000) / 100),
        "supplier_id": lambda: pa.array((keys % 10_000).astype(np.int32)),
        "description": lambda: _letters(keys, row_bytes - _NUMBER_BYTES),
    }
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    return pa.RecordBatch.from_arrays([make[name]() for name in columns], schema=schema)


class GeneratedRun:
    """Pages of a `GeneratedRelation`. Only the relation's last page is short, and it can only stand last."""

    def __init__(self, relation: GeneratedRelation, pages: Int64Array) -> None:
        self.pages = pages
        self._relation = relation
        per_page = relation.rows_per_page
        self.rows = int(min(len(pages) * per_page, len(pages) * per_page + relation.rows - (pages[-1] + 1) * per_page))

    @property
    def codes(self) -> Int64Array:
        return self._keys(np.arange(self.rows))

    def match(self, codes: Int64Array, pages: Int64Array) -> tuple[Int64Array, Int64Array]:
        per_page = self._relation.rows_per_page
        inside = codes - 1 - pages * per_page
        found = (inside >= 0) & (inside < per_page) & (codes <= self._relation.rows)
        first = np.searchsorted(self.pages, pages) * per_page + np.where(found, inside, 0)
        return first, found.astype(np.int64)

    def take(self, rows: Int64Array, columns: Sequence[str], limit_bytes: int | None = None) -> pa.RecordBatch:
        return within(generated_rows(self._keys(rows), self._relation.row_bytes, columns), limit_bytes)

    def _keys(self, rows: Int64Array) -> Int64Array:
        page, inside = np.divmod(rows, self._relation.rows_per_page)
        return self.pages[page] * self._relation.rows_per_page + inside + 1


class GeneratedFrames:
    """Pages that stay in memory: nothing has to, as they can be made again."""

    def __init__(self, relation: GeneratedRelation) -> None:
        self._relation = relation

    def load(self, pages: Int64Array, frames: Int64Array, *, each: bool = False) -> None:
        self._relation.check_pages(pages)

    def run(self, pages: Int64Array, frames: Int64Array) -> GeneratedRun:
        return GeneratedRun(self._relation, pages)


class GeneratedRelation:
    """Rows 1 to `rows` by key, in pages of `page_bytes`.

    >>> relation = GeneratedRelation(rows=1000, row_bytes=100, page_bytes=1000)
    >>> relation.pages, relation.locate(np.array([1, 11, 1001])).first.tolist()
    (100, [0, 1, 100])
    >>> relation.read(1, 1).take(np.array([0]), ("key", "surrogate_key")).to_pylist()
    [{'key': 11, 'surrogate_key': 500000000011}]
    """

    resident = False
    unique = True
    indexed = True

    def __init__(self, rows: int, *, row_bytes: int = 120, page_bytes: int = 64 << 10) -> None:
        if row_bytes < LEAST_ROW_BYTES:
            raise ParameterError(f"row_bytes must be at least {LEAST_ROW_BYTES}; got {row_bytes}")
        if rows < 1 or page_bytes < row_bytes:
            raise ParameterError(f"rows must be at least 1 and a page hold a row; got {rows} rows, {page_bytes} bytes a page")
        self.schema = SCHEMA
        self.key: tuple[str, ...] = (KEY,)
        self.codec = KeyCodec((pa.int64(),))
        self.row_bytes = row_bytes
        self.page_bytes = page_bytes
        self.rows_per_page = page_bytes // row_bytes
        self.rows = self.pages = 0
        self.grow(rows)

    def grow(self, rows: int) -> None:
        """Add the rows with the next keys, until there are so many."""
        self.rows = max(self.rows, rows)
        self.pages = -(-self.rows // self.rows_per_page)

    def locate(self, codes: Int64Array) -> PageRuns:
        page = (codes - 1) // self.rows_per_page
        first = np.where(codes < 1, 0, np.where(codes > self.rows, self.pages, page))
        return PageRuns(first, np.where((codes < 1) | (codes > self.rows), first - 1, first))

    def read(self, first: int, count: int) -> GeneratedRun:
        return self.read_many(np.array([first]), np.array([count]))

    def read_many(self, firsts: Int64Array, counts: Int64Array) -> GeneratedRun:
        pages = np.concatenate([np.arange(first, first + count) for first, count in zip(firsts, counts, strict=True)])
        self.check_pages(pages)
        return GeneratedRun(self, pages)

    def frames(self, count: int) -> GeneratedFrames:
        return GeneratedFrames(self)

    def check_pages(self, pages: Int64Array) -> None:
        if len(pages) == 0 or pages.min() < 0 or pages.max() >= self.pages:
            raise ParameterError(
                f"not all of the {len(pages)} pages wanted exist: the relation has pages 0 to {self.pages - 1}"
            )


def check_columns(columns: Sequence[str]) -> None:
    """Every name is a column of generated rows."""
    for name in columns:
        if name not in SCHEMA.names:
            raise SchemaError(f"there is no column {name!r}; choose from {', '.join(SCHEMA.names)}")


def _letters(keys: Int64Array, width: int) -> pa.Array:
    """Text of `width` letters for each key, which differs from one key to the next."""
    start = (keys % 26).astype(np.uint8)[:, None]
    letters = (start + (np.arange(width) % 26).astype(np.uint8)) % np.uint8(26) + np.uint8(ord("a"))
    offsets = np.arange(0, (len(keys) + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(len(keys), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(letters)))
