"""Cached joins on Spark: the same rows, and hot rows that outlive a micro-batch, a task and a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark import SparkFiles
from pyspark.sql import SparkSession
from tests.spark.running import every_how, frame, read_stream, run_query, same_rows, spark_join, write_files
from tests.spark.tables import built_table

import millrace as mr
from millrace.catalog import ALGORITHMS
from millrace.core.errors import BudgetError, ParameterError, StrategyError
from millrace.spark.front_stages import TaskSettings

pytestmark = pytest.mark.spark

CACHED = [row.name for row in ALGORITHMS if row.cached]
ROWS = pa.table({"id": np.arange(5_000), "price": np.arange(5_000) * 3, "name": [f"n{i}" * (i % 4) for i in range(5_000)]})


def sales(count: int, seed: int = 1) -> pa.Table:
    keys = np.random.default_rng(seed).zipf(1.2, count) % 5_300
    ids = pa.array([None if key % 97 == 5 else int(key) for key in keys], pa.int64())
    return pa.table({"sale": np.arange(count), "id": ids})


def fresh(number: int) -> pa.Table:
    """Rows that no other test has: what was learned of the same rows would be used again."""
    return ROWS.set_column(1, "price", pa.array(np.arange(5_000) * 11 + number))


@pytest.fixture
def new_workers(spark: SparkSession) -> Iterator[Any]:
    """Makes tasks run in workers that have done nothing yet."""
    environment = spark.sparkContext.environment
    before = dict(environment)
    turn = iter(range(100))
    yield lambda: environment.update(MILLRACE_TEST_WORKERS=str(next(turn)))
    environment.clear()
    environment.update(before)


@pytest.mark.parametrize("strategy", CACHED)
def test_rows_are_those_of_sparks_own_join(spark: SparkSession, warehouse: Path, strategy: str) -> None:
    table, stream = built_table(warehouse / "t", ROWS), frame(spark, sales(4_000))

    def enriched(how: str) -> Any:
        return mr.enrich(stream, table, "id", how, strategy=strategy, read="direct", memory="4m")

    columns = ["price", "name"]
    right = every_how(lambda how: spark_join(stream, ROWS, "id", how), columns)
    for _ in range(2):  # the second time, the front stage is warm
        assert same_rows(every_how(enriched, columns), right)


def test_keys_with_many_rows_and_text_keys(spark: SparkSession, warehouse: Path) -> None:
    rows = pa.table({"id": [f"k{i % 300}" for i in range(6_000)], "price": np.arange(6_000)})
    table = built_table(warehouse / "t", rows)
    keys = [f"k{key % 310}" for key in np.random.default_rng(2).zipf(1.3, 800)]
    stream = frame(spark, pa.table({"sale": np.arange(800), "id": keys}))
    right = spark_join(stream, rows, "id", "left")
    for strategy in ("chybridjoin", "cmeshjoin"):
        for _ in range(2):
            joined = mr.enrich(stream, table, "id", "left", strategy=strategy, read="direct", memory="4m", ordered=True)
            assert same_rows(joined, right)


def test_the_front_stage_outlives_a_micro_batch(spark: SparkSession, warehouse: Path) -> None:
    table = built_table(warehouse / "t", fresh(1))
    stream = read_stream(spark, write_files(sales(20_000), warehouse / "in", 4))
    enriched = mr.enrich(stream, table, "id", "left", strategy="csweepjoin", read="direct", memory="4m")
    reports = mr.reports(run_query(enriched, warehouse, sink="noop").query)
    shares = [report.hit_share for report in reports]
    assert len(shares) == 4
    assert shares[0] is not None
    assert shares[-1] is not None
    assert shares[0] < shares[-1]
    assert shares[-1] > 0.5
    assert reports[-1].front == ("used",)
    assert 0 < reports[-1].cache_bytes < 4 << 20
    assert "answered in front from" in str(reports[-1])
    assert all(report.ledger.rows_in == report.matched + report.unmatched for report in reports)
    assert reports[-1].counts.pages_read < reports[0].counts.pages_read


def test_a_new_worker_starts_with_the_rows_of_the_others(spark: SparkSession, warehouse: Path, new_workers: Any) -> None:
    table = built_table(warehouse / "t", fresh(2))
    folder = write_files(sales(5_000), warehouse / "in", 1)

    def hits(name: str) -> float:
        enriched = mr.enrich(read_stream(spark, folder), table, "id", strategy="csweepjoin", read="direct", memory="4m")
        (report,) = mr.reports(run_query(enriched, warehouse / name, sink="noop").query)
        return report.hit_share or 0.0

    new_workers()
    cold = hits("cold")
    new_workers()
    warm = hits("warm")
    assert cold < 0.5 < warm
    files = sorted((Path(SparkFiles.getRootDirectory()) / "millrace-front").glob("*.hot"))
    assert files
    for file in files:
        assert file.stat().st_mode & 0o777 == 0o600
        file.write_bytes(file.read_bytes()[:-3])
    new_workers()
    assert hits("damaged") == pytest.approx(cold, abs=0.05)


def test_a_new_version_empties_the_front_stage(spark: SparkSession, warehouse: Path) -> None:
    stream = frame(spark, sales(3_000))
    for version, factor in enumerate((3, 7, 11), 1):
        rows = ROWS.set_column(1, "price", pa.array(np.arange(5_000) * factor))
        table = mr.MasterTable.build(frame(spark, rows), "id", warehouse, page_bytes=4096, shards=2)
        assert len(table.versions) == version
        right = spark_join(stream, rows, "id", "left")
        for _ in range(2):  # the second time with rows of this version in front
            joined = mr.enrich(stream, table, "id", "left", strategy="chybridjoin", read="direct", memory="4m")
            assert same_rows(joined, right)


def test_a_mapped_table_bypasses_the_front_stage_and_the_report_says_so(spark: SparkSession, warehouse: Path) -> None:
    table = built_table(warehouse / "t", ROWS)
    stream = read_stream(spark, write_files(sales(2_000), warehouse / "in", 1))
    for strategy in ("csweepjoin", "chybridjoin"):
        enriched = mr.enrich(stream, table, "id", strategy=strategy, read="mmap")
        (report,) = mr.reports(run_query(enriched, warehouse / strategy, sink="noop").query)
        assert (report.front, report.hit_share, report.cache_bytes) == (("bypassed",), None, 0)
        assert "front stage bypassed: pages are used in place" in str(report)


def test_parquet_files_are_scanned_behind_a_front_stage(spark: SparkSession, warehouse: Path) -> None:
    write_files(ROWS, warehouse / "lake", 3)
    stream = frame(spark, sales(3_000))
    joined = mr.enrich(stream, mr.ParquetTable(warehouse / "lake"), "id", "left", strategy="cmeshjoin", memory="8m")
    assert same_rows(joined, spark_join(stream, ROWS, "id", "left"))


def test_bad_input_is_refused_before_anything_runs(spark: SparkSession, warehouse: Path) -> None:
    table, stream = built_table(warehouse / "t", ROWS), frame(spark, sales(10))
    with pytest.raises(ParameterError, match=r"cache_share must be \"auto\", or a number from 0 to less than 1; got 1.5"):
        mr.enrich(stream, table, "id", strategy="cmeshjoin", cache_share=1.5)
    with pytest.raises(ParameterError, match="threshold must be"):
        mr.enrich(stream, table, "id", strategy="cmeshjoin", threshold=0)
    for strategy in ("auto", "sweepjoin"):
        with pytest.raises(StrategyError, match="cache_share is for a join with a front stage"):
            mr.enrich(stream, table, "id", strategy=strategy, cache_share=0.2)
    with pytest.raises(StrategyError, match="'cmeshjoin' does not serve 'near'"):
        mr.enrich(stream, table, mr.near("id", "id", 2), strategy="cmeshjoin")
    with pytest.raises(BudgetError, match="give memory=") as small:
        mr.enrich(stream, table, "id", strategy="chybridjoin", read="direct", memory="20k")
    mr.enrich(stream, table, "id", strategy="chybridjoin", read="direct", memory=small.value.needed_bytes)


def test_a_task_begins_with_the_group_that_fitted_last(spark: SparkSession, warehouse: Path, new_workers: Any) -> None:
    """A few rows are long, and the stream wants them: planned by the mean row, a group takes too much memory."""
    texts = ["x" * (20_000 if i < 20 else 1) for i in range(20_000)]
    table = built_table(warehouse / "t", pa.table({"id": np.arange(20_000), "text": texts}))
    keys = pa.table({"id": np.random.default_rng(1).integers(0, 20, 8_000)})
    stream = read_stream(spark, write_files(keys, warehouse / "in", 8))
    enriched = mr.enrich(stream, table, "id", strategy="sweepjoin", read="direct", memory="8m")
    new_workers()  # one or two, for one task after the other
    first, *others = mr.reports(run_query(enriched, warehouse, sink="noop").query)
    assert first.group_rows is not None
    assert first.group_rows[1] < 1_000
    assert [report.matched for report in (first, *others)] == [1_000] * 8
    again = min(others, key=lambda report: report.counts.probes)  # in a worker that had a task before
    assert again.group_rows is not None
    assert again.group_rows[1] <= 2 * first.group_rows[1]
    assert again.counts.probes < 0.9 * first.counts.probes  # no group was given up


@pytest.mark.parametrize("share", ["auto", 0.3])
def test_the_share_of_the_front_stage_follows_the_stream_unless_it_is_given(
    spark: SparkSession, warehouse: Path, new_workers: Any, share: Any
) -> None:
    rows = pa.table({"id": np.arange(60_000), "price": np.arange(60_000) * 7 + (share == "auto")})
    table = built_table(warehouse / "t", rows)
    keys = pa.table({"id": np.random.default_rng(1).zipf(1.1, 320_000) % 60_000})
    stream = read_stream(spark, write_files(keys, warehouse / "in", 8))
    enriched = mr.enrich(stream, table, "id", "left", strategy="csweepjoin", read="direct", memory="1m", cache_share=share)
    new_workers()
    reports = mr.reports(run_query(enriched, warehouse, sink="noop").query)
    sizes = [report.cache_bytes for report in reports]
    assert len(sizes) == 8
    assert (len(set(sizes)) > 1) == (share == "auto")
    assert all(report.ledger.rows_in == report.matched + report.unmatched == 40_000 for report in reports)
    assert max(report.memory_bytes for report in reports) <= 1 << 20


def test_a_share_that_gave_less_is_left_again_and_not_tried_soon() -> None:
    settings = TaskSettings()
    settings.follow(0.5, 0.8, seconds=1.0)
    assert settings.cache_share == 0.8
    settings.follow(0.8, 0.8, seconds=1.2)
    assert settings.cache_share == 0.5
    for _ in range(20):
        settings.follow(0.5, 0.8, seconds=1.0)
    assert settings.cache_share == 0.5
    for _ in range(20):
        settings.follow(0.5, 0.8, seconds=1.0)
    assert settings.cache_share == 0.8  # the stream may have changed
