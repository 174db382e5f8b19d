"""A stored table as a relation: the same rows however it is read, and no damaged byte that goes unnoticed."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.relations.stored_tables import flip_bit, newest

from millrace.core.errors import DamagedTableError, ParameterError, TableError
from millrace.relations.build import build_table
from millrace.relations.shard import ALIGNMENT
from millrace.relations.stored import READ_MODES, ReadMode

COUNT = 3000


def _rows(count: int = COUNT) -> pa.Table:
    """Columns of every layout, with nulls only in some of the pages, and duplicates that cross pages."""
    rng = random.Random(5)
    keys = [n // 2 if n < 1000 else 700 if n < 1500 else n for n in range(count)]
    order = list(range(count))
    rng.shuffle(order)
    keys = [keys[n] for n in order]

    def some(value: object, n: int) -> object:
        return None if keys[n] < 600 and n % 3 == 0 else value

    return pa.table(
        {
            "id": pa.array(keys, pa.int64()),
            "byte": pa.array([some(n % 100, n) for n in range(count)], pa.int8()),
            "short": pa.array([some(n, n) for n in range(count)], pa.int16()),
            "number": pa.array([some(n, n) for n in range(count)], pa.int32()),
            "ratio": pa.array([some(n / 7, n) for n in range(count)], pa.float64()),
            "amount": pa.array([some(n, n) for n in range(count)], pa.decimal128(38, 2)),
            "flag": pa.array([some(n % 3 == 0, n) for n in range(count)]),
            "text": pa.array([some("x" * (n % 40), n) for n in range(count)]),
            "blob": pa.array([some(bytes([n % 256]) * (n % 5), n) for n in range(count)]),
            "list": pa.array([some([n] * (n % 4), n) for n in range(count)], pa.list_(pa.int64())),
            "struct": pa.array(
                [some({"a": n, "b": str(n)}, n) for n in range(count)], pa.struct([("a", pa.int32()), ("b", pa.string())])
            ),
            "nothing": pa.nulls(count, pa.string()),
            "empty": pa.array([""] * count),
        }
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored") / "t"
    build_table(folder, _rows(), "id", page_bytes=4096, shards=3)
    return folder


def _copy(table: Path, target: Path) -> Path:
    shutil.copytree(table, target)
    return target


@pytest.mark.parametrize("mode", READ_MODES)
def test_a_scan_gives_every_row_once_in_key_order(table: Path, mode: ReadMode) -> None:
    relation = newest(table, mode)
    parts, codes = [], []
    for first in range(0, relation.pages, 7):
        run = relation.read(first, min(7, relation.pages - first))
        codes += run.codes.tolist()
        parts.append(run.take(np.arange(run.rows), relation.schema.names))
    got = pa.Table.from_batches(parts)
    expected = _rows()
    expected = expected.take(pa.array(np.argsort(expected["id"].to_numpy(), kind="stable")))
    assert codes == expected["id"].to_pylist()
    assert got.equals(expected)


@pytest.mark.parametrize("mode", READ_MODES)
def test_rows_are_taken_from_any_page_in_any_order(table: Path, mode: ReadMode) -> None:
    relation = newest(table, mode)
    expected = _rows()
    expected = expected.take(pa.array(np.argsort(expected["id"].to_numpy(), kind="stable"))).combine_chunks()
    starts = np.concatenate(([0], np.cumsum(relation.page_index.rows)))
    rng = np.random.default_rng(1)
    for _ in range(20):
        firsts = np.unique(rng.integers(0, relation.pages // 2, 4)) * 2
        run = relation.read_many(firsts, np.ones(len(firsts), np.int64))
        inside = np.concatenate([np.arange(starts[page], starts[page + 1]) for page in firsts])
        rows = rng.integers(0, run.rows, 50)
        names = list(rng.permutation(relation.schema.names)[:5])
        assert run.take(rows, names).equals(expected.take(pa.array(inside[rows])).select(names).to_batches()[0])


@pytest.mark.parametrize("mode", READ_MODES)
def test_every_key_is_found_where_the_index_says_and_no_other(table: Path, mode: ReadMode) -> None:
    relation = newest(table, mode)
    keys = _rows()["id"].to_numpy()
    wanted = np.unique(np.concatenate((keys, [-5, 501, COUNT + 9, -(2**63), 2**63 - 1])))
    runs = relation.locate(wanted)
    for code, first, last in zip(wanted.tolist(), runs.first.tolist(), runs.last.tolist(), strict=True):
        found = 0
        for page in range(first, last + 1):
            found += int(relation.read(page, 1).match(np.array([code]), np.array([page]))[1][0])
        assert found == int((keys == code).sum()), code


@pytest.mark.parametrize("mode", READ_MODES)
def test_reads_are_counted(table: Path, mode: ReadMode) -> None:
    relation = newest(table, mode)
    relation.read_many(np.array([0, 5]), np.array([2, 1]))
    counts = relation.take_io_counts()
    assert counts["disk_reads"] == (3 if mode == "mmap" else 2)
    assert counts["disk_bytes"] > 0
    assert relation.take_io_counts() == {"disk_reads": 0, "disk_bytes": 0, "read_seconds": 0.0}


@pytest.mark.parametrize("mode", READ_MODES)
def test_an_empty_table_has_no_pages_and_no_keys(tmp_path: Path, mode: ReadMode) -> None:
    build_table(tmp_path, _rows().slice(0, 0), "id")
    relation = newest(tmp_path, mode)
    assert (relation.rows, relation.pages, relation.unique) == (0, 0, True)
    runs = relation.locate(np.array([0, 1]))
    assert (runs.last < runs.first).all()
    with pytest.raises(ParameterError, match="the table has 0 pages"):
        relation.read(0, 1)


@pytest.mark.parametrize("mode", READ_MODES)
def test_a_damaged_page_is_named_and_never_read_as_a_miss(table: Path, tmp_path: Path, mode: ReadMode) -> None:
    folder = _copy(table, tmp_path / "t")
    whole = newest(folder, "buffered")
    rng = random.Random(3)
    for page in (0, 1, whole.pages // 2, whole.pages - 1):
        shard = int(whole.page_index.shards[page])
        inside = page - int(np.searchsorted(whole.page_index.shards, shard))
        file = folder / "v000001" / whole.version.shards[shard].file
        for place in (0, int(whole.page_index.sizes[page]) - 1, rng.randrange(int(whole.page_index.sizes[page]))):
            flip_bit(file, int(whole.page_index.offsets[page]) + place)
            relation = newest(folder, mode)
            with pytest.raises(DamagedTableError, match=f"page {inside} of .*{file.name} is damaged"):
                relation.read(page, 1)
            with pytest.raises(DamagedTableError, match=f"page {inside} of "):  # and again: it does not pass for checked
                relation.read_many(np.array([page]), np.array([1]))
            flip_bit(file, int(whole.page_index.offsets[page]) + place)
            assert newest(folder, mode).read(page, 1).rows > 0


def test_pages_in_place_are_checked_ahead_and_a_damaged_one_is_left_for_whoever_needs_it(table: Path, tmp_path: Path) -> None:
    copy = _copy(table, tmp_path / "copy")
    relation = newest(copy, "mmap")
    last = relation.pages - 1
    file = relation.shard_files.files[int(relation.page_index.shards[last])].path
    relation.close()
    with file.open("r+b") as opened:
        opened.seek(int(relation.page_index.offsets[last]))
        byte = opened.read(1)
        opened.seek(int(relation.page_index.offsets[last]))
        opened.write(bytes([byte[0] ^ 1]))
    relation = newest(copy, "mmap")
    relation.touch(np.arange(last // 2 + 1))
    assert relation.take_io_counts()["disk_reads"] == last // 2 + 1
    assert relation.mapped_pages.checked[:last].all()
    assert not relation.mapped_pages.checked[last]
    with pytest.raises(DamagedTableError, match="is damaged"):
        relation.touch(np.array([last]))


@pytest.mark.parametrize("mode", READ_MODES)
def test_shards_that_changed_places_are_damaged(tmp_path: Path, mode: ReadMode) -> None:
    rows = pa.table({"id": range(2000), "v": range(2000)})
    build_table(tmp_path, rows, "id", page_bytes=4096, shards=2)
    one, other = sorted((tmp_path / "v000001").glob("shard-*"))
    assert one.stat().st_size == other.stat().st_size
    os.rename(one, tmp_path / "x")
    os.rename(other, one)
    os.rename(tmp_path / "x", other)
    with pytest.raises(DamagedTableError, match="page 0 of "):
        newest(tmp_path, mode).read(0, 1)


@pytest.mark.parametrize("mode", READ_MODES)
def test_a_shard_that_was_cut_or_grew_or_vanished_is_named_at_once(table: Path, tmp_path: Path, mode: ReadMode) -> None:
    folder = _copy(table, tmp_path / "t")
    file = sorted((folder / "v000001").glob("shard-*"))[1]
    data = file.read_bytes()
    for changed in (data[:-ALIGNMENT], data[:-1], b"", data + b"\0"):
        file.write_bytes(changed)
        with pytest.raises(DamagedTableError, match=f"{file.name} has {len(changed)} bytes and should have {len(data)}"):
            newest(folder, mode)
    file.unlink()
    with pytest.raises(TableError, match=f"{file.name} is missing"):
        newest(folder, mode)


@pytest.mark.parametrize("mode", ["direct", "buffered"])
@pytest.mark.parametrize("left", [ALIGNMENT, ALIGNMENT + 100, -100])
def test_a_shard_that_is_cut_while_it_is_read_is_an_error(table: Path, tmp_path: Path, mode: ReadMode, left: int) -> None:
    folder = _copy(table, tmp_path / "t")
    relation = newest(folder, mode)
    for shard in relation.version.shards:
        os.truncate(folder / "v000001" / shard.file, left if left > 0 else shard.bytes + left)
    inside = relation.version.shards[-1].pages - 1
    with pytest.raises(DamagedTableError, match=rf"{shard.file} was cut: it ends before page {inside} does"):
        relation.read(relation.pages - 1, 1)


def _overwrite(file: Path) -> None:
    """Other bytes, the old time."""
    before = file.stat()
    flip_bit(file, before.st_size // 2)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_mtime_ns == before.st_mtime_ns


def _cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def _replace(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(file.read_bytes())
    os.rename(other, file)


@pytest.mark.parametrize("mode", READ_MODES)
@pytest.mark.parametrize("change", [_overwrite, _cut, _replace, Path.unlink])
def test_a_file_that_changed_after_it_was_opened_is_told(
    tmp_path: Path, mode: ReadMode, change: Callable[[Path], object]
) -> None:
    rows = _rows()
    counts = pa.table({"id": pa.array(range(COUNT), pa.int64()), "wanted": pa.array(range(COUNT), pa.int64())})
    build_table(tmp_path, rows, "id", page_bytes=4096, shards=3, layout="frequency", counts=counts)
    names = {path.name for path in (tmp_path / "v000001").iterdir()}
    assert {"index.arrow", "keys.arrow", "keys.index"} <= names
    for name in sorted(name for name in names if name.endswith((".pages", ".arrow", ".index"))):
        folder = _copy(tmp_path / "v000001", tmp_path / "copy" / "v000001").parent
        (folder / "manifest.json").write_bytes((tmp_path / "manifest.json").read_bytes())
        relation = newest(folder, mode)
        relation.read(0, relation.pages)
        relation.locate(np.arange(COUNT))
        assert relation.changed() is None
        change(folder / "v000001" / name)
        assert relation.changed() == folder / "v000001" / name
        relation.close()
        shutil.rmtree(folder)


def test_files_are_closed_when_one_of_them_can_not_be_opened(table: Path, tmp_path: Path) -> None:
    folder = _copy(table, tmp_path / "t")
    *_, last = sorted((folder / "v000001").glob("shard-*"))
    _cut(last)
    with pytest.raises(DamagedTableError, match=f"{last.name} has "):
        newest(folder, "mmap")
    opened = [os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()]
    assert [path for path in opened if path.startswith(f"{folder}/") and "shard-" in path] == []


def test_no_damaged_byte_of_the_index_goes_unnoticed(table: Path, tmp_path: Path) -> None:
    folder = _copy(table, tmp_path / "t")
    path = folder / "v000001" / "index.arrow"
    data = path.read_bytes()
    for place in (0, 1, len(data) // 3, len(data) // 2, len(data) - 1, *range(8, len(data), len(data) // 50)):
        flip_bit(path, place)
        with pytest.raises(DamagedTableError, match=r"index\.arrow"):
            newest(folder, "buffered")
        flip_bit(path, place)
    for changed in (data[:-1], data[: len(data) // 2], b"", data + b"x"):
        path.write_bytes(changed)
        with pytest.raises(DamagedTableError, match=r"index\.arrow"):
            newest(folder, "mmap")
    path.unlink()
    with pytest.raises(TableError, match=r"index\.arrow is missing"):
        newest(folder, "direct")


def test_pages_stay_near_the_size_that_was_asked_for_when_later_rows_are_longer(tmp_path: Path) -> None:
    texts = ["x" if n < 20_000 else "y" * 20_000 for n in range(20_400)]
    version = build_table(tmp_path, pa.table({"id": range(20_400), "text": texts}), "id", page_bytes=65_536)
    assert version.page_bytes <= 4 * 65_536
    relation = newest(tmp_path, "buffered")
    parts = [relation.read(page, 1) for page in (0, relation.pages - 1)]
    assert parts[-1].take(np.array([parts[-1].rows - 1]), ["text"]).to_pydict() == {"text": ["y" * 20_000]}
    runs = relation.locate(np.arange(20_400))
    assert (runs.first == runs.last).all()
    sizes = relation.page_index.rows
    assert np.array_equal(np.repeat(np.arange(relation.pages), sizes), runs.first)


def test_a_row_longer_than_a_page_is_a_page(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2, 3], "text": ["a", "b" * 100_000, "c"]})
    build_table(tmp_path, rows, "id", page_bytes=4096)
    for mode in READ_MODES:
        relation = newest(tmp_path, mode)
        run = relation.read(0, relation.pages)
        assert run.take(np.arange(3), ["id", "text"]).to_pydict() == rows.to_pydict()


def test_an_unknown_way_of_reading_is_refused(table: Path) -> None:
    with pytest.raises(ParameterError, match="read mode must be one of direct, buffered, mmap; got 'telepathy'"):
        newest(table, "telepathy")  # type: ignore[arg-type]
