"""The most frequent keys of a stream: counted in the tasks, merged on the driver, and within their bounds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from tests.spark.running import frame, read_stream, run_query, same_rows, stream_through, write_files
from tests.spark.tables import built_table

import millrace as mr
from millrace.core.errors import BudgetError, MillraceError, ParameterError
from millrace.spark import counters
from millrace.spark.hot_keys import _merged
from millrace.spark.key_sketch import KeySketch, sketch_bytes

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]

ROWS = 3_000


def _ids() -> list[int | None]:
    """Key 7 has a third of the rows, key 8 a sixth, every tenth row has none."""
    rng = np.random.default_rng(11)
    keys: list[int | None] = rng.choice([7] * 20 + [8] * 10 + list(range(30)), ROWS).tolist()
    return [None if place % 10 == 3 else key for place, key in enumerate(keys)]


IDS = _ids()
SALES = pa.table({"n": range(ROWS), "id": pa.array(IDS, pa.int64())})
TRUTH = Counter(key for key in IDS if key is not None)


def _table(path: Path, copies: int = 1, **options: Any) -> mr.MasterTable:
    keys = [key for key in range(20) for _ in range(copies)]
    return built_table(path, pa.table({"id": pa.array(keys, pa.int64()), "v": [f"v{key}" for key in keys]}), **options)


def _observed(spark: SparkSession, rows: pa.Table, table: Any, on: Any = "id", limit: int = 10, **options: Any) -> mr.HotKeys:
    watch = Observation()
    options = {"how": "left", "hot_keys": 50} | options
    mr.enrich(frame(spark, rows), table, on, observation=watch, **options).count()
    return mr.hot_keys(watch, limit=limit)


def _exact(found: mr.HotKeys, truth: Counter[Any] = TRUTH, rows: int = ROWS) -> None:
    assert {one.key: one.rows for one in found} == dict(truth)
    assert all(one.rows == one.at_most for one in found)
    assert [one.rows for one in found] == sorted(truth.values(), reverse=True)
    assert found.rows == rows
    assert found.null_keys == rows - sum(truth.values())
    assert found.others_at_most == 0
    for one in found:
        assert one.share == pytest.approx(one.rows / rows)


WAYS: dict[str, dict[str, Any]] = {
    "mapped": {"read": "mmap"},
    "direct": {"read": "direct"},
    "small groups": {"read": "buffered", "memory": "1m"},
    "meshjoin": {"strategy": "meshjoin"},
}


@pytest.mark.parametrize("how", ["inner", "anti"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("copies", [1, 3, 20])
def test_every_way_to_the_table_counts_each_row_once(
    spark: SparkSession, warehouse: Path, copies: int, way: str, how: str
) -> None:
    """One match to a row, a few, and many: keys travel, and whole rows travel."""
    _exact(_observed(spark, SALES, _table(warehouse, copies), limit=100, how=how, **WAYS[way]))


def test_rows_in_order_and_parquet_files_are_counted_too(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    _exact(_observed(spark, SALES, _table(warehouse, 20), limit=100, ordered=True, memory="2m"))
    lake = write_files(pa.table({"id": pa.array(range(20), pa.int64()), "v": range(20)}), tmp_path / "lake", 1)
    _exact(_observed(spark, SALES, mr.ParquetTable(lake), limit=100))


@pytest.mark.parametrize("copies", [1, 3, 20])
def test_a_streaming_query_is_counted_over_all_its_batches(
    spark: SparkSession, warehouse: Path, tmp_path: Path, copies: int
) -> None:
    table = _table(warehouse, copies)
    done = stream_through(
        spark, SALES, lambda s: mr.enrich(s, table, "id", partitions=2, name="sales", hot_keys=40), tmp_path, sink="noop"
    )
    found = mr.hot_keys(done.query, limit=100)
    _exact(found)
    assert (found.name, found.batches) == ("sales", 3)
    assert found[0].key == 7
    assert [one.key for one in found[:2]] == [7, 8]
    assert len(mr.hot_keys(done.query)) == 10
    first = mr.hot_keys(done.query.recentProgress[0])
    assert (first.rows, first.batches) == (1_000, 1)
    assert 0 < max(report.memory_bytes for report in mr.reports(done.query)) <= 256 << 20
    plain = stream_through(spark, SALES, lambda s: mr.enrich(s, table, "id", partitions=2), tmp_path / "plain", sink="noop")
    with pytest.raises(MillraceError, match=r"were not counted: switch this on with mr.enrich\(..., hot_keys=100\)"):
        mr.hot_keys(plain.query)


def test_the_rows_are_those_without_hot_keys(spark: SparkSession, warehouse: Path) -> None:
    table, sales = _table(warehouse), frame(spark, SALES)
    expected = mr.enrich(sales, table, "id", how="left")
    assert same_rows(mr.enrich(sales, table, "id", how="left", hot_keys=5), expected)
    assert same_rows(mr.enrich(sales, table, "id", how="left", hot_keys=5, observation=Observation()), expected)


def test_many_batches_of_a_task_tell_their_keys_once(spark: SparkSession, warehouse: Path) -> None:
    """Counts beside the rows come with each batch; the keys come with the last of them only."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    for read in ("mmap", "buffered"):
        watch = Observation()
        mr.enrich(
            frame(spark, SALES), _table(warehouse), "id", how="left", read=read, memory="1m", hot_keys=50, observation=watch
        ).count()
        told = [text for text in watch.get["stats"] if "hot_keys" in json.loads(text)]
        assert len(told) == 1
        _exact(mr.hot_keys(watch, limit=100))


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "string": (pa.string(), ["a", "", "größer", "x" * 300, "x" * 299 + "y"]),
    "binary": (pa.binary(), [b"\x00\xff", b"", b"z" * 201]),
    "decimal": (pa.decimal128(30, 2), [Decimal("1.50"), Decimal("-99999999999999999999.01")]),
    "short decimal": (pa.decimal128(9, 2), [Decimal("1.50"), Decimal("-0.01")]),
    "double": (pa.float64(), [1.5, float("inf"), 0.0]),
    "float": (pa.float32(), [1.5, -2.25]),
    "boolean": (pa.bool_(), [True, False]),
    "byte": (pa.int8(), [-128, 127]),
    "date": (pa.date32(), [date(2024, 2, 29), date(1, 1, 1)]),
    "timestamp": (pa.timestamp("us", "UTC"), [datetime(2024, 2, 29, 12, 0, 0, 5, UTC), datetime(1969, 1, 1, tzinfo=UTC)]),
    "timestamp_ntz": (pa.timestamp("us"), [datetime(2024, 2, 29, 12), datetime(1900, 1, 1)]),
    "duration": (pa.duration("us"), [timedelta(days=-1), timedelta(microseconds=1)]),
}


def _as_shown(key: Any) -> Any:
    if isinstance(key, (str, bytes)) and len(key) > 200:
        return key[:200] + ("..." if isinstance(key, str) else b"...")
    return key


@pytest.mark.parametrize("kind", KEYS)
def test_keys_come_back_as_the_python_values_that_they_were(spark: SparkSession, warehouse: Path, kind: str) -> None:
    arrow, values = KEYS[kind]
    keys = [value for place, value in enumerate(values) for _ in range(place + 2)]
    table = built_table(warehouse, pa.table({"id": pa.array(values[:1], arrow), "v": [1]}))
    found = _observed(spark, pa.table({"id": pa.array([*keys, None], arrow)}), table)
    assert sorted((one.rows, repr(one.key)) for one in found) == sorted(
        (place + 2, repr(_as_shown(value))) for place, value in enumerate(values)
    )
    assert found.null_keys == 1
    assert found.cut == any(_as_shown(value) != value for value in values)
    assert ("keys longer than 200 bytes are cut" in str(found)) == found.cut


def test_a_text_is_not_cut_inside_a_letter_and_need_not_be_text(spark: SparkSession, warehouse: Path) -> None:
    table = built_table(warehouse, pa.table({"id": ["a"], "v": [1]}))
    watch = Observation()
    rows = spark.sql("SELECT repeat('ß', 150) || 'x' AS id UNION ALL SELECT 'a' || repeat('ß', 150)").coalesce(1)
    mr.enrich(rows, table, "id", how="left", hot_keys=5, observation=watch).count()
    assert {one.key for one in mr.hot_keys(watch)} == {"ß" * 100 + "...", "a" + "ß" * 99 + "..."}
    watch = Observation()
    mr.enrich(spark.sql("SELECT cast(X'61FF' AS STRING) AS id"), table, "id", hot_keys=5, observation=watch).count()
    assert [one.key for one in mr.hot_keys(watch)] == ["a\\xff"]


def test_both_zeros_and_all_nans_are_one_key(spark: SparkSession, warehouse: Path) -> None:
    table = built_table(warehouse, pa.table({"id": [0.0], "v": [1]}))
    rows = pa.table({"id": [0.0, -0.0, float("nan"), float("nan"), float("nan")]})
    found = _observed(spark, rows, table)
    assert [(repr(one.key), one.rows) for one in found] == [("nan", 3), ("0.0", 2)]


def test_years_that_python_does_not_know_are_texts(spark: SparkSession, warehouse: Path) -> None:
    table = built_table(warehouse, pa.table({"id": pa.array([0], pa.date32()), "v": [1]}))
    watch = Observation()
    rows = spark.sql("SELECT date_add(DATE'9999-12-31', 1) AS id")
    mr.enrich(rows, table, "id", how="left", hot_keys=5, observation=watch).count()
    assert [one.key for one in mr.hot_keys(watch)] == ["10000-01-01"]


def test_a_key_of_several_columns_is_a_tuple_in_the_order_of_the_tables_key(spark: SparkSession, warehouse: Path) -> None:
    table = built_table(warehouse, pa.table({"a": [1], "b": ["x"], "v": [1]}), ["a", "b"])
    rows = pa.table({"b": ["x", "y", "x", None], "a": pa.array([1, 1, 1, 1], pa.int32())})
    found = _observed(spark, rows, table, ["b", "a"])
    assert [(one.key, one.rows) for one in found] == [((1, "x"), 2), ((1, "y"), 1)]
    assert found.null_keys == 1


def test_tables_of_a_call_are_told_apart_and_picked_by_name(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    """Keys travel for two of the tables, whole rows for two others."""
    one, many = _table(warehouse / "one"), _table(warehouse / "many", 20)
    lookups = [
        mr.Lookup(one, "id", columns={"v": "a"}, name="one"),
        mr.Lookup(one, ("n", "id"), columns={"v": "b"}, name="other", hot_keys=0),
        mr.Lookup(many, "id", how="semi", name="met"),
        mr.Lookup(many, ("m", "id"), columns={"v": "c"}, name="rows"),
    ]
    sales = SALES.append_column("m", pa.array([place % 2 for place in range(ROWS)], pa.int64()))
    stream = read_stream(spark, write_files(sales, tmp_path / "source", 2))
    done = run_query(mr.enrich(stream, lookups, how="left", hot_keys=50), tmp_path, sink="noop")
    with pytest.raises(ParameterError, match="several tables have hot keys: give name=, one of 'one', 'met', 'rows'"):
        mr.hot_keys(done.query)
    _exact(mr.hot_keys(done.query, name="one", limit=100))
    _exact(mr.hot_keys(done.query, name="met", limit=100))
    rows = mr.hot_keys(done.query, name="rows")
    met = [place % 2 for place, key in enumerate(IDS) if key is not None and key < 20]  # what the table before it let through
    assert {found.key: found.rows for found in rows} == Counter(met)
    with pytest.raises(MillraceError, match="hot keys of other were not counted"):
        mr.hot_keys(done.query, name="other")
    with pytest.raises(ParameterError, match="there is no report of 'two'; there are reports of one, other, met, rows"):
        mr.hot_keys(done.query, name="two")


def test_two_actions_on_one_micro_batch_count_its_keys_once(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    table = _table(warehouse)

    def twice(rows: DataFrame, number: int) -> None:
        enriched = mr.enrich(rows, table, "id", name="inside", hot_keys=50)
        assert enriched.count() == len(enriched.toArrow())

    writer = read_stream(spark, write_files(SALES, tmp_path / "source", 3)).writeStream.foreachBatch(twice)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    _exact(mr.hot_keys(query, limit=100))


def test_more_keys_than_counters_stay_within_their_bounds(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    ids = rng.permutation(np.concatenate([rng.integers(0, 50_000, 40_000), np.repeat([-1, -2, -3], [6_000, 3_000, 1_000])]))
    table, truth = _table(warehouse), Counter(ids.tolist())
    done = stream_through(
        spark, pa.table({"id": ids}), lambda s: mr.enrich(s, table, "id", hot_keys=20), tmp_path, files=2, sink="noop"
    )
    found = mr.hot_keys(done.query, limit=20)
    assert [one.key for one in found[:3]] == [-1, -2, -3]
    for one in found:
        assert one.rows <= truth[one.key] <= one.at_most
        assert one.at_most - one.rows <= 50_000 / 500
    unlisted = truth.keys() - {one.key for one in found}
    assert max(truth[key] for key in unlisted) <= found.others_at_most <= 50_000 / 500
    assert "counts may be too low by" in str(found)
    assert f"any other key has {found.others_at_most} rows at most" in str(found)


def test_what_is_printed_is_a_small_table() -> None:
    sketch = {"rows": 90, "null_keys": 10, "kinds": ["string"], "counts": [60, 30], "errors": [0, 0], "beyond": 0}
    found = _merged("products", [sketch | {"keys": [["shoe\n", "hat"]]}], 1, 10)
    assert str(found).splitlines() == [
        "hot keys of products: 100 rows in 1 batch, 10 without a key",
        "key       rows    share",
        "'shoe\\n'    60  60.00 %",
        "'hat'       30  30.00 %",
        "counts are exact",
    ]
    assert repr(found).startswith("<HotKeys hot keys of products: 100 rows")
    more = {"rows": 90, "null_keys": 0, "kinds": ["string"], "counts": [50], "errors": [4], "beyond": 5, "keys": [["hat"]]}
    assert str(_merged("products", [sketch | {"keys": [["shoe", "hat"]]}, more], 2, 1)).splitlines() == [
        "hot keys of products: 190 rows in 2 batches, 10 without a key",
        "key    rows    share  at most",
        "'hat'    76  40.00 %       80",
        "counts may be too low by 4 rows at most, 2.1 % of the stream",
        "any other key has 65 rows at most",
    ]


def test_sketches_of_tasks_add_up_within_their_bounds() -> None:
    rng = np.random.default_rng(4)
    parts = [rng.zipf(1.3, 20_000) % 30_000 for _ in range(6)]
    sketches = []
    for part in parts:
        sketch = KeySketch(30, [pa.int64()])
        for start in range(0, len(part), 3_000):
            sketch.add([pa.array(part[start : start + 3_000])])
        sketches.append(json.loads(json.dumps(sketch.as_json())))
    truth = Counter(np.concatenate(parts).tolist())
    found = _merged("parts", sketches, 1, 50)
    assert [one.key for one in found[:5]] == [key for key, _ in truth.most_common(5)]
    for one in found:
        assert one.rows <= truth[one.key] <= one.at_most
    assert max(truth[key] for key in truth.keys() - {one.key for one in found}) <= found.others_at_most


def test_kept_values_of_keys_that_come_and_go_are_bounded() -> None:
    sketch = KeySketch(10, [pa.string(), pa.int64()])
    most = 0
    for start in range(0, 200_000, 5_000):
        numbers = np.arange(start, start + 5_000)
        numbers[::10] = 1  # one key that stays, and that is among the first
        texts = pa.array([f"{number:0300d}" for number in numbers.tolist()])
        sketch.add([texts, pa.array(numbers)])
        most = max(most, sum(column.nbytes for part in sketch._parts for column in part))
    assert most <= sketch_bytes(10, [pa.string(), pa.int64()]) / 2
    told = sketch.as_json()
    assert told["keys"][1][0] == 1
    assert told["counts"][0] == 20_001
    assert told["keys"][0][0][0] == "0" * 200
    assert len(json.dumps(told)) < 10 * 400


def _raises(error: type[Exception], match: str, call: Callable[[], Any]) -> None:
    with pytest.raises(error, match=match):
        call()


def test_wrong_calls_are_told_what_to_write(spark: SparkSession, warehouse: Path) -> None:
    sales, table = frame(spark, SALES), _table(warehouse)
    for wrong in (True, "100", 1.5):
        _raises(
            ParameterError, "hot_keys must be a whole number of keys", lambda w=wrong: mr.enrich(sales, table, "id", hot_keys=w)
        )
    for wrong in (-1, 1_001):
        _raises(ParameterError, "between 0 .off. and 1,000", lambda w=wrong: mr.enrich(sales, table, "id", hot_keys=w))
    near = mr.near("n", "id", 1)
    _raises(ParameterError, "hot_keys counts keys that are equal", lambda: mr.enrich(sales, table, near, hot_keys=10))
    pair = [mr.Lookup(table, "id"), mr.Lookup(table, near)]
    _raises(ParameterError, "look-up 2 of 2: hot_keys counts", lambda: mr.enrich(sales, pair, hot_keys=10))
    _raises(ParameterError, "look-up 1 of 1|hot_keys must", lambda: mr.enrich(sales, [mr.Lookup(table, "id", hot_keys="x")]))  # type: ignore[arg-type]
    _raises(BudgetError, "give memory=", lambda: mr.enrich(sales, table, "id", hot_keys=1_000, memory="1m"))
    _raises(ParameterError, "got int", lambda: mr.hot_keys(5))
    for wrong in (0, True, "3"):
        _raises(ParameterError, "limit must be", lambda w=wrong: mr.hot_keys(5, limit=w))
    _raises(MillraceError, "has seen no action|were not counted", lambda: _observed(spark, SALES, table, hot_keys=None))


def test_the_memory_that_is_asked_for_is_enough(spark: SparkSession, warehouse: Path) -> None:
    sales, table = frame(spark, SALES), _table(warehouse)
    for read in ("mmap", "direct"):
        with pytest.raises(BudgetError) as small:
            mr.enrich(sales, table, "id", hot_keys=1_000, memory="1m", read=read)
        _exact(_observed(spark, SALES, table, limit=100, hot_keys=1_000, memory=small.value.needed_bytes, read=read))


def test_a_query_without_rows_has_no_hot_keys(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    table = _table(warehouse)
    done = stream_through(
        spark, SALES.slice(0, 0), lambda s: mr.enrich(s, table, "id", hot_keys=5), tmp_path, files=1, sink="noop"
    )
    found = mr.hot_keys(done.query)
    assert len(found) == 0
    assert str(found) == "hot keys: no rows were counted yet"
    seen = Observation("none")
    mr.enrich(frame(spark, SALES).where("false"), table, "id", hot_keys=5, observation=seen).collect()
    assert len(mr.hot_keys(seen)) == 0


def test_long_counts_are_kept_up_to_a_number_of_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "_KEPT_TEXT", 10_000)
    newest, value = counters._Newest(), dict[counters.Key, str]()
    for batch in range(20):
        value = newest.addInPlace(value, {("run", batch, "call", 0): str(batch % 10) * 3_000})
    assert [text[0] for text in value.values()] == ["7", "8", "9"]
