"""What is tested of joins that keep blocks of pages in memory (SSIJ, the partition-based join) in the same way.

`make(relation, how, memory, **parameters)` makes the join.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pytest
from tests.joins.examples import HOWS, cut_at_random, expected, joined, relation_of, rows_of, stream_of

from millrace.checks import InPlace
from millrace.checks.relations import FailingRelation, ReadFailed
from millrace.core.errors import BudgetError
from millrace.core.protocols import How
from millrace.core.step import Step
from millrace.joins.blocks import BlockJoin

EVEN = [2 * i for i in range(12)]  # unique; pages of 2: 0 2 | 4 6 | 8 10 | 12 14 | 16 18 | 20 22
RUNS = [0, 1, 1, 1, 1, 1, 2, 3, 4, 4, 4, 5]  # pages of 2: 0 1 | 1 1 | 1 1 | 2 3 | 4 4 | 4 5


class Make(Protocol):
    def __call__(self, relation: Any, how: How = ..., memory: int | str = ..., **parameters: Any) -> BlockJoin: ...


def check_failed_reads(make: Make) -> None:
    """Nothing is lost, and what failed is read again."""
    relation = FailingRelation(relation_of(EVEN), {2, 3})
    join = make(relation, "left")
    tuples = [0, 8, 20, 21, None, 8]
    join.offer(stream_of(tuples))
    steps, failed = [], 0
    while join.pending:
        try:
            steps.append(join.step())
        except ReadFailed:
            failed += 1
    assert failed == 2
    assert rows_of(steps) == expected(tuples, EVEN, "left")


def check_pages_in_place(make: Make, **parameters: Any) -> None:
    """They are used at once, and nothing is cached."""
    join = make(InPlace(pa.table({"id": RUNS, "row": range(12)}), "id", 2), "left", **parameters)
    tuples = [1, 4, 99, None, 0]
    join.offer(stream_of(tuples))
    assert rows_of([join.step()]) == expected(tuples, RUNS, "left")
    assert (join.cache_pages, join.pending) == (0, 0)


def check_least_budget(make: Make, buffer_pages: int | None, resident: bool) -> None:
    """The budget that an error asks for is enough, and one byte less is not."""
    relation = relation_of(RUNS * 9, rows_per_page=3)
    relation.resident = resident
    with pytest.raises(BudgetError, match="give memory=") as error:
        make(relation, memory="1k", buffer_pages=buffer_pages)
    needed = error.value.needed_bytes
    assert make(relation, memory=needed, buffer_pages=buffer_pages).bytes_used <= needed
    with pytest.raises(BudgetError):
        make(relation, memory=needed - 1, buffer_pages=buffer_pages)


def any_schedule(make: Make, seed: int, *names: str) -> list[Step]:
    """Random keys, tuples, cuts and values of these parameters: rows are exact."""
    random = np.random.default_rng(seed)
    keys, tuples = random.integers(0, 15, 70).tolist(), random.integers(0, 20, 200).tolist()
    how: How = HOWS[seed % 4]
    parameters = {name: int(random.integers(1, 30)) for name in ("buffer_pages", "age_limit", *names)}
    join = make(relation_of(keys, 3), how, "48k", cache_share=float(random.choice([0, 0.1, 0.9])), **parameters)
    steps = joined(join, cut_at_random(stream_of(tuples), random), steps_per_batch=int(random.integers(0, 3)))
    assert rows_of(steps) == expected(tuples, keys, how)
    return steps
