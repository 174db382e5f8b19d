"""No tuple waits too long: the law notices what once made tuples wait for ever, and real tables keep it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.catalog import ALGORITHMS, make_join
from millrace.checks import run_laws
from millrace.checks.run import tightest
from millrace.checks.waiting import check_waits
from millrace.core.budget import Budget
from millrace.core.protocols import How, JoinSpec, Relation
from millrace.joins import fetch, inlj, scan, sweepjoin
from millrace.joins.door import Door
from millrace.joins.fetch import FetchJoin
from millrace.joins.reading import Arrivals
from millrace.joins.sweepjoin import SweepJoin
from millrace.relations.build import build_table
from millrace.relations.folder import read_versions
from millrace.relations.parquet import ParquetRelation
from millrace.relations.parquet_files import list_files
from millrace.relations.stored import StoredRelation

PARAMETERS: dict[str, dict[str, Any]] = {"xhybridjoin": {"buffer_pages": 2, "pinned_pages": 2}}


class NeverOverdue(Arrivals):
    _overdue = False  # type: ignore[assignment]


class AlwaysOpen(Door):
    def begin(self) -> None:
        self._emitter.begin()


def _broken(name: str) -> set[How]:
    make = partial(make_join, name, **PARAMETERS.get(name, {}))
    verdicts = run_laws(make, laws=["bounded_waits"], hows=("inner", "left"))
    return {verdict.how for verdict in verdicts if verdict.problem is not None}


@pytest.mark.parametrize("name", ["hybridjoin", "xhybridjoin", "sweepjoin"])
def test_the_law_notices_keys_that_wait_for_a_look_up_while_others_come(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "Arrivals", NeverOverdue)
    monkeypatch.setattr(sweepjoin, "Arrivals", NeverOverdue)
    assert _broken(name) == {"inner", "left"}


@pytest.mark.parametrize("name", ["hybridjoin", "xhybridjoin", "sweepjoin"])
def test_the_law_notices_outputs_full_of_null_keys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fetch, inlj, scan, sweepjoin):
        monkeypatch.setattr(module, "Door", AlwaysOpen)
    assert _broken(name) == {"left"}


@pytest.mark.parametrize("name", ["hybridjoin", "xhybridjoin"])
def test_the_law_notices_a_partition_that_keeps_the_head_of_the_queue(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FetchJoin, "_go_round", lambda join, partition: None)
    assert _broken(name) == {"inner", "left"}


def test_the_law_notices_a_sweep_that_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SweepJoin, "_takes_more", True)
    assert _broken("sweepjoin") == {"inner", "left"}


def test_a_join_that_does_not_say_how_long_tuples_wait_breaks_the_law() -> None:
    class SaysNothing:
        def __init__(self, relation: Relation, spec: JoinSpec, budget: Budget) -> None:
            self._join = make_join("inlj", relation, spec, budget)

        pending = property(lambda self: self._join.pending)

    verdict = run_laws(SaysNothing, laws=["bounded_waits"], hows=("inner",))[0]  # type: ignore[arg-type]
    assert "longest_wait" in str(verdict.problem)


LONG, KEYS = 2_000, [key for key in range(0, 12_000, 2) for _ in range(900 if key == 2_000 else 1)]
STREAM = pa.schema([("product", pa.int64())])


def _tables(folder: Path) -> Iterator[tuple[str, Relation]]:
    """The same rows in every form in which they may lie on disk."""
    table = pa.table({"id": KEYS, "price": [float(key) for key in range(len(KEYS))]})
    counts = pa.table({"id": pa.array(range(0, 12_000, 2)), "count": [1e6 / (1 + key) for key in range(0, 12_000, 2)]})
    build_table(folder / "sorted", table, "id", page_bytes=4096)
    build_table(folder / "frequency", table, "id", layout="frequency", page_bytes=4096, counts=counts)
    (folder / "lake").mkdir()
    pq.write_table(table, folder / "lake" / "rows.parquet", row_group_size=500)
    yield "sorted", StoredRelation(folder / "sorted", read_versions(folder / "sorted")[-1], "buffered")
    yield "mapped", StoredRelation(folder / "sorted", read_versions(folder / "sorted")[-1], "mmap")
    yield "frequency", StoredRelation(folder / "frequency", read_versions(folder / "frequency")[-1], "buffered")
    yield "parquet", ParquetRelation(list_files(folder / "lake"), table.schema, "id", rows_per_page=128)


@pytest.mark.parametrize("name", [row.name for row in ALGORITHMS])
def test_beside_a_stream_that_does_not_let_up_nobody_waits_too_long_for_tables_on_disk(tmp_path: Path, name: str) -> None:
    hot = pa.record_batch({"product": pa.array([0, 400, 800, LONG, 1_200, 1_600] + [0] * 94, pa.int64())})
    cold = pa.record_batch({"product": pa.array([11_998, 12_345, 7_001, None, LONG], pa.int64())})
    spec = JoinSpec(STREAM, (("product", "id"),), "left", ("product",), ("price",))
    for form, relation in _tables(tmp_path):
        if form == "parquet" and name not in ("meshjoin", "rmeshjoin"):
            continue
        make = partial(make_join, name)
        for spare_bytes in (0, 100_000):
            check_waits(make(relation, spec, Budget(tightest(make, relation, spec) + spare_bytes)), hot, cold, 900)
