"""Hash Ripple reads temporary data once: what held B in memory makes room for the table that partitions are joined in."""

from __future__ import annotations

import pytest
from tests.online.tables import Collected, join_of, tables

from millrace.core.budget import Budget
from millrace.online.pair_functions import Functions
from millrace.online.protocol import finished, run


@pytest.mark.parametrize("share", [0.06, 0.1, 0.3])
def test_what_is_spilled_is_read_once(share: float) -> None:
    data = tables("one to one", rows=150_000)
    end = finished(join_of("hash_ripple", data.a, data.b, memory=int(share * data.bytes)))
    assert tuple(end.pieces.answer()[0]) == data.expected()
    assert end.counters.temp_read_bytes == end.counters.temp_written_bytes
    assert 0.7 * data.bytes < end.counters.temp_written_bytes < data.bytes


@pytest.mark.parametrize("pairs", [False, True])
def test_the_table_of_partitions_takes_the_place_of_what_was_held(pairs: bool) -> None:
    data = tables("foreign key", rows=20_000)
    functions: dict[str, Functions] = {"functions": Collected().functions} if pairs else {}
    budget = Budget(data.bytes // 5)
    join = join_of("hash_ripple", data.a, data.b, budget=budget, **functions)
    seen = set()
    for progress in run(join):
        names = budget.holdings()
        held, table = (any(name.startswith(start) for name in names) for start in ("held", "join"))
        assert held != table
        seen.add((progress.pieces.kind, held))
    assert seen == {("rectangles", True), ("samples", False)}
    assert budget.peak_bytes <= budget.memory_bytes
