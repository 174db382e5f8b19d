"""The index of a table whose rows are in no order of codes: key code -> pages, in blocks on disk.

    keys.index    | block | block | block | ... | hot block | hot block | ...     4 KiB each
    block         codes | first pages | last pages, if any key has rows on several      of at most so many keys, sorted by code
    hot block     the same, of the keys that are wanted most: those of the first pages, in that order
    keys.arrow    of every block: its first code, its keys, its checksum; held in memory

A look-up finds the block by the first codes, reads it, and searches it. A join holds as many hot keys in memory as it likes;
those, once read, cost no read. All blocks that a batch of keys needs are read in ascending order, neighbours in one read.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from millrace.core.arrays import BoolArray, Int64Array
from millrace.core.budget import Budget
from millrace.core.errors import DamagedTableError
from millrace.core.protocols import PageRuns
from millrace.core.step import StepCounts
from millrace.relations import index_blocks as blocks
from millrace.relations.files import LargeWrites, ReadMode
from millrace.relations.frequency import KeyEntries, read_keys
from millrace.relations.localcopies import LocalCopies
from millrace.relations.shard import checksum
from millrace.relations.table_file import IndexFile, ReadCounts, TableFile

BLOCK_BYTES = 4096
FILE, TOP_FILE = "keys.index", "keys.arrow"
_HOT_SHARE = 4  # of the keys, one in so many is in a hot block too
_READ_BLOCKS = 16  # read at once
_GAP_BLOCKS = 8  # not wanted, but read through: cheaper than another read
_MERGE_KEYS = 1 << 20  # sorted at a time while the index is written


@dataclass(frozen=True)
class KeyIndexInfo:
    """What a finished index is; kept in the manifest."""

    keys: int
    blocks: int
    hot_keys: int
    hot_blocks: int
    spans: bool  # some keys have rows on several pages
    checksum: str  # of the file with the first codes

    @property
    def bytes(self) -> int:
        return (self.blocks + self.hot_blocks) * BLOCK_BYTES

    @property
    def key_bytes(self) -> int:
        return 16 if self.spans else 12

    @property
    def block_keys(self) -> int:
        return BLOCK_BYTES // self.key_bytes

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


# --- writing


def write_key_index(folder: Path, shards: Sequence[tuple[Path, int]]) -> KeyIndexInfo:
    """Put the keys of all shards together; `shards` are their files, as `write_keys` left them, and their pages."""
    parts = [read_keys(path) for path, _ in shards]
    bases = np.concatenate(([0], np.cumsum([pages for _, pages in shards])))[:-1].tolist()
    keys = sum(len(part.codes) for part in parts)
    spans = any(bool((part.firsts != part.lasts).any()) for part in parts)
    with open(folder / FILE, "wb", buffering=0) as file:
        writes = LargeWrites(file.fileno())
        writer = _BlockWriter(writes, spans)
        for entries in _merged(parts, bases):
            writer.write(entries)
        writer.end()
        sorted_blocks, sorted_keys = writer.blocks, writer.keys
        for entries in _hottest(parts, bases, -(-keys // _HOT_SHARE)):
            writer.write(entries)
        writer.end()
        writes.finish()
        os.fsync(file.fileno())
    top = writer.top()
    (folder / TOP_FILE).write_bytes(top)
    return KeyIndexInfo(
        keys=sorted_keys,
        blocks=sorted_blocks,
        hot_keys=writer.keys - sorted_keys,
        hot_blocks=writer.blocks - sorted_blocks,
        spans=spans,
        checksum=str(xxhash.xxh3_64_hexdigest(top)),
    )


def _merged(parts: Sequence[KeyEntries], bases: Sequence[int]) -> Iterator[KeyEntries]:
    """All keys in the order of their codes, some at a time."""
    keys = sum(len(part.codes) for part in parts)
    pieces = -(-keys // _MERGE_KEYS)
    sample = np.sort(np.concatenate([part.codes[:: max(1, keys >> 16)] for part in parts] or [np.zeros(0, np.int64)]))
    cuts = np.unique(sample[[len(sample) * piece // pieces for piece in range(1, pieces)]]) if pieces > 1 else sample[:0]
    places = [np.concatenate(([0], np.searchsorted(part.codes, cuts), [len(part.codes)])) for part in parts]
    for piece in range(len(cuts) + 1):
        some = [
            (part.codes[at[piece] : at[piece + 1]], part.firsts[at[piece] : at[piece + 1]] + base,
             part.lasts[at[piece] : at[piece + 1]] + base)
            for part, at, base in zip(parts, places, bases, strict=True)
        ]  # fmt: skip
        codes, firsts, lasts = (np.concatenate(columns) for columns in zip(*some, strict=True))
        order = np.argsort(codes, kind="stable")
        yield KeyEntries(codes[order], firsts[order], lasts[order])


def _hottest(parts: Sequence[KeyEntries], bases: Sequence[int], wanted: int) -> Iterator[KeyEntries]:
    """The keys of the first pages, in the order of pages."""
    for part, base in zip(parts, bases, strict=True):
        if wanted:
            order = np.argsort(part.firsts, kind="stable")[:wanted]
            yield KeyEntries(part.codes[order], part.firsts[order] + base, part.lasts[order] + base)
            wanted -= len(order)


class _BlockWriter:
    def __init__(self, file: LargeWrites, spans: bool) -> None:
        self._file = file
        self._spans = spans
        self._block_keys = BLOCK_BYTES // (16 if spans else 12)
        self._left = KeyEntries(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))
        self._rows: list[tuple[int, int, int]] = []
        self.keys = 0

    @property
    def blocks(self) -> int:
        return len(self._rows)

    def write(self, entries: KeyEntries) -> None:
        """Whole blocks of what is there; the rest waits for more."""
        together = KeyEntries(*(np.concatenate(pair) for pair in zip(self._left, entries, strict=True)))
        whole = len(together.codes) - len(together.codes) % self._block_keys
        self._put(KeyEntries(*(column[:whole] for column in together)))
        self._left = KeyEntries(*(column[whole:] for column in together))

    def end(self) -> None:
        self._put(self._left)
        self._left = KeyEntries(*(column[:0] for column in self._left))

    def _put(self, entries: KeyEntries) -> None:
        size = self._block_keys
        for start in range(0, len(entries.codes), size):
            codes, firsts, lasts = (column[start : start + size] for column in entries)
            block = np.zeros(BLOCK_BYTES, np.uint8)
            block[: 8 * len(codes)] = codes.astype(np.int64).view(np.uint8)
            block[8 * size : 8 * size + 4 * len(codes)] = firsts.astype(np.int32).view(np.uint8)
            if self._spans:
                block[12 * size : 12 * size + 4 * len(codes)] = lasts.astype(np.int32).view(np.uint8)
            self._file.write(block.tobytes())
            self._rows.append((int(codes[0]), len(codes), checksum(block)))
            self.keys += len(codes)

    def top(self) -> bytes:
        columns = list(zip(*self._rows, strict=True)) if self._rows else [(), (), ()]
        kinds = (pa.int64(), pa.int32(), pa.int64())
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, ["first", "keys", "checksum"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return bytes(sink.getvalue().to_pybytes())


# --- reading


class StoredKeyIndex:
    """The index of one version, opened for reading. See `DiskIndex`."""

    def __init__(self, folder: Path, info: KeyIndexInfo, mode: ReadMode, local: LocalCopies | None, counts: ReadCounts) -> None:
        self.info = info
        self.resident = mode == "mmap"
        self._top = IndexFile(folder / TOP_FILE, info.checksum)
        self.firsts, self.sizes = self._top.columns["first"][: info.blocks], self._top.columns["keys"]
        self._checksums = self._top.columns["checksum"]
        self.file = TableFile(folder / FILE, info.bytes, mode, local, info.checksum)
        self.read_blocks = min(_READ_BLOCKS, max(1, info.blocks + info.hot_blocks))
        self.least_bytes = 8 * info.blocks + (0 if self.resident else self.read_blocks * BLOCK_BYTES)
        self.hot_key_bytes = -(-info.key_bytes * 4 // 3)  # three of four places of the hash table are taken
        self.hot_keys = info.hot_keys
        self._plain: StoredLookup | None = None
        self._counts = counts
        self._map: mmap.mmap | None = None
        self._map_file()

    def close(self) -> None:
        self.file.close()
        self._map = self._plain = None

    def changed(self) -> Path | None:
        """A file of the index that is not what it was when it was opened."""
        return next((file.path for file in (self._top, self.file) if file.changed()), None)

    def lookup(self, budget: Budget, hot_keys: int) -> StoredLookup:
        self.make_local()
        return StoredLookup(self, budget, hot_keys)

    def make_local(self, *, again: bool = False) -> None:
        """Use a copy on this machine from now on, if there is room for one: see `TableFile.make_local`."""
        if self.file.make_local(self._checked_blocks(), again=again):
            self._map_file()

    def _checked_blocks(self) -> Iterator[bytes]:
        """All blocks of the file in use, each of them checked when it is read."""
        with open(self.file.path, "rb") as file:
            for block in range(self.info.blocks + self.info.hot_blocks):
                data = file.read(BLOCK_BYTES)
                self._verify(block, memoryview(data))
                yield data

    def _map_file(self) -> None:
        if self.resident and self.info.bytes:
            self._map = self.file.map()
            self.address = np.frombuffer(self._map, np.uint8).ctypes.data
            self._checked = np.zeros(self.info.blocks + self.info.hot_blocks, np.bool_)

    def locate(self, codes: Int64Array) -> PageRuns:
        """Without any part of it in memory, and without a budget: what is not part of a join asks so."""
        if self._plain is None:
            self._plain = self.lookup(Budget(self.least_bytes + BLOCK_BYTES), 0)
        return self._plain.locate(codes)

    def read(self, first: int, count: int, buffer: mmap.mmap, wanted: Int64Array) -> None:
        """Read blocks into the buffer, and check those that are wanted."""
        before = time.perf_counter()
        view = memoryview(buffer)[: count * BLOCK_BYTES]
        self.file.read(first * BLOCK_BYTES, [view], f"block {first}")
        for block in wanted.tolist():
            self._verify(block, view[(block - first) * BLOCK_BYTES : (block - first + 1) * BLOCK_BYTES])
        self._counts.note(1, count * BLOCK_BYTES, before)

    def touch(self, wanted: Int64Array) -> None:
        """Check blocks that are used in place for the first time."""
        fresh = wanted[~self._checked[wanted]]
        if len(fresh):
            before = time.perf_counter()
            view = memoryview(self._map)  # type: ignore[arg-type]
            for block in fresh.tolist():
                self._verify(block, view[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES])
            self._checked[fresh] = True
            self._counts.note(len(fresh), len(fresh) * BLOCK_BYTES, before)

    def damage(self) -> list[str]:
        """What is wrong, block by block."""
        problems = []
        with open(self.file.path, "rb") as file:
            for block in range(self.info.blocks + self.info.hot_blocks):
                try:
                    self._verify(block, memoryview(file.read(BLOCK_BYTES)))
                except DamagedTableError as damaged:
                    problems.append(str(damaged))
        return problems

    def _verify(self, block: int, data: memoryview) -> None:
        if checksum(data) != int(self._checksums[block]):
            self.file.refuse(f"block {block}")


class StoredLookup:
    """Look-ups of one join: blocks are read into a buffer of its own, and hot keys stay. See `KeyLookup`."""

    def __init__(self, index: StoredKeyIndex, budget: Budget, hot_keys: int) -> None:
        self._index = index
        budget.reserve("index top level", 8 * index.info.blocks)
        self._buffer: mmap.mmap | None = None
        if not index.resident:
            size = index.read_blocks * BLOCK_BYTES
            budget.reserve("index blocks", size)
            self._buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._address = np.frombuffer(self._buffer, np.uint8).ctypes.data
        self._hot_keys = hot_keys if hot_keys >= 3 else 0  # fewer would leave no place free
        places = self._hot_keys * index.hot_key_bytes // index.info.key_bytes
        self._hot = blocks.HotKeys(
            budget.array("hot keys", places, np.int64),
            budget.array("hot first pages", places, np.int32),
            budget.array("hot last pages", places if index.info.spans else 0, np.int32),
        )
        self._hot.firsts[:] = -1
        self._held = 0  # hot keys in memory by now
        self._reads = self._blocks = 0

    def known(self, codes: Int64Array) -> BoolArray:
        self._warm_up()
        if self._held == self._index.info.keys:
            return np.ones(len(codes), np.bool_)
        if not self._hot_keys:
            return np.zeros(len(codes), np.bool_)
        pages = np.empty((2, len(codes)), np.int64)
        return np.asarray(blocks.find_hot(codes, self._hot, pages[0], pages[1]))

    def locate(self, codes: Int64Array) -> PageRuns:
        first, last = np.zeros(len(codes), np.int64), np.full(len(codes), -1)
        wanted = np.arange(len(codes))
        if self._hot_keys and len(codes):
            self._warm_up()
            wanted = wanted[~blocks.find_hot(codes, self._hot, first, last)]
        if len(wanted) and self._held < self._index.info.keys:
            self._search(codes, wanted, first, last)
        return PageRuns(first, last)

    def counts(self) -> StepCounts:
        reads, count = self._reads, self._blocks
        self._reads = self._blocks = 0
        return StepCounts(index_reads=count, seeks=reads, bytes_read=count * BLOCK_BYTES)

    def _warm_up(self) -> None:
        """Read the hot keys; a read that fails leaves those before it, and the next look-up goes on."""
        info = self._index.info
        while self._held < self._hot_keys:
            block = info.blocks + self._held // info.block_keys
            end = info.blocks + -(-self._hot_keys // info.block_keys)
            count = min(self._index.read_blocks, end - block)
            address = self._fetch(block, count, np.arange(block, block + count))
            for number in range(block, block + count):
                keys = min(int(self._index.sizes[number]), self._hot_keys - self._held)
                blocks.add_hot(address + (number - block) * BLOCK_BYTES, keys, info.block_keys, info.spans, self._hot)
                self._held += keys

    def _search(self, codes: Int64Array, wanted: Int64Array, first: Int64Array, last: Int64Array) -> None:
        """Look codes `wanted` up in the blocks that may hold them."""
        index = self._index
        numbers = np.searchsorted(index.firsts, codes[wanted], "right") - 1
        order = np.argsort(numbers, kind="stable")
        order = order[np.searchsorted(numbers[order], 0) :]  # codes below the first are absent
        wanted, numbers = wanted[order], numbers[order]
        distinct = np.unique(numbers)
        if not len(distinct):
            return
        if index.resident:
            reads = [(0, index.info.blocks, 0, len(distinct))]
        else:
            reads = _planned(distinct, index.read_blocks)
        for begin, count, low, high in reads:
            address = self._fetch(begin, count, distinct[low:high])
            inside = slice(*np.searchsorted(numbers, [distinct[low], distinct[high - 1] + 1]).tolist())
            blocks.search_blocks(
                codes, wanted[inside], numbers[inside], begin, address, index.sizes, index.info.block_keys, index.info.spans,
                first, last,
            )  # fmt: skip

    def _fetch(self, first: int, count: int, wanted: Int64Array) -> int:
        """The address of blocks from `first` on, of which some are wanted."""
        if self._buffer is None:
            self._index.touch(wanted)
            self._blocks += len(wanted)
            return int(self._index.address) + first * BLOCK_BYTES
        self._index.read(first, count, self._buffer, wanted)
        self._reads += 1
        self._blocks += count
        return int(self._address)


def _planned(wanted: Int64Array, most: int) -> list[tuple[int, int, int, int]]:
    """Reads as (first block, blocks, and the range of `wanted` that they hold)."""
    reads = []
    starts = np.flatnonzero(np.diff(wanted, prepend=-_GAP_BLOCKS - 2) > _GAP_BLOCKS + 1)
    for low, end in zip(starts.tolist(), [*starts[1:].tolist(), len(wanted)], strict=True):
        while low < end:
            high = min(end, int(np.searchsorted(wanted, wanted[low] + most)))
            reads.append((int(wanted[low]), int(wanted[high - 1] - wanted[low]) + 1, low, high))
            low = high
    return reads
