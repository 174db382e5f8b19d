"""What an `enrich` call decides: once, on the driver, readable, and followed by the tasks."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.running import frame, stream_through

import millrace as mr
from millrace.relations.build import build_table
from millrace.relations.folder import now_us
from millrace.spark import registry
from millrace.spark.lookups import as_lookups
from millrace.spark.plan import Plan
from millrace.spark.planning import make_plan
from millrace.spark.reports import _report
from millrace.spark.task import KeysPass

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]

SALES = pa.table({"n": range(300), "id": pa.array([None if n % 10 == 3 else n % 50 for n in range(300)], pa.int64())})
PRODUCTS = pa.table({"id": range(30), "v": [f"v{key}" for key in range(30)]})


@pytest.fixture
def products(warehouse: Path) -> mr.MasterTable:
    build_table(warehouse / "products", PRODUCTS, "id", page_bytes=4096)
    return mr.MasterTable.open(warehouse / "products")


def _plan(stream: DataFrame, table: Any, on: Any = None, *, memory: int = 64 << 20, **options: Any) -> Plan:
    chosen = {"strategy": "auto", "read": "auto", "ordered": False, "partitions": None} | options
    return make_plan(stream, as_lookups(table, on, "left", None, None), memory, **chosen)[0]


def test_a_plan_can_be_read(spark: SparkSession, products: mr.MasterTable) -> None:
    plan = _plan(frame(spark, SALES), products, "id", partitions=4)
    assert str(plan) == "\n".join([
        "64.0 MiB for each task, 4 tasks",
        f"products ({products.path})",
        "  join     left, on id = id",
        "  columns  v",
        "  by       a key look-up, at once; pages are used in place",
        "  travels  keys go to Python; the one match of a row comes back",
        "  memory   64.0 MiB: 5.4 MiB for rows that are looked up, 16.0 MiB at most",
        "  rows     16,384 rows at a time, between 64 and 16,384",
    ])  # fmt: skip


def test_the_plan_of_several_tables_says_of_each_how_it_is_joined(
    spark: SparkSession, products: mr.MasterTable, tmp_path: Path
) -> None:
    pq.write_table(PRODUCTS, tmp_path / "lake.parquet")
    lake = mr.ParquetTable(tmp_path / "lake.parquet")
    lookups = [
        mr.Lookup(products, "id", columns={"v": "name"}),
        mr.Lookup(lake, mr.near("n", "id", 2), columns=["v"], how="inner"),
    ]
    plan = _plan(frame(spark, SALES), lookups, memory=64 << 20, read="direct", ordered=True)
    keyed, scanned = (str(join).splitlines() for join in plan.joins)
    assert keyed[2:5] == [
        "  columns  v as name",
        "  by       strategy sweepjoin; pages are read past the page cache",
        "  travels  keys go to Python; the one match of a row comes back",
    ]
    assert scanned[1:5] == [
        "  join     inner, on n within 2 of id",
        "  columns  v",
        "  by       strategy rmeshjoin; the files are scanned in place",
        "  travels  whole rows go to Python; joined rows come back, in the order of the stream",
    ]
    assert [join.memory.given_bytes for join in plan.joins] == [32 << 20, 32 << 20]
    assert (plan.by_key, plan.by_row) == (plan.joins[:1], plan.joins[1:])


def test_a_plan_is_decided_for_good_and_travels_as_it_is(spark: SparkSession, products: mr.MasterTable) -> None:
    plan = _plan(frame(spark, SALES), products, "id", strategy="hybridjoin", read="buffered")
    with pytest.raises(FrozenInstanceError):
        plan.joins[0].access = "key look-up"  # type: ignore[misc]
    arrived = pickle.loads(pickle.dumps(plan))
    assert str(arrived) == str(plan)
    for join, sent in zip(arrived.joins, plan.joins, strict=True):
        assert (join.memory, join.group, join.read, join.access) == (sent.memory, sent.group, sent.read, sent.access)


def test_reports_state_what_was_used(spark: SparkSession, products: mr.MasterTable, tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [
        ({}, "key look-up", ("mmap",)),
        ({"read": "direct"}, "sweepjoin", ("direct",)),
        ({"read": "buffered", "strategy": "hybridjoin"}, "hybridjoin", ("buffered",)),
    ]
    for number, (options, strategy, read) in enumerate(cases):
        done = stream_through(spark, SALES, lambda s, o=options: mr.enrich(s, products, "id", **o), tmp_path / str(number))
        for report in mr.reports(done.query):
            assert (report.strategy, report.read, report.plan_changes) == (strategy, read, 0)
            assert report.group_rows == (100, 100)
            assert "plan changed" not in str(report)


def test_a_task_whose_machine_cannot_map_the_table_makes_a_new_plan_and_says_so(
    spark: SparkSession, products: mr.MasterTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where executors have less memory than the driver: the function of a task, run here."""
    plan = _plan(frame(spark, SALES), products, "id")
    assert (plan.joins[0].read, plan.joins[0].access) == ("mmap", "key look-up")
    monkeypatch.setattr(registry, "can_map", lambda version, used=True: False)
    keys = SALES["id"].combine_chunks()
    times = pa.array([now_us()] * len(keys), pa.timestamp("us", "UTC"))
    (found,) = KeysPass(plan.joins).keys_in(iter([(keys, times)]))
    names, counts = (found.field(i).to_pylist() for i in range(2))
    assert names == [None if key is None or key >= 30 else f"v{key}" for key in keys.to_pylist()]
    report = _report("products", 3, [text for text in counts if text is not None])
    assert (report.rows_in, report.matched, report.plan_changes) == (300, 300 - names.count(None), 1)
    assert (report.strategy, report.read, report.group_rows) == ("sweepjoin", ("direct",), (300, 300))
    assert ", the plan changed in 1 task, " in str(report)
    report.ledger.check()


def test_workers_that_share_the_memory_of_the_driver_are_not_promised_more(
    spark: SparkSession, products: mr.MasterTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "can_map", lambda version, used=True: False)
    assert _plan(frame(spark, SALES), products, "id").joins[0].read == "direct"
