"""A version of a master table as a relation: pages read directly, through the page cache, or used in place.

PageIndex      which pages there are, and where            shared by all below; never changes
PageColumns    how columns lie in pages
ShardFiles     pages from the files, checked
MappedPages    pages in place, checked once                only `mmap`
StoredRun      pages in memory: rows are found and taken
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.errors import ParameterError
from millrace.core.protocols import PageRuns
from millrace.relations.files import READ_MODES, ReadMode
from millrace.relations.folder import TableVersion
from millrace.relations.keyindex import StoredKeyIndex
from millrace.relations.localcopies import LocalCopies
from millrace.relations.mapped_pages import MappedPages
from millrace.relations.page_buffers import StoredFrames, StoredReads
from millrace.relations.page_columns import PageColumns
from millrace.relations.page_index import PageIndex
from millrace.relations.shard_files import ShardFiles
from millrace.relations.stored_run import StoredRun
from millrace.relations.table_file import IndexFile


class StoredRelation:
    """One version of a table folder, opened for reading. See `IndexedRelation` and, in mode `mmap`, `ResidentRelation`.

    `direct` reads past the page cache (honest measurements, no double buffering), `buffered` through it, `mmap` uses pages in
    place. Every page is checked against its checksum: with `mmap` when this relation first touches it, otherwise at every read.
    What is written into a mapped file later is not seen by that check: ask `changed` between tasks, and open the table anew.

    With `local`, files are copied there before they are first used: see `ShardFiles`.
    """

    def __init__(self, folder: Path, version: TableVersion, mode: ReadMode = "mmap", local: LocalCopies | None = None) -> None:
        if mode not in READ_MODES:
            raise ParameterError(f"read mode must be one of {', '.join(READ_MODES)}; got {mode!r}")
        self.version = version
        self.mode = mode
        self.resident = mode == "mmap"
        self.schema, self.key, self.codec = version.schema, version.key, version.codec
        self.rows, self.pages, self.unique = version.rows, version.pages, version.unique
        self.page_bytes = version.page_bytes
        self.total_bytes, self.longest_row_bytes = version.bytes, version.page_bytes  # a row lies on one page
        folder = folder / version.folder
        self._local = local
        self._index_file = IndexFile(folder / "index.arrow", version.index_checksum)
        self.page_index = PageIndex.of(self._index_file.columns, version.rows_per_page, sorted_codes=version.key_index is None)
        self.page_columns = PageColumns(version, self.page_index.null_flags)
        self.disk_index: StoredKeyIndex | None = None
        self._mapped: MappedPages | None = None
        self._whole: StoredRun | None = None
        self.shard_files = ShardFiles(folder, version, self.page_index, mode, local)
        try:
            self._open(folder)
        except BaseException:
            self.close()
            raise
        self._reads = self.reads_apart()

    def _open(self, folder: Path) -> None:
        if self.version.key_index is not None:
            self.disk_index = StoredKeyIndex(folder, self.version.key_index, self.mode, self._local, self.shard_files.counts)
        if self.resident:
            self._mapped = MappedPages(self.page_index, self.shard_files)
            self._whole = self.run_at(np.arange(self.pages), self._mapped.addresses, self._mapped.maps)

    def close(self) -> None:
        """Give up files and memory; runs must not be used any more."""
        self._whole = None
        if self._mapped is not None:
            self._mapped.close()
        if self.disk_index is not None:
            self.disk_index.close()
        self.shard_files.close()

    def changed(self) -> Path | None:
        """A file in use that was written to, replaced or removed since it was opened: pages that were checked may be others.

        Two microseconds a file. What is written while pages are in use goes unnoticed until this is asked again.
        """
        if self._index_file.changed():
            return self._index_file.path
        return self.shard_files.changed() or (self.disk_index.changed() if self.disk_index is not None else None)

    def locate(self, codes: Int64Array) -> PageRuns:
        return self.page_index.locate(codes) if self.disk_index is None else self.disk_index.locate(codes)

    def read(self, first: int, count: int) -> StoredRun:
        return self._reads.read(first, count)

    def read_many(self, firsts: Int64Array, counts: Int64Array) -> StoredRun:
        return self._reads.read_many(firsts, counts)

    def reads_apart(self) -> StoredReads:
        """Reads with a buffer of their own: what others read meanwhile does not touch their runs."""
        return StoredReads(self)

    def frames(self, count: int) -> StoredFrames:
        return StoredFrames(self, count)

    @property
    def mapped_pages(self) -> MappedPages:
        """`mmap` only."""
        assert self._mapped is not None
        return self._mapped

    def whole(self) -> StoredRun:
        """All pages in place (`mmap` only). Pages must be `touch`ed before they are used."""
        assert self._whole is not None
        return self._whole

    def touch(self, pages: Int64Array) -> None:
        """Check pages that this relation has not used before (`mmap` only)."""
        self.mapped_pages.touch(pages)

    def run_in_place(self, pages: Int64Array) -> StoredRun:
        """Pages that were touched, where they are (`mmap` only)."""
        mapped = self.mapped_pages
        return self.run_at(pages, mapped.addresses[pages], mapped.maps)

    def run_at(self, pages: Int64Array, addresses: Int64Array, keep: Any) -> StoredRun:
        """Pages that were read to these addresses, which are good while `keep` is."""
        return StoredRun(self.page_index, self.page_columns, pages, addresses, keep)

    def largest_shard(self) -> Path:
        """The file to calibrate the device with."""
        largest = self.shard_files.largest()
        self._make_local(largest)
        return self.shard_files.files[largest].path

    def take_io_counts(self) -> dict[str, float]:
        """What was read since the last call: reads, bytes, seconds; bytes of files that were made local, and how many
        files now in use could not be."""
        counts = self.shard_files.counts.take()
        if self._local is not None:
            files = [*self.shard_files.files, *([self.disk_index.file] if self.disk_index is not None else [])]
            counts["copied_bytes"] = sum(file.take_copied_bytes() for file in files)
            counts["remote_shards"] = sum(file.remote for file in files)
        return counts

    def try_local_again(self) -> None:
        """For files that found no room so far. Only between tasks: nobody may have addresses into them."""
        for shard in range(len(self.shard_files.files)):
            self._make_local(shard, again=True)
        if self.disk_index is not None:
            self.disk_index.make_local(again=True)

    def _make_local(self, shard: int, *, again: bool = False) -> None:
        (self.shard_files if self._mapped is None else self._mapped).make_local(shard, again=again)
