"""Rows of the relation that the stream wants most, in memory: a key code leads to all rows of its key, or to the note that
there are none.

    places   [ . | 2 | . | 0 | ... ]              hash table: entry + 1, or 0; at most half full
    entries  code, block, rows, score, hits       one for each key
    arena    | block | block | (free) | block |   blocks of 8-byte words; free ones are closed up when the end is reached
    block    | bytes, entry | end of each record | record | record ...      records as in `relations.layout`

An entry has all rows of its key, so a look-up that finds the entry needs no page. `score` is how many hits the key is expected
to have in a period of stream tuples. Hits are counted, and averaged into the score at the end of each period, so that old hits
count less and less. A key takes the place of another only if its score is higher.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from millrace.core.arrays import FloatArray, Int32Array, Int64Array
from millrace.core.compiled import inlined, kernel
from millrace.core.memoryaccess import copy_bytes
from millrace.relations.layout import PageLayout
from millrace.relations.row_records import Unpacker, pack

_USED, _END, _FREED, _POOL, _FREE_ENTRY, _EVICTED, _LIVE = range(7)  # of the state
_STATES = 7
_ENTRY_BYTES = 8 + 8 + 4 + 4 + 4  # code, block, rows, score, hits
_PLACES_BYTES = 4 * 4  # of an entry, at most
FIRST_THRESHOLD = 2
_POOL_SHARE = 16  # of the entries, the least wanted, stand ready to make room
_HEAD_BYTES = 8  # of a block
_CHUNK = 4096  # keys that are copied out at a time
_DONE, _POOL_EMPTY, _CLOSE_UP = 0, 1, 2  # why a kernel stopped


class HotKeys(NamedTuple):
    """Keys that may come in, the highest score first: key i has the next `rows[i]` rows of a batch."""

    codes: Int64Array
    scores: FloatArray
    rows: Int64Array


class HotRows:
    """Rows by key, in at most `memory_bytes`. `schema`: the columns that are kept of a row; `row_bytes`: of a row, about.

    >>> hot = HotRows(pa.schema([("price", pa.int64())]), memory_bytes=4096, row_bytes=8)
    >>> rows = pa.record_batch({"price": [10, 20, 21]})
    >>> hot.put(HotKeys(np.array([7, 9]), np.array([5.0, 3.0]), np.array([1, 2])), rows)
    2
    >>> entries = hot.find(np.array([9, 8]))
    >>> entries.tolist(), hot.rows_of(entries).tolist()
    ([1, -1], [2, 0])
    >>> tuples, records = hot.pairs(entries[:1])
    >>> tuples.tolist(), hot.take(records, ["price"])["price"].to_pylist()
    ([0, 0], [20, 21])
    """

    def __init__(self, schema: pa.Schema, memory_bytes: int, row_bytes: int) -> None:
        self.schema = schema
        self.memory_bytes = memory_bytes
        self._layout = PageLayout(schema, "")
        fixed = 8 * _STATES
        self.capacity = self.keys_in(memory_bytes, row_bytes)
        buckets = 1 << (2 * self.capacity - 1).bit_length()
        self._code = np.zeros(self.capacity, np.int64)
        self._block = np.zeros(self.capacity, np.int64)
        self._rows = np.zeros(self.capacity, np.int32)
        self._score = np.zeros(self.capacity, np.float32)
        self._hits = np.zeros(self.capacity, np.uint32)
        self._places = np.zeros(min(buckets, 1 << 30), np.int32)
        self._state = np.zeros(_STATES, np.int64)
        self._pool = np.zeros(0, np.int32)
        used = fixed + self.capacity * (_ENTRY_BYTES + _POOL_BYTES) + self._places.nbytes
        self._arena = np.zeros(max(0, memory_bytes - used) // 8, np.int64)
        # Bytes of a key's rows, at most: a key must not push out many others.
        self.longest_block = max(8 * len(self._arena) // 16, min(8 * len(self._arena), 4096))
        self.period = 16 * self.capacity  # stream tuples
        self.threshold = FIRST_THRESHOLD  # of a front stage that finds its own; goes on with the rows
        self.unchecked = 0  # stream tuples since it was looked at
        self.handed_over = False  # whoever takes these rows need not leave them as they are
        self._into_period = 0
        self._flags = 0  # columns that have nulls
        self._most_rows = 0  # of a key
        self._unpackers: dict[tuple[tuple[str, ...], int], Unpacker] = {}
        self.clear()

    @staticmethod
    def serves(schema: pa.Schema) -> bool:
        """Whether rows of this schema can be kept: lists, structs and maps can't."""
        return not PageLayout(schema, "").nested

    @staticmethod
    def keys_in(memory_bytes: int, row_bytes: int) -> int:
        """How many keys have room in so much memory, with one row each."""
        fixed = HotRows.bytes_for(0, row_bytes)
        return int(max(1, (memory_bytes - fixed) // (HotRows.bytes_for(1, row_bytes) - fixed)))

    @staticmethod
    def bytes_for(keys: int, row_bytes: int) -> int:
        """Memory in which so many keys have room, with one row each."""
        return 8 * _STATES + keys * (_ENTRY_BYTES + _PLACES_BYTES + _POOL_BYTES + int(block_bytes(row_bytes)))

    @staticmethod
    def least_bytes(page_bytes: int) -> int:
        """Memory for one page of rows."""
        return 8 * _STATES + 2 * page_bytes + 64 * (_ENTRY_BYTES + _PLACES_BYTES + _POOL_BYTES)

    @property
    def nbytes(self) -> int:
        arrays = (self._code, self._block, self._rows, self._score, self._hits, self._places, self._state, self._arena)
        return sum(array.nbytes for array in arrays) + self.capacity * _POOL_BYTES

    @property
    def keys(self) -> int:
        """Keys that are here, absent keys included."""
        return int(self._state[_LIVE])

    @property
    def full(self) -> bool:
        """Whether a key can come in only if another leaves."""
        spare = 8 * len(self._arena) - int(self._state[_END]) + int(self._state[_FREED])
        return self.keys >= self.capacity or spare < 16 * max(64, self._used_bytes // max(1, self.keys))

    @property
    def bar(self) -> float:
        """A key with this score or a lower one can't come in now, as far as that is known."""
        at = int(self._state[_POOL])
        if at >= len(self._pool) or not self.full:
            return -np.inf
        victim = self._pool[at]
        if self._rows[victim] < 0:
            return -np.inf
        return float(self._score[victim] * (1 - self._progress / 2) + 0.5 * self._hits[victim])

    @property
    def _used_bytes(self) -> int:
        return int(self._state[_END] - self._state[_FREED])

    def clear(self) -> None:
        """Forget all keys."""
        self._places[:] = 0
        self._state[:] = 0
        self._state[_FREE_ENTRY] = -1
        self._rows[:] = -1
        self._pool = np.zeros(0, np.int32)

    def find(self, codes: Int64Array) -> Int32Array:
        """The entry of each code, or -1."""
        entries = np.empty(len(codes), np.int32)
        _find(codes, self._places, self._code, entries)
        return entries

    def rows_of(self, entries: Int32Array) -> Int64Array:
        """Rows of each entry; none for -1, and for an absent key."""
        return np.where(entries >= 0, self._rows[entries], 0).astype(np.int64)

    def note_hits(self, entries: Int32Array, tuples: int) -> None:
        """So many tuples came, and these entries answered some of them."""
        _count(entries, self._hits)
        self._into_period += tuples
        if self._into_period >= self.period:
            self._into_period -= self.period
            self._score += self._hits
            self._score /= 2
            self._hits[:] = 0
            self._pool = self._pool[:0]

    @property
    def one_row(self) -> bool:
        """Whether no key has more than one row, as far as this was ever seen."""
        return self._most_rows <= 1

    def pairs(self, entries: Int32Array) -> tuple[Int64Array, Int64Array]:
        """For each row of these entries: which entry of the list, and the address of its record. An address holds until keys
        come in or `clear`."""
        most = len(entries) if self.one_row else int(self._rows[entries].sum())
        tuples, records = np.empty(most, np.int64), np.empty(most, np.int64)
        count = _addresses(
            entries, self._block, self._rows, self._arena.view(np.int32), self._arena.ctypes.data, tuples, records
        )
        return tuples[:count], records[:count]

    def take(self, records: Int64Array, columns: Sequence[str], limit_bytes: int | None = None) -> pa.RecordBatch:
        """The records at these addresses, as a run of pages does it."""
        name = (tuple(columns), self._flags)
        if name not in self._unpackers:
            packed = self._layout.by_name
            nulls = {column.name for column in self._layout.packed if self._flags & column.null_flag}
            self._unpackers[name] = Unpacker([packed[column] for column in columns], self._layout, nulls)
        found, _ = self._unpackers[name].unpack(records, limit_bytes, all_found=True)
        schema = pa.schema([self.schema.field(column) for column in columns])
        return pa.RecordBatch.from_arrays([found[column] for column in columns], schema=schema)

    def put(self, keys: HotKeys, rows: pa.RecordBatch | None) -> int:
        """Take keys in, none of which is here; returns how many came in. A key of no rows is absent from the relation. Keys
        with a higher score come first. A key whose score is not above that of a key in its way stays out."""
        records, flags = pack(rows, self._layout) if rows is not None and len(self.schema) else (None, 0)
        if flags & ~self._flags:
            self._flags |= flags
        self._most_rows = max(self._most_rows, int(keys.rows.max(initial=0)))
        count = int(keys.rows.sum())
        starts = np.zeros(count + 1, np.int32)
        address = 0
        if records is not None:
            starts = np.frombuffer(records.buffers()[1], np.int32)[: count + 1]
            address = records.buffers()[2].address
        before, done, first = self.keys, 0, 0
        evicted = int(self._state[_EVICTED])
        closed = False
        while done < len(keys.codes):
            done, first, why = _put(
                keys.codes, keys.scores, keys.rows, done, first, starts, address, self.longest_block, self._progress,
                self._entries, self._places, self._arena.view(np.int32), self._arena.ctypes.data, self._state, self._pool,
            )  # fmt: skip
            if why == _POOL_EMPTY:
                self._fill_pool()
                if not len(self._pool):
                    break
            elif why == _CLOSE_UP:
                if closed and not self._state[_FREED]:
                    break
                _close_up(self._block, self._arena.view(np.int32), self._arena.ctypes.data, self._state)
                closed = True
        return self.keys - before + int(self._state[_EVICTED]) - evicted

    @property
    def _entries(self) -> Any:
        return self._code, self._block, self._rows, self._score, self._hits

    @property
    def _progress(self) -> float:
        """How much of the period is over, 0 to 1."""
        return min(1.0, self._into_period / self.period)

    def scores(self) -> FloatArray:
        """The score of each key that is here, as of now."""
        used = int(self._state[_USED])
        return self._estimates(used)[self._rows[:used] >= 0]

    def take_evictions(self) -> int:
        """Keys that left for others since the last call."""
        count, self._state[_EVICTED] = int(self._state[_EVICTED]), 0
        return count

    def chunks(self) -> Iterator[tuple[HotKeys, pa.RecordBatch | None]]:
        """All keys with their rows, the most wanted first, some at a time."""
        used = int(self._state[_USED])
        estimates = self._estimates(used)
        live = np.flatnonzero(self._rows[:used] >= 0)
        order = live[np.argsort(-estimates[live], kind="stable")].astype(np.int32)
        for start in range(0, len(order), _CHUNK):
            some = order[start : start + _CHUNK]
            _, records = self.pairs(some)
            rows = self.take(records, self.schema.names) if len(self.schema) else None
            yield HotKeys(self._code[some], estimates[some], self._rows[some].astype(np.int64)), rows

    def move_to(self, other: HotRows) -> None:
        """Put the keys that are here into another, the most wanted first."""
        other.threshold = self.threshold
        for keys, rows in self.chunks():
            other.put(keys._replace(scores=keys.scores * (other.period / self.period)), rows)
            if other.full:
                break

    def let_go(self) -> None:
        """Give the memory back. These rows are not used any more."""
        self.clear()
        self._code = self._block = self._arena = np.zeros(0, np.int64)
        self._rows = self._places = np.zeros(0, np.int32)
        self._score, self._hits = np.zeros(0, np.float32), np.zeros(0, np.uint32)
        self.capacity = 0

    def _estimates(self, used: int) -> FloatArray:
        part = self._progress / 2
        return np.asarray(self._score[:used] * (1 - part) + 0.5 * self._hits[:used], np.float64)

    def _fill_pool(self) -> None:
        """The entries that are wanted least, the least wanted first."""
        used = int(self._state[_USED])
        estimates = np.where(self._rows[:used] >= 0, self._estimates(used), np.inf)
        count = min(used, max(16, used // _POOL_SHARE))
        least = np.argpartition(estimates, count - 1)[:count] if count else np.zeros(0, np.int64)
        least = least[np.argsort(estimates[least], kind="stable")]
        self._pool = least[self._rows[least] >= 0].astype(np.int32)
        self._state[_POOL] = 0


_POOL_BYTES = 1 + 8 + 1  # of an entry: its part of the pool, and of what is sorted to fill the pool


def block_bytes(record_bytes: int, rows: int = 1) -> int:
    """Bytes of a block with the records of a key."""
    return _HEAD_BYTES + -(-(4 * rows + record_bytes * rows) // 8) * 8


@inlined
def _bucket(code: Any, places: Any) -> Any:
    product = np.uint64(code) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((product ^ (product >> np.uint64(29))) >> np.uint64(7)) & (len(places) - 1)


@kernel
def _find(codes: Any, places: Any, known: Any, entries: Any) -> None:
    for i in range(len(codes)):  # by itself: the processor then waits for many places at a time
        entries[i] = places[_bucket(codes[i], places)] - 1
    for i in range(len(codes)):
        if entries[i] < 0 or known[entries[i]] == codes[i]:
            continue
        at = (_bucket(codes[i], places) + 1) & (len(places) - 1)
        entries[i] = -1
        while places[at] != 0:
            if known[places[at] - 1] == codes[i]:
                entries[i] = places[at] - 1
                break
            at = (at + 1) & (len(places) - 1)


@kernel
def _count(entries: Any, hits: Any) -> None:
    for i in range(len(entries)):
        hits[entries[i]] += np.uint32(1)


@kernel
def _addresses(entries: Any, block: Any, rows: Any, words: Any, base: Any, tuples: Any, records: Any) -> Any:
    at = 0
    for i in range(len(entries)):
        entry = entries[i]
        count = rows[entry]
        if count <= 0:
            continue
        head = block[entry] // 4 + 2
        start = base + block[entry] + _HEAD_BYTES + 4 * np.int64(count)
        before = np.int64(0)
        for row in range(count):
            tuples[at] = i
            records[at] = start + before
            if count > 1:  # the only record begins where it begins: its block need not come into the cache yet
                before = np.int64(words[head + row])
            at += 1
    return at


@kernel
def _remove(entry: Any, places: Any, known: Any) -> None:
    """Take an entry out of the hash table, and move those behind it up that would not be found any more."""
    mask = len(places) - 1
    at = _bucket(known[entry], places)
    while places[at] != entry + 1:
        at = (at + 1) & mask
    after = (at + 1) & mask
    while places[after] != 0:
        home = _bucket(known[places[after] - 1], places)
        if ((after - home) & mask) >= ((after - at) & mask):
            places[at] = places[after]
            at = after
        after = (after + 1) & mask
    places[at] = 0


@kernel
def _put(
    codes: Any, scores: Any, counts: Any, done: Any, first: Any, starts: Any, source: Any, longest: Any, progress: Any,
    entries: Any, places: Any, words: Any, base: Any, state: Any, pool: Any,
) -> Any:  # fmt: skip
    """Take in keys from `done` on, whose rows begin at `first`; returns where it stopped, and why."""
    code, block, rows, score, hits = entries
    mask = len(places) - 1
    room = np.int64(4) * len(words)
    for i in range(done, len(codes)):
        count = counts[i]
        size = np.int64(0)
        if count > 0:
            data = np.int64(starts[first + count]) - np.int64(starts[first])
            size = (_HEAD_BYTES + 4 * count + data + 7) // 8 * 8
        if size > longest:
            first += count
            continue
        refused = False
        while (state[_FREE_ENTRY] < 0 and state[_USED] == len(code)) or room - state[_END] + state[_FREED] < size:
            if state[_POOL] >= len(pool):
                return i, first, _POOL_EMPTY
            victim = pool[state[_POOL]]
            if rows[victim] >= 0:
                wanted = score[victim] * (1 - progress / 2) + 0.5 * hits[victim]
                if wanted >= scores[i]:
                    refused = True
                    break
                _remove(victim, places, code)
                if rows[victim] > 0:
                    head = block[victim] // 4
                    state[_FREED] += words[head]
                    words[head + 1] = -1
                rows[victim] = -1
                block[victim] = state[_FREE_ENTRY]
                state[_FREE_ENTRY] = victim
                state[_EVICTED] += 1
                state[_LIVE] -= 1
            state[_POOL] += 1
        if refused:
            first += count
            continue
        if state[_END] + size > room:
            return i, first, _CLOSE_UP
        if state[_FREE_ENTRY] >= 0:
            entry = state[_FREE_ENTRY]
            state[_FREE_ENTRY] = block[entry]
        else:
            entry = state[_USED]
            state[_USED] += 1
        code[entry], score[entry], hits[entry], rows[entry], block[entry] = codes[i], scores[i], 0, count, -1
        state[_LIVE] += 1
        if count > 0:
            place = state[_END]
            head = place // 4
            words[head], words[head + 1] = size, entry
            for row in range(count):
                words[head + 2 + row] = starts[first + row + 1] - starts[first]
            if source != 0:
                copy_bytes(base + place + _HEAD_BYTES + 4 * count, source + np.int64(starts[first]), data)
            block[entry] = place
            state[_END] += size
        at = _bucket(codes[i], places)
        while places[at] != 0:
            at = (at + 1) & mask
        places[at] = entry + 1
        first += count
    return len(codes), first, _DONE


@kernel
def _close_up(block: Any, words: Any, base: Any, state: Any) -> None:
    """Move blocks to the front, over those that are free."""
    at = np.int64(0)
    to = np.int64(0)
    while at < state[_END]:
        size = np.int64(words[at // 4])
        entry = words[at // 4 + 1]
        if entry >= 0:
            if to != at:
                for word in range(size // 4):
                    words[to // 4 + word] = words[at // 4 + word]
                block[entry] = to
            to += size
        at += size
    state[_END] = to
    state[_FREED] = 0
