"""Rows of very different lengths: what a step puts out is bounded by bytes, and no row is lost or doubled for it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.joins.examples import HOWS, joined
from tests.relations.stored_tables import stored

from millrace.catalog import ALGORITHMS, make_join
from millrace.core.budget import Budget
from millrace.core.errors import BudgetError
from millrace.core.protocols import How, JoinSpec, Relation
from millrace.relations.memory import MemoryRelation

LONG = 20_000
MEMORY = 2 << 20
NAMES = [row.name for row in ALGORITHMS]


def rows(copies: int = 1) -> pa.Table:
    """Keys 0 to 999 with short texts, and key 7 with long ones, in a list too."""
    keys = [*range(1000), *[7] * (copies - 1)]
    texts = [("y" * LONG if key == 7 else f"t{key}") for key in keys]
    return pa.table({"id": pa.array(keys, pa.int64()), "text": texts, "list": [[text, "x"] for text in texts]})


def stream(count: int, long: bool = False) -> pa.RecordBatch:
    """Every other tuple wants key 7, some want a key that is not there."""
    keys = [7 if i % 2 else i * 3 for i in range(count)]
    texts = ["s" * (LONG if long and i % 5 == 0 else 3) for i in range(count)]
    return pa.record_batch({"key": pa.array(keys, pa.int64()), "n": pa.array(range(count)), "said": texts})


def wanted(table: pa.Table, batch: pa.RecordBatch, how: How, columns: tuple[str, ...]) -> Counter[str]:
    by_key: dict[int, list[dict[str, object]]] = {}
    for row in table.to_pylist():
        by_key.setdefault(row["id"], []).append(row)
    found: Counter[str] = Counter()
    for mine in batch.to_pylist():
        matches = by_key.get(mine["key"], [])
        carried = (mine["n"], mine["said"])
        if how in ("inner", "left"):
            nothing = [dict.fromkeys(columns)] if how == "left" else []
            found.update(str((*carried, *(row[name] for name in columns))) for row in matches or nothing)
        elif (how == "semi") == bool(matches):
            found[str(carried)] += 1
    return found


def check(relation: Relation, table: pa.Table, name: str, how: How, columns: tuple[str, ...], batch: pa.RecordBatch) -> None:
    spec = JoinSpec(batch.schema, (("key", "id"),), how, ("n", "said"), columns)
    steps = joined(make_join(name, relation, spec, Budget(MEMORY)), [batch.slice(0, 77), batch.slice(77)])
    found = Counter(str(tuple(row.values())) for step in steps for row in step.output.to_pylist())
    assert found == wanted(table, batch, how, columns)
    assert max(step.output.nbytes for step in steps) < MEMORY // 4


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", NAMES)
def test_a_long_row_that_many_want_is_put_out_in_portions(name: str, how: How) -> None:
    columns = ("text", "list") if how in ("inner", "left") else ()
    check(MemoryRelation(rows(3), "id", rows_per_page=10), rows(3), name, how, columns, stream(160))


@pytest.mark.parametrize("mode", ["mmap", "buffered"])
@pytest.mark.parametrize("name", NAMES)
def test_long_rows_of_a_stored_table_and_of_the_stream_are_put_out_in_portions(name: str, mode: str, tmp_path: Path) -> None:
    relation = stored(tmp_path, rows(2), mode=mode)  # type: ignore[arg-type]
    check(relation, rows(2), name, "left", ("text", "list"), stream(200, long=True))
    relation.close()


def test_whoever_holds_short_rows_holds_no_room_for_long_ones(tmp_path: Path) -> None:
    relation = stored(tmp_path, rows())
    relation.touch(np.arange(relation.pages))
    whole = relation.whole()
    assert whole.take(np.full(90, 7), ["text"], 1 << 22).num_rows == 90
    before = pa.total_allocated_bytes()
    held = [whole.take(np.arange(100, 300), ["text"], 1 << 22) for _ in range(20)]
    assert pa.total_allocated_bytes() - before < len(held) * (1 << 17)
    relation.close()


def test_long_text_keys_are_compared_in_portions() -> None:
    table = pa.table({"id": ["k" * LONG, *(f"k{i}" for i in range(500))], "v": np.arange(501)})
    batch = pa.record_batch({"key": [("k" * LONG if i % 2 else f"k{i}") for i in range(60)], "n": pa.array(range(60))})
    spec = JoinSpec(batch.schema, (("key", "id"),), "inner", ("n",), ("v",))
    for name in NAMES:
        steps = joined(make_join(name, MemoryRelation(table, "id", rows_per_page=10), spec, Budget("4m")), [batch])
        found = sorted(tuple(row.values()) for step in steps for row in step.output.to_pylist())
        assert found == [(i, 0 if i % 2 else i + 1) for i in range(60)]


def test_a_row_longer_than_the_budget_is_an_error_that_says_how_much_would_do() -> None:
    table = pa.table({"id": [1, 2], "text": ["a", "b" * 5_000_000]})
    batch = pa.record_batch({"key": [1, 2], "n": [0, 1], "said": ["", ""]})
    spec = JoinSpec(batch.schema, (("key", "id"),), "inner", ("n", "said"), ("text",))
    table_of_two = MemoryRelation(pa.concat_tables([table, pa.table({"id": range(3, 5000), "text": ["c"] * 4997})]), "id", 50)
    with pytest.raises(BudgetError, match=r"too small for an output row of 4\.8 MiB; give memory=") as refused:
        joined(make_join("meshjoin", table_of_two, spec, Budget("2m")), [batch])
    enough = Budget(refused.value.needed_bytes)
    assert sum(step.output.num_rows for step in joined(make_join("meshjoin", table_of_two, spec, enough), [batch])) == 2
