"""Looking keys up in pages that lie in memory: nothing is read, so nobody has to wait.

A join keeps stream tuples back so that many of them share a read. Where pages are used in place there is no read to share,
and keys are answered as they come, some dozens at a time: the processor is asked for all the lines of memory that hold their
codes, then for all that hold their records, and what it waits for one of them it waits for all. Every value is copied once,
to where its stream row belongs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.arrays import BoolArray, Int32Array, Int64Array
from millrace.core.compiled import kernel
from millrace.core.instant_lookup import Answer
from millrace.core.keys import Codes
from millrace.core.memoryaccess import load64
from millrace.core.step import StepCounts
from millrace.relations.row_records import AHEAD, Unpacker, copy_records
from millrace.relations.search import ask_for_cards, guess_rows, guess_rows_again, record_at, seek_code
from millrace.relations.stored import StoredRelation
from millrace.relations.stored_run import StoredRun


class InPlace:
    """Look-ups in a mapped relation in which no two rows have the same key code, or of whose rows any one will do."""

    reversed_ranges = 0

    def __init__(self, relation: StoredRelation, columns: Sequence[str]) -> None:
        self._relation = relation
        self._mapped = relation.mapped_pages
        self._whole = relation.whole()
        self._columns = columns
        known = relation.page_columns
        packed, self._others = known.split(columns)
        self._code_column = known.code_column
        self._nested = [name for name in self._others if name != self._code_column]
        self._values = known.unpacker(packed)
        self._keys = known.unpacker(known.split(relation.key)[0])
        self._nothing = known.unpacker(())

    def look_up(self, keys: Sequence[pa.Array], limit_bytes: int | None = None) -> Answer:
        """The rows of these keys, or of the first of them: see `Answer`."""
        relation = self._relation
        encoded = relation.codec.encode(keys)
        pages, used = self._mapped.first_pages(encoded.codes, encoded.valid)
        rows = np.empty(len(pages), np.int32)
        records = np.empty(len(pages), np.int64)
        if relation.codec.exact:
            values, count = self._find(encoded.codes, pages, rows, records, self._values, limit_bytes)
        else:
            self._find(encoded.codes, pages, rows, records, self._nothing)
            theirs, count = self._keys.unpack(records, limit_bytes)
            same = relation.codec.equal([column.slice(0, count) for column in keys], [theirs[name] for name in relation.key])
            records[:count][~same] = 0
            del theirs
            values, count = self._values.unpack(records[:count], limit_bytes)
        if self._nested and limit_bytes is not None:
            values, count = first_nested(self._whole, self._nested, records[:count], pages, rows, values, limit_bytes)
        if count < len(pages):
            encoded = Codes(encoded.codes[:count], encoded.valid[:count], encoded.nulls[:count])
            pages, rows = pages[:count], rows[:count]
        found = records[:count] != 0
        for name in self._others:
            if name == self._code_column:  # the key, where it is its own code
                kind = relation.schema.field(name).type
                values[name] = pa.array(encoded.codes, mask=None if found.all() else ~found).view(kind)
            else:
                values[name] = self._whole.nested(name, np.where(found, pages, np.int32(-1)), rows)
        return Answer(found, [values[name] for name in self._columns], self._counts(encoded, pages, used, found))

    def _find(
        self, codes: Int64Array, pages: Int32Array, rows: Int32Array, records: Int64Array, out: Unpacker,
        limit_bytes: int | None = None,
    ) -> tuple[dict[str, pa.Array], int]:  # fmt: skip
        """Find the record of each code, 0 where there is none, and unpack it; how many were: see `Unpacker.unpack`."""
        cards = self._mapped.cards
        sink = out.begin(len(codes), limit_bytes)
        done = 0
        while (done := find_and_copy(codes, pages, cards, rows, records, done, tuple(sink))) < len(codes):
            if not out.grow(sink, done):
                break
        return out.finish(records[:done], sink), done

    def _counts(self, encoded: Codes, pages: Int32Array, used: int, found: BoolArray) -> StepCounts:
        keys, matches, nulls = len(found), int(np.count_nonzero(found)), int(np.count_nonzero(encoded.nulls))
        return StepCounts(
            tuples_in=keys, pages_read=used, bytes_read=used * self._relation.page_bytes,
            probes=int(np.count_nonzero(pages >= 0)), matches=matches, removed=keys, matched=matches,
            absent_keys=keys - matches - nulls, null_keys=nulls,
        )  # fmt: skip


def first_nested(
    whole: StoredRun, names: Sequence[str], records: Int64Array, pages: Int32Array, rows: Int32Array,
    values: dict[str, pa.Array], limit_bytes: int,
) -> tuple[dict[str, pa.Array], int]:  # fmt: skip
    """What was unpacked of the first rows, as many as have nested values within the limit; and how many."""
    at = np.where(records != 0, pages[: len(records)], np.int32(-1))
    count = whole.nested_fitting(names, at, rows[: len(records)], limit_bytes)
    return {name: column.slice(0, count) for name, column in values.items()}, count


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
