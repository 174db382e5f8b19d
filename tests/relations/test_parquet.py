"""Parquet files as a relation, scanned in place."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.core.budget import Budget
from millrace.core.drive import drive
from millrace.core.errors import DamagedTableError, SchemaError, StrategyError, TableError
from millrace.core.protocols import JoinSpec
from millrace.joins.meshjoin import MeshJoin
from millrace.joins.sweepjoin import SweepJoin
from millrace.relations.parquet import ParquetRelation, list_files

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
    lake = relation(folder, table)
    with pytest.raises(SchemaError, match=r"z\.parquet has no column 'v'"):
        lake.read(0, lake.pages)


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
    (folder / "day=1").mkdir()
    pq.write_table(pa.table({"id": [1]}), folder / "day=1" / "c.parquet")
    with pytest.raises(TableError, match="is partitioned"):
        list_files(folder)
