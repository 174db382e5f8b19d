"""Several tables in one pass: what Spark's own joins one after the other give, by one trip to Python."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from tests.spark.running import HOWS, frame, same_rows, spark_joins, stream_through
from tests.spark.tables import built_table

import millrace as mr
from millrace.core.errors import BudgetError, ParameterError, SchemaError

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]

SALES = pa.table(
    {
        "sale": range(200),
        "product": pa.array([None if n % 13 == 0 else n % 40 for n in range(200)], pa.int64()),
        "customer": [f"c{n % 23}" for n in range(200)],
    }
)
COPIES = {"unique": 1, "few": 3, "many": 20}
QUICK = [("unique", "unique"), ("unique", "many"), ("few", "unique"), ("many", "few")]  # the others are slow tests


def _product_rows(copies: int) -> pa.Table:
    keys = [key for key in range(30) for _ in range(copies)]
    return pa.table({"product": keys, "price": [float(n) for n in range(len(keys))]})


def _customer_rows(copies: int) -> pa.Table:
    keys = [key for key in range(17) for _ in range(copies)]
    return pa.table({"id": [f"c{key}" for key in keys], "name": [f"name {n}" for n in range(len(keys))]})


def _products(path: Path, copies: int) -> mr.MasterTable:
    return built_table(path, _product_rows(copies), "product")


def _customers(path: Path, copies: int) -> mr.MasterTable:
    return built_table(path, _customer_rows(copies), "id")


@pytest.mark.parametrize(
    ("first", "second"),
    [pair if pair in QUICK else pytest.param(*pair, marks=pytest.mark.slow) for pair in itertools.product(COPIES, COPIES)],
)
def test_the_rows_are_those_of_sparks_own_joins(spark: SparkSession, warehouse: Path, first: str, second: str) -> None:
    products = _products(warehouse / "products", COPIES[first])
    customers = _customers(warehouse / "customers", COPIES[second])
    rows = [_product_rows(COPIES[first]), _customer_rows(COPIES[second])]
    sales = frame(spark, SALES)
    hows = [("inner", "left"), ("left", "left"), ("inner", "semi"), ("anti", "inner"), ("left", "anti"), ("semi", "inner")]
    for how, other in hows:
        lookups = [mr.Lookup(products, "product"), mr.Lookup(customers, ("customer", "id"), how=other)]
        ours = mr.enrich(sales, lookups, how=how)
        theirs = spark_joins(sales, lookups, rows, how)
        assert ours.columns == theirs.columns
        difference = same_rows(ours, theirs)
        assert difference, (how, other, difference)


@pytest.mark.parametrize("how", HOWS)
def test_rows_that_lie_near_are_those_of_sparks_own_joins(spark: SparkSession, warehouse: Path, how: str) -> None:
    """Beside a table that is looked up by its key, before and behind it, by each kind of join."""
    rows = {"near": _product_rows(1), "customers": _customer_rows(3)}
    near, customers = _products(warehouse / "near", 1), _customers(warehouse / "customers", 3)
    sales = frame(spark, SALES).selectExpr("*", "sale / 4 AS weight")
    for other, order in itertools.product(HOWS, (["near", "customers"], ["customers", "near"])):
        lookups = {
            "near": mr.Lookup(near, mr.near("weight", "price", 1), how=how),
            "customers": mr.Lookup(customers, ("customer", "id"), how=other),
        }
        wanted = [lookups[name] for name in order]
        ours, theirs = mr.enrich(sales, wanted), spark_joins(sales, wanted, [rows[name] for name in order])
        assert ours.columns == theirs.columns
        difference = same_rows(ours, theirs)
        assert difference, (other, order, difference)


@pytest.mark.parametrize("read", ["mmap", "buffered"])
def test_more_tables_than_a_worker_keeps_open_go_into_one_pass(spark: SparkSession, warehouse: Path, read: str) -> None:
    tables = [_products(warehouse / f"t{number}", 1) for number in range(7)]
    lookups = [mr.Lookup(table, "product", columns={"price": f"p{n}"}) for n, table in enumerate(tables)]
    for _ in range(2):  # by the same workers
        rows = mr.enrich(frame(spark, SALES), lookups, how="left", read=read).toArrow()
        expected = [None if n % 13 == 0 or n % 40 >= 30 else float(n % 40) for n in range(200)]
        assert all(rows[f"p{number}"].to_pylist() == expected for number in range(7))


@pytest.mark.parametrize("strategy", ["auto", "hybridjoin"])
@pytest.mark.parametrize("read", ["mmap", "buffered"])
def test_every_way_to_join_gives_the_same(spark: SparkSession, warehouse: Path, strategy: str, read: str) -> None:
    products, customers = _products(warehouse / "p", 1), _customers(warehouse / "c", 3)
    lookups = [mr.Lookup(products, "product", columns={"price": "cost"}), mr.Lookup(customers, {"customer": "id"})]
    ours = mr.enrich(frame(spark, SALES), lookups, how="left", strategy=strategy, read=read, memory="4m")
    theirs = spark_joins(frame(spark, SALES), lookups, [_product_rows(1), _customer_rows(3)], "left")
    assert ours.columns == theirs.columns
    difference = same_rows(ours, theirs)
    assert difference, difference


def test_a_table_looked_up_twice_gives_both_answers(spark: SparkSession, warehouse: Path) -> None:
    """A table in place beside one that is not, so that rows come in groups of two kinds."""
    products, parents = _products(warehouse / "p", 1), _products(warehouse / "q", 3)
    sales = frame(spark, SALES).selectExpr("sale", "product", "sale % 35 AS other")
    lookups = [
        mr.Lookup(products, "product", columns={"price": "price"}),
        mr.Lookup(products, ("other", "product"), columns={"price": "other_price"}),
        mr.Lookup(parents, "product", columns={"price": "parent_price"}),
    ]
    theirs = spark_joins(sales, lookups, [_product_rows(1), _product_rows(1), _product_rows(3)], "left")
    difference = same_rows(mr.enrich(sales, lookups, how="left"), theirs)
    assert difference, difference


def test_there_is_one_trip_to_python(spark: SparkSession, warehouse: Path) -> None:
    products, customers = _products(warehouse / "p", 1), _customers(warehouse / "c", 1)
    lookups = [mr.Lookup(products, "product"), mr.Lookup(customers, ("customer", "id"))]

    sales = frame(spark, SALES)
    assert trips(mr.enrich(sales, lookups)) == 1
    assert trips(mr.enrich(mr.enrich(sales, products, "product"), customers, ("customer", "id"))) == 2


def trips(rows: DataFrame) -> int:
    plan = str(rows._jdf.queryExecution().executedPlan().toString())  # type: ignore[operator]
    return plan.count("ArrowEvalPython") + plan.count("MapInArrow")


@pytest.mark.parametrize("ordered", [False, True])
def test_tables_that_need_whole_rows_share_one_trip_too(spark: SparkSession, warehouse: Path, ordered: bool) -> None:
    """High fan-out, a condition on whole rows, and high fan-out again, beside a table with one row to a key."""
    products, customers = _products(warehouse / "p", 20), _customers(warehouse / "c", 18)
    near, single = _products(warehouse / "n", 1), _products(warehouse / "s", 1)
    sales = frame(spark, SALES).selectExpr("*", "sale / 4 AS weight")
    lookups = [
        mr.Lookup(products, "product", columns={"price": "many"}),
        mr.Lookup(single, "product", columns={"price": "one"}, how="left"),
        mr.Lookup(near, mr.near("weight", "price", 1), columns={"price": "close"}, how="left"),
        mr.Lookup(customers, ("customer", "id"), columns=["name"], how="left"),
    ]
    ours = mr.enrich(sales, lookups, ordered=ordered)
    assert trips(ours) == 2  # the table with one row to a key goes with keys alone
    assert ours.columns == [*sales.columns, "many", "one", "close", "name"]
    theirs = spark_joins(sales, lookups, [_product_rows(20), _product_rows(1), _product_rows(1), _customer_rows(18)])
    assert theirs.count() > 20_000
    difference = same_rows(ours, theirs)
    assert difference, difference
    if ordered:
        in_order = ours.toArrow()["sale"].to_pylist()
        assert in_order == sorted(in_order)


def test_tables_that_need_whole_rows_are_counted_one_by_one(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    products, customers = _products(warehouse / "products", 20), _customers(warehouse / "customers", 18)
    lookups = [mr.Lookup(products, "product", columns=["price"]), mr.Lookup(customers, ("customer", "id"), columns=["name"])]
    done = stream_through(spark, SALES, lambda s: mr.enrich(s, lookups), tmp_path)
    theirs = spark_joins(frame(spark, SALES), lookups, [_product_rows(20), _customer_rows(18)])
    difference = same_rows(done.rows, theirs)
    assert difference, difference
    rows_in, matched = Counter[str](), Counter[str]()
    for report in mr.reports(done.query):
        report.ledger.check()
        rows_in[report.name] += report.rows_in
        matched[report.name] += report.matched
    sold = [key is not None and key < 30 for key in SALES["product"].to_pylist()]
    known = [int(name[1:]) < 17 for name in SALES["customer"].to_pylist()]
    assert rows_in == {"products": len(sold), "customers": 20 * sum(sold)}
    assert matched == {"products": sum(sold), "customers": 20 * sum(a and b for a, b in zip(sold, known, strict=True))}


def _labels(label: str, copies: int = 1) -> pa.Table:
    """30 keys, and which table it is of beside each."""
    keys = [key for key in range(30) for _ in range(copies)]
    return pa.table({"key": keys, "label": [f"{label} {key}" for key in keys]})


def _labelled(folder: Path, label: str, copies: int = 1) -> mr.MasterTable:
    return built_table(folder / label, _labels(label, copies), "key")


@pytest.mark.parametrize(
    "names",
    [["name", "name", "name"], ["name", "NAME", "Name"], ["sale", "PRODUCT", "sale"], ["__millrace", "a.b", "`a` ü"]],
    ids=["same", "case", "of the stream", "odd"],
)
def test_columns_come_in_the_order_of_the_lookups_whatever_they_are_called(
    spark: SparkSession, warehouse: Path, names: list[str]
) -> None:
    pq.write_table(_labels("lake"), warehouse.with_suffix(".parquet"))
    tables = {
        "lake": mr.ParquetTable(warehouse.with_suffix(".parquet")),  # by whole rows
        "one": _labelled(warehouse, "one"),
        "few": _labelled(warehouse, "few", 3),
        "many": _labelled(warehouse, "many", 20),  # by whole rows
    }
    sales = frame(spark, SALES.slice(1, 20)).select("sale", "product")
    for order in (["lake", "one", "many"], ["few", "lake", "one"], ["many", "lake", "few"]):
        wanted = [mr.Lookup(tables[t], ("product", "key"), columns={"label": n}) for t, n in zip(order, names, strict=True)]
        rows = mr.enrich(sales, wanted, how="left")
        assert rows.columns == ["sale", "product", *names]
        found = [tuple(row) for row in rows.distinct().collect()]
        labels = [[None if key is None else f"{table} {key}" for table in order] for _, key, *_ in found]
        assert [list(row[2:]) for row in found] == labels
        assert len(found) == 20
        assert rows.select(sales["sale"]).distinct().count() == 20


def test_a_condition_is_over_the_stream_and_not_over_what_other_tables_add(spark: SparkSession, warehouse: Path) -> None:
    products, one, many = _products(warehouse / "p", 1), _labelled(warehouse, "one"), _labelled(warehouse, "many", 20)
    sales = frame(spark, SALES).selectExpr("sale", "product", "cast(sale as double) AS s3")
    near = mr.Lookup(products, mr.near("s3", "price", 0.5), columns=["price"])
    for first in (one, many):
        added = mr.Lookup(first, ("product", "key"), columns={"label": "s3"})
        rows = mr.enrich(sales, [added, near])
        assert rows.columns == ["sale", "product", "s3", "s3", "price"]
        assert all(row[2] == row[4] and row[3].endswith(f" {row[1]}") for row in rows.collect())
        labels = _labels("one") if first is one else _labels("many", 20)
        difference = same_rows(rows, spark_joins(sales, [added, near], [labels, _product_rows(1)]))
        assert difference, difference
        by_text = mr.Lookup(products, mr.expr("stream.s3 = master.price"), columns=["price"])
        assert mr.enrich(sales, [added, by_text]).count() == rows.count() > 0


def test_columns_keep_their_own_types_on_the_way_to_the_next_table(spark: SparkSession, tmp_path: Path) -> None:
    """Types that Spark would not write itself: what one join puts out is what the next is told to expect."""
    kinds = {"text": pa.large_string(), "word": pa.dictionary(pa.int32(), pa.string()), "when": pa.timestamp("us")}
    rows = {"product": range(30), "text": [f"t{n}" for n in range(30)], "word": ["x", "y"] * 15, "when": range(30)}
    pq.write_table(pa.table({name: pa.array(values, kinds.get(name)) for name, values in rows.items()}), tmp_path / "a.parquet")
    lake = mr.ParquetTable(tmp_path)
    lookups = [mr.Lookup(lake, "product"), mr.Lookup(lake, "product", columns={"text": "again"}, how="left")]
    found = mr.enrich(frame(spark, SALES), lookups).toArrow()
    assert found.num_rows == sum(key is not None and key < 30 for key in SALES["product"].to_pylist())
    assert found["text"].to_pylist() == found["again"].to_pylist() == [f"t{key}" for key in found["product"].to_pylist()]


def test_rows_that_earlier_tables_made_longer_must_fit_too(spark: SparkSession, warehouse: Path) -> None:
    customers, sales = _customers(warehouse, 20), frame(spark, SALES)
    wide = [mr.Lookup(customers, ("customer", "id"), columns={"name": f"name{n}"}) for n in range(9)]
    with pytest.raises(BudgetError) as small:
        mr.enrich(sales, wide[:1], memory="1k", read="buffered")
    with pytest.raises(BudgetError):
        mr.enrich(sales, wide, memory=9 * small.value.needed_bytes, read="buffered")


def test_a_stream_is_counted_for_each_table(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    products, customers = _products(warehouse / "products", 1), _customers(warehouse / "customers", 3)
    lookups = [mr.Lookup(products, "product", name="goods"), mr.Lookup(customers, ("customer", "id"))]
    done = stream_through(spark, SALES, lambda s: mr.enrich(s, lookups, how="left"), tmp_path)
    theirs = spark_joins(frame(spark, SALES), lookups, [_product_rows(1), _customer_rows(3)], "left")
    difference = same_rows(done.rows, theirs)
    assert difference, difference
    matched = {"goods": 0, "customers": 0}
    for report in mr.reports(done.query):
        report.ledger.check()
        matched[report.name] += report.matched
    keys = SALES["product"].to_pylist()
    assert matched["goods"] == sum(key is not None and key < 30 for key in keys)
    assert matched["customers"] == sum(int(name[1:]) < 17 for name in SALES["customer"].to_pylist())


def test_tables_share_the_budget(spark: SparkSession, warehouse: Path) -> None:
    table = _customers(warehouse, 20)
    sales = frame(spark, SALES)
    one = mr.Lookup(table, ("customer", "id"), columns=["name"])
    with pytest.raises(BudgetError) as alone:
        mr.enrich(sales, [one], memory="1k", read="buffered")
    needed = alone.value.needed_bytes
    mr.enrich(sales, [one], memory=needed, read="buffered")
    both = [one, mr.Lookup(table, ("customer", "id"), columns={"name": "other"})]
    with pytest.raises(BudgetError, match="each of 2 joins") as shared:
        mr.enrich(sales, both, memory=needed, read="buffered")
    assert shared.value.needed_bytes >= 2 * needed
    memory = shared.value.needed_bytes
    with pytest.raises(BudgetError) as longer:  # the second has rows that the first made longer
        mr.enrich(sales, both, memory=memory, read="buffered")
    assert longer.value.needed_bytes > memory
    rows = mr.enrich(sales, both, memory=longer.value.needed_bytes, read="buffered")
    difference = same_rows(rows, spark_joins(sales, both, [_customer_rows(20)] * 2))
    assert difference, difference


def test_what_makes_no_sense_is_refused(spark: SparkSession, warehouse: Path) -> None:
    table, sales = _products(warehouse, 1), frame(spark, SALES)
    lookup = mr.Lookup(table, "product")
    with pytest.raises(ParameterError, match=r"list of mr.Lookup\(table, on=...\); got a MasterTable in it"):
        mr.enrich(sales, [table])  # type: ignore[list-item]
    with pytest.raises(ParameterError, match=r"list of mr.Lookup\(table, on=...\); got none"):
        mr.enrich(sales, [])
    with pytest.raises(ParameterError, match="give on= and columns= to each Lookup"):
        mr.enrich(sales, [lookup], "product")
    with pytest.raises(ParameterError, match="on must be a column"):
        mr.enrich(sales, table)
    with pytest.raises(ParameterError, match=r"a Lookup goes into a list.*write \[mr.Lookup"):
        mr.enrich(sales, lookup)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"got generator: several tables are given as a list of mr.Lookup"):
        mr.enrich(sales, (one for one in [lookup]))  # type: ignore[arg-type]
    for wrong, error, words in (
        (mr.Lookup(sales, "product"), ParameterError, r"2 of 2: the table must be .*MasterTable\.build\(frame, key, path\)"),
        (mr.Lookup(table, None), ParameterError, "2 of 2: on must be a column"),  # type: ignore[arg-type]
        (mr.Lookup(table, "no"), SchemaError, "2 of 2: the stream has no column 'no'; it has sale, product, customer"),
        (mr.Lookup(table, "product", columns=["no"]), SchemaError, "2 of 2: the table has no column 'no'"),
        (mr.Lookup(table, "product", how=""), ParameterError, "2 of 2: how must be one of"),
        (mr.Lookup(table, "product", name=7), ParameterError, "2 of 2: name must be a text"),  # type: ignore[arg-type]
    ):
        with pytest.raises(error, match=words):
            mr.enrich(sales, [lookup, wrong])
    with pytest.raises(BudgetError, match="give memory="):
        mr.enrich(sales, [lookup, lookup], memory=1)
    with pytest.raises(ParameterError, match="how must be one of inner, left, semi, anti; got 'outer'"):
        mr.enrich(sales, [mr.Lookup(table, "product", how="outer")])
    with pytest.raises(SchemaError, match="price"):
        mr.enrich(sales, [lookup, mr.Lookup(table, ("price", "product"))])  # what another table adds is not there yet
    with pytest.raises(ParameterError, match="an observation counts one table"):
        mr.enrich(sales, [lookup, lookup], observation=Observation("counts"))


def test_a_task_that_lacks_memory_says_how_much_all_tables_together_need(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        pq.write_table(pa.table({"id": [1, 2], name: ["x", "y"]}), tmp_path / f"{name}.parquet")
    lookups = [mr.Lookup(mr.ParquetTable(tmp_path / f"{name}.parquet"), on="id") for name in ("a", "b", "c")]
    stream = spark.range(1, 3, 1, 1).select("id", F.expr("repeat('z', 900000)").alias("said"))
    given, asked = 3 << 20, []
    while len(asked) < 4:  # what is asked for is more than was given, and is enough in the end
        try:
            found = mr.enrich(stream, lookups, memory=given).selectExpr("sum(length(said))", "count(a, b, c)").collect()
            break
        except Exception as failed:
            error = mr.task_error(failed)
            asked.append(error.needed_bytes if isinstance(error, BudgetError) else 0)
            given = asked[-1]
    assert asked == sorted(asked)
    assert asked[0] > 3 << 20
    assert tuple(found[0]) == (1_800_000, 2)
