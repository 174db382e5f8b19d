"""Shards: pages at 4 KiB boundaries, a directory of codes and records, runs of equal keys, and nothing left of a failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.core.errors import ParameterError
from millrace.relations.layout import PageLayout
from millrace.relations.row_records import pack
from millrace.relations.shard import ALIGNMENT, checksum, directory_path, plan_rows_per_page, write_shard

SCHEMA = pa.schema([("code", pa.int64()), ("name", pa.string()), ("flag", pa.bool_()), ("list", pa.list_(pa.int32()))])


def rows(codes: list[int]) -> pa.RecordBatch:
    names = [None if code % 5 == 0 else f"name {code}" for code in codes]
    flags = [None if code % 7 == 0 else code % 2 == 0 for code in codes]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(codes, pa.int64()),
            pa.array(names),
            pa.array(flags),
            pa.array([[c % 9] for c in codes], pa.list_(pa.int32())),
        ],
        schema=SCHEMA,
    )


def directory(path: Path) -> pa.Table:
    with pa.OSFile(str(directory_path(path))) as source:
        return pa.ipc.open_file(source).read_all()


@pytest.mark.parametrize("batch_rows", [1, 3, 10, 64, 1000])
@pytest.mark.parametrize("rows_per_page", [1, 7, 100])
def test_pages_hold_the_rows_in_order_whatever_batches_they_came_in(
    tmp_path: Path, batch_rows: int, rows_per_page: int
) -> None:
    codes = sorted(n // 3 for n in range(200))
    whole = rows(codes)
    parts = [whole.slice(start, batch_rows) for start in range(0, 200, batch_rows)]
    path = tmp_path / "a.pages"
    info = write_shard(path, SCHEMA, "code", rows_per_page, parts)
    data = path.read_bytes()
    assert (info.rows, info.pages, info.bytes) == (200, -(-200 // rows_per_page), len(data))
    assert (info.longest_run, info.first, info.last, info.unique) == (3, 0, 66, False)
    assert info.bytes % ALIGNMENT == 0
    pages = directory(path).to_pylist()
    layout = PageLayout(SCHEMA, "code")
    decoded = []
    for page in pages:
        assert page["offset"] % ALIGNMENT == 0
        message = data[page["offset"] : page["offset"] + page["bytes"]]
        assert checksum(message) == page["checksum"]
        batch = pa.ipc.read_record_batch(pa.py_buffer(message), layout.page_schema)
        ends = (batch.column(0)[0].as_py(), batch.column(0)[-1].as_py())
        assert (batch.num_rows, *ends) == (page["rows"], page["first"], page["last"])
        decoded.append(batch)
    pages_of = pa.Table.from_batches(decoded)
    assert pages_of.column(0).to_pylist() == codes
    assert pages_of.column("list").to_pylist() == whole.column("list").to_pylist()
    assert pages_of.column(1).to_pylist() == pack(whole, layout)[0].to_pylist()
    assert max(page["bytes"] for page in pages) <= info.max_page_bytes


def test_the_directory_gives_the_place_of_codes_and_records(tmp_path: Path) -> None:
    path = tmp_path / "a.pages"
    write_shard(path, SCHEMA, "code", 8, [rows(list(range(1, 30)))])
    data = path.read_bytes()
    page = directory(path).to_pylist()[1]
    start = page["offset"] + page["codes"]
    assert [int.from_bytes(data[start + 8 * i : start + 8 * i + 8], "little") for i in range(8)] == list(range(9, 17))
    start = page["offset"] + page["starts"]
    second, third = (int.from_bytes(data[start + 4 * i : start + 4 * i + 4], "little") for i in (1, 2))
    start = page["offset"] + page["data"]
    assert data[start + second : start + third].endswith(b"\0")  # row 10 has no name
    assert b"name 11" in data[start + third : start + third + 30]


def test_the_directory_knows_which_columns_have_nulls(tmp_path: Path) -> None:
    path = tmp_path / "a.pages"
    write_shard(path, SCHEMA, "code", 4, [rows([1, 2, 3, 4, 5, 6, 8, 9, 14, 16, 17, 18])])
    layout = PageLayout(SCHEMA, "code").by_name
    assert [page["nulls"] for page in directory(path).to_pylist()] == [0, layout["name"].null_flag, layout["flag"].null_flag]


@pytest.mark.parametrize(("codes", "longest"), [([1, 2, 3], 1), ([4] * 50, 50), ([1, 2, 2, 3, 3, 3, 4], 3), ([], 0)])
@pytest.mark.parametrize("rows_per_page", [1, 2, 3, 16])
@pytest.mark.parametrize("batch_rows", [1, 2, 5, 100])
def test_the_longest_run_is_counted_across_pages_and_batches(
    tmp_path: Path, codes: list[int], longest: int, rows_per_page: int, batch_rows: int
) -> None:
    parts = [rows(codes[start : start + batch_rows]) for start in range(0, len(codes), batch_rows)]
    assert write_shard(tmp_path / "a.pages", SCHEMA, "code", rows_per_page, parts).longest_run == longest


@pytest.mark.parametrize("parts", [[[1, 3, 2]], [[1, 5], [4, 6]], [[2**63 - 1], [-(2**63)]], [[0], [-(2**63), 2**63 - 1]]])
@pytest.mark.parametrize("rows_per_page", [1, 2, 100])
def test_rows_out_of_order_are_refused_and_nothing_is_left(tmp_path: Path, parts: list[list[int]], rows_per_page: int) -> None:
    with pytest.raises(ParameterError, match="sorted by code"):
        write_shard(tmp_path / "a.pages", SCHEMA, "code", rows_per_page, [rows(part) for part in parts])
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_breaks_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield rows(list(range(1000)))
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        write_shard(tmp_path / "a.pages", SCHEMA, "code", 10, broken())
    assert list(tmp_path.iterdir()) == []


def test_extreme_codes_are_in_order(tmp_path: Path) -> None:
    info = write_shard(tmp_path / "a.pages", SCHEMA, "code", 2, [rows([-(2**63), -1, 0, 1, 2**63 - 1])])
    assert (info.first, info.last, info.longest_run) == (-(2**63), 2**63 - 1, 1)


def test_rows_per_page_follow_the_bytes_of_a_page() -> None:
    batch = rows(list(range(1, 2000)))
    few, many = plan_rows_per_page(batch, 4096), plan_rows_per_page(batch, 1 << 20)
    assert 1 <= few < many <= 65_536
    assert batch.slice(0, many).serialize().size <= 1 << 20
    with pytest.raises(ParameterError, match="page_bytes must be at least 4096; got 100"):
        plan_rows_per_page(batch, 100)


def test_rows_longer_than_those_that_were_measured_do_not_pile_up_in_memory(tmp_path: Path) -> None:
    """Planned for rows of a few bytes, given rows of 1 MB: pages go to disk as they fill, not when enough rows are there."""
    schema = pa.schema([("code", pa.int64()), ("name", pa.string())])
    path = tmp_path / "long.pages"
    waiting: list[int] = []

    def long_rows() -> Iterator[pa.RecordBatch]:
        for code in range(40):
            waiting.append(code * 1_000_000 - (tmp_path / "long.pages.partial").stat().st_size)
            yield pa.RecordBatch.from_arrays([pa.array([code]), pa.array(["x" * 1_000_000])], schema=schema)

    info = write_shard(path, schema, "code", 65_536, long_rows(), page_bytes=64 << 10)
    assert max(waiting) < 8_000_000  # what is gathered into one large write, and a page
    assert (info.rows, info.pages, info.longest_run) == (40, 40, 1)
