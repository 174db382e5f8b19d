"""Parquet files as a relation, scanned in place."""

from __future__ import annotations

import datetime as dt
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.checks.reference import reference_join, same_rows
from millrace.core.budget import Budget
from millrace.core.drive import drive, total
from millrace.core.errors import BudgetError, DamagedTableError, SchemaError, StrategyError, TableError
from millrace.core.protocols import How, JoinSpec
from millrace.joins.meshjoin import MeshJoin
from millrace.joins.rmeshjoin import RMeshJoin
from millrace.joins.sweepjoin import SweepJoin
from millrace.relations.parquet import ParquetRelation
from millrace.relations.parquet_files import list_files

ROWS = 5_000


@pytest.fixture
def table() -> pa.Table:
    keys = np.arange(ROWS) % 1_700  # duplicates
    return pa.table({"id": pa.array(np.where(keys == 13, None, keys), pa.int64()), "v": np.arange(ROWS), "w": np.arange(ROWS)})


@pytest.fixture
def folder(tmp_path: Path, table: pa.Table) -> Path:
    folder = tmp_path / "lake"
    (folder / "deeper").mkdir(parents=True)
    pq.write_table(table.slice(0, 2_000), folder / "a.parquet", row_group_size=700)
    pq.write_table(table.slice(2_000), folder / "deeper" / "b.parquet", row_group_size=10_000)
    (folder / "_SUCCESS").write_text("")
    (folder / ".a.parquet.crc").write_text("no Parquet")
    return folder


def relation(folder: Path, table: pa.Table, columns: tuple[str, ...] = ("id", "v")) -> ParquetRelation:
    schema = pa.schema([table.schema.field(name) for name in columns])
    return ParquetRelation(list_files(folder), schema, "id", rows_per_page=256)


def test_every_row_with_a_key_is_on_one_page_in_the_order_of_the_files(folder: Path, table: pa.Table) -> None:
    lake = relation(folder, table)
    rows = [lake.read(page, 1).take(np.arange(lake.read(page, 1).rows), ["id", "v"]) for page in range(lake.pages)]
    assert pa.Table.from_batches(rows).equals(table.select(["id", "v"]).filter(table["id"].is_valid()))


def test_pages_can_be_read_in_any_order(folder: Path, table: pa.Table) -> None:
    lake = relation(folder, table)
    forward = [lake.read(page, 1).codes.tolist() for page in range(lake.pages)]
    backward = [lake.read(page, 1).codes.tolist() for page in reversed(range(lake.pages))]
    assert forward == backward[::-1]
    assert lake.read(2, 5).codes.tolist() == [code for page in forward[2:7] for code in page]


def test_what_was_read_is_counted_in_bytes_of_the_files(folder: Path, table: pa.Table) -> None:
    lake = relation(folder, table)
    stored = 0
    for source in list_files(folder):
        footer = pq.read_metadata(source.path)
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        stored += sum(group.column(place).total_compressed_size for group in groups for place in (0, 1))
    lake.read(0, lake.pages)
    counts = lake.take_io_counts()
    assert (counts["disk_reads"], counts["disk_bytes"]) == (1, stored)
    assert counts["read_seconds"] > 0
    assert set(lake.take_io_counts().values()) == {0}
    lake.read(1, 1)  # and the page before it
    both = lake.take_io_counts()["disk_bytes"]
    lake.read(0, 1)
    assert abs(both - 2 * lake.take_io_counts()["disk_bytes"]) <= 2


def test_a_meshjoin_over_it_is_exact(folder: Path, table: pa.Table) -> None:
    keys = pa.record_batch({"k": pa.array([5, 13, None, 1_699, 9_999, 5], pa.int64())})
    spec = JoinSpec(keys.schema, (("k", "id"),), "left", ("k",), ("v",))
    steps = list(drive(MeshJoin(relation(folder, table), spec, Budget("1m")), [keys]))
    found = sorted((str(row["k"]), str(row["v"])) for step in steps for row in step.output.to_pylist())
    expected = [(str(k), str(v)) for k in (5, 5, 1_699) for v in range(ROWS) if v % 1_700 == k]
    expected += [("13", "None"), ("None", "None"), ("9999", "None")]
    assert found == sorted(expected)


def test_types_are_those_the_query_was_planned_with(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"id": pa.array([1, 2], pa.int32()), "s": pa.array(["a", "b"]).dictionary_encode()}), tmp_path / "a.parquet"
    )
    lake = ParquetRelation(list_files(tmp_path), pa.schema([("id", pa.int64()), ("s", pa.string())]), "id")
    assert lake.read(0, 1).take(np.array([1]), ["id", "s"]).to_pylist() == [{"id": 2, "s": "b"}]


def test_a_join_that_needs_an_index_is_refused(folder: Path, table: pa.Table) -> None:
    spec = JoinSpec(pa.schema([("id", pa.int64())]), (("id", "id"),), "inner", ("id",), ("v",))
    with pytest.raises(StrategyError, match="meshjoin"):
        SweepJoin(relation(folder, table), spec, Budget("1m"))  # type: ignore[arg-type]


def test_a_file_that_was_replaced_is_an_error_and_never_other_rows(folder: Path, table: pa.Table) -> None:
    lake = relation(folder, table)
    path = folder / "a.parquet"
    pq.write_table(table.slice(0, 2_000).reverse() if hasattr(table, "reverse") else table.slice(1, 2_000), path)
    os.utime(path, (1, 1))
    with pytest.raises(TableError, match=r"a\.parquet was replaced"):
        lake.read(0, 1)


def test_a_file_that_vanished_is_named(folder: Path, table: pa.Table) -> None:
    lake = relation(folder, table)
    (folder / "a.parquet").unlink()
    with pytest.raises(TableError, match=r"a\.parquet has vanished"):
        lake.read(0, 1)


def test_a_file_with_another_schema_is_named(folder: Path, table: pa.Table) -> None:
    pq.write_table(pa.table({"id": [1]}), folder / "z.parquet")
    with pytest.raises(SchemaError, match=r"z\.parquet has no column 'v'"):
        relation(folder, table)


def test_what_is_no_parquet_is_named(folder: Path, table: pa.Table) -> None:
    (folder / "z.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(DamagedTableError, match=r"z\.parquet can't be read"):
        relation(folder, table)


def test_folders_that_can_not_be_scanned_say_why(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(TableError, match="no Parquet folder"):
        list_files(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TableError, match="holds no Parquet files"):
        list_files(tmp_path / "empty")


def _parted(folder: Path) -> ParquetRelation:
    for day, shop, ids in (("2024-05-01", "a%2Fb", [1, 2]), ("2024-05-02", "__HIVE_DEFAULT_PARTITION__", [3])):
        place = folder / f"day={day}" / f"shop={shop}"
        place.mkdir(parents=True)
        pq.write_table(pa.table({"id": ids}), place / "part-0.parquet")
    schema = pa.schema([("id", pa.int64()), ("shop", pa.string()), ("day", pa.date32())])
    return ParquetRelation(list_files(folder), schema, "id")


def test_columns_of_a_partitioned_folder_come_from_its_names(tmp_path: Path) -> None:
    lake = _parted(tmp_path)
    rows = [lake.read(page, 1).take(np.array([0]), ["id", "shop", "day"]).to_pylist()[0] for page in (0, 1)]
    assert rows == [
        {"id": 1, "shop": "a/b", "day": dt.date(2024, 5, 1)},
        {"id": 3, "shop": None, "day": dt.date(2024, 5, 2)},
    ]
    (tmp_path / "day=x" / "shop=c").mkdir(parents=True)
    pq.write_table(pa.table({"id": [4]}), tmp_path / "day=x" / "shop=c" / "part-0.parquet")
    with pytest.raises(SchemaError, match=r"part-0\.parquet: day=x in its path is no date32"):
        ParquetRelation(list_files(tmp_path), lake.schema, "id")


def test_a_partition_column_can_be_the_key(tmp_path: Path) -> None:
    for number in (3, 7):
        (tmp_path / f"k={number}").mkdir()
        pq.write_table(pa.table({"v": [number * 10, number * 11]}), tmp_path / f"k={number}" / "p.parquet")
    lake = ParquetRelation(list_files(tmp_path), pa.schema([("k", pa.int64())]), "k")
    assert [lake.read(page, 1).codes.tolist() for page in range(2)] == [[3, 3], [7, 7]]
    assert lake.zones is not None
    assert (lake.zones.lows.tolist(), lake.zones.highs.tolist()) == ([3, 7], [3, 7])


@pytest.mark.parametrize("algorithm", [MeshJoin, RMeshJoin])
@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_row_groups_that_nobody_waits_for_are_not_read(tmp_path: Path, algorithm: Any, how: How) -> None:
    rows = pa.table({"id": np.arange(10_000), "v": np.arange(10_000) * 2})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=1_000)
    lake = ParquetRelation(list_files(tmp_path), rows.schema, "id", rows_per_page=250)
    assert lake.pages == 40
    keys = pa.table({"k": pa.array([2_500, 2_999, None, 7_000, 20_000, -4], pa.int64())})
    spec = JoinSpec(keys.schema, (("k", "id"),), how, ("k",), ("v",) if how in ("inner", "left") else ())
    steps = list(drive(algorithm(lake, spec, Budget("1m"), buffer_pages=3), keys.to_batches()))
    assert total(steps).pages_read == 8  # the third and the eighth group, four pages each
    assert same_rows(pa.Table.from_batches([step.output for step in steps]), reference_join(keys, rows, spec))


@pytest.mark.parametrize("algorithm", [MeshJoin, RMeshJoin])
def test_tuples_that_come_and_go_are_exact_with_zones(tmp_path: Path, algorithm: Any) -> None:
    rng = np.random.default_rng(5)
    ids = np.concatenate([rng.integers(start, start + 40, 60) for start in (0, 30, 90, 200, 10)])
    rows = pa.table({"id": ids, "v": np.arange(300)})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=60)
    lake = ParquetRelation(list_files(tmp_path), rows.schema, "id", rows_per_page=20)
    keys = pa.table({"k": rng.integers(0, 260, 400)})
    spec = JoinSpec(keys.schema, (("k", "id"),), "left", ("k",), ("v",))
    steps = list(
        drive(algorithm(lake, spec, Budget("1m"), buffer_pages=2, tuples_per_step=5), keys.to_batches(max_chunksize=7))
    )
    assert same_rows(pa.Table.from_batches([step.output for step in steps]), reference_join(keys, rows, spec))


def _keys_of_every_kind() -> pa.Table:
    days = [dt.date(1969, 12, 20) + dt.timedelta(n) for n in range(40)]
    times = [dt.datetime(day.year, day.month, day.day) for day in days]
    tens = [Decimal(n) * 10**14 for n in range(-20, 20)]
    return pa.table(
        {
            "i8": pa.array(range(-20, 20), pa.int8()),
            "i64": pa.array([n * (1 << 57) for n in range(-20, 20)], pa.int64()),
            "u8": pa.array([n * 6 for n in range(40)], pa.uint8()),
            "u32": pa.array([n * 107_374_182 for n in range(40)], pa.uint32()),
            "date": pa.array(days, pa.date32()),
            "ms": pa.array(times, pa.timestamp("ms", "Europe/Berlin")),
            "ntz": pa.array(times, pa.timestamp("us")),
            "ns": pa.array(times, pa.timestamp("ns", "UTC")),
            "dec9": pa.array([Decimal(n) / 100 for n in range(-20, 20)], pa.decimal128(9, 2)),
            "dec18": pa.array(tens, pa.decimal128(18, 2)),
            "flag": [n // 4 % 2 == 0 for n in range(40)],
        }
    )


@pytest.mark.parametrize("writer", ["pyarrow", "old pyarrow", "integers as decimals", "duckdb"])
def test_statistics_of_any_writer_never_leave_a_row_out(tmp_path: Path, writer: str) -> None:
    rows, path = _keys_of_every_kind(), tmp_path / "a"
    if writer == "duckdb":
        duckdb.sql(f"COPY (SELECT * FROM rows) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048)")
    elif writer == "old pyarrow":
        pq.write_table(rows, path, row_group_size=4, version="1.0", use_deprecated_int96_timestamps=True, store_schema=False)
    else:
        pq.write_table(rows, path, row_group_size=4, store_decimal_as_integer=writer == "integers as decimals")
    skipping = []
    for field in rows.schema:
        planned = {"u8": pa.int16(), "u32": pa.int64(), "ms": pa.timestamp("us", "UTC"), "ns": pa.timestamp("us", "UTC")}
        schema = pa.schema([(field.name, planned.get(field.name, field.type))])
        lake = ParquetRelation(list_files(path), schema, field.name)
        if lake.zones is not None:
            skipping.append(field.name)
            for page in range(lake.pages):
                zone, codes = lake.zones.of_page[page], lake.read(page, 1).codes
                assert lake.zones.lows[zone] <= codes.min(), field.name
                assert lake.zones.highs[zone] >= codes.max(), field.name
    assert {"i8", "i64", "date"} <= set(skipping)
    assert "u8" not in skipping  # unsigned: writers differ
    assert ("dec9" in skipping) == (writer in ("integers as decimals", "duckdb"))


def test_statistics_belong_to_the_column_and_not_to_a_struct_that_is_called_alike(tmp_path: Path) -> None:
    numbers = np.arange(50)
    inner = pa.array([{"b": int(n) + 1_000, "c": "x"} for n in numbers])
    for name, columns in {"before": ["a", "a.b"], "behind": ["a.b", "a"]}.items():
        table = pa.table({"a": inner, "a.b": numbers}).select(columns)
        pq.write_table(table, tmp_path / name, row_group_size=10)
        lake = ParquetRelation(list_files(tmp_path / name), pa.schema([("a.b", pa.int64())]), "a.b")
        assert lake.zones is not None
        assert (lake.zones.lows.tolist(), lake.zones.highs.tolist()) == ([0, 10, 20, 30, 40], [9, 19, 29, 39, 49])
        assert [lake.read(page, 1).codes.tolist() for page in range(5)] == numbers.reshape(5, 10).tolist()


@pytest.mark.parametrize("there", [pa.string(), pa.float64(), pa.bool_(), pa.date32()])
def test_a_column_of_another_kind_than_planned_is_refused_and_never_converted(tmp_path: Path, there: pa.DataType) -> None:
    value: Any = {pa.string(): "5", pa.float64(): 5.0, pa.bool_(): True, pa.date32(): dt.date(1970, 1, 6)}[there]
    pq.write_table(pa.table({"id": pa.array([value], there)}), tmp_path / "a.parquet")
    with pytest.raises(SchemaError, match=r"a\.parquet, column 'id' is .* planned with int64"):
        ParquetRelation(list_files(tmp_path), pa.schema([("id", pa.int64())]), "id").read(0, 1)


def test_without_statistics_or_order_nothing_is_skipped(tmp_path: Path) -> None:
    rows = pa.table({"id": np.arange(10), "s": [f"{n}" for n in range(10)]})
    pq.write_table(rows, tmp_path / "a.parquet", write_statistics=False)
    assert ParquetRelation(list_files(tmp_path), rows.schema, "id").zones is None
    assert ParquetRelation(list_files(tmp_path), rows.schema, "s").zones is None


def test_pages_have_few_rows_where_rows_are_long_and_reads_end_early_where_they_grow(tmp_path: Path) -> None:
    texts = ["a" * (10 if i < 9_500 else 20_000) for i in range(10_000)]  # long rows behind short ones, in one row group
    table = pa.table({"id": np.arange(10_000), "s": texts})
    pq.write_table(table, tmp_path / "x.parquet", use_dictionary=False)
    lake = ParquetRelation(list_files(tmp_path), table.schema, "id")
    assert 100 < lake.longest_page_rows < 8_192
    runs, page, short = [], 0, 0
    while page < lake.pages:
        wanted = min(2, lake.pages - page)
        run = lake.read(page, wanted)
        runs.append(run.take(np.arange(run.rows), ["id", "s"]))
        page += len(run.pages)
        short += len(run.pages) < wanted
    assert pa.Table.from_batches(runs).equals(table)
    assert short


def test_what_readers_of_many_columns_hold_comes_from_the_budget(tmp_path: Path) -> None:
    columns = {f"c{i}": np.random.default_rng(i).random(20_000) for i in range(40)}
    table = pa.table({"id": np.arange(20_000), **columns})
    pq.write_table(table, tmp_path / "x.parquet")
    lake = ParquetRelation(list_files(tmp_path), table.schema, "id")
    assert lake.reader_bytes > 40 * 2 * 8 * 20_000
    spec = JoinSpec(pa.schema([("k", pa.int64())]), (("k", "id"),), "inner", ("k",), ("c0",))
    with pytest.raises(BudgetError, match="too small"):
        MeshJoin(lake, spec, Budget("8m"))
    budget = Budget("64m")
    MeshJoin(lake, spec, budget)
    assert budget.holdings()["reading files"] == lake.reader_bytes


def test_list_views_are_read_as_lists(tmp_path: Path) -> None:
    lists = [[i, i + 1] if i % 3 else None for i in range(1_000)]
    table = pa.table({"id": np.arange(1_000), "l": pa.array(lists, pa.list_view(pa.int32()))})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=333)
    schema = pa.schema([("id", pa.int64()), ("l", pa.list_(pa.int32()))])
    lake = ParquetRelation(list_files(tmp_path), schema, "id", rows_per_page=100)
    rows = [lake.read(page, 1).take(np.arange(lake.read(page, 1).rows), ["l"]) for page in range(lake.pages)]
    assert pa.Table.from_batches(rows)["l"].to_pylist() == lists
