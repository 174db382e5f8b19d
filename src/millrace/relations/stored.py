"""A version of a master table as a relation: pages read directly, through the page cache, or used in place."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.errors import ParameterError
from millrace.core.protocols import PageRuns
from millrace.core.rowbytes import fitting, sizes_of
from millrace.relations import search
from millrace.relations.files import READ_MODES, ReadMode, read_into
from millrace.relations.folder import TableVersion
from millrace.relations.frames import StoredFrames
from millrace.relations.keyindex import StoredKeyIndex
from millrace.relations.layout import PageLayout
from millrace.relations.localcopies import LocalCopies
from millrace.relations.row_records import Unpacker
from millrace.relations.shard import ALIGNMENT, checksum
from millrace.relations.table_file import IndexFile, ReadCounts, TableFile

_Int32s = npt.NDArray[np.int32]

_Span = tuple[int, int, int, int, int]  # shard, first byte, end, first page, pages
_NESTED_COPIES = 3  # of nested values that are put together: those of each page, all of them, and all in order
_COPY_BYTES = 1 << 20  # read at a time when a shard is copied; a page at least


class StoredRun:
    """Pages of a `StoredRelation`, each at an address in memory."""

    def __init__(self, relation: StoredRelation, pages: Int64Array, addresses: Int64Array, keep: Any) -> None:
        self.pages = pages
        self._relation = relation
        self._keep = keep  # what the addresses point into
        sizes = relation.page_rows if len(pages) == relation.pages else relation.page_rows[pages]
        bases = np.zeros(len(pages) + 1, np.int64)
        np.cumsum(sizes, out=bases[1:])
        self.places = addresses, pages, sizes, bases
        self._addresses, self._bases = addresses, bases
        self.rows = int(bases[-1])
        self._dense = len(pages) > 0 and int(pages[-1] - pages[0]) == len(pages) - 1
        starts = np.arange(0, max(1, self.rows), relation.rows_per_page)
        self._guess = (np.searchsorted(bases, starts, "right") - 1).astype(np.int32)

    @property
    def codes(self) -> Int64Array:
        codes = np.empty(self.rows, np.int64)
        search.copy_codes(self.places, self._relation.index, codes.ctypes.data)
        return codes

    def match(self, codes: Int64Array, pages: Int64Array) -> tuple[Int64Array, Int64Array]:
        at = pages - self.pages[0] if self._dense else np.searchsorted(self.pages, pages)
        first = np.empty(len(codes), np.int64)
        count = np.empty(len(codes), np.int64)
        search.find_codes(codes, at, self.places, self._relation.index, first, count)
        return first, count

    def take(self, rows: Int64Array, columns: Sequence[str], limit_bytes: int | None = None) -> pa.RecordBatch:
        relation = self._relation
        place = np.empty(len(rows), np.int32)
        inside = np.empty(len(rows), np.int32)
        search.resolve_rows(rows, self._guess, relation.rows_per_page, self._bases, place, inside)
        packed, others = relation.split(columns)
        count = len(rows) if limit_bytes is None else self.nested_fitting(others, place, inside, limit_bytes)
        found: dict[str, pa.Array] = {}
        if packed:
            addresses = np.empty(count, np.int64)
            search.find_records(place[:count], inside[:count], self.places, relation.index, addresses)
            found, count = relation.unpacker(packed).unpack(addresses, limit_bytes, all_found=True)
        place, inside = place[:count], inside[:count]
        for name in others:
            if name == relation.version.code_column:
                codes = np.empty(count, np.int64)
                search.take_codes(place, inside, self.places, relation.index, codes)
                found[name] = pa.array(codes).view(relation.schema.field(name).type)
            else:
                found[name] = self.nested(name, place, inside)
        schema = pa.schema([relation.schema.field(name) for name in columns])
        return pa.RecordBatch.from_arrays([found[name] for name in columns], schema=schema)

    def nested(self, name: str, place: _Int32s, inside: _Int32s) -> pa.Array:
        """Values of rows `inside` of run pages `place`, null where that is -1.

        Lists, structs and maps have no kernel: their pages are decoded, each once.
        """
        parts = [pa.nulls(1, self._relation.layout.page_schema.field(name).type)]
        values = np.zeros(len(place), np.int64)  # where they are in the parts; the null stands first
        count = 1
        for column, rows, wanted in self._decoded(name, place, inside):
            parts.append(column.take(pa.array(rows)))
            values[wanted] = np.arange(count, count + len(rows))
            count += len(rows)
        return pa.concat_arrays(parts).take(pa.array(values))

    def nested_fitting(self, names: Iterable[str], place: _Int32s, inside: _Int32s, limit_bytes: int) -> int:
        """How many of these rows, from the first on, have nested values that take no more than `limit_bytes` while they are
        put together; one at least."""
        sizes = np.zeros(len(place), np.int64)
        for name in names:
            if name in self._relation.layout.nested:
                for column, rows, wanted in self._decoded(name, place, inside):
                    sizes[wanted] += sizes_of([column], len(column))[rows]
        return max(1, fitting(_NESTED_COPIES * sizes, limit_bytes)) if sizes.any() else len(place)

    def _decoded(self, name: str, place: _Int32s, inside: _Int32s) -> Iterator[tuple[pa.Array, _Int32s, Int64Array]]:
        """A nested column of each page that rows lie on, which of its values they are, and which of the rows."""
        relation = self._relation
        order = np.argsort(place, kind="stable")
        order = order[np.searchsorted(place[order], 0) :]
        pages, starts = np.unique(place[order], return_index=True)
        for page, wanted in zip(pages.tolist(), np.split(order, starts[1:]), strict=False):
            size = int(relation.page_sizes[self.pages[page]])
            message = pa.foreign_buffer(int(self._addresses[page]), size, self._keep)
            column = pa.ipc.read_record_batch(message, relation.layout.page_schema).column(name)
            yield column, inside[wanted], wanted


class StoredRelation:
    """One version of a table folder, opened for reading.

    `direct` reads past the page cache (honest measurements, no double buffering), `buffered` through it, `mmap` uses pages in
    place. Every page is checked against its checksum: with `mmap` when this relation first touches it, otherwise at every read.
    What is written into a mapped file later is not seen by that check: ask `changed` between tasks, and open the table anew.

    With `local`, a shard is copied there before it is first used, and the copy is used from then on; where there is no room
    for it, the shard is used where it is.
    """

    def __init__(self, folder: Path, version: TableVersion, mode: ReadMode = "mmap", local: LocalCopies | None = None) -> None:
        if mode not in READ_MODES:
            raise ParameterError(f"read mode must be one of {', '.join(READ_MODES)}; got {mode!r}")
        self.version = version
        self.mode = mode
        self.resident = mode == "mmap"
        self.schema, self.key, self.codec = version.schema, version.key, version.codec
        self.rows, self.pages, self.unique = version.rows, version.pages, version.unique
        self.rows_per_page, self.page_bytes = version.rows_per_page, version.page_bytes
        self.total_bytes, self.longest_row_bytes = version.bytes, version.page_bytes  # a row lies on one page
        self.layout = PageLayout(version.stored_schema, version.code_column)
        self._folder = folder / version.folder
        self._index_file = IndexFile(self._folder / "index.arrow", version.index_checksum)
        self._load_index()
        self.files: list[TableFile] = []  # shards
        self._local = local
        self.disk_index: StoredKeyIndex | None = None
        self._counts = ReadCounts()
        self._ahead = 0  # pages before this one have been looked at, in place
        self._reads = self.reads_apart()
        self._whole: StoredRun | None = None
        self._unpackers: dict[tuple[str, ...], Unpacker] = {}
        try:
            self._open_files()
        except BaseException:
            self.close()
            raise

    def _open_files(self) -> None:
        for shard in self.version.shards:
            path, sums = self._folder / shard.file, self.version.index_checksum
            self.files.append(TableFile(path, shard.bytes, self.mode, self._local, sums))
        if self.version.key_index is not None:
            self.disk_index = StoredKeyIndex(self._folder, self.version.key_index, self.mode, self._local, self._counts)
        if self.resident:
            self._map()

    def close(self) -> None:
        """Give up files and memory; runs must not be used any more."""
        self._whole = None
        if self.disk_index is not None:
            self.disk_index.close()
        for file in self.files:
            file.close()
        self._maps: list[mmap.mmap] = []

    def changed(self) -> Path | None:
        """A file in use that was written to, replaced or removed since it was opened: pages that were checked may be others.

        Two microseconds a file. What is written while pages are in use goes unnoticed until this is asked again.
        """
        if self._index_file.changed():
            return self._index_file.path
        for file in self.files:
            if file.changed():
                return file.path
        return self.disk_index.changed() if self.disk_index is not None else None

    def locate(self, codes: Int64Array) -> PageRuns:
        if self.disk_index is not None:
            return self.disk_index.locate(codes)
        first = np.empty(len(codes), np.int64)
        last = np.empty(len(codes), np.int64)
        search.locate_pages(codes, self.firsts, self.lasts, self._guide, self._guide_shift, first, last)
        return PageRuns(first, last)

    def read(self, first: int, count: int) -> StoredRun:
        return self._reads.read(first, count)

    def read_many(self, firsts: Int64Array, counts: Int64Array) -> StoredRun:
        return self._reads.read_many(firsts, counts)

    def reads_apart(self) -> StoredReads:
        """Reads with a buffer of their own: what others read meanwhile does not touch their runs."""
        return StoredReads(self)

    def frames(self, count: int) -> StoredFrames:
        return StoredFrames(self, count)

    def run_in_place(self, pages: Int64Array) -> StoredRun:
        """Pages that were touched, where they are (`mmap` only)."""
        return StoredRun(self, pages, self._addresses[pages], self._maps)

    def run_at(self, pages: Int64Array, addresses: Int64Array, keep: Any) -> StoredRun:
        """Pages that were read to these addresses, which are good while `keep` is."""
        return StoredRun(self, pages, addresses, keep)

    def padded_bytes(self, page: int) -> int:
        """What a page takes in its file."""
        return _end(self, page) - int(self.offsets[page])

    def read_into(self, pages: Int64Array, views: Sequence[memoryview], *, each: bool) -> None:
        """Read pages into the given places, neighbours in one read unless `each` is wanted by itself."""
        self._make_local(np.unique(self._shard[pages]).tolist())
        before = time.perf_counter()
        ranges = _ranges(self._shard, pages) if not each else [(i, i) for i in range(len(pages))]
        for start, end in ranges:
            page = int(pages[start])
            shard = int(self._shard[page])
            self._read_span(shard, int(self.offsets[page]), views[start : end + 1], page)
        self._counts.note(len(ranges), sum(len(view) for view in views), before)
        for page, view in zip(pages.tolist(), views, strict=True):
            self._verify(page, view[: int(self.page_sizes[page])])

    def whole(self) -> StoredRun:
        """All pages in place (`mmap` only). Pages must be `touch`ed before they are used."""
        assert self._whole is not None
        return self._whole

    def touch(self, pages: Int64Array) -> None:
        """Check pages that this relation has not used before, and as many that nobody has asked for yet."""
        fresh = pages[~self._checked[pages]]
        if len(fresh) == 0:
            return
        fresh = np.unique(fresh)
        self._make_local(np.unique(self._shard[fresh]).tolist())
        before = time.perf_counter()
        damaged = self._check(fresh)
        if damaged:
            self._refuse(damaged[0])
        self._counts.note(len(fresh), int(self.page_sizes[fresh].sum()), before)
        if self._local is None:
            self._check_ahead(len(fresh))

    def _check_ahead(self, count: int) -> None:
        """Check the next pages in their order. Rare keys would bring a few new ones into every micro-batch for a long time; so
        all are through after some. It counts as nobody's read, and a damaged page is left for whoever needs it."""
        left = np.flatnonzero(~self._checked[self._ahead :])[:count] + self._ahead
        if len(left):
            self._ahead = int(left[-1]) + 1
            self._check(left)

    def _check(self, pages: Int64Array) -> list[int]:
        """Which of these pages, in order, are not what was written; the others need no check from now on."""
        self._read_ahead(pages)
        shards, begins = self._shard[pages], self.offsets[pages]
        views = {shard: memoryview(self._maps[shard]) for shard in np.unique(shards).tolist()}
        places = zip(shards.tolist(), begins.tolist(), (begins + self.page_sizes[pages]).tolist(), strict=True)
        found = np.array([checksum(views[shard][begin:end]) for shard, begin, end in places], np.int64)
        right = found == self._checksums[pages]
        self._checked[pages[right]] = True
        return [int(page) for page in pages[~right]]

    def split(self, columns: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The columns that are in records, and the others."""
        packed = tuple(name for name in columns if name in self.layout.by_name)
        return packed, tuple(name for name in columns if name not in self.layout.by_name)

    def unpacker(self, packed: tuple[str, ...]) -> Unpacker:
        if packed not in self._unpackers:
            columns = [self.layout.by_name[name] for name in packed]
            self._unpackers[packed] = Unpacker(columns, self.layout, self._with_nulls)
        return self._unpackers[packed]

    def first_pages(self, codes: Int64Array, valid: Any) -> tuple[_Int32s, int]:
        """The first page that may hold each code, -1 where none may or it isn't valid, checked; and how many pages that are.

        For pages that are used in place.
        """
        pages = np.empty(len(codes), np.int32)
        used = np.zeros(self.pages, np.bool_)
        search.locate_first(codes, valid, self.index, self._guide, self._guide_shift, used, pages)
        if (used > self._checked).any():
            self.touch(np.flatnonzero(used))
        return pages, int(np.count_nonzero(used))

    def preceding_pages(self, codes: Int64Array, valid: Any) -> tuple[_Int32s, int]:
        """As `first_pages`, but the last page that begins at or before each code."""
        first = np.empty(len(codes), np.int32)
        pages = np.empty(len(codes), np.int32)
        search.locate_pages(codes, self.firsts, self.lasts, self._guide, self._guide_shift, first, pages)
        pages[~valid] = -1
        used = np.zeros(self.pages, np.bool_)
        used[pages[pages >= 0]] = True
        self.touch(np.flatnonzero(used))
        return pages, int(np.count_nonzero(used))

    def largest_shard(self) -> Path:
        """The file to calibrate the device with."""
        largest = max(range(len(self.files)), key=lambda shard: self.files[shard].size)
        self._make_local([largest])
        return self.files[largest].path

    def take_io_counts(self) -> dict[str, float]:
        """What was read since the last call: reads, bytes, seconds; bytes of files that were made local, and how many
        files now in use could not be."""
        counts = self._counts.take()
        if self._local is not None:
            files = [*self.files, *([self.disk_index.file] if self.disk_index is not None else [])]
            counts["copied_bytes"] = sum(file.take_copied_bytes() for file in files)
            counts["remote_shards"] = sum(file.remote for file in files)
        return counts

    def try_local_again(self) -> None:
        """For shards that found no room so far. Only between tasks: nobody may have addresses into them."""
        self._make_local(range(len(self.files)), again=True)
        if self.disk_index is not None:
            self.disk_index.make_local(again=True)

    def _make_local(self, shards: Iterable[int], *, again: bool = False) -> None:
        """Use a local copy of these shards from now on. Nobody has used them before, so no address into them is lost."""
        for shard in shards:
            if self.files[shard].make_local(self._checked_pieces(shard), again=again) and self.resident:
                self._map_shard(shard)
                self._checked[self._shard == shard] = False  # the pages are other bytes now

    def _checked_pieces(self, shard: int) -> Iterator[memoryview]:
        """All bytes of a shard, to be copied: pages are checked when they are read."""
        pages = np.flatnonzero(self._shard == shard).tolist()
        step = max(1, _COPY_BYTES // self.page_bytes)
        path = self.files[shard].path
        source = os.open(path, os.O_RDONLY)
        try:
            for some in (pages[start : start + step] for start in range(0, len(pages), step)):
                begin, end = int(self.offsets[some[0]]), _end(self, some[-1])
                data = memoryview(bytearray(end - begin))
                read_into(source, begin, [data], path, f"page {self._inside(some[0])}")
                for page in some:
                    at = int(self.offsets[page]) - begin
                    self._verify(page, data[at : at + int(self.page_sizes[page])])
                yield data
        finally:
            os.close(source)

    def _load_index(self) -> None:
        columns = self._index_file.columns
        self._shard, self.offsets, self.page_sizes = columns["shard"], columns["offset"], columns["bytes"]
        self.page_rows, self._checksums = columns["rows"], columns["checksum"]
        self.firsts, self.lasts = columns["first"], columns["last"]
        self.index = self.firsts, self.lasts, columns["codes"], columns["starts"], columns["data"]
        self._make_guide()
        flags = int(np.bitwise_or.reduce(columns["nulls"])) if self.pages else 0
        self._with_nulls = {column.name for column in self.layout.packed if flags & column.null_flag}

    def _make_guide(self) -> None:
        """For `locate`: about one page to a bucket of equally many codes, so that most keys are found without a search."""
        self._guide_shift = np.uint64(0)
        self._guide = np.zeros(1, np.int32)
        if self.pages and self.version.key_index is None:
            span = int(self.lasts[-1]) - int(self.firsts[0])
            shift = max(0, span.bit_length() - (2 * self.pages).bit_length())
            self._guide_shift = np.uint64(shift)
            self._guide = np.zeros((span >> shift) + 1, np.int32)
            search.fill_guide(self.lasts, self.firsts[0], self._guide_shift, self._guide)

    def _map(self) -> None:
        self._maps = [mmap.mmap(-1, ALIGNMENT) for _ in self.files]
        self._addresses = np.empty(self.pages, np.int64)
        self.cards = search.make_cards(self.index, self.page_rows)
        for shard in range(len(self.files)):
            self._map_shard(shard)
        self._checked = np.zeros(self.pages, np.bool_)
        self._whole = StoredRun(self, np.arange(self.pages), self._addresses, self._maps)

    def _map_shard(self, shard: int) -> None:
        if self.files[shard].size:
            self._maps[shard] = self.files[shard].map()
        base = np.frombuffer(self._maps[shard], np.uint8).ctypes.data
        first, last = np.searchsorted(self._shard, [shard, shard + 1])
        self._addresses[first:last] = base + self.offsets[first:last]  # in place: whoever has the arrays sees it
        self.cards["codes"][first:last] = self._addresses[first:last] + self.index[2][first:last]

    def _read_ahead(self, pages: Int64Array) -> None:
        """Ask the system for these pages in as few ranges as there are."""
        ranges = _ranges(self._shard, pages)
        firsts, lasts = pages[[start for start, _ in ranges]], pages[[end for _, end in ranges]]
        shards, begins = self._shard[firsts].tolist(), self.offsets[firsts].tolist()
        for shard, begin, last in zip(shards, begins, lasts.tolist(), strict=True):
            self._maps[shard].madvise(mmap.MADV_WILLNEED, begin, _end(self, last) - begin)

    def read_spans(self, spans: Sequence[_Span], pages: Int64Array, view: memoryview) -> Int64Array:
        """Read spans one behind the other; returns where each page then begins. Every page is checked."""
        self._make_local(np.unique(self._shard[pages]).tolist())
        places = np.empty(len(pages), np.int64)
        place, filled = 0, 0
        before = time.perf_counter()
        for shard, begin, end, first, count in spans:
            self._read_span(shard, begin, [view[place : place + end - begin]], first)
            places[filled : filled + count] = place + (self.offsets[first : first + count] - begin)
            filled += count
            place += end - begin
        self._counts.note(len(spans), place, before)
        for page, start in zip(pages.tolist(), places.tolist(), strict=True):
            self._verify(page, view[start : start + int(self.page_sizes[page])])
        return places

    def _read_span(self, shard: int, begin: int, views: Sequence[memoryview], page: int) -> None:
        self.files[shard].read(begin, views, f"page {self._inside(page)}")

    def _verify(self, page: int, data: memoryview) -> None:
        if checksum(data) != int(self._checksums[page]):
            self._refuse(page)

    def _refuse(self, page: int) -> NoReturn:
        self.files[int(self._shard[page])].refuse(f"page {self._inside(page)}")

    def _inside(self, page: int) -> int:
        """The number of a page in its file."""
        return page - int(np.searchsorted(self._shard, self._shard[page]))


class StoredReads:
    """Reads of a relation into one buffer: a run is good until the next read."""

    def __init__(self, relation: StoredRelation) -> None:
        self._relation = relation
        self._buffer: mmap.mmap | None = None

    def read(self, first: int, count: int) -> StoredRun:
        pages = self._relation.pages
        if first < 0 or count < 1 or first + count > pages:
            raise ParameterError(f"pages {first} to {first + count - 1} do not exist: the table has {pages} pages")
        return self.read_many(np.array([first]), np.array([count]))

    def read_many(self, firsts: Int64Array, counts: Int64Array) -> StoredRun:
        relation = self._relation
        pages = np.concatenate([np.arange(first, first + count) for first, count in zip(firsts, counts, strict=True)])
        if relation.resident:
            relation.touch(pages)
            return relation.run_in_place(pages)
        spans = _spans(relation, firsts, counts)
        buffer = self._buffer_of(sum(end - begin for _, begin, end, _, _ in spans))
        base = np.frombuffer(buffer, np.uint8).ctypes.data
        return relation.run_at(pages, base + relation.read_spans(spans, pages, memoryview(buffer)), buffer)

    def _buffer_of(self, size: int) -> mmap.mmap:
        if self._buffer is None or len(self._buffer) < size:
            self._buffer = mmap.mmap(-1, max(size, ALIGNMENT), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return self._buffer


def _end(relation: StoredRelation, page: int) -> int:
    """Where a page ends in its file, padding included."""
    return -(-(int(relation.offsets[page]) + int(relation.page_sizes[page])) // ALIGNMENT) * ALIGNMENT


def _spans(relation: StoredRelation, firsts: Int64Array, counts: Int64Array) -> list[_Span]:
    """Reads, cut where a shard ends."""
    spans = []
    for first, count in zip(firsts.tolist(), counts.tolist(), strict=True):
        stop = first + count
        while first < stop:
            shard = int(relation._shard[first])
            end = min(stop, int(np.searchsorted(relation._shard, shard, "right")))
            spans.append((shard, int(relation.offsets[first]), _end(relation, end - 1), first, end - first))
            first = end
    return spans


def _ranges(shard: Any, pages: Int64Array) -> list[tuple[int, int]]:
    """Index ranges (both ends inside) of pages that follow each other in one file."""
    breaks = np.flatnonzero((np.diff(pages) != 1) | (np.diff(shard[pages]) != 0))
    starts = np.concatenate(([0], breaks + 1))
    ends = np.concatenate((breaks, [len(pages) - 1]))
    return list(zip(starts.tolist(), ends.tolist(), strict=True))
