"""Several tables in one pass: the rows of joins one behind the other, one ledger that balances, one budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.joins.examples import HOWS, cut, joined, rows_of
from tests.relations.stored_tables import stored

import millrace as mr
from millrace.catalog import TableLookup, make_lookups
from millrace.core.budget import Budget
from millrace.core.errors import BudgetError, ParameterError
from millrace.core.protocols import How
from millrace.joins.several import Several
from millrace.relations.files import ReadMode
from millrace.relations.memory import MemoryRelation

KEYS = st.lists(st.none() | st.integers(0, 5), max_size=14)
Row = dict[str, Any]


def relation(name: str, keys: Sequence[int | None], rows_per_page: int = 2) -> MemoryRelation:
    """Rows (key, name of the relation = row number); null keys are not in it."""
    present = [key for key in keys if key is not None]
    return MemoryRelation(pa.table({"id": pa.array(present, pa.int64()), name: range(len(present))}), "id", rows_per_page)


def stream(first: Sequence[int | None], second: Sequence[int | None]) -> pa.RecordBatch:
    events = pa.array(range(len(first)), pa.int64())
    return pa.record_batch({"event": events, "one": pa.array(first, pa.int64()), "two": pa.array(second, pa.int64())})


def looped(rows: list[Row], key: str, name: str, keys: Sequence[int | None], how: How) -> list[Row]:
    present = [one for one in keys if one is not None]
    out: list[Row] = []
    for row in rows:
        found = [number for number, other in enumerate(sorted(present)) if other == row[key]]
        if how == "inner" or (how == "left" and found):
            out += [{**row, name: number} for number in found]
        elif how == "left":
            out.append({**row, name: None})
        elif (how == "semi") == bool(found):
            out.append(row)
    return out


def made(
    tables: Sequence[MemoryRelation], hows: Sequence[How], strategies: Sequence[str], memory: int | str = "256k"
) -> Several:
    lookups = [
        TableLookup(table, ((key, "id"),), how, (name,) if how in ("inner", "left") else (), strategy=strategy)
        for table, key, name, how, strategy in zip(tables, ("one", "two"), ("r1", "r2"), hows, strategies, strict=True)
    ]
    return make_lookups(stream([], []).schema, ("event",), lookups, Budget(memory))


@given(
    first=KEYS,
    second=KEYS,
    tables=st.tuples(KEYS, KEYS),
    hows=st.tuples(st.sampled_from(HOWS), st.sampled_from(HOWS)),
    strategies=st.tuples(st.sampled_from(["meshjoin", "hybridjoin", "sweepjoin"]), st.sampled_from(["rmeshjoin", "inlj"])),
    size=st.integers(1, 5),
)
def test_it_gives_the_rows_of_joins_one_behind_the_other(
    first: list[Any], second: list[Any], tables: tuple[list[Any], list[Any]], hows: tuple[How, How],
    strategies: tuple[str, str], size: int,
) -> None:  # fmt: skip
    rows = min(len(first), len(second))
    events = stream(first[:rows], second[:rows])
    join = made([relation("r1", sorted_(tables[0])), relation("r2", sorted_(tables[1]))], hows, strategies)
    steps = joined(join, cut(events, size))  # the driver checks the ledger after every step
    wanted = looped(looped(events.to_pylist(), "one", "r1", tables[0], hows[0]), "two", "r2", tables[1], hows[1])
    names = ["event", *(name for name, how in zip(("r1", "r2"), hows, strict=True) if how in ("inner", "left"))]
    expected = [tuple(row[name] for name in names) for row in wanted]
    assert rows_of(steps) == sorted(expected, key=lambda row: tuple((value is not None, value) for value in row))
    for step in steps:
        assert step.sequence.tolist() == step.output.column("event").to_pylist()
    assert join.pending == 0
    assert sum(step.counts.tuples_in for step in steps) == rows
    assert sum(step.counts.matched for step in steps) == len({row["event"] for row in wanted})
    assert sorted(number for step in steps for number in step.left.tolist()) == list(range(rows))
    assert join.ledgers[0].rows_in == rows
    assert all(ledger.waiting == 0 for ledger in join.ledgers)


def sorted_(keys: list[Any]) -> list[int]:
    return sorted(key for key in keys if key is not None)


def test_each_table_has_a_ledger_and_reads_are_summed() -> None:
    tables = [relation("r1", [1, 2, 3]), relation("r2", [1, 1])]
    join = made(tables, ("left", "left"), ("sweepjoin", "sweepjoin"))
    steps = joined(join, [stream([1, 9, None], [1, 1, 7])])
    assert [(one.matched, one.unmatched) for one in join.ledgers] == [(1, 2), (2, 1)]
    assert sum(step.counts.pages_read for step in steps) == sum(count for table in tables for _, count in table.reads)


def test_a_table_may_be_joined_by_a_condition_and_by_a_column_of_another() -> None:
    prices = MemoryRelation(pa.table({"low": [0, 10], "high": [9, 19], "band": [7, 8]}), "low", indexed=False)
    bands = MemoryRelation(pa.table({"id": [7, 8], "name": ["cheap", "dear"]}), "id")
    sales = pa.record_batch({"event": [0, 1, 2], "price": [3, 12, 99]})
    lookups = [
        TableLookup(prices, condition=mr.between("price", "low", "high"), how="left", columns=("band",), strategy="meshjoin"),
        TableLookup(bands, (("band", "id"),), "left", ("name",)),
    ]
    join = make_lookups(sales.schema, ("event",), lookups, Budget("256k"))
    assert rows_of(joined(join, [sales])) == [(0, 7, "cheap"), (1, 8, "dear"), (2, None, None)]


def test_all_tables_share_one_budget() -> None:
    tables = [relation("r1", list(range(50))), relation("r2", list(range(50)))]
    with pytest.raises(BudgetError, match="too small for 2 tables: give memory=") as small:
        made(tables, ("left", "left"), ("meshjoin", "sweepjoin"), memory="1k")
    memory = small.value.needed_bytes
    while True:
        try:
            join = made(tables, ("left", "left"), ("meshjoin", "sweepjoin"), memory=memory)
            break
        except BudgetError as still:
            memory = still.needed_bytes
    keys = [number % 60 for number in range(300)]
    batch = stream(keys, keys[::-1])
    offered = 0
    while offered < batch.num_rows or join.pending:
        offered += join.offer(batch.slice(offered, 50))
        join.step()
        assert join.bytes_used <= memory
    assert join.ledgers[1].rows_in == 300


def test_columns_of_the_same_name_are_refused() -> None:
    table = relation("r1", [1])
    lookups = [TableLookup(table, (("one", "id"),), "left", ("r1",)), TableLookup(table, (("two", "id"),), "left", ("r1",))]
    with pytest.raises(ParameterError, match="several tables have a column 'r1'"):
        make_lookups(stream([], []).schema, ("event",), lookups, Budget("256k"))
    with pytest.raises(ParameterError, match="at least one join"):
        Several([])


@pytest.mark.parametrize(
    "strategy", ["sweepjoin", "meshjoin", "rmeshjoin", "hybridjoin", "xhybridjoin", "inlj", "ssij", "partitionjoin"]
)
@pytest.mark.parametrize("mode", ["buffered", "mmap"])
def test_joins_may_take_turns_with_one_table(tmp_path: Path, strategy: str, mode: ReadMode) -> None:
    """What one of them reads must not touch the pages that the other is at: keys with many rows are put out in portions."""
    keys = [key for key in range(40) for _ in range(20)]
    numbers = list(range(len(keys)))
    table = stored(tmp_path, pa.table({"id": keys, "a": numbers, "b": numbers}), mode=mode)
    one, two = [n % 45 for n in range(60)], [n * 7 % 45 for n in range(60)]
    rows = stream(one, two)
    lookups = [
        TableLookup(table, (("one", "id"),), "inner", ("a",), strategy=strategy),
        TableLookup(table, (("two", "id"),), "inner", ("b",), strategy=strategy),
    ]
    join = make_lookups(rows.schema, ("event",), lookups, Budget("400k"))
    found = Counter((event, a // 20, b // 20) for event, a, b in rows_of(joined(join, cut(rows, 7))))
    assert found == {(n, one[n], two[n]): 400 for n in range(60) if one[n] < 40 and two[n] < 40}
    table.close()
