"""Which waiting tuples go with the rows of a page: one matcher for each condition, behind one interface.

A scan join tells its matcher which tuples come and go, shows it page after page, and takes the pairs in portions. Equal keys
are found through a hash table; the other conditions have files of their own.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from millrace.core.arrays import BoolArray, Int32Array, Int64Array
from millrace.core.budget import Budget
from millrace.core.conditions import Condition, Expr
from millrace.core.keys import Codes
from millrace.core.protocols import JoinSpec, PageRun, Relation
from millrace.joins.sizing import bits_between_codes, code_bytes_per_page
from millrace.structures.hashtable import START, Cursor, HashTable, codes_in, slot_records
from millrace.structures.window import Window

_PLENTY = 1 << 40  # bytes; a matcher of one slot takes next to nothing of them

Found = tuple[Int64Array, Int64Array, bool]
"""Tuple `slots[i]` goes with row `rows[i]` of the run; and whether that was all."""


class MatcherBytes(NamedTuple):
    """What a matcher takes from the budget: for each slot of the window, for each page of the disk buffer, and once."""

    per_slot: int
    per_page: int
    fixed: int = 0


class Matcher(Protocol):
    """Finds pairs of waiting tuples and rows."""

    reversed_ranges: int  # rows seen whose range ends before it begins

    def encode(self, batch: pa.RecordBatch) -> Codes:
        """The code of each tuple for `Window.code`, and which tuples can't match anything."""

    def enter(self, slots: Int64Array) -> None: ...

    def leave(self, slots: Int64Array) -> None: ...

    def begin(self, run: PageRun) -> None:
        """Match the rows of this run from now on."""

    def next(self, limit: int) -> Found:
        """More pairs of this run, at most `limit`. The waiting tuples must not change until all pairs are taken."""


class KeyMatcher:
    """Equal keys, through a hash table of the waiting tuples. Where codes are not exact, the emitter looks at the keys."""

    reversed_ranges = 0

    def __init__(self, relation: Relation, spec: JoinSpec, records: Int32Array, budget: Budget) -> None:
        self._codec = relation.codec
        self._columns = [name for name, _ in spec.on]
        self._table = HashTable(records, budget, apart=bits_between_codes(relation))
        self._codes = np.zeros(0, np.int64)
        self._cursor: Cursor = START

    @staticmethod
    def bytes_of(relation: Relation) -> MatcherBytes:
        return MatcherBytes(HashTable.bytes_per_slot, code_bytes_per_page(relation))

    def encode(self, batch: pa.RecordBatch) -> Codes:
        return self._codec.encode([batch.column(name) for name in self._columns])

    def enter(self, slots: Int64Array) -> None:
        self._table.add(slots)

    def leave(self, slots: Int64Array) -> None:
        self._table.remove(slots)

    def begin(self, run: PageRun) -> None:
        self._codes, self._cursor = run.codes, START

    def next(self, limit: int) -> Found:
        slots, rows, cursor = self._table.probe(self._codes, self._cursor, limit)
        if cursor is None:
            self._codes = np.zeros(0, np.int64)
            return slots, rows, True
        self._cursor = cursor
        return slots, rows, False


class Remembered:
    """For matchers that go through all waiting tuples: who waits, and what was made of them until a tuple comes or goes."""

    _present: BoolArray  # by slot
    _waiting: Any  # None: somebody has come or gone

    def enter(self, slots: Int64Array) -> None:
        self._change(slots, present=True)

    def leave(self, slots: Int64Array) -> None:
        self._change(slots, present=False)

    def _change(self, slots: Int64Array, *, present: bool) -> None:
        if len(slots):
            self._present[slots] = present
            self._waiting = None


def matcher_bytes(relation: Relation, spec: JoinSpec, memory_bytes: int) -> MatcherBytes:
    """What the matcher for this join will take of a budget of `memory_bytes`."""
    if spec.condition is None:
        return KeyMatcher.bytes_of(relation)
    sizes: MatcherBytes = _home(spec.condition).bytes_of(relation, spec, spec.condition, memory_bytes)
    return sizes


def make_matcher(relation: Relation, spec: JoinSpec, budget: Budget, capacity: int) -> tuple[Window, Matcher]:
    """A window of so many slots, and the matcher that finds its tuples."""
    matcher: Matcher
    if spec.condition is None:
        records = slot_records(capacity, budget)
        window = Window(relation, spec, budget, capacity, codes_in(records))
        matcher = KeyMatcher(relation, spec, records, budget)
    else:
        window = Window(relation, spec, budget, capacity)
        matcher = _home(spec.condition)(relation, spec, window, budget)
    window.encode = matcher.encode
    return window, matcher


def try_matcher(relation: Relation, spec: JoinSpec) -> None:
    """An error if the condition can't be evaluated, such as an expression with an unknown column."""
    make_matcher(relation, spec, Budget(_PLENTY), capacity=1)


def _home(condition: Condition) -> Any:
    """The matcher of a condition. A matcher that needs a library of its own is imported on first use."""
    if condition.kind == "similar":
        from millrace.joins.matching.similarity import SimilarMatcher

        return SimilarMatcher
    if isinstance(condition, Expr):
        from millrace.joins.matching.expr import ArrowMatcher, SqlMatcher

        return SqlMatcher if condition.is_sql else ArrowMatcher
    from millrace.joins.matching.ranges import RangeMatcher

    return RangeMatcher
