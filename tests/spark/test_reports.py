"""The ledger of every micro-batch: balanced, and equal to what can be counted by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from tests.spark.running import (
    HOWS,
    add_file,
    frame,
    read_stream,
    run_query,
    started_query,
    stream_through,
    wait_until,
    write_files,
)
from tests.spark.tables import built_table

import millrace as mr
from millrace.core.errors import ParameterError
from millrace.core.step import StepCounts
from millrace.relations.build import build_table
from millrace.spark import counters
from millrace.spark.labels import new_label, shown_names

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]

SHAPES = {"unique": 1, "few": 3, "many": 20}
SALES = pa.table(
    {"n": range(300), "id": pa.array([None if n % 10 == 3 else n % 50 for n in range(300)], pa.int64())}
)  # keys 0 to 49, of which the table has 0 to 29
PER_BATCH = 100


def _table(path: Path, copies: int) -> mr.MasterTable:
    keys = [key for key in range(30) for _ in range(copies)]
    return built_table(path, pa.table({"id": pa.array(keys, pa.int64()), "v": [f"v{key}" for key in keys]}))


def _truth(ids: list[int | None], copies: int) -> dict[str, int]:
    nulls = sum(key is None for key in ids)
    met = sum(key is not None and key < 30 for key in ids)
    return {"rows_in": len(ids), "matched": met, "nulls": nulls, "absent": len(ids) - nulls - met, "matches": met * copies}


def _counted(report: mr.BatchReport) -> dict[str, int]:
    report.ledger.check()
    counts = report.counts
    return {
        "rows_in": report.rows_in, "matched": report.matched, "nulls": counts.null_keys, "absent": counts.absent_keys,
        "matches": counts.matches,
    }  # fmt: skip


def _read_aloud(report: mr.BatchReport, truth: dict[str, int]) -> None:
    """The report as a line: what people ask for in plain words, and nothing that only its authors know."""
    assert re.fullmatch(
        rf"batch {report.batch_id} of sales: 100 rows in, {truth['matched']} matched, {100 - truth['matched']} unmatched "
        rf"\({truth['absent']} with no such key in the table, {truth['nulls']} without a key\), table version 1, "
        r"(nothing read from disk|\d+ reads? of [\d.]+ (?:[KM]i)?B in [\d.]+ m?s), [\d.]+ m?s in all",
        str(report),
    ), str(report)
    assert repr(report) == f"<BatchReport {report}>"


def test_a_report_of_large_numbers_has_them_in_units() -> None:
    counts = StepCounts(tuples_in=1_234_567, matched=1_234_000, absent_keys=500, condition_false=67)
    report = mr.BatchReport(
        "products", None, counts, waiting=0, table_versions=(3, 4), disk_reads=1_200, disk_bytes=5 << 30, read_seconds=0.25,
        memory_bytes=1,
    )  # fmt: skip
    assert str(report) == (
        "products: 1,234,567 rows in, 1,234,000 matched, 567 unmatched (500 with no such key in the table, 67 for which the "
        "condition does not hold), table versions 3, 4, 1,200 reads of 5.0 GiB in 250 ms"
    )


def test_what_is_in_a_table_is_shown_without_what_only_its_files_have(warehouse: Path) -> None:
    build_table(warehouse, pa.table({"id": ["a", None], "v": [1, 2]}), "id")
    table = mr.MasterTable.open(warehouse)
    shown = str(table.describe())
    assert shown.splitlines()[1:] == [
        "  1 row on 1 page of at most 4.0 KiB, 4.0 KiB in 1 shard",
        "  key id (unique), layout hash; 1 row without a key was left out",
        "  columns id string, v int64",
    ]
    assert repr(table.describe()) == shown
    assert repr(table) == f"MasterTable({str(warehouse)!r})"
    for text in (shown, repr(table.latest), repr(table.versions)):
        assert "__millrace" not in text


@pytest.mark.parametrize("shape", SHAPES)
def test_every_micro_batch_is_counted(spark: SparkSession, warehouse: Path, tmp_path: Path, shape: str) -> None:
    copies = SHAPES[shape]
    table = _table(warehouse, copies)
    done = stream_through(
        spark, SALES, lambda s: mr.enrich(s, table, "id", how="left", partitions=2, name="sales"), tmp_path, sink="noop"
    )
    reports = [report for report in mr.reports(done.query) if report.rows_in]
    assert [report.batch_id for report in reports] == [0, 1, 2]
    for number, report in enumerate(reports):
        assert report.name == "sales"
        ids = SALES["id"].to_pylist()[number * PER_BATCH : (number + 1) * PER_BATCH]
        assert _counted(report) == _truth(ids, copies)
        assert report.waiting == 0
        assert report.table_versions == (1,)
        assert 0 < report.memory_bytes <= 256 << 20
        assert report.groups >= 1
        assert report.seconds is not None
        _read_aloud(report, _truth(ids, copies))
    assert sum(report.disk_bytes for report in reports) > 0
    assert sum(report.counts.pages_read for report in reports) > 0


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_batch_query_is_counted_by_an_observation(spark: SparkSession, warehouse: Path, how: str, shape: str) -> None:
    watch = Observation(f"{how} {shape}")
    enriched = mr.enrich(frame(spark, SALES), _table(warehouse, SHAPES[shape]), "id", how=how, observation=watch)
    rows = enriched.count()
    (report,) = mr.reports(watch)
    truth = _truth(SALES["id"].to_pylist(), SHAPES[shape])
    counted = _counted(report)
    if how in ("semi", "anti"):  # one match is enough
        truth.pop("matches"), counted.pop("matches")
    assert counted == truth
    expected = {"inner": truth["matched"] * SHAPES[shape], "semi": truth["matched"], "anti": 300 - truth["matched"]}
    assert rows == expected.get(how, truth["matched"] * SHAPES[shape] + 300 - truth["matched"])


def test_many_small_groups_add_up(spark: SparkSession, warehouse: Path) -> None:
    sales = pa.table({"id": pa.array([n % 50 for n in range(40_000)], pa.int64())})
    watch = Observation("groups")
    enriched = mr.enrich(
        frame(spark, sales), _table(warehouse, 3), "id", how="left", memory="1m", read="buffered", observation=watch
    )
    assert enriched.count() == 24_000 * 3 + 16_000
    (report,) = mr.reports(watch)
    assert report.groups > 1
    assert _counted(report) == _truth(sales["id"].to_pylist(), 3)
    assert report.memory_bytes <= 1 << 20


def test_two_tables_in_one_query_are_told_apart(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    one, other = _table(warehouse / "one", 1), _table(warehouse / "other", 3)
    stream = read_stream(spark, write_files(SALES, tmp_path / "source", 2))
    once = mr.enrich(stream, one, "id", how="left", columns={"v": "v1"})
    done = run_query(mr.enrich(once, other, "id", how="left", columns={"v": "v2"}), tmp_path, sink="noop")
    by_name: dict[str, int] = {}
    for report in mr.reports(done.query):
        by_name[report.name] = by_name.get(report.name, 0) + report.counts.matches
    truth = _truth(SALES["id"].to_pylist(), 1)["matched"]
    assert by_name == {"one": truth, "other": 3 * truth}


def test_calls_of_one_name_are_numbered_in_their_order_after_a_restart_too(
    spark: SparkSession, warehouse: Path, tmp_path: Path
) -> None:
    table = _table(warehouse / "orders", 1)
    stream = read_stream(spark, write_files(SALES, tmp_path / "source", 2))
    for run in ("first", "again"):
        once = mr.enrich(stream, table, "id", how="left", columns={"v": "v1"})
        pair = [mr.Lookup(table, "id", columns={"v": "v2"}), mr.Lookup(table, "id", columns={"v": "v3"})]
        done = run_query(mr.enrich(once, pair, name=None), tmp_path / run, sink="noop")
        reports = [report for report in mr.reports(done.query) if report.batch_id == 0]
        assert [report.name for report in reports] == ["orders", "orders 2", "orders 3"]
        assert [str(report).split(":")[0] for report in reports] == [
            "batch 0 of orders", "batch 0 of orders 2", "batch 0 of orders 3",
        ]  # fmt: skip


def test_a_call_keeps_its_name_where_another_of_that_name_had_no_rows() -> None:
    first, second = (new_label("orders", streaming=True) for _ in range(2))
    third = new_label("orders 2", streaming=True)
    assert shown_names([second, first], []) == {first: "orders", second: "orders 2"}
    assert shown_names([second], [second, first]) == {second: "orders 2"}
    assert shown_names([third, second, first], []) == {first: "orders", second: "orders 3", third: "orders 2"}


def test_calls_inside_foreach_batch_are_numbered_within_their_batch() -> None:
    batches = [[new_label("a#b", streaming=False) for _ in range(2)] for _ in range(3)]
    everything = [label for labels in batches for label in labels]
    for labels in batches:
        assert list(shown_names(labels, everything).values()) == ["a#b", "a#b 2"]


def test_an_observation_without_a_name_takes_that_of_the_call(spark: SparkSession, warehouse: Path) -> None:
    for name, shown in ((None, "orders"), ("sales", "sales")):
        watch = Observation()
        mr.enrich(frame(spark, SALES), _table(warehouse / "orders", 1), "id", name=name, observation=watch).count()
        (report,) = mr.reports(watch)
        assert report.name == shown


def test_an_empty_micro_batch_is_counted_as_nothing(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    source = write_files(SALES.slice(0, 0), tmp_path / "source", 1)
    add_file(SALES, source)
    done = run_query(mr.enrich(read_stream(spark, source), _table(warehouse, 1), "id"), tmp_path, sink="noop")
    assert sum(report.rows_in for report in mr.reports(done.query)) == 300
    assert all(report.ledger.waiting == 0 for report in mr.reports(done.query))


def test_a_result_that_is_used_twice_is_counted_per_use(spark: SparkSession, warehouse: Path) -> None:
    watch = Observation("twice")
    enriched = mr.enrich(frame(spark, SALES), _table(warehouse, 1), "id", how="left", observation=watch)
    assert enriched.where("v is not null").count() == _truth(SALES["id"].to_pylist(), 1)["matched"]
    (report,) = mr.reports(watch)
    assert _counted(report) == _truth(SALES["id"].to_pylist(), 1)


def test_reports_are_made_of_queries_only() -> None:
    with pytest.raises(ParameterError, match="a streaming query, its progress, or an Observation; got int"):
        mr.reports(5)


def test_two_actions_on_one_micro_batch_count_its_rows_once(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    table = _table(warehouse, 1)

    def twice(rows: DataFrame, number: int) -> None:
        enriched = mr.enrich(rows, table, "id", name="inside")
        assert enriched.count() == len(enriched.toArrow())

    writer = read_stream(spark, write_files(SALES, tmp_path / "source", 3)).writeStream.foreachBatch(twice)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    reports = mr.reports(query)
    assert [report.batch_id for report in reports] == [0, 1, 2]
    for number, report in enumerate(reports):
        assert _counted(report) == _truth(SALES["id"].to_pylist()[number * PER_BATCH : (number + 1) * PER_BATCH], 1)


def test_a_partition_that_ran_again_replaces_what_it_sent() -> None:
    newest = counters._Newest()
    value = newest.addInPlace({("run", 0, "call", 0): "old", ("run", 0, "call", 1): "other"}, {("run", 0, "call", 0): "new"})
    assert value == {("run", 0, "call", 0): "new", ("run", 0, "call", 1): "other"}


def test_only_so_many_counts_are_kept_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "_KEPT", 3)
    newest, value = counters._Newest(), dict[counters.Key, str]()
    for batch in range(10):
        value = newest.addInPlace(value, {("run", batch, "call", 0): str(batch)})
    assert list(value.values()) == ["7", "8", "9"]


def test_a_query_that_waits_reports_no_batch_twice(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    """Spark tells of the batch to come while there is nothing to do; what that batch did later belongs to it alone."""
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100")
    source = write_files(SALES.slice(0, PER_BATCH), tmp_path / "source", 1)
    joined = mr.enrich(read_stream(spark, source), _table(warehouse, 1), "id", how="left")
    query = started_query(joined, tmp_path)
    try:
        wait_until(lambda: any(one["batchId"] == 1 and not one["numInputRows"] for one in query.recentProgress))
        add_file(SALES.slice(PER_BATCH, PER_BATCH), source)
        wait_until(lambda: any(one["batchId"] == 1 and one["numInputRows"] for one in query.recentProgress))
        found = [(report.batch_id, report.rows_in) for report in mr.reports(query)]
    finally:
        query.stop()
    assert found == [(0, PER_BATCH), (1, PER_BATCH)]


def test_groups_of_whole_rows_in_order_are_counted(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    table = _table(warehouse, 100)
    done = stream_through(spark, SALES, lambda s: mr.enrich(s, table, "id", memory="400k", ordered=True), tmp_path)
    for report in mr.reports(done.query):
        assert report.group_rows is not None
        assert report.groups >= PER_BATCH / report.group_rows[1]
        assert (report.groups > 1) == (report.group_rows[1] < PER_BATCH)
    assert max(report.groups for report in mr.reports(done.query)) > 1
