"""`similar`: every text of a waiting tuple is compared with every text of a row, scored by RapidFuzz.

    distinct texts of a page   x   distinct texts that wait   ->   scores, a block at a time   ->   pairs

Each pair of distinct texts is scored once, however many tuples or rows have these texts. RapidFuzz gives up on a pair as soon
as the pair can't reach the threshold. There is no index for similar texts: this is a nested loop, made as short as possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.compiled import kernel
from millrace.core.conditions import Similar
from millrace.core.errors import ParameterError
from millrace.core.keys import Codes
from millrace.core.protocols import JoinSpec, PageRun, Relation
from millrace.joins.matching.matcher import Found, MatcherBytes, Remembered
from millrace.joins.sizing import rows_per_page
from millrace.structures.window import Window, row_bytes

_LEAST_CELLS, _MOST_CELLS = 1 << 8, 1 << 18  # scores of a block
_CELL_BYTES = 8 + 8 + 8  # score, and the places of one that is high enough
_TEXT_BYTES = 80  # of a Python text, beside its characters
# The last bit of a score depends on how RapidFuzz comes to it, and it may give up on one that equals its cut-off.
_CUTOFF_SLACK, _ROUNDING = 1e-6, 1e-12


class SimilarMatcher(Remembered):
    """Tuples whose text is similar to the text of a row."""

    reversed_ranges = 0

    def __init__(self, relation: Relation, spec: JoinSpec, window: Window, budget: Budget) -> None:
        assert isinstance(spec.condition, Similar)
        self._condition = spec.condition
        self._score = _scorer(spec.condition.method)
        self._window = window
        self._present = budget.array("slots with texts", window.capacity, np.bool_)
        self._cells = _cells(budget.memory_bytes)
        sizes = self.bytes_of(relation, spec, spec.condition, budget.memory_bytes)
        budget.reserve("texts and scores", sizes.fixed + window.capacity * (sizes.per_slot - 1))
        self._waiting: _Texts | None = None  # None: who waits has changed
        self._blocks: Iterator[_Expansion] = iter(())
        self._block: _Expansion | None = None

    @staticmethod
    def bytes_of(relation: Relation, spec: JoinSpec, condition: Similar, memory_bytes: int) -> MatcherBytes:
        stream = row_bytes(pa.schema([spec.stream_schema.field(condition.text)]))
        table = row_bytes(pa.schema([relation.schema.field(condition.other)]))
        per_slot = 1 + 8 + 8 + _CELL_BYTES + _TEXT_BYTES + 2 * stream
        return MatcherBytes(
            per_slot, rows_per_page(relation) * (8 + 8 + _TEXT_BYTES + 2 * table), _cells(memory_bytes) * _CELL_BYTES
        )

    def encode(self, batch: pa.RecordBatch) -> Codes:
        nulls = batch.column(self._condition.text).is_null().to_numpy(zero_copy_only=False)
        return Codes(np.zeros(batch.num_rows, np.int64), ~nulls, nulls)

    def begin(self, run: PageRun) -> None:
        if self._waiting is None:
            assert self._window.rows is not None
            slots = np.flatnonzero(self._present)
            self._waiting = _Texts(self._window.rows.take(slots).column(self._condition.text), slots)
        rows = np.arange(run.rows)
        texts = _Texts(run.take(rows, [self._condition.other]).column(0), rows)
        self._blocks = self._scored(texts, self._waiting)
        self._block = None

    def next(self, limit: int) -> Found:
        slots, rows = np.empty(limit, np.int64), np.empty(limit, np.int64)
        count = 0
        while count < limit:
            if self._block is None:
                self._block = next(self._blocks, None)
                if self._block is None:
                    return slots[:count], rows[:count], True
            count = self._block.fill(slots, rows, count)
            if count < limit:
                self._block = None
        return slots, rows, False

    def _scored(self, rows: _Texts, waiting: _Texts) -> Iterator[_Expansion]:
        from rapidfuzz.process import cdist

        if not waiting.texts:
            return
        size = max(1, self._cells // len(waiting.texts))
        threshold = self._condition.threshold
        cutoff = max(0.0, threshold - _CUTOFF_SLACK)
        for start in range(0, len(rows.texts), size):
            scores = cdist(
                rows.texts[start : start + size], waiting.texts, scorer=self._score, score_cutoff=cutoff, dtype=np.float64
            )
            near_rows, near_waiting = np.nonzero(scores >= threshold - _ROUNDING)
            yield _Expansion(rows, waiting, near_rows + start, near_waiting)


class _Texts:
    """The distinct texts of a column, and the members that have text t: `members[starts[t] : starts[t + 1]]`."""

    def __init__(self, column: pa.Array, members: Int64Array) -> None:
        encoded = column.dictionary_encode()
        places = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        order = np.argsort(places, kind="stable")
        self.texts: list[str] = encoded.dictionary.to_pylist()
        self.starts = np.searchsorted(places[order], np.arange(len(self.texts) + 1)).astype(np.int64)
        self.members = members[order]


class _Expansion:
    """Pairs of similar texts, on the way to pairs of tuples and rows."""

    def __init__(self, rows: _Texts, waiting: _Texts, near_rows: Int64Array, near_waiting: Int64Array) -> None:
        self._rows, self._waiting = rows, waiting
        self._near_rows, self._near_waiting = near_rows, near_waiting
        self._at = (0, 0)  # pair of texts, pair inside it

    def fill(self, slots: Int64Array, rows: Int64Array, count: int) -> int:
        """Write pairs from `count` on; returns how many there are then, which is all the room unless these are the last."""
        count, pair, inside = _expand(
            self._near_rows, self._near_waiting, self._rows.starts, self._rows.members, self._waiting.starts,
            self._waiting.members, self._at[0], self._at[1], slots, rows, count,
        )  # fmt: skip
        self._at = (pair, inside)
        return int(count)


@kernel
def _expand(
    near_rows: Any, near_waiting: Any, row_starts: Any, row_members: Any, slot_starts: Any, slot_members: Any,
    pair: Any, inside: Any, slots: Any, rows: Any, count: Any,
) -> Any:  # fmt: skip
    while pair < len(near_rows):
        row_text, slot_text = near_rows[pair], near_waiting[pair]
        first_row, first_slot = row_starts[row_text], slot_starts[slot_text]
        width = slot_starts[slot_text + 1] - first_slot
        total = (row_starts[row_text + 1] - first_row) * width
        while inside < total:
            if count == len(slots):
                return count, pair, inside
            rows[count] = row_members[first_row + inside // width]
            slots[count] = slot_members[first_slot + inside % width]
            count += 1
            inside += 1
        pair += 1
        inside = 0
    return count, pair, inside


def _cells(memory_bytes: int) -> int:
    """Scores of a block: an eighth of the memory, within reason."""
    return max(_LEAST_CELLS, min(memory_bytes // 8 // _CELL_BYTES, _MOST_CELLS))


def _scorer(method: str) -> Any:
    try:
        from rapidfuzz.distance import Indel, JaroWinkler, Levenshtein
    except ModuleNotFoundError as missing:
        raise ParameterError("mr.similar needs RapidFuzz: pip install 'millrace-spark[conditions]'") from missing
    homes = {"levenshtein": Levenshtein, "indel": Indel, "jaro_winkler": JaroWinkler}
    return homes[method].normalized_similarity
