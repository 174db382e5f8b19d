"""Tables in the order of counts: the order, the index on disk, what is read of it, and its damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.relations.stored_tables import newest, stored

from millrace.cli.tables import verify_version
from millrace.core.budget import Budget
from millrace.core.errors import DamagedTableError, ParameterError, SchemaError, TableError
from millrace.relations.build import build_table
from millrace.relations.folder import TableVersion, read_versions
from millrace.relations.frequency import frequency_order, key_entries
from millrace.relations.keyindex import BLOCK_BYTES
from millrace.relations.stored import READ_MODES, ReadMode, StoredRelation

KEYS = 5000


def _table(copies: int) -> pa.Table:
    keys = [key for key in range(0, 2 * KEYS, 2) for _ in range(copies if key % 100 == 0 else 1)]
    order = np.random.default_rng(2).permutation(len(keys))
    table = pa.table({"id": keys, "row": range(len(keys)), "text": ["t" * (n % 9) for n in range(len(keys))]})
    return table.take(pa.array(order))


def _counts(seed: int = 3) -> pa.Table:
    """For half of the keys, some of them twice, and for keys that are not there."""
    keys = np.random.default_rng(seed).permutation(2 * KEYS)[: KEYS + 7]
    return pa.table({"id": np.append(keys, keys[:5]), "seen": np.append(keys % 1000, keys[:5])})


def _count_of(counts: pa.Table) -> dict[int, float]:
    sums: dict[int, float] = {}
    for row in counts.to_pylist():
        sums[row["id"]] = sums.get(row["id"], 0) + row["seen"]
    return sums


@pytest.fixture(scope="module", params=[1, 40], ids=["unique", "duplicates"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table, pa.Table]:
    folder = tmp_path_factory.mktemp("frequency")
    rows, counts = _table(request.param), _counts()
    build_table(folder, rows, "id", layout="frequency", page_bytes=4096, shards=3, counts=counts)
    return folder, rows, counts


@pytest.mark.parametrize("mode", READ_MODES)
def test_every_row_is_there_once_and_keys_that_are_wanted_more_come_first(
    table: tuple[Path, pa.Table, pa.Table], mode: ReadMode
) -> None:
    folder, rows, counts = table
    relation = newest(folder, mode)
    run = relation.read(0, relation.pages)
    assert run.take(np.arange(run.rows), rows.schema.names).to_pylist() != rows.to_pylist()
    got = pa.Table.from_batches([run.take(np.arange(run.rows), rows.schema.names)])
    assert got.sort_by("row").equals(rows.sort_by("row"))
    wanted = _count_of(counts)
    lowest = float("inf")
    for page in range(relation.pages):
        codes = relation.read(page, 1).codes
        assert (np.diff(codes) >= 0).all()
        numbers = [wanted.get(int(code), 0) for code in codes]
        assert max(numbers) <= lowest
        lowest = min(numbers)


@pytest.mark.parametrize("mode", READ_MODES)
@pytest.mark.parametrize("hot_keys", [0, 1, 5, 700, 10**6])
def test_every_key_is_found_where_the_index_says_and_no_other(
    table: tuple[Path, pa.Table, pa.Table], mode: ReadMode, hot_keys: int
) -> None:
    relation = newest(table[0], mode)
    index = relation.disk_index
    assert index is not None
    run = relation.read(0, relation.pages)
    pages = np.repeat(np.arange(relation.pages), relation.page_index.rows)
    entries = key_entries(run.codes, pages)
    lookup = index.lookup(Budget("4m"), min(hot_keys, index.hot_keys))
    asked = np.random.default_rng(1).permutation(np.append(entries.codes, [-5, 1, 3, 2 * KEYS + 8, -(2**63), 2**63 - 1]))
    for part in (asked, asked[:10], asked[:1], asked[:0]):
        for runs in (relation.locate(part), lookup.locate(part)):
            place = np.minimum(np.searchsorted(entries.codes, part), len(entries.codes) - 1)
            there = entries.codes[place] == part
            assert ((runs.last >= runs.first) == there).all()
            assert (runs.first[there] == entries.firsts[place[there]]).all()
            assert (runs.last[there] == entries.lasts[place[there]]).all()


def test_hot_keys_are_those_of_the_first_pages_and_cost_no_read(table: tuple[Path, pa.Table, pa.Table]) -> None:
    relation = newest(table[0])
    index = relation.disk_index
    assert index is not None
    hot = np.unique(relation.read(0, 2).codes)
    rest = np.unique(relation.read(relation.pages - 1, 1).codes)[:1]
    lookup = index.lookup(Budget("4m"), len(hot) + 1)
    lookup.locate(hot)
    first = lookup.counts()
    assert first.index_reads == -(-(len(hot) + 1) // index.info.block_keys)
    lookup.locate(hot)
    assert lookup.counts().index_reads == 0
    lookup.locate(rest)
    counts = lookup.counts()
    assert (counts.index_reads, counts.seeks, counts.bytes_read) == (1, 1, BLOCK_BYTES)


def test_blocks_of_a_batch_are_read_once_in_order_and_neighbours_together(table: tuple[Path, pa.Table, pa.Table]) -> None:
    relation = newest(table[0])
    index = relation.disk_index
    assert index is not None
    blocks = index.info.blocks
    assert blocks >= 14
    lookup = index.lookup(Budget("4m"), 0)
    lookup.locate(np.append(index.firsts[[3, 2, 2, 13]], index.firsts[3] + 2))
    assert lookup.counts().index_reads == 2 + 1
    lookup.locate(index.firsts[[0, 2, 4]])
    counts = lookup.counts()
    assert (counts.index_reads, counts.seeks) == (5, 1)  # reading through what lies between is cheaper
    lookup.locate(index.firsts)
    counts = lookup.counts()
    assert (counts.index_reads, counts.seeks) == (blocks, -(-blocks // index.read_blocks))


def test_what_the_index_holds_is_in_the_budget(table: tuple[Path, pa.Table, pa.Table]) -> None:
    index = newest(table[0]).disk_index
    assert index is not None
    for hot_keys in (0, 3, 100, index.hot_keys):
        budget = Budget("4m")
        index.lookup(budget, hot_keys)
        assert budget.used_bytes <= index.least_bytes + hot_keys * index.hot_key_bytes
        assert budget.used_bytes >= index.least_bytes + hot_keys * index.info.key_bytes


@pytest.mark.parametrize("mode", READ_MODES)
def test_a_damaged_block_is_an_error_that_names_it_and_never_a_miss(
    table: tuple[Path, pa.Table, pa.Table], tmp_path: Path, mode: ReadMode
) -> None:
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(table[0], folder)
    path = folder / "v000001" / "keys.index"
    version = read_versions(folder)[-1]
    assert version.key_index is not None
    firsts = newest(folder).disk_index.firsts  # type: ignore[union-attr]
    data = bytearray(path.read_bytes())
    for block in (1, version.key_index.blocks):  # an ordinary one, and the first hot one
        data[block * BLOCK_BYTES + 100] ^= 1
    path.write_bytes(data)
    relation = newest(folder, mode)
    with pytest.raises(DamagedTableError, match=r"block 1 of .*keys\.index is damaged .*build the table again"):
        relation.locate(firsts[[1]])
    assert relation.locate(firsts[[0]]).last.tolist() >= [0]
    assert relation.disk_index is not None
    lookup = relation.disk_index.lookup(Budget("4m"), 5)
    for _ in range(2):
        with pytest.raises(DamagedTableError, match=rf"block {version.key_index.blocks} of .*keys\.index"):
            lookup.locate(firsts[[0]])
    problems = verify_version(folder, version, lambda pages: None)
    assert [problem.split(" of ")[0] for problem in problems] == ["block 1", f"block {version.key_index.blocks}"]


@pytest.mark.parametrize("name", ["keys.index", "keys.arrow"])
@pytest.mark.parametrize("harm", ["missing", "cut", "changed"])
def test_files_of_the_index_are_looked_at_when_a_table_is_opened(
    table: tuple[Path, pa.Table, pa.Table], tmp_path: Path, name: str, harm: str
) -> None:
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(table[0], folder)
    path = folder / "v000001" / name
    if harm == "missing":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data if harm == "changed" else data[:-8])
    if (name, harm) == ("keys.index", "changed"):
        assert verify_version(folder, read_versions(folder)[-1], lambda pages: None)
        return
    with pytest.raises(TableError, match=name.replace(".", r"\.")):
        newest(folder)
    assert verify_version(folder, read_versions(folder)[-1], lambda pages: None)


def test_a_version_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    version = build_table(tmp_path, _table(1), "id", layout="frequency", counts=_counts())
    assert read_versions(tmp_path) == [version]
    assert version.key_index is not None
    assert version.bytes == sum(shard.bytes for shard in version.shards) + version.key_index.bytes
    assert TableVersion.from_dict(version.as_dict()) == version
    assert sorted(path.name for path in (tmp_path / "v000001").iterdir()) == [
        "index.arrow", "keys.arrow", "keys.index", "shard-00000.pages",
    ]  # fmt: skip


@pytest.mark.parametrize("rows", [0, 1, 2])
@pytest.mark.parametrize("mode", READ_MODES)
def test_a_table_of_hardly_anything_works(tmp_path: Path, rows: int, mode: ReadMode) -> None:
    counts = pa.table({"id": pa.array([], pa.int64()), "count": pa.array([], pa.int64())})
    version = build_table(
        tmp_path, pa.table({"id": pa.array(range(rows), pa.int64())}), "id", layout="frequency", counts=counts
    )
    relation = StoredRelation(tmp_path, version, mode)
    runs = relation.locate(np.arange(-1, 4))
    assert (runs.last >= runs.first).tolist() == [False, *(n < rows for n in range(4))]
    below = relation.locate(np.array([-7, -5]))  # nothing of the index is needed for these
    assert (below.last < below.first).all()


@pytest.mark.parametrize("shards", [1, 4])
def test_an_index_that_is_merged_in_pieces_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int) -> None:
    files = []
    for pieces in (1 << 20, 300):
        monkeypatch.setattr("millrace.relations.keyindex._MERGE_KEYS", pieces)
        folder = tmp_path / str(pieces)
        build_table(folder, _table(40), "id", layout="frequency", page_bytes=4096, counts=_counts(), shards=shards)
        files.append((folder / "v000001" / "keys.index").read_bytes())
    assert files[0] == files[1]


def test_composite_and_text_keys_are_hashed_and_their_counts_found(tmp_path: Path) -> None:
    rows = pa.table({"shop": [f"s{n % 7}" for n in range(700)], "id": [n // 7 for n in range(700)], "row": range(700)})
    counts = pa.table({"shop": ["s3", "s5", None], "count": [5, 9, 1000], "id": pa.array([50, 60, 3], pa.int16())})
    relation = stored(tmp_path, rows, ["shop", "id"], layout="frequency", counts=counts)
    assert not relation.codec.exact
    codes = relation.codec.encode([pa.array(["s5", "s3", "s0"]), pa.array([60, 50, 99])]).codes
    runs = relation.locate(codes)
    assert runs.first[:2].tolist() == runs.last[:2].tolist() == [0, 0]
    assert runs.last[2] >= runs.first[2]


def test_rows_of_one_code_stay_together_whatever_their_counts() -> None:
    codes = np.array([7, 3, 7, 1, 3])
    order = frequency_order(codes, np.array([1.0, 2.0, 9.0, 5.0, 0.0]))
    assert codes[order].tolist() == [7, 7, 1, 3, 3]
    assert frequency_order(codes[:0], np.zeros(0)).tolist() == []


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"layout": "frequency"}, ParameterError, "layout='frequency' needs counts="),
    ({"layout": "key", "counts": _counts()}, ParameterError, "counts= are for layout='frequency'; the layout is 'key'"),
    ({"counts": pa.table({"key": [1], "count": [2]})}, SchemaError, "table of counts has no column 'id'; it has key, count"),
    ({"counts": pa.table({"id": [1]})}, SchemaError, "must have one column beside the key"),
    ({"counts": pa.table({"id": [1], "a": [2], "b": [3]})}, SchemaError, "must have one column beside the key"),
    ({"counts": pa.table({"id": [1], "count": ["2"]})}, SchemaError, "'count' of the table of counts must be a number"),
    ({"counts": pa.table({"id": ["1"], "count": [2]})}, SchemaError, "'id' is string and the table's key is int64"),
]


@pytest.mark.parametrize(("wrong", "error", "text"), BAD)
def test_wrong_counts_are_refused_and_nothing_is_published(
    tmp_path: Path, wrong: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        build_table(tmp_path / "t", _table(1), "id", **{"layout": "frequency", **wrong})
    assert not list(tmp_path.glob("t/*"))
