"""Looking keys up in pages that lie in memory: nothing is read, so nobody has to wait.

A join keeps stream tuples back so that many of them share a read. Where pages are used in place there is no read to share,
and keys are answered as they come, some dozens at a time: the processor is asked for all the lines of memory that hold their
codes, then for all that hold their records, and what it waits for one of them it waits for all. Every value is copied once,
to where its stream row belongs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.compiled import kernel
from millrace.core.keys import Codes
from millrace.core.memoryaccess import load64
from millrace.core.step import Int64Array, StepCounts
from millrace.relations.records import AHEAD, Unpacker, copy_records
from millrace.relations.search import ask_for_cards, guess_rows, guess_rows_again, record_at, seek_code
from millrace.relations.stored import StoredRelation

SCRATCH_BYTES = 64  # per key, all arrays of `look_up` together


@dataclass(frozen=True)
class Answer:
    """One row for each key that was looked up: whether it was found, and the columns, null where it was not."""

    found: npt.NDArray[np.bool_]
    columns: list[pa.Array]
    counts: StepCounts


class InPlace:
    """Look-ups in a mapped relation in which no two rows have the same key code, or of whose rows any one will do."""

    def __init__(self, relation: StoredRelation, columns: Sequence[str]) -> None:
        self._relation = relation
        self._whole = relation.whole()
        self._columns = columns
        self._packed, self._others = relation.split(columns)
        self._values = relation.unpacker(self._packed)
        self._keys = relation.unpacker(relation.split(relation.key)[0])
        self._nothing = relation.unpacker(())

    def look_up(self, keys: Sequence[pa.Array]) -> Answer:
        relation = self._relation
        encoded = relation.codec.encode(keys)
        pages, used = relation.first_pages(encoded.codes, encoded.valid)
        rows = np.empty(len(pages), np.int32)
        records = np.empty(len(pages), np.int64)
        if relation.codec.exact:
            packed = self._find(encoded.codes, pages, rows, records, self._values)
        else:
            self._find(encoded.codes, pages, rows, records, self._nothing)
            records[~relation.codec.equal(keys, self._keys.unpack(records))] = 0
            packed = self._values.unpack(records)
        found = records != 0
        values = dict(zip(self._packed, packed, strict=True))
        for name in self._others:
            if name == relation.version.code_column:  # the key, where it is its own code
                kind = relation.schema.field(name).type
                values[name] = pa.array(encoded.codes, mask=None if found.all() else ~found).view(kind)
            else:
                values[name] = self._whole.nested(name, np.where(found, pages, np.int32(-1)), rows)
        return Answer(found, [values[name] for name in self._columns], self._counts(encoded, pages, used, found))

    def _find(
        self, codes: Int64Array, pages: npt.NDArray[np.int32], rows: npt.NDArray[np.int32], records: Int64Array, out: Unpacker
    ) -> list[pa.Array]:
        """Find the record of each code, 0 where there is none, and unpack it."""
        cards = self._relation.cards
        sink = out.begin(len(codes))
        done = 0
        while (done := find_and_copy(codes, pages, cards, rows, records, done, tuple(sink))) < len(codes):
            out.grow(sink)
        return out.finish(records, sink)

    def _counts(self, encoded: Codes, pages: npt.NDArray[np.int32], used: int, found: npt.NDArray[np.bool_]) -> StepCounts:
        keys, matches, nulls = len(found), int(np.count_nonzero(found)), int(np.count_nonzero(encoded.nulls))
        return StepCounts(
            tuples_in=keys, pages_read=used, bytes_read=used * self._relation.page_bytes,
            probes=int(np.count_nonzero(pages >= 0)), matches=matches, removed=keys, matched=matches,
            absent_keys=keys - matches - nulls, null_keys=nulls,
        )  # fmt: skip


@kernel
def find_and_copy(codes: Any, pages: Any, cards: Any, rows: Any, records: Any, begin: Any, sink: Any) -> Any:
    """Look codes up in the pages given (-1: nowhere) from row `begin` on and copy what is found, `AHEAD` rows at a time.

    Returns the row to go on with: behind the last, or one whose text had no room.
    """
    for first in range(begin, len(codes), AHEAD):
        last = min(len(codes), first + AHEAD)
        ask_for_cards(pages, cards, last, min(len(codes), last + AHEAD))
        guess_rows(codes, pages, cards, rows, first, last)
        guess_rows_again(codes, pages, cards, rows, first, last)
        for i in range(first, last):
            page = np.int64(pages[i])
            records[i] = 0
            if page >= 0:
                card = cards[page]
                size = np.int64(card.rows)
                row = np.int64(rows[i])
                if load64(card.codes + 8 * row) != codes[i]:
                    row = seek_code(card.codes, size, codes[i], row)
                    rows[i] = row
                if row < size and load64(card.codes + 8 * row) == codes[i]:
                    records[i] = record_at(card, row)
        done = copy_records(records, first, last, sink)
        if done < last:
            return done
    return len(codes)
