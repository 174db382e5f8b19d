"""Writing a shard: pages of a table, one after the other, and a directory that says where they are.

shard file   | page 0        |pad| page 1        |pad| ...        every page starts at a 4 KiB boundary
page         Arrow IPC record batch message of at most `rows_per_page` rows; see `layout` for what is in it
directory    one row per page: offset, bytes, rows, first and last code, checksum, where codes and records stand in the page,
             and which columns have nulls there
keys         where rows are not sorted by code: the pages of every key, for the index of the table
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import pyarrow as pa
import xxhash

from millrace.core.arrays import Int64Array
from millrace.core.errors import ParameterError
from millrace.relations.files import LargeWrites
from millrace.relations.frequency import KeyEntries, key_entries, keys_path, write_keys
from millrace.relations.layout import PageLayout
from millrace.relations.row_records import pack

ALIGNMENT = 4096  # bytes: what O_DIRECT asks for, and what the memory system pages by
MOST_PAGE_BYTES = 256 << 20
_LONG_PAGES = 8  # so many pages' worth of bytes that waits for more rows is written at once


def checksum(data: Any) -> int:
    """Checksum of a page as a signed 64-bit number."""
    found: int = xxhash.xxh3_64_intdigest(data)
    return found - (1 << 64) if found >> 63 else found


DIRECTORY_SCHEMA = pa.schema(
    [
        ("shard", pa.int32()), ("offset", pa.int64()), ("bytes", pa.int32()), ("rows", pa.int32()),
        ("first", pa.int64()), ("last", pa.int64()), ("checksum", pa.int64()),
        ("codes", pa.int32()), ("starts", pa.int32()), ("data", pa.int32()), ("nulls", pa.int64()),
    ]
)  # fmt: skip

_Size = TypeVar("_Size", int, Int64Array)


@dataclass(frozen=True)
class ShardInfo:
    """What a finished shard is; kept in the manifest."""

    file: str
    rows: int
    pages: int
    bytes: int
    max_page_bytes: int
    longest_run: int  # most rows with one code
    first: int = 0
    last: int = 0

    @property
    def unique(self) -> bool:
        return self.longest_run <= 1

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan_rows_per_page(sample: pa.RecordBatch, page_bytes: int) -> int:
    """Rows of the sample's size that make a page of about `page_bytes`."""
    check_page_bytes(page_bytes)
    if sample.num_rows == 0:
        return 1024
    return rows_per_page(sample.schema, sample.nbytes / sample.num_rows, page_bytes)


def rows_per_page(schema: pa.Schema, row_bytes: float, page_bytes: int) -> int:
    """Rows of this size that make a page of about `page_bytes`."""
    record = 5 + len(schema) // 8 + sum(pa.types.is_boolean(kind) for kind in schema.types)
    # beside the row itself: where its record starts, its null bits, a byte for a boolean
    return int(min(65_536, max(1, (page_bytes - 768) / (row_bytes + record))))


def check_page_bytes(page_bytes: int) -> None:
    """A page is at least one unit of what is read from disk; Arrow's offsets inside of it have 32 bits."""
    if page_bytes < ALIGNMENT:
        raise ParameterError(f"page_bytes must be at least {ALIGNMENT}; got {page_bytes}")
    if page_bytes > MOST_PAGE_BYTES:
        raise ParameterError(f"page_bytes must be at most {MOST_PAGE_BYTES} (256 MiB); got {page_bytes}")


class ShardWriter:
    """Writes one shard from batches that arrive sorted by `code_column`, or, with `by_code` false, in any order that keeps
    equal codes together; they are then sorted inside each page, and the keys of the shard are written beside it.

    The file appears under its name only when `close` has put everything on disk; until then it has a `.partial` name.
    """

    def __init__(
        self, path: Path, schema: pa.Schema, code_column: str, rows_per_page: int, page_bytes: int | None = None,
        by_code: bool = True,
    ) -> None:  # fmt: skip
        self._by_code = by_code
        self._keys: list[Int64Array] = []  # codes of each page, if they are wanted
        self._path = path
        self._partial = path.with_name(path.name + ".partial")
        self._code = code_column
        self._rows_per_page = rows_per_page
        self._page_bytes = page_bytes
        self._layout = PageLayout(schema, code_column)
        self._pages: list[tuple[int, ...]] = []
        self._left: list[pa.RecordBatch] = []
        self._left_rows = self._left_bytes = 0
        self._bytes = 0
        self._last: int | None = None
        self._run = 0  # rows with the last code so far
        self._longest_run = 0
        self._file: IO[bytes] = open(self._partial, "wb", buffering=0)  # noqa: SIM115
        self._writes = LargeWrites(self._file.fileno())

    def write(self, batch: pa.RecordBatch) -> None:
        self._left.append(batch)
        self._left_rows += batch.num_rows
        self._left_bytes += batch.nbytes
        if self._left_rows >= self._rows_per_page:
            self._flush(whole_pages=True)
        if self._page_bytes is not None and self._left_bytes > _LONG_PAGES * self._page_bytes:
            self._flush(whole_pages=False)  # rows longer than those that were measured before must not pile up

    def close(self) -> ShardInfo:
        """Write what is left, put it on disk, give the file its name, and write the directory beside it."""
        self._flush(whole_pages=False)
        self._writes.finish()
        os.fsync(self._file.fileno())
        self._file.close()
        os.rename(self._partial, self._path)
        directory = self._directory()
        with pa.OSFile(str(directory_path(self._path)), "wb") as sink, pa.ipc.new_file(sink, directory.schema) as writer:
            writer.write_batch(directory)
        if not self._by_code:
            write_keys(keys_path(self._path), self._key_entries())
        rows = sum(page[3] for page in self._pages)
        widest = max((page[2] for page in self._pages), default=0)
        first, last = min((page[4] for page in self._pages), default=0), max((page[5] for page in self._pages), default=0)
        return ShardInfo(self._path.name, rows, len(self._pages), self._bytes, aligned(widest), self._longest_run, first, last)

    def abort(self) -> None:
        """Leave nothing behind."""
        try:
            self._file.close()
        finally:
            for leftover in (self._partial, self._path, directory_path(self._path), keys_path(self._path)):
                leftover.unlink(missing_ok=True)

    def _flush(self, *, whole_pages: bool) -> None:
        if not self._left_rows:
            return
        batch = self._left[0] if len(self._left) == 1 else pa.concat_batches(self._left)
        end = batch.num_rows - batch.num_rows % self._rows_per_page if whole_pages else batch.num_rows
        self._follow(batch.column(self._code).slice(0, end).view(pa.int64()).to_numpy())
        for start in range(0, end, self._rows_per_page):
            self._page(batch.slice(start, min(self._rows_per_page, end - start)))
        rest = batch.slice(end)
        self._left = [rest] if rest.num_rows else []
        self._left_rows, self._left_bytes = rest.num_rows, rest.nbytes

    def _follow(self, codes: Int64Array) -> None:
        """Check the order of what is about to be written, and keep the longest run of equal codes."""
        if len(codes) == 0:
            return
        if self._by_code and ((codes[1:] < codes[:-1]).any() or (self._last is not None and codes[0] < self._last)):
            raise ParameterError("rows of a shard must come sorted by code")
        edges = np.flatnonzero(codes[1:] != codes[:-1]) + 1
        lengths = np.diff(np.concatenate(([0], edges, [len(codes)])))
        if codes[0] == self._last:
            lengths[0] += self._run
        self._run = int(lengths[-1])
        self._last = int(codes[-1])
        self._longest_run = max(self._longest_run, int(lengths.max()))

    def _page(self, batch: pa.RecordBatch) -> None:
        if self._page_bytes is not None and batch.num_rows > 1 and batch.nbytes > 2 * self._page_bytes:
            half = batch.num_rows // 2  # rows longer than those that were measured before
            self._page(batch.slice(0, half))
            self._page(batch.slice(half))
            return
        layout = self._layout
        codes = batch.column(self._code).view(pa.int64())
        if not self._by_code:
            order = np.argsort(codes.to_numpy(), kind="stable")
            batch, codes = batch.take(pa.array(order)), codes.take(pa.array(order))
            self._keys.append(np.unique(codes.to_numpy()))
        records, nulls = pack(batch, layout)
        nested = [batch.column(name) for name in layout.nested]
        message = pa.RecordBatch.from_arrays([codes, records, *nested], schema=layout.page_schema).serialize()
        decoded = pa.ipc.read_record_batch(message, layout.page_schema)
        buffers = [decoded.column(0).buffers()[1], *decoded.column(1).buffers()[1:]]
        places = [buffer.address - message.address if buffer.size else 0 for buffer in buffers]  # only keys: empty records
        first, last = codes[0].as_py(), codes[-1].as_py()
        self._writes.write(message)
        page = (0, self._bytes, message.size, batch.num_rows, first, last, checksum(message), *places, nulls)
        self._pages.append(page)
        padded = aligned(message.size)
        self._writes.write(b"\0" * (padded - message.size))
        self._bytes += padded

    def _key_entries(self) -> KeyEntries:
        pages = np.repeat(np.arange(len(self._keys)), [len(codes) for codes in self._keys])
        return key_entries(np.concatenate((np.zeros(0, np.int64), *self._keys)), pages)

    def _directory(self) -> pa.RecordBatch:
        schema = DIRECTORY_SCHEMA
        columns = list(zip(*self._pages, strict=True)) if self._pages else [() for _ in schema]
        return pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
        )


def write_shard(
    path: Path,
    schema: pa.Schema,
    code_column: str,
    rows_per_page: int,
    batches: Iterable[pa.RecordBatch],
    page_bytes: int | None = None,
    by_code: bool = True,
) -> ShardInfo:
    """Write a whole shard, or leave nothing. With `page_bytes`, pages twice as long are cut further."""
    writer = ShardWriter(path, schema, code_column, rows_per_page, page_bytes, by_code)
    try:
        for batch in batches:
            if batch.num_rows:
                writer.write(batch)
        return writer.close()
    except BaseException:
        writer.abort()
        raise


def directory_path(shard: Path) -> Path:
    return shard.with_name(shard.name + ".directory")


def aligned(size: _Size) -> _Size:
    """The next place at or behind this one where a page may begin, or of many such."""
    return -(-size // ALIGNMENT) * ALIGNMENT
