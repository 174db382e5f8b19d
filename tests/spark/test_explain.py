"""`mr.explain`: the plan that would run, with a forecast. Nothing runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.running import frame

import millrace as mr
from millrace.core.errors import BudgetError, ParameterError, StrategyError
from millrace.relations.build import build_table

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]

ROWS = 30_000
PRODUCTS = pa.table({"id": range(ROWS), "v": [f"value {key:>20}" for key in range(ROWS)], "low": range(0, 10 * ROWS, 10)})
SALES = pa.table({"n": range(4_000), "id": pa.array([n * 7_919 % 40_000 for n in range(4_000)], pa.int64())})
HOT_SALES = pa.table({"n": range(4_000), "id": pa.array([7 if n % 2 else n % 40 for n in range(4_000)], pa.int64())})


@pytest.fixture
def products(warehouse: Path) -> mr.MasterTable:
    build_table(warehouse / "products", PRODUCTS, "id", page_bytes=4096)
    return mr.MasterTable.open(warehouse / "products")


@pytest.fixture
def sales(spark: SparkSession) -> DataFrame:
    return frame(spark, SALES)


def jobs_of(spark: SparkSession, name: str, run: Any) -> int:
    """Spark jobs that a call runs."""
    context = spark.sparkContext
    context.setJobGroup(name, name)
    try:
        run()
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    return len(context.statusTracker().getJobIdsForGroup(name))


def plan_text(result: mr.Explanation) -> str:
    return str(result.plan)


@pytest.mark.parametrize("read", ["mmap", "direct"])
def test_explain_joins_nothing_and_runs_no_job(
    spark: SparkSession, sales: DataFrame, products: mr.MasterTable, read: str
) -> None:
    def explained() -> None:
        str(mr.explain(sales, products, "id", read=read, memory="8m", arrivals_per_second=1_000))

    assert jobs_of(spark, f"explain-{read}", explained) == 0
    assert jobs_of(spark, f"sample-{read}", lambda: mr.explain(sales, products, "id", read=read, sample=1_000)) > 0


@pytest.mark.parametrize("strategy", ["auto", "sweepjoin", "hybridjoin", "meshjoin", "csweepjoin"])
@pytest.mark.parametrize("read", ["mmap", "direct"])
def test_the_plan_that_is_printed_is_the_plan_that_runs(
    spark: SparkSession, sales: DataFrame, products: mr.MasterTable, strategy: str, read: str
) -> None:
    explained = mr.explain(sales, products, "id", "left", memory="8m", strategy=strategy, read=read)
    observed = mr.enrich(sales, products, "id", "left", memory="8m", strategy=strategy, read=read)
    assert sorted(explained.enrich().collect()) == sorted(observed.collect())
    assert str(explained).startswith(plan_text(explained))
    again = mr.explain(sales, products, "id", "left", memory="8m", strategy=strategy, read=read)
    assert plan_text(again) == plan_text(explained)


def test_a_forecast_has_its_parts(sales: DataFrame, products: mr.MasterTable) -> None:
    found = mr.explain(sales, products, "id", memory="4m", read="direct", arrivals_per_second=1_000)
    assert found.strategy in str(found.plan)
    assert found.tuples_per_second > 0
    assert 0 < found.seconds_per_batch(0) < found.seconds_per_batch(10_000) < found.seconds_per_batch(1_000_000)
    assert found.pages_per_1000_rows > 0
    assert sum(found.memory_split.values()) <= 4 << 20
    assert found.keeps_up is True
    assert found.headroom is not None
    assert found.headroom > 1
    assert found.latency_seconds is not None
    assert found.runner_up not in (None, found.strategy)
    assert repr(found).startswith("<Explanation ")
    assert found._repr_html_().startswith("<pre>")


def test_without_an_arrival_rate_nobody_knows_whether_it_keeps_up(sales: DataFrame, products: mr.MasterTable) -> None:
    found = mr.explain(sales, products, "id")
    assert (found.keeps_up, found.headroom, found.latency_seconds) == (None, None, None)


def test_rows_that_arrive_too_fast_are_told_with_the_most_that_can_be_had(sales: DataFrame, products: mr.MasterTable) -> None:
    found = mr.explain(sales, products, "id", memory="4m", read="direct", arrivals_per_second=1e9)
    assert found.keeps_up is False
    assert "does not keep up" in str(found)
    assert f"{found.tuples_per_second:,.0f} is the most" in str(found)
    assert "with any memory" in str(found) or "more memory does not help" in str(found)


def test_the_memory_that_would_keep_up_is_named(sales: DataFrame, products: mr.MasterTable) -> None:
    asked = {"read": "direct", "strategy": "meshjoin"}
    rate = mr.explain(sales, products, "id", memory="8m", **asked).tuples_per_second
    short = mr.explain(sales, products, "id", memory="1m", arrivals_per_second=0.8 * rate, **asked)
    assert short.keeps_up is False
    enough = re.search(r"; ([\d.]+ MiB) would keep up", str(short))
    assert enough is not None, str(short)
    memory = int(float(enough[1].split()[0]) * (1 << 20))
    assert mr.explain(sales, products, "id", memory=memory, arrivals_per_second=0.8 * rate, **asked).keeps_up


def test_reads_are_forecast_only_where_pages_are_read(sales: DataFrame, products: mr.MasterTable) -> None:
    assert mr.explain(sales, products, "id", read="mmap").pages_per_1000_rows == 0
    assert mr.explain(sales, products, "id", read="direct").pages_per_1000_rows > 0


def test_a_sample_tells_how_unevenly_keys_come(spark: SparkSession, sales: DataFrame, products: mr.MasterTable) -> None:
    hot = frame(spark, HOT_SALES)
    asked = {"read": "direct", "strategy": "sweepjoin", "memory": "1m"}
    even, uneven = (mr.explain(data, products, "id", sample=4_000, **asked) for data in (sales, hot))
    assert uneven.skew.shares[0] == pytest.approx(0.5, abs=0.02)
    assert even.skew.shares == ()
    assert "in a sample of 4,000 rows" in str(uneven)
    assert uneven.seconds_per_batch(2_000) < even.seconds_per_batch(2_000)
    assert mr.explain(sales, products, "id", read="direct", sample=hot).skew == uneven.skew


def test_the_keys_of_an_earlier_query_are_taken(spark: SparkSession, products: mr.MasterTable) -> None:
    from pyspark.sql import Observation

    seen = Observation()
    mr.enrich(frame(spark, HOT_SALES), products, "id", hot_keys=50, observation=seen).count()
    hot = mr.hot_keys(seen, limit=50)
    found = mr.explain(frame(spark, HOT_SALES), products, "id", read="direct", skew=hot)
    assert found.skew.shares[0] == pytest.approx(0.5, abs=0.02)
    assert mr.explain(frame(spark, HOT_SALES), products, "id", read="direct", skew=found.skew).skew == found.skew
    assert mr.enrich(frame(spark, HOT_SALES), products, "id", read="direct", skew=hot).count() == 4_000


def test_skew_decides_whether_rows_are_kept_in_front(sales: DataFrame, products: mr.MasterTable) -> None:
    """With keys wanted alike, rows that are kept answer little."""
    few = {"read": "direct", "memory": "400k", "arrivals_per_second": 2_000}
    even = mr.explain(sales, products, "id", skew=0.0, **few)
    uneven = mr.explain(sales, products, "id", skew=2.0, **few)
    assert not even.strategy.startswith("c")
    assert uneven.strategy.startswith("c")
    assert uneven.tuples_per_second > even.tuples_per_second


def test_several_tables_are_forecast_together(sales: DataFrame, products: mr.MasterTable) -> None:
    lookups = [
        mr.Lookup(products, on="id", columns={"v": "one"}),
        mr.Lookup(products, on=("n", "id"), columns={"v": "two"}, name="again"),
    ]
    both = mr.explain(sales, lookups, memory="8m", read="direct", strategy="sweepjoin")
    one = mr.explain(sales, products, "id", columns=["v"], memory="4m", read="direct", strategy="sweepjoin")
    assert both.strategy == "sweepjoin, sweepjoin"
    assert both.seconds_per_batch(100_000) > one.seconds_per_batch(100_000)
    assert all(name.startswith("products: ") for name in both.memory_split)
    assert sorted(both.enrich().columns) == ["id", "n", "one", "two"]


def test_parquet_files_are_scanned(sales: DataFrame, tmp_path: Path) -> None:
    pq.write_table(PRODUCTS, tmp_path / "lake.parquet")
    found = mr.explain(sales, mr.ParquetTable(tmp_path / "lake.parquet"), "id", arrivals_per_second=100)
    assert found.strategy in ("meshjoin", "rmeshjoin", "cmeshjoin")
    assert found.tuples_per_second > 0
    assert found.enrich().count() == sum(key < ROWS for key in SALES["id"].to_pylist())


@pytest.mark.parametrize("on", [mr.near("id", "low", 3), mr.between("id", "id", "low"), mr.expr("stream.id < master.low")])
def test_conditions_are_forecast_as_scans(sales: DataFrame, products: mr.MasterTable, on: Any) -> None:
    found = mr.explain(sales, products, on, columns=["v"], memory="64m")
    assert found.strategy == "rmeshjoin"
    assert "the time of comparing rows by the condition is not in the forecast" in str(found)
    assert found.runner_up is None


def test_an_empty_table_is_forecast_too(spark: SparkSession, sales: DataFrame, warehouse: Path) -> None:
    build_table(warehouse / "empty", PRODUCTS.slice(0, 0), "id", page_bytes=4096)
    for read in ("mmap", "direct"):
        assert "the table is empty" in str(mr.explain(sales, mr.MasterTable.open(warehouse / "empty"), "id", read=read))


def test_auto_takes_whatever_fits_and_says_what_the_least_is(sales: DataFrame, products: mr.MasterTable) -> None:
    with pytest.raises(BudgetError, match="too small for this join; give memory=") as small:
        mr.explain(sales, products, "id", read="direct", memory=40_000)
    needed = small.value.needed_bytes
    assert mr.explain(sales, products, "id", read="direct", memory=needed).enrich().count() == mr.enrich(
        sales, products, "id"
    ).count()  # fmt: skip
    with pytest.raises(BudgetError):
        mr.explain(sales, products, "id", read="direct", memory=int(0.9 * needed))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"arrivals_per_second": -1}, "arrivals_per_second must be a number of rows a second, 0 or more; got -1"),
        ({"arrivals_per_second": float("nan")}, "arrivals_per_second"),
        ({"arrivals_per_second": "fast"}, "arrivals_per_second"),
        ({"skew": "hot"}, "skew must be a Zipf exponent"),
        ({"skew": -0.5}, "zipf_exponent must be a number, 0"),
        ({"skew": float("nan")}, "zipf_exponent must be a number, 0"),
        ({"sample": 0}, "sample must be a number of rows from 1"),
        ({"sample": True}, "sample must be a Spark DataFrame"),
        ({"sample": 10, "skew": 1.0}, "give one of them"),
        ({"memory": 0}, "memory"),
        ({"partitions": 0}, "partitions must be at least 1"),
    ],
)
def test_bad_input_is_a_clear_error(sales: DataFrame, products: mr.MasterTable, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        mr.explain(sales, products, "id", **wrong)


def test_strategies_and_rows_are_checked(sales: DataFrame, products: mr.MasterTable) -> None:
    with pytest.raises(StrategyError, match="there is no strategy 'best'"):
        mr.explain(sales, products, "id", strategy="best")
    with pytest.raises(ParameterError, match="rows must be a number of rows"):
        mr.explain(sales, products, "id").seconds_per_batch(-1)


def test_a_stream_is_not_sampled(spark: SparkSession, products: mr.MasterTable, tmp_path: Path) -> None:
    pq.write_table(SALES, tmp_path / "sales.parquet")
    stream = spark.readStream.schema("n long, id long").parquet(str(tmp_path))
    with pytest.raises(ParameterError, match="a stream can't be sampled before it runs"):
        mr.explain(stream, products, "id", sample=10)
    assert mr.explain(stream, products, "id", sample=frame(spark, SALES)).tuples_per_second > 0


def test_a_sweep_is_not_expected_to_read_more_pages_than_there_are(sales: DataFrame, products: mr.MasterTable) -> None:
    for arrivals in (5_000, 50_000, 90_000, 130_000):
        found = mr.explain(
            sales, products, "id", read="direct", strategy="sweepjoin", memory="64m", arrivals_per_second=arrivals, partitions=1
        )
        pages = found.pages_per_1000_rows * found.rows_per_batch / 1000
        assert pages <= products.relation("direct").pages + 1e-6
