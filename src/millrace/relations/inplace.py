"""Looking keys up in pages that lie in memory: nothing is read, so nobody has to wait.

A join keeps stream tuples back so that many of them share a read. Where pages are used in place there is no read to share,
and a group of keys is answered at once: sorted, so that neighbours share what the processor has just fetched, looked up
page after page, and every value copied once, straight to where its stream row belongs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.core.step import Int64Array, StepCounts
from millrace.relations.stored import StoredRelation

SCRATCH_BYTES = 112  # per key, all arrays of `find` and `columns` together


@dataclass(frozen=True)
class Found:
    """Row `rows[i]` of the relation answers key `to[i]` of the group."""

    keys: int
    rows: Int64Array
    to: Int64Array
    counts: StepCounts


class InPlace:
    """Look-ups in a mapped relation in which no two rows have the same key code, or of whose rows any one will do."""

    def __init__(self, relation: StoredRelation) -> None:
        self._relation = relation
        self._whole = relation.whole()

    def find(self, keys: Sequence[pa.Array]) -> Found:
        relation = self._relation
        encoded = relation.codec.encode(keys)
        if encoded.valid.all():
            to = np.argsort(encoded.codes)
        else:
            places = np.flatnonzero(encoded.valid)
            to = places[np.argsort(encoded.codes[places])]
        codes = encoded.codes[to]
        runs = relation.locate(codes)
        known = runs.last >= runs.first
        pages = runs.first
        if not known.all():
            to, codes, pages = to[known], codes[known], pages[known]
        relation.touch(pages)
        rows, count = self._whole.match(codes, pages)
        hits = count > 0
        if not hits.all():
            to, rows = to[hits], rows[hits]
        if not relation.codec.exact:
            found = self._whole.take(rows, relation.key)
            same = relation.codec.equal([key.take(pa.array(to)) for key in keys], found.columns)
            to, rows = to[same], rows[same]
        return Found(len(encoded.codes), rows, to, self._counts(len(encoded.codes), pages, len(to), int(encoded.nulls.sum())))

    def columns(self, found: Found, columns: Sequence[str]) -> pa.RecordBatch:
        """The values of each key, nulls where there are none."""
        return self._whole.scatter(found.rows, found.to, found.keys, columns)

    def _counts(self, keys: int, pages: Int64Array, matches: int, nulls: int) -> StepCounts:
        used = int(np.count_nonzero(np.diff(pages))) + (len(pages) > 0)
        return StepCounts(
            tuples_in=keys, pages_read=used, bytes_read=used * self._relation.page_bytes, probes=len(pages), matches=matches,
            removed=keys, matched=matches, absent_keys=keys - matches - nulls, null_keys=nulls,
        )  # fmt: skip
