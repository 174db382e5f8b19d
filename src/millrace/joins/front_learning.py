"""How a front stage learns: it watches what the back stage finds, and takes in the rows of keys that come often.

A row that several waiting tuples meet at once has a key that comes often. Where a key may have several rows, the rows that one
tuple meets are collected until the tuple leaves, because then it has met all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from millrace.core.arrays import BoolArray, FloatArray, Int64Array
from millrace.core.compiled import kernel
from millrace.core.protocols import PageRun, Relation
from millrace.core.rowbytes import sizes_of
from millrace.joins.hot_rows import HotRows
from millrace.joins.recent_keys import RecentKeys
from millrace.structures.window import Window

_MOST_COLLECTED = 256  # keys whose rows are collected at a time


class Learner(Protocol):
    """The front stage, as far as learning goes."""

    hot: HotRows
    recent: RecentKeys | None
    threshold: int
    now: int
    since: int

    @property
    def can_change(self) -> bool: ...

    @property
    def one_row(self) -> bool: ...

    @property
    def columns(self) -> list[str]: ...

    @property
    def collect_bytes(self) -> int: ...

    @property
    def relation(self) -> Relation: ...

    def scored(self, counts: Int64Array, span: int) -> FloatArray: ...

    def put(self, codes: Int64Array, scores: FloatArray, rows: Int64Array, batch: pa.RecordBatch | None) -> None: ...


class Learning:
    """Watches a back stage: which keys come often, and their rows."""

    def __init__(self, front: Learner) -> None:
        self._front = front
        self.window: Window | None = None
        self.collected = _Collected()

    def met(self, run: PageRun, slots: Int64Array, rows: Int64Array) -> None:
        front, window = self._front, self.window
        if window is None or not front.can_change or len(slots) == 0:
            return
        if front.one_row:
            recent = window.sequence[slots] >= front.since
            slots, rows = (slots, rows) if recent.all() else (slots[recent], rows[recent])
            groups = _Groups.of(rows, window.sequence[slots])
            self._take_rows(run, slots[groups.first], rows[groups.first], groups)
            return
        self._begin(slots[~window.matched[slots] & (window.sequence[slots] >= front.since)])
        mine = self.collected.wanted(slots, window.sequence)
        if mine.any():
            self.collected.add(slots[mine], run.take(rows[mine], front.columns) if front.columns else None)
            if self.collected.nbytes > front.collect_bytes:
                self.collected.clear()

    def left(self, slots: Int64Array) -> None:
        front, window = self._front, self.window
        if window is None or not front.can_change:
            self.collected.clear()
            return
        if len(self.collected):
            self._complete(slots)
        if not front.relation.codec.exact:
            return
        alone = slots[~window.matched[slots] & (window.sequence[slots] >= front.since)]
        if len(alone):
            groups = _Groups.of(window.code[alone], window.sequence[alone])
            codes, scores = self._worth(window.code[alone[groups.first]], groups)
            front.put(codes, scores, np.zeros(len(codes), np.int64), None)

    def _worth(self, codes: Int64Array, groups: _Groups) -> tuple[Int64Array, FloatArray]:
        """Of these keys, those that come often enough and are not here, the most wanted first, with their scores."""
        which, scores = self._often(codes, groups)
        return codes[which], scores

    def _often(self, codes: Int64Array, groups: _Groups) -> tuple[Int64Array, FloatArray]:
        front = self._front
        counts, span = groups.counts, front.now - groups.oldest
        if front.recent is not None:
            counts, span = front.recent.counts(codes), front.recent.span
        often = np.flatnonzero(counts >= front.threshold)
        scores = front.scored(counts[often], span)
        high = scores > front.hot.bar
        often, scores = often[high], scores[high]
        if len(often) == 0:
            return often, scores
        new = front.hot.find(codes[often]) < 0
        often, scores = often[new], scores[new]
        order = np.argsort(-scores, kind="stable")
        order = order[np.sort(np.unique(codes[often[order]], return_index=True)[1])]
        return often[order], scores[order]

    def _take_rows(self, run: PageRun, slots: Int64Array, rows: Int64Array, groups: _Groups) -> None:
        """Copy rows, each of which is all that its key needs."""
        front, window = self._front, self.window
        assert window is not None
        codes = window.code[slots]
        which, scores = self._often(codes, groups)
        if len(which) == 0:
            return
        limit = front.collect_bytes
        batch = run.take(rows[which], front.columns, limit) if front.columns else None
        some = len(which) if batch is None else batch.num_rows
        front.put(codes[which[:some]], scores[:some], np.ones(some, np.int64), batch)

    def _begin(self, fresh: Int64Array) -> None:
        """Begin to collect the rows of keys that come often: of one tuple of each, which has met no row before."""
        window = self.window
        assert window is not None
        fresh = np.unique(fresh)
        if len(fresh) == 0 or len(self.collected) >= _MOST_COLLECTED:
            return
        groups = _Groups.of(window.code[fresh], window.sequence[fresh])
        slots = fresh[groups.first]
        which, scores = self._often(window.code[slots], groups)
        new = ~self.collected.has(window.code[slots[which]])
        which, scores = which[new][:_MOST_COLLECTED], scores[new][:_MOST_COLLECTED]
        self.collected.begin(slots[which], window.sequence[slots[which]], window.code[slots[which]], scores)

    def _complete(self, slots: Int64Array) -> None:
        """Tuples leave: the rows that were collected for them are all rows of their keys."""
        assert self.window is not None
        codes, scores, rows, batch = self.collected.take(slots, self.window.sequence)
        fresh = self._front.hot.find(codes) < 0
        if fresh.all() and len(codes):
            self._front.put(codes, scores, rows, batch)


@dataclass(frozen=True)
class _Groups:
    """Tuples by what they met: the place of one tuple of each group, and how many there are. `oldest` is the number of the
    oldest of all: about since when none of these keys was served. The oldest tuple of a key would tell less: a tuple that was
    served just after it came would seem to come all the time."""

    first: Int64Array
    counts: Int64Array
    oldest: int

    @staticmethod
    def of(what: Int64Array, numbers: Int64Array) -> _Groups:
        first, counts = np.empty(len(what), np.int64), np.empty(len(what), np.int64)
        places = np.zeros(1 << (2 * len(what)).bit_length(), np.int32)
        count = _group(what, places, first, counts)
        return _Groups(first[:count], counts[:count], int(numbers.min()) if len(numbers) else 0)


@kernel
def _group(what: Any, places: Any, first: Any, counts: Any) -> Any:
    """How many groups there are, with the place of the first of each and its length. `places`: a hash table, more than half
    empty and all 0."""
    mask = len(places) - 1
    groups = 0
    for i in range(len(what)):
        at = np.int64((np.uint64(what[i]) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) & mask
        while places[at] != 0 and what[first[places[at] - 1]] != what[i]:
            at = (at + 1) & mask
        if places[at] == 0:
            places[at] = groups + 1
            first[groups] = i
            counts[groups] = 1
            groups += 1
        else:
            counts[places[at] - 1] += 1
    return groups


class _Collected:
    """Rows of keys that are not complete yet, by the tuple that meets them."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._slots = self._numbers = self._codes = np.zeros(0, np.int64)
        self._scores = np.zeros(0, np.float64)
        self._met: list[Int64Array] = []
        self._rows: list[pa.RecordBatch] = []
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._slots)

    def has(self, codes: Int64Array) -> BoolArray:
        return np.isin(codes, self._codes)

    def begin(self, slots: Int64Array, numbers: Int64Array, codes: Int64Array, scores: FloatArray) -> None:
        gone = np.isin(self._slots, slots)  # tuples that were given back: others have their slots
        self._drop(gone)
        self._slots = np.concatenate((self._slots, slots))
        self._numbers = np.concatenate((self._numbers, numbers))
        self._codes = np.concatenate((self._codes, codes))
        self._scores = np.concatenate((self._scores, scores))

    def wanted(self, slots: Int64Array, sequence: Int64Array) -> BoolArray:
        """Which pairs are of a tuple that is watched."""
        still = self._slots[sequence[self._slots] == self._numbers]
        return np.isin(slots, still)

    def add(self, slots: Int64Array, rows: pa.RecordBatch | None) -> None:
        self._met.append(slots)
        if rows is not None:
            self._rows.append(rows)
            self.nbytes += int(sizes_of(rows.columns, rows.num_rows).sum())
        self.nbytes += slots.nbytes

    def take(self, left: Int64Array, sequence: Int64Array) -> tuple[Int64Array, FloatArray, Int64Array, pa.RecordBatch | None]:
        """Codes, scores, numbers of rows, and rows of the tuples that leave. They are not watched any more."""
        done = np.isin(self._slots, left) & (sequence[self._slots] == self._numbers)
        slots = self._slots[done]
        order = np.argsort(-self._scores[done], kind="stable")
        slots, codes, scores = slots[order], self._codes[done][order], self._scores[done][order]
        met = np.concatenate((np.zeros(0, np.int64), *self._met))
        rank = np.full(int(max(met.max(initial=0), slots.max(initial=0))) + 1, -1)
        rank[slots] = np.arange(len(slots))
        which = np.flatnonzero(rank[met] >= 0)
        which = which[np.argsort(rank[met[which]], kind="stable")]
        counts = np.bincount(rank[met[which]], minlength=len(slots)).astype(np.int64)
        batch = pa.concat_batches(self._rows).take(pa.array(which)) if self._rows else None
        self._drop(done)
        return codes, scores, counts, batch

    def _drop(self, gone: BoolArray) -> None:
        if not gone.any():
            return
        slots, keep = self._slots[gone], ~gone
        self._slots, self._numbers, self._codes = self._slots[keep], self._numbers[keep], self._codes[keep]
        self._scores = self._scores[keep]
        if not len(self._slots):
            self.clear()
            return
        met = np.concatenate((np.zeros(0, np.int64), *self._met))
        stay = np.flatnonzero(~np.isin(met, slots))
        self._met = [met[stay]]
        self._rows = [pa.concat_batches(self._rows).take(pa.array(stay))] if self._rows else []
        self.nbytes = met[stay].nbytes + sum(rows.nbytes for rows in self._rows)
