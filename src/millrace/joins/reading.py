"""Page reads, counted in the terms of the cost model; and whether the relation can say which page to read."""

from __future__ import annotations

from typing import cast

import numpy as np

from millrace.core.errors import StrategyError
from millrace.core.protocols import PageRun, Relation, ResidentRelation
from millrace.core.step import Int64Array, StepCounts


def has_index(relation: Relation) -> bool:
    """Whether the relation can say on which pages a key lives."""
    return callable(getattr(relation, "locate", None)) and bool(getattr(relation, "indexed", True))


def check_index(relation: Relation, name: str) -> None:
    if not has_index(relation):
        raise StrategyError(
            f"{name} needs an index on the key, and this table has none: use meshjoin, which needs none, "
            "or build a master table from it"
        )


class Reader:
    """Reads runs of pages and counts them until `counts` takes the numbers. A read that fails is not counted."""

    def __init__(self, relation: Relation) -> None:
        self._relation = relation
        self._head = -1  # the page after the last one read
        self._pages = self._seeks = 0

    def read(self, first: int, count: int) -> PageRun:
        run = self._relation.read(first, count)
        self._pages += count
        self._seeks += first != self._head
        self._head = first + count
        return run

    def use_each(self, pages: Int64Array) -> PageRun:
        """Pages used in place, each as if it were read by itself, in this order; the run is the whole relation."""
        relation = cast(ResidentRelation, self._relation)
        relation.touch(pages)
        self._pages += len(pages)
        self._seeks += int(np.count_nonzero(np.diff(pages, prepend=self._head - 1) != 1))
        self._head = int(pages[-1]) + 1
        return relation.whole()

    def counts(self) -> StepCounts:
        """What was read since the last call."""
        pages, seeks = self._pages, self._seeks
        self._pages = self._seeks = 0
        return StepCounts(pages_read=pages, bytes_read=pages * self._relation.page_bytes, seeks=seeks)
