"""`strategy="broadcast"`: Spark's own join, with the version of the table that a micro-batch sees."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from tests.spark.keytypes import KINDS, KeyKind, stream_rows, table_rows
from tests.spark.running import (
    HOWS,
    add_file,
    every_how,
    frame,
    read_stream,
    run_query,
    same_rows,
    started_query,
    wait_until,
    write_files,
)
from tests.spark.tables import built_table

import millrace as mr
from millrace.checks.reference import reference_join
from millrace.core.errors import BudgetError, ParameterError, StrategyError
from millrace.core.protocols import How, JoinSpec
from millrace.relations.build import build_table
from millrace.relations.folder import now_us

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]

IDS = pa.table({"id": pa.array([*range(8), 3, 99, None], pa.int64()), "n": range(11)})
PAIRS = pa.table({"id": pa.array([*range(6), *range(3)], pa.int64()), "v": [f"v{n}" for n in range(9)]})  # 0 to 2 come twice
WIDE_DECIMALS = KeyKind(  # Spark has no type that holds both sides
    {"k": pa.decimal128(38, 18)},
    {"k": pa.decimal128(38, 0)},
    lambda: [(Decimal(n) * Decimal("0.5"),) for n in range(0, 40, 2)],
    (Decimal(10**37), Decimal(10**20 + 7)),
)


def _version(path: Path, value: str, rows: int = 20) -> mr.MasterTable:
    """A version with this value, in effect."""
    build_table(path, pa.table({"id": pa.array(range(rows), pa.int64()), "v": [value] * rows}), "id")
    table = mr.MasterTable.open(path)
    wait_until(lambda: now_us() > table.versions[-1].effective_at_us, seconds=20, what="the version to take effect")
    return table


def _sent(stream: DataFrame, table: Any, on: Any = "id", how: str = "inner", **options: Any) -> DataFrame:
    return mr.enrich(stream, table, on, how, strategy="broadcast", **options)


def _reference(stream: pa.Table, rows: pa.Table, keys: list[str], columns: list[str]) -> pa.Table:
    """What `every_how` gives for joins that are right."""
    parts = []
    for how in HOWS:
        added = columns if how in ("inner", "left") else []
        spec = JoinSpec(
            stream.schema, tuple((key, key) for key in keys), cast(How, how), tuple(stream.column_names), tuple(added)
        )
        found = reference_join(stream, rows, spec)
        for name in columns[len(added) :]:
            found = found.append_column(name, pa.nulls(len(found), rows.schema.field(name).type))
        parts.append(found.add_column(0, "how", [[how] * len(found)]))
    return pa.concat_tables([part.cast(parts[1].schema) for part in parts])


QUICK = (
    "long",
    "double",
    "long+date+double",
    "long for int",
    "decimal(38,10) for decimal(10,2)",
    "decimal without a common type",
)
MORE = tuple(name for name in KINDS if name not in QUICK)


@pytest.mark.parametrize("name", [*QUICK, *[pytest.param(name, marks=pytest.mark.slow) for name in MORE]])
def test_every_how_equals_the_reference(spark: SparkSession, warehouse: Path, name: str) -> None:
    kind = KINDS.get(name, WIDE_DECIMALS)
    rows, stream = table_rows(kind, unique=False), stream_rows(kind)
    if kind is WIDE_DECIMALS:
        small = [(Decimal("0.5"), 1), (Decimal("1.000000000000000001"), 2)]  # which Spark would round to keys of the stream
        more = pa.table({"k": [key for key, _ in small], "v": [v for _, v in small], "w": ["a", "b"], "x": [True, False]})
        rows = pa.concat_tables([rows, more.cast(rows.schema)])
    table = built_table(warehouse, rows, kind.names)
    found = every_how(lambda how: _sent(frame(spark, stream), table, kind.names, how), ["v", "w", "x"])
    assert same_rows(found, _reference(stream, rows, kind.names, ["v", "w", "x"]))


def test_columns_keep_names_and_order(spark: SparkSession, warehouse: Path) -> None:
    table = built_table(warehouse, PAIRS.append_column("n", pa.array(range(9))))
    stream = frame(spark, IDS)
    plain = _sent(stream, table, "id", "left")
    assert plain.columns == ["id", "n", "v", "n"]  # a column of the table may have the name of one of the stream
    renamed = _sent(stream, table, "id", columns={"v": "value", "id": "key", "n": "V"})
    assert renamed.columns == ["id", "n", "value", "key", "V"]
    assert {(row["key"], row["value"], row["V"]) for row in renamed.where(stream["n"] == 2).collect()} == {
        (2, "v2", 2),
        (2, "v8", 8),
    }
    twice = stream.select("id", "n", "n")  # names of the stream may repeat
    assert sorted(map(tuple, _sent(twice, table, "id", columns=["v"]).where("id = 4").collect())) == [(4, 4, 4, "v4")]
    assert _sent(stream, table, "id", columns=[]).count() == 10


def test_a_decimal_key_that_is_put_out_keeps_its_type(spark: SparkSession, warehouse: Path) -> None:
    table = built_table(warehouse, pa.table({"k": pa.array([Decimal("1.500"), Decimal("2.000")], pa.decimal128(38, 18))}), "k")
    stream = frame(spark, pa.table({"k": pa.array([Decimal(2), Decimal(1), None], pa.decimal128(38, 0))}))
    found = _sent(stream, table, "k", "left", columns={"k": "key"})
    assert found.schema["key"].dataType.simpleString() == "decimal(38,18)"
    assert {tuple(row) for row in found.collect()} == {(Decimal(2), Decimal("2.000")), (Decimal(1), None), (None, None)}


def test_several_tables_are_sent_in_one_call(spark: SparkSession, warehouse: Path) -> None:
    one = built_table(warehouse / "one", PAIRS)
    two = built_table(warehouse / "two", pa.table({"n": pa.array([1, 2, 3], pa.int64()), "v": [10, 20, 30]}), "n")
    lookups = [mr.Lookup(one, "id", "left"), mr.Lookup(two, "n"), mr.Lookup(two, ("id", "n"), "anti")]
    found = mr.enrich(frame(spark, IDS), lookups, strategy="broadcast")
    assert found.columns == ["id", "n", "v", "v"]
    assert found.collect() == []
    both = mr.enrich(frame(spark, IDS), lookups[:2], strategy="broadcast")
    expected = mr.enrich(frame(spark, IDS), lookups[:2])
    assert sorted(map(tuple, both.collect())) == sorted(map(tuple, expected.collect())) != []


def test_rows_keep_the_order_of_the_stream(spark: SparkSession, warehouse: Path) -> None:
    table = built_table(warehouse, PAIRS)
    rows = pa.table({"id": pa.array([n * 7 % 6 for n in range(600)], pa.int64()), "n": range(600)})
    found = [row["n"] for row in _sent(frame(spark, rows), table, ordered=True).collect()]
    assert found == sorted(found)
    assert len(found) == 900


def test_spark_does_what_it_is_told(spark: SparkSession, warehouse: Path) -> None:
    table = built_table(warehouse, PAIRS)
    for name in ("spark.sql.autoBroadcastJoinThreshold", "spark.sql.adaptive.autoBroadcastJoinThreshold"):
        spark.conf.set(name, "-1")
    for how in HOWS:
        joined = _sent(frame(spark, IDS), table, "id", how)
        plan = joined._jdf.queryExecution().executedPlan().toString()
        assert "BroadcastHashJoin" in plan
        assert "BuildRight" in plan
        assert "ArrowEvalPython" not in plan


def test_a_parquet_table_is_sent_without_its_null_keys(spark: SparkSession, tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array([1, 1, None, 3], pa.int64()), "v": ["a", "b", "null", "c"]})
    for part in range(3):
        (tmp_path / "lake").mkdir(exist_ok=True)
        pq.write_table(rows.slice(part, 2 if part == 2 else 1), tmp_path / "lake" / f"{part}.parquet")
    found = every_how(lambda how: _sent(frame(spark, IDS), mr.ParquetTable(tmp_path / "lake"), "id", how), ["v"])
    assert same_rows(found, _reference(IDS, rows, ["id"], ["v"]))


def test_a_table_without_rows_matches_nothing(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    table = built_table(warehouse, PAIRS.slice(0, 0))
    stream = read_stream(spark, write_files(IDS, tmp_path / "in", 1))
    for how, rows in (("inner", 0), ("left", 11), ("semi", 0), ("anti", 11)):
        done = run_query(_sent(stream, table, "id", how), tmp_path / how)
        assert done.rows.count() == rows
        (report,) = mr.reports(done.query)
        seen = (report.ledger.rows_in, report.counts.absent_keys, report.counts.null_keys)
        assert seen == (11, 10, 1) or (how == "semi" and seen == (0, 0, 0))  # Spark need not look at the stream then


# --- versions


def test_a_later_batch_takes_up_a_new_version(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    table = _version(warehouse, "old")
    source = write_files(IDS, tmp_path / "in", 1)
    query = started_query(_sent(read_stream(spark, source), table), tmp_path)
    query.processAllAvailable()
    _version(warehouse, "new")
    add_file(IDS.set_column(1, "n", pa.array(range(100, 111))), source)
    query.processAllAvailable()
    query.stop()
    seen = {(row["n"] >= 100, row["v"]) for row in spark.read.parquet(str(tmp_path / "out")).collect()}
    assert seen == {(False, "old"), (True, "new")}
    assert [report.table_versions for report in mr.reports(query) if report.rows_in] == [(1,), (2,)]


class Failing:
    """A query that fails behind its first batch, and is started again with the same checkpoint."""

    def __init__(self, spark: SparkSession, table: Path, folder: Path, *, inside: bool) -> None:
        self.seen: list[set[str]] = []
        self._spark, self._table, self._folder, self._inside = spark, table, folder, inside
        self._source = write_files(IDS, folder / "in", 1)

    def run(self) -> None:
        def sink(rows: DataFrame, _: int) -> None:
            found = _sent(rows, mr.MasterTable.open(self._table)) if self._inside else rows
            self.seen.append(set(found.toArrow()["v"].to_pylist()))
            if len(self.seen) == 1:
                raise RuntimeError("the sink is down")

        stream = read_stream(self._spark, self._source)
        stream = stream if self._inside else _sent(stream, mr.MasterTable.open(self._table))
        writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(self._folder / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination(120)


@pytest.mark.parametrize("inside", [False, True], ids=["stream", "foreachBatch"])
def test_a_replayed_batch_sees_the_version_that_it_saw(
    spark: SparkSession, warehouse: Path, tmp_path: Path, inside: bool
) -> None:
    _version(warehouse, "old")
    query = Failing(spark, warehouse, tmp_path, inside=inside)
    with pytest.raises(Exception, match="the sink is down"):
        query.run()
    assert _version(warehouse, "new").latest.number == 2
    query.run()
    assert query.seen == [{"old"}, {"old"}]


def test_a_table_that_has_grown_too_big_stops_the_query(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    table = _version(warehouse, "old")
    stream = read_stream(spark, write_files(IDS, tmp_path / "in", 1))
    joined = _sent(stream, table, memory="20k")
    _version(warehouse, "new", rows=1_000)
    with pytest.raises(Exception, match=r"in the version of this batch .1,000 rows., and 20.0 KiB were planned at most"):
        run_query(joined, tmp_path)


# --- counts


@pytest.mark.parametrize("how", HOWS)
def test_reports_count_the_rows_of_a_stream(spark: SparkSession, warehouse: Path, tmp_path: Path, how: str) -> None:
    table = built_table(warehouse, PAIRS)
    done = run_query(_sent(read_stream(spark, write_files(IDS, tmp_path / "in", 1)), table, "id", how, name="pairs"), tmp_path)
    (report,) = mr.reports(done.query)
    assert (report.name, report.strategy, report.table_versions) == ("pairs", "broadcast", (1,))
    counts = report.ledger.totals
    assert (counts.tuples_in, counts.matched, counts.absent_keys, counts.null_keys) == (11, 7, 3, 1)
    assert counts.matches == {"inner": 10, "left": 10, "semi": 7, "anti": 0}[how]
    assert counts.pages_read == 1


@pytest.mark.parametrize("how", HOWS)
def test_an_observation_counts_where_no_key_has_several_rows(spark: SparkSession, warehouse: Path, how: str) -> None:
    rows = PAIRS.slice(0, 6)
    seen = Observation()
    found = _sent(frame(spark, IDS), built_table(warehouse, rows), "id", how, observation=seen).toArrow()
    assert len(found) == {"inner": 7, "left": 11, "semi": 7, "anti": 4}[how]
    (report,) = mr.reports(seen)
    assert (report.strategy, report.rows_in, report.matched) == ("broadcast", 11, 7)
    assert (report.counts.absent_keys, report.counts.null_keys) == (3, 1)


def test_an_observation_does_not_guess(spark: SparkSession, warehouse: Path) -> None:
    with pytest.raises(ParameterError, match="may have several rows to a key"):
        _sent(frame(spark, IDS), built_table(warehouse, PAIRS), observation=Observation())


# --- plans and errors


def test_the_plan_says_what_is_sent(spark: SparkSession, warehouse: Path) -> None:
    table = built_table(warehouse, PAIRS)
    found = mr.explain(frame(spark, IDS), table, "id", strategy="broadcast", arrivals_per_second=100_000)
    assert found.strategy == "broadcast"
    assert "Spark's own join: the table is sent to every executor" in str(found)
    assert found.seconds_per_batch(1_000_000) > found.seconds_per_batch(20_000) > 0
    assert found.memory_split == {"the table, in the driver and in each executor": found.plan.joins[0].sent.bytes}  # type: ignore[union-attr]
    assert found.enrich().count() == 10


def _stream(spark: SparkSession, folder: Path) -> DataFrame:
    return read_stream(spark, write_files(IDS, folder / "stream", 1))


def test_auto_sends_small_tables_to_big_micro_batches(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    many = pa.table({"id": pa.array([1] * 40, pa.int64()), "m": range(40)})
    tables = {
        "small": built_table(warehouse / "small", PAIRS),
        "many": built_table(warehouse / "many", many),
        "big": built_table(warehouse / "big", pa.table({"id": range(4_000), "b": ["text"] * 4_000})),
    }
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "100k")
    stream = _stream(spark, tmp_path)
    lookups = [mr.Lookup(tables[name], "id", "left") for name in ("big", "small", "many")]

    def strategies(**options: Any) -> list[str]:
        return mr.explain(stream, lookups, **options).strategy.split(", ")

    assert [name == "broadcast" for name in strategies(arrivals_per_second=5e6)] == [False, True, True]
    assert "broadcast" not in strategies()
    assert "broadcast" not in strategies(arrivals_per_second=1_000)
    assert "broadcast" not in strategies(arrivals_per_second=5e6, hot_keys=10)
    batch = mr.explain(frame(spark, IDS), lookups[1:], arrivals_per_second=5e6)  # rows of which an Observation must count
    assert "broadcast" not in batch.strategy
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    assert "broadcast" not in strategies(arrivals_per_second=5e6)
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "100k")
    mixed = mr.enrich(stream, lookups, arrivals_per_second=5e6)
    plain = mr.enrich(frame(spark, IDS), lookups)
    assert mixed.columns == plain.columns
    assert same_rows(run_query(mixed, tmp_path / "mixed").rows, plain)


def test_auto_names_what_it_has_not_taken(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    found = mr.explain(_stream(spark, tmp_path), built_table(warehouse, PAIRS), "id", arrivals_per_second=5e6)
    assert found.strategy == "broadcast"
    assert found.runner_up not in (None, "broadcast")
    assert "x the time of a micro-batch" in str(found)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"on": mr.between("id", "id", "top")}, StrategyError, "'broadcast' serves equal keys only, not 'between'"),
        ({"hot_keys": 10}, ParameterError, "they stay in Spark: leave hot_keys out"),
        ({"cache_share": 0.5}, StrategyError, "'broadcast' has none"),
        ({"memory": "2k"}, BudgetError, r"takes about .* as a broadcast .200 rows., more than .* memory=2.0 KiB: give memory="),
    ],
)
def test_what_a_broadcast_cannot_do_is_said(
    spark: SparkSession, warehouse: Path, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    table = built_table(warehouse, pa.table({"id": range(200), "top": range(200)}))
    with pytest.raises(error, match=words):
        _sent(frame(spark, IDS), table, **{"on": "id", **options})


def test_the_memory_that_an_error_names_is_enough(spark: SparkSession, warehouse: Path) -> None:
    table = built_table(warehouse, PAIRS)
    lookups = [mr.Lookup(table, "id", columns=["v"]), mr.Lookup(table, "id", columns={"v": "w"})]
    with pytest.raises(BudgetError) as small:
        mr.enrich(frame(spark, IDS), lookups, strategy="broadcast", memory=100)
    needed = small.value.needed_bytes
    assert mr.enrich(frame(spark, IDS), lookups, strategy="broadcast", memory=needed).count() == 16
    with pytest.raises(BudgetError):
        mr.enrich(frame(spark, IDS), lookups, strategy="broadcast", memory=needed - 2)


def test_what_spark_would_not_send_is_refused(spark: SparkSession, warehouse: Path) -> None:
    table = built_table(warehouse, PAIRS)
    spark.conf.set("spark.sql.maxBroadcastTableSize", "500b")
    with pytest.raises(StrategyError, match=r"more than spark.sql.maxBroadcastTableSize .500 B. can't be sent"):
        _sent(frame(spark, IDS), table)
    spark.conf.unset("spark.sql.maxBroadcastTableSize")
    spark.conf.set("spark.sql.optimizer.disableHints", "true")
    with pytest.raises(StrategyError, match=r"needs spark.sql.optimizer.disableHints=false"):
        _sent(frame(spark, IDS), table)


def test_the_strategies_that_an_error_lists_have_broadcast(spark: SparkSession, warehouse: Path) -> None:
    with pytest.raises(StrategyError, match=r"there is no strategy 'hash'; choose one of auto, .*, broadcast"):
        mr.enrich(frame(spark, IDS), built_table(warehouse, PAIRS), "id", strategy="hash")
