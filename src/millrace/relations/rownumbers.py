"""A view of a resident relation with row numbers for columns: joins find rows, and the host copies them where they belong."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millrace.core.protocols import PageRuns
from millrace.core.step import Int64Array
from millrace.relations.stored import StoredRelation, StoredRun

ROW_NUMBER = "__millrace_row"


class NumberedRun:
    """All pages of a relation; `take` of `ROW_NUMBER` copies nothing."""

    def __init__(self, run: StoredRun) -> None:
        self.pages, self.rows = run.pages, run.rows
        self._run = run
        self.match = run.match

    @property
    def codes(self) -> Int64Array:
        return self._run.codes

    def take(self, rows: Int64Array, columns: Sequence[str]) -> pa.RecordBatch:
        if tuple(columns) != (ROW_NUMBER,):
            return self._run.take(rows, columns)
        return pa.RecordBatch.from_arrays([pa.array(rows)], [ROW_NUMBER])


class RowNumbers:
    """`relation`, seen through the number of each row in `relation.whole()`.

    Rows that a join puts out in the order it finds them need to be put in stream order afterwards. Numbers are cheap to
    put in order; then `scatter` copies every column once, from page order to where the row belongs.
    """

    resident = True

    def __init__(self, relation: StoredRelation) -> None:
        self.relation = relation
        self.key, self.codec, self.unique = relation.key, relation.codec, relation.unique
        self.rows, self.pages, self.page_bytes = relation.rows, relation.pages, relation.page_bytes
        self.schema = pa.schema([*relation.schema, pa.field(ROW_NUMBER, pa.int64(), nullable=False)])
        self.touch = relation.touch

    def locate(self, codes: Int64Array) -> PageRuns:
        return self.relation.locate(codes)

    def whole(self) -> NumberedRun:
        return NumberedRun(self.relation.whole())

    def read(self, first: int, count: int) -> StoredRun:
        return self.relation.read(first, count)

    def read_many(self, firsts: Int64Array, counts: Int64Array) -> StoredRun:
        return self.relation.read_many(firsts, counts)

    def scatter(self, rows: Int64Array, to: Int64Array, count: int, columns: Sequence[str]) -> pa.RecordBatch:
        """A batch of `count` rows whose row `to[i]` is row `rows[i]` of the relation; rows nothing goes to are null."""
        return self.relation.whole().scatter(rows, to, count, columns)
