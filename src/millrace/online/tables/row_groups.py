"""Parquet files to estimate from, row group by row group, in random order; where rows are sorted inside row groups, in random
order inside them as well.

    files     [ group | group | group ] [ group | group ]          groups in random order
    mixed     a whole group, or a random part of its rows where a whole one is too large --> its rows in random order

A part is a random choice of the rows of its group. All parts of all groups come in random order, and a group is read once for
each of its parts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.core.arrays import Int64Array
from millrace.core.errors import DamagedTableError, SchemaError, TableError
from millrace.relations.parquet_files import ParquetSource as ParquetFile
from millrace.relations.parquet_files import list_files

_READ_BYTES = 1 << 20  # of a column, at a time
_READ_ROWS = 1 << 15  # at a time, where rows are picked from a group
_OPEN_FILES = 32
_MOST_PARTS = 16
# what shows how rows are ordered inside: so many row groups, segments of each, rows of a segment, within the first so many
_LOOKED_AT, _SEGMENTS, _SEGMENT_ROWS, _FIRST_ROWS = 2, 32, 512, 1 << 18


class ParquetSource:
    """Files, row group by row group. `random`: rows come in random order, as a check has found."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = folder
        self.random, self.held_bytes = False, 0
        self._files = list_files(folder)
        self._opened: OrderedDict[int, pq.ParquetFile] = OrderedDict()
        self._metadata: list[pq.FileMetaData] = []
        self._schemas: list[pa.Schema] = []
        for number in range(len(self._files)):
            file = self._open(number)
            self._metadata.append(file.metadata)
            self._schemas.append(file.schema_arrow)
        self._partitions = _partition_fields(self._files, self._schemas[0])
        self.schema = _with_fields(self._schemas[0], self._partitions)
        self._groups: list[tuple[int, int]] = []
        sizes: list[int] = []
        for number, metadata in enumerate(self._metadata):
            for group in range(metadata.num_row_groups):
                if count := metadata.row_group(group).num_rows:
                    self._groups.append((number, group))
                    sizes.append(count)
        self._sizes: Int64Array = np.array(sizes, np.int64)
        self.rows = int(self._sizes.sum())
        self.blocks = len(self._groups)
        # rows of the row group that a row is in, in the mean over rows: large ones count for more
        self.block_rows = max(1, round(float((self._sizes.astype(np.float64) ** 2).sum()) / max(1, self.rows)))
        self._parts = 0  # of a row group; 0: its rows come as they lie

    def check(self, columns: Sequence[str]) -> None:
        """All files have these columns, with one type."""
        for schema in self._schemas[1:]:
            for name in columns:
                if name in self._partitions.names:
                    continue
                found = schema.get_field_index(name)
                if found < 0 or schema.field(found).type != self.schema.field(name).type:
                    kind = "no such column" if found < 0 else str(schema.field(found).type)
                    raise SchemaError(
                        f"the files of {self.folder} differ: column {name!r} is {self.schema.field(name).type} in one and "
                        f"{kind} in another; rewrite them with one schema"
                    )

    # --- reading

    def batches(self, columns: Sequence[str], rows: int, seed: int) -> Iterator[pa.RecordBatch]:
        parts = max(1, self._parts)
        units = np.random.default_rng(seed).permutation(self.blocks * parts)
        return _gathered((batch for unit in units for batch in self._unit(int(unit), columns, rows, seed)), rows)

    def _unit(self, unit: int, columns: Sequence[str], rows: int, seed: int) -> Iterator[pa.RecordBatch]:
        if not self._parts:
            yield from self._read(unit, columns, rows)
            return
        place, part = divmod(unit, self._parts)
        found = self._part(place, part, columns, seed)
        order = np.random.default_rng((seed, unit, 1)).permutation(found.num_rows)
        for first in range(0, len(order), rows):
            yield found.take(pa.array(order[first : first + rows]))

    def _part(self, place: int, part: int, columns: Sequence[str], seed: int) -> pa.RecordBatch:
        """Of a row group: the same rows for the same seed, each in one part."""
        if self._parts == 1:
            return _one(list(self._read(place, columns, _READ_ROWS)))
        of = np.random.default_rng((seed, place)).integers(0, self._parts, self._sizes[place])
        return self._rows_at(place, columns, np.flatnonzero(of == part))

    def _rows_at(self, place: int, columns: Sequence[str], places: Int64Array) -> pa.RecordBatch:
        """Rows of a row group, by their places in order."""
        found, first = [], 0
        for batch in self._read(place, columns, _READ_ROWS):
            start, end = np.searchsorted(places, [first, first + batch.num_rows])
            found.append(batch.take(pa.array(places[start:end] - first)))
            first += batch.num_rows
            if end == len(places):
                break
        return _one(found)

    def _read(self, place: int, columns: Sequence[str], rows: int) -> Any:
        number, group = self._groups[place]
        here = [name for name in columns if name not in self._partitions.names]
        named = here or self._schemas[number].names[:1]  # rows are counted, at least
        file = self._open(number)
        try:
            for batch in file.iter_batches(rows, row_groups=[group], columns=named, use_threads=False):
                yield self._fitted(batch, number, columns)
        except (pa.ArrowException, OSError) as damaged:
            raise DamagedTableError(f"row group {group} of {self._files[number].path} can't be read: {damaged}") from damaged
        self._check_unchanged(number)

    def _fitted(self, batch: pa.RecordBatch, number: int, columns: Sequence[str]) -> pa.RecordBatch:
        """With the columns that are in the path of the file, and a schema without what files may differ in."""
        values = dict(self._files[number].partition)
        arrays = [
            pa.repeat(pa.scalar(values[name]).cast(self.schema.field(name).type), batch.num_rows)
            if name in self._partitions.names
            else batch.column(name)
            for name in columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._plain_schema(columns))

    def _plain_schema(self, columns: Sequence[str]) -> pa.Schema:
        return pa.schema([(name, self.schema.field(name).type) for name in columns])

    def _open(self, number: int) -> pq.ParquetFile:
        """Few files stay open: there may be thousands."""
        self._check_unchanged(number)
        file = self._opened.get(number)
        if file is None:
            known = self._metadata[number] if number < len(self._metadata) else None
            file = self._opened[number] = _open(self._files[number].path, known)
            if len(self._opened) > _OPEN_FILES:
                self._opened.popitem(last=False)  # it closes when nobody reads from it any more
        return file

    def _check_unchanged(self, number: int) -> None:
        """A file that is another one than at the start is an error, never other rows."""
        file = self._files[number]
        try:
            now = Path(file.path).stat()
        except OSError as gone:
            raise TableError(f"{file.path} can't be read any more ({gone.strerror}); run the estimate again") from None
        if (now.st_size, now.st_mtime_ns) != (file.bytes, file.modified_ns):
            raise TableError(f"{file.path} has changed since the estimate began; run it again")

    def read(self, columns: Sequence[str]) -> pa.Table:
        parts = [batch for place in range(self.blocks) for batch in self._read(place, columns, _READ_ROWS)]
        return pa.Table.from_batches(parts, self._plain_schema(columns))

    # --- samples

    def sample(self, columns: Sequence[str], blocks: int, rows: int, seed: int) -> list[pa.RecordBatch]:
        return [self._some(place, columns, rows, seed) for place in self._chosen(blocks, seed)]

    def sampled_rows(self, blocks: int, seed: int) -> list[int]:
        return [int(self._sizes[place]) for place in self._chosen(blocks, seed)]

    def _chosen(self, blocks: int, seed: int) -> list[int]:
        return [int(place) for place in np.random.default_rng(seed).permutation(self.blocks)[:blocks]]

    def _some(self, place: int, columns: Sequence[str], rows: int, seed: int) -> pa.RecordBatch:
        """The first rows of a group, which is quick; any rows, where rows come mixed."""
        if self._parts:
            size = int(self._sizes[place])
            chosen = np.random.default_rng((seed, place, 2)).choice(size, min(rows, size), replace=False)
            return self._rows_at(place, columns, np.sort(chosen))
        found = self._read(place, columns, rows)
        try:
            batch: pa.RecordBatch = next(found)
            return batch
        finally:
            found.close()

    def inside(self, columns: Sequence[str], seed: int) -> list[list[pa.RecordBatch]]:
        """Segments of some row groups, spread evenly over each: how do rows lie inside?"""
        some = self._chosen(3 * _LOOKED_AT, seed)
        some.sort(key=lambda place: -self._sizes[place])
        return [self._segments(place, columns) for place in some[:_LOOKED_AT]]

    def _segments(self, place: int, columns: Sequence[str]) -> list[pa.RecordBatch]:
        size = min(_FIRST_ROWS, int(self._sizes[place]))
        length = max(1, min(_SEGMENT_ROWS, size // _SEGMENTS))
        count = min(_SEGMENTS, size // length)
        starts = np.arange(count) * (size // count)
        found = self._rows_at(place, columns, (starts[:, None] + np.arange(length)).ravel())
        return [found.slice(number * length, length) for number in range(count)]

    def mix(self, columns: Sequence[str], most_bytes: int) -> bool:
        """From now on rows of a row group come in random order, by holding so much. False: the row groups are too large."""
        largest = int(self._sizes.max(initial=0))
        each = 2 * self.row_bytes(columns) + 16  # as read, put together, and its place in the order
        parts = -(-largest * each // max(1, most_bytes))
        if parts > _MOST_PARTS:
            return False
        self._parts = max(1, parts)
        self.held_bytes = -(-largest // self._parts) * each
        return True

    @property
    def mixed(self) -> bool:
        return self._parts > 0

    def mixing_bytes(self, columns: Sequence[str]) -> int:
        """What `mix` needs, at least."""
        return -(-int(self._sizes.max(initial=0)) * (2 * self.row_bytes(columns) + 16) // _MOST_PARTS)

    # --- what the files say

    def null_free(self, column: str) -> bool:
        if column in self._partitions.names:
            return all(dict(file.partition)[column] is not None for file in self._files)
        return all(self._nulls(number, group, column) == 0 for number, group in self._groups)

    def _nulls(self, number: int, group: int, column: str) -> int | None:
        found = self._chunk(number, group, column)
        if found is None or found.statistics is None or not found.statistics.has_null_count:
            return None
        return int(found.statistics.null_count)

    def _chunk(self, number: int, group: int, column: str) -> Any:
        metadata = self._metadata[number].row_group(group)
        chunks = (metadata.column(i) for i in range(metadata.num_columns))
        return next((chunk for chunk in chunks if chunk.path_in_schema == column), None)

    def row_bytes(self, columns: Sequence[str]) -> int:
        """Fixed-width columns by their type, others as one row group has them."""
        total = 0
        for name in columns:
            kind = self.schema.field(name).type
            if pa.types.is_primitive(kind) and not pa.types.is_boolean(kind):
                total += -(-kind.bit_width // 8)
                continue
            chunk = self._chunk(*self._groups[0], name) if self._groups else None
            total += 16 if chunk is None else 8 + 2 * chunk.total_uncompressed_size // max(1, chunk.num_values)
        return max(1, total)

    def close(self) -> None:
        for file in self._opened.values():
            file.close()
        self._opened.clear()


def _open(path: str, metadata: pq.FileMetaData | None) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(
            path, metadata=metadata, buffer_size=_READ_BYTES, pre_buffer=False, page_checksum_verification=True
        )
    except (pa.ArrowException, OSError) as wrong:
        raise TableError(f"{path} can't be read as a Parquet file: {str(wrong).splitlines()[0]}") from None


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _gathered(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Small batches put together, as each has its price: at most so many rows."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if held and count + batch.num_rows > rows:
            yield _one(held)
            held, count = [], 0
        held.append(batch)
        count += batch.num_rows
        if 2 * count >= rows:
            yield _one(held)
            held, count = [], 0
    if held:
        yield _one(held)


def _partition_fields(files: Sequence[ParquetFile], schema: pa.Schema) -> pa.Schema:
    """Columns that are in the paths of all files and in none of them: whole numbers, dates or texts, as all values are."""
    names = [name for name, _ in files[0].partition if name not in schema.names]
    fields = []
    for name in names:
        if not all(name in dict(file.partition) for file in files):
            continue
        texts = pa.array({dict(file.partition)[name] for file in files}, pa.string())
        fields.append(pa.field(name, _kind_of(texts)))
    return pa.schema(fields)


def _kind_of(texts: pa.Array) -> pa.DataType:
    for kind in (pa.int64(), pa.date32()):
        try:
            texts.cast(kind)
        except pa.ArrowInvalid:
            continue
        return kind
    return pa.string()


def _with_fields(schema: pa.Schema, more: pa.Schema) -> pa.Schema:
    for field in more:
        schema = schema.append(field)
    return schema
