"""Local copies of shards: made once, checked, kept while in use, within a limit; what a killed process left is removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.relations.stored_tables import newest

from millrace.core.budget import Budget
from millrace.core.errors import DamagedTableError, TableError
from millrace.relations.build import build_table
from millrace.relations.folder import TableVersion, read_versions
from millrace.relations.localcopies import LocalCopies, LocalCopy
from millrace.relations.stored import READ_MODES, ReadMode, StoredRelation

ROWS = pa.table({"id": pa.array(range(6000), pa.int64()), "v": [f"value {n}" for n in range(6000)]})
SIZE = 4096


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared") / "t"
    build_table(folder, ROWS, "id", page_bytes=4096, shards=3)
    return folder


def _all_rows(relation: StoredRelation) -> pa.Table:
    run = relation.read(0, relation.pages)
    return pa.Table.from_batches([run.take(np.arange(run.rows), relation.schema.names)])


def _kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith((".room", ".used")))


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _names(version: TableVersion) -> list[str]:
    return sorted(f"{version.index_checksum}-{shard.file}" for shard in version.shards)


def _get(copies: LocalCopies, name: str, size: int = SIZE) -> LocalCopy | None:
    def fill(file: int) -> None:
        assert os.pwrite(file, b"x" * size, 0) == size

    return copies.get(f"{name}.pages", size, fill)


# --- a relation that uses them -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", READ_MODES)
def test_rows_come_from_the_copies_and_are_the_same(table: Path, tmp_path: Path, mode: ReadMode) -> None:
    version = read_versions(table)[-1]
    relation = newest(table, mode, LocalCopies(tmp_path))
    assert _kept(tmp_path) == []  # opening a table uses no shard
    assert _all_rows(relation).equals(ROWS)
    assert _kept(tmp_path) == _names(version)
    assert relation.take_io_counts()["copied_bytes"] == version.bytes
    again = newest(table, mode, LocalCopies(tmp_path))
    assert _all_rows(again).equals(ROWS)
    assert again.take_io_counts()["copied_bytes"] == 0
    opened = {os.readlink(f"/proc/self/fd/{file.descriptor}") for file in again.shard_files.files}
    assert opened == {str(tmp_path / name) for name in _names(version)}
    assert again.largest_shard().parent == tmp_path
    relation.close(), again.close()


def test_only_shards_that_are_used_are_copied(table: Path, tmp_path: Path) -> None:
    relation = newest(table, "mmap", LocalCopies(tmp_path))
    run = relation.read(relation.pages - 1, 1)
    assert run.take(np.array([run.rows - 1]), ["v"]).column(0).to_pylist() == ["value 5999"]
    assert len(_kept(tmp_path)) == 1
    assert _all_rows(relation).equals(ROWS)
    assert run.take(np.array([run.rows - 1]), ["v"]).column(0).to_pylist() == ["value 5999"]
    relation.close()


@pytest.mark.parametrize("mode", READ_MODES)
def test_a_damaged_shard_is_named_with_its_page_and_leaves_no_copy(tmp_path: Path, mode: ReadMode) -> None:
    build_table(tmp_path / "t", ROWS, "id", page_bytes=4096, shards=3)
    relation = newest(tmp_path / "t", mode, LocalCopies(tmp_path / "local"))
    page = 5 + int(np.searchsorted(relation.page_index.shards, 1))
    file = tmp_path / "t" / "v000001" / relation.version.shards[1].file
    with open(file, "r+b") as shard:
        shard.seek(int(relation.page_index.offsets[page]) + 200)
        shard.write(b"\xff\xfe\xfd")
    with pytest.raises(DamagedTableError, match=f"page 5 of {file} is damaged.*restore the file"):
        _all_rows(relation)
    assert _kept(tmp_path / "local") == _names(relation.version)[:1]  # that of the shard before
    with pytest.raises(DamagedTableError, match=f"page 5 of {file} is damaged"):
        _all_rows(relation)
    relation.close()


@pytest.mark.parametrize("mode", READ_MODES)
def test_a_copy_that_went_bad_is_removed_and_made_again(table: Path, tmp_path: Path, mode: ReadMode) -> None:
    first = newest(table, mode, LocalCopies(tmp_path))
    _all_rows(first)
    first.close()
    bad = tmp_path / _names(first.version)[2]
    with open(bad, "r+b") as copy:
        copy.seek(100)
        copy.write(b"\xff\xfe\xfd")
    second = newest(table, mode, LocalCopies(tmp_path))
    with pytest.raises(DamagedTableError, match=f"page 0 of {bad} is damaged.*has been removed.*check the local disk"):
        _all_rows(second)
    assert not bad.exists()
    second.close()
    third = newest(table, mode, LocalCopies(tmp_path))
    assert _all_rows(third).equals(ROWS)
    assert third.take_io_counts()["copied_bytes"] == third.version.shards[2].bytes
    third.close()


@pytest.mark.parametrize("mode", READ_MODES)
def test_a_shard_without_room_is_read_where_it_is_and_counted(table: Path, tmp_path: Path, mode: ReadMode) -> None:
    sizes = [shard.bytes for shard in read_versions(table)[-1].shards]
    relation = newest(table, mode, LocalCopies(tmp_path, sizes[0] + sizes[1]))
    assert _all_rows(relation).equals(ROWS)
    assert _kept(tmp_path) == _names(relation.version)[:2]  # in use, so not in the way of the third
    counts = relation.take_io_counts()
    assert (counts["copied_bytes"], counts["remote_shards"]) == (sizes[0] + sizes[1], 1)
    assert relation.take_io_counts()["remote_shards"] == 1  # as long as it is so
    relation.close()


@pytest.mark.parametrize("mode", READ_MODES)
def test_a_shard_without_room_is_made_local_when_there_is_some_again(table: Path, tmp_path: Path, mode: ReadMode) -> None:
    sizes = [shard.bytes for shard in read_versions(table)[-1].shards]
    other = _get(LocalCopies(tmp_path), "other")
    assert other is not None
    relation = newest(table, mode, LocalCopies(tmp_path, sum(sizes)))
    for closed in (False, True):
        if closed:
            other.close()
        relation.try_local_again()
        assert _all_rows(relation).equals(ROWS)
        assert relation.take_io_counts()["remote_shards"] == (0 if closed else 1)
    assert _kept(tmp_path) == _names(relation.version)
    relation.close()


@pytest.fixture(scope="module")
def frequency_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a key index on disk."""
    folder = tmp_path_factory.mktemp("shared") / "f"
    counts = pa.table({"id": ROWS["id"], "count": pa.array(range(6000), pa.int64())})
    build_table(folder, ROWS, "id", page_bytes=4096, shards=2, layout="frequency", counts=counts)
    return folder


def _located(relation: StoredRelation) -> int:
    """Keys that the index finds, asked as a join asks."""
    assert relation.disk_index is not None
    first, last = relation.disk_index.lookup(Budget("1m"), 0).locate(np.arange(7000))
    return int((last >= first).sum())


@pytest.mark.parametrize("mode", READ_MODES)
def test_the_key_index_is_made_local_when_it_is_first_used(frequency_table: Path, tmp_path: Path, mode: ReadMode) -> None:
    relation = newest(frequency_table, mode, LocalCopies(tmp_path))
    info = relation.version.key_index
    assert info is not None
    assert _kept(tmp_path) == []
    assert _located(relation) == 6000
    assert _kept(tmp_path) == [f"{info.checksum}-keys.index"]
    assert (tmp_path / f"{info.checksum}-keys.index").read_bytes() == next(frequency_table.rglob("keys.index")).read_bytes()
    assert relation.take_io_counts()["copied_bytes"] == info.bytes
    assert relation.take_io_counts()["copied_bytes"] == 0
    again = newest(frequency_table, mode, LocalCopies(tmp_path))
    assert (_located(again), again.take_io_counts()["copied_bytes"]) == (6000, 0)
    again.close(), relation.close()


@pytest.mark.parametrize("mode", READ_MODES)
def test_a_copy_of_the_key_index_that_went_bad_is_made_again(frequency_table: Path, tmp_path: Path, mode: ReadMode) -> None:
    first = newest(frequency_table, mode, LocalCopies(tmp_path))
    _located(first)
    first.close()
    (bad,) = tmp_path.glob("*-keys.index")
    with open(bad, "r+b") as copy:
        copy.seek(100)
        copy.write(b"\xff\xfe\xfd")
    second = newest(frequency_table, mode, LocalCopies(tmp_path))
    with pytest.raises(DamagedTableError, match=f"block 0 of {bad} is damaged.*has been removed.*check the local disk"):
        _located(second)
    second.close()
    third = newest(frequency_table, mode, LocalCopies(tmp_path))
    assert _located(third) == 6000
    third.close()


@pytest.mark.parametrize("mode", READ_MODES)
def test_a_key_index_without_room_is_used_where_it_is_until_there_is(
    frequency_table: Path, tmp_path: Path, mode: ReadMode
) -> None:
    other = _get(LocalCopies(tmp_path), "other")
    assert other is not None
    info = read_versions(frequency_table)[-1].key_index
    assert info is not None
    relation = newest(frequency_table, mode, LocalCopies(tmp_path, info.bytes))
    assert _located(relation) == 6000
    assert relation.take_io_counts()["remote_shards"] == 1
    other.close()
    relation.try_local_again()
    assert _located(relation) == 6000
    assert relation.take_io_counts()["remote_shards"] == 0
    assert _kept(tmp_path) == [f"{info.checksum}-keys.index"]
    relation.close()


@pytest.mark.parametrize("mode", READ_MODES)
def test_pages_of_a_copy_are_checked_though_those_of_the_shard_were(table: Path, tmp_path: Path, mode: ReadMode) -> None:
    limit = sum(shard.bytes for shard in read_versions(table)[-1].shards)
    other = _get(LocalCopies(tmp_path), "other")
    assert other is not None
    first, second = (newest(table, mode, LocalCopies(tmp_path, limit)) for _ in range(2))
    assert _all_rows(first).equals(ROWS)
    assert first.take_io_counts()["remote_shards"] == 1
    other.close()
    assert _all_rows(second).equals(ROWS)
    bad = tmp_path / _names(second.version)[2]
    with open(bad, "r+b") as copy:
        copy.seek(100)
        copy.write(b"\xff\xfe\xfd")
    first.try_local_again()
    with pytest.raises(DamagedTableError, match=f"page 0 of {bad} is damaged"):
        _all_rows(first)
    first.close(), second.close()


@pytest.mark.parametrize("mode", READ_MODES)
def test_a_copy_that_changed_is_told_and_one_that_others_use_has_not(
    frequency_table: Path, tmp_path: Path, mode: ReadMode
) -> None:
    relation = newest(frequency_table, mode, LocalCopies(tmp_path))
    assert (_located(relation), _all_rows(relation).num_rows) == (6000, 6000)
    for _ in range(2):
        other = newest(frequency_table, mode, LocalCopies(tmp_path))
        assert (_located(other), _all_rows(other).num_rows) == (6000, 6000)
        assert relation.changed() is None
        other.close()
        assert relation.changed() is None
    for name in _kept(tmp_path):
        before = (tmp_path / name).stat()
        with open(tmp_path / name, "r+b") as copy:
            copy.write(b"\xff\xfe\xfd")
        os.utime(tmp_path / name, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert relation.changed() == tmp_path / name
        relation.close()
        relation = newest(frequency_table, mode, LocalCopies(tmp_path))
        with pytest.raises(DamagedTableError, match=f" 0 of {tmp_path / name} is damaged.*the next task makes another"):
            _located(relation), _all_rows(relation)
        relation.close()
        relation = newest(frequency_table, mode, LocalCopies(tmp_path))
        assert (_located(relation), _all_rows(relation).num_rows) == (6000, 6000)
    relation.close()


def test_a_table_built_anew_under_the_same_names_is_copied_anew(tmp_path: Path) -> None:
    for value in ("first", "second"):
        folder = tmp_path / value
        build_table(folder, pa.table({"id": pa.array(range(50), pa.int64()), "v": [value] * 50}), "id")
        relation = newest(folder, "mmap", LocalCopies(tmp_path / "local"))
        assert set(_all_rows(relation)["v"].to_pylist()) == {value}
        relation.close()
    assert len(_kept(tmp_path / "local")) == 2


# --- room --------------------------------------------------------------------------------------------------------------


def test_what_was_used_longest_ago_makes_room_and_the_limit_is_kept(tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path, 3 * SIZE)
    for number, name in enumerate(["a", "b", "c"]):
        made = _get(copies, name)
        assert made is not None
        made.close()
        os.utime(f"{made.path}.used", (number, number))  # an order that no clock can blur
    again = _get(copies, "a")  # used now, so b is the oldest
    assert again is not None
    assert not again.made
    again.close()
    for name, left in [("d", ["a", "c", "d"]), ("e", ["a", "d", "e"])]:
        made = _get(copies, name)
        assert made is not None
        made.close()
        assert _kept(tmp_path) == [f"{one}.pages" for one in left]
        assert _bytes(tmp_path) <= 3 * SIZE
        assert {path.name for path in tmp_path.glob("*.used")} == {f"{one}.pages.used" for one in left}
    large = _get(copies, "f", 2 * SIZE)
    assert large is not None
    assert _bytes(tmp_path) <= 3 * SIZE
    large.close()


def test_what_is_in_use_is_never_removed(tmp_path: Path) -> None:
    copies, others = LocalCopies(tmp_path, 2 * SIZE), LocalCopies(tmp_path, 2 * SIZE)
    used = [_get(copies, "a"), _get(others, "b")]
    assert _get(copies, "c") is None
    assert _kept(tmp_path) == ["a.pages", "b.pages"]
    assert used[0] is not None
    used[0].close()
    third = _get(others, "c")
    assert third is not None
    assert _kept(tmp_path) == ["b.pages", "c.pages"]


def test_a_file_larger_than_the_limit_costs_nobody_else_a_copy(tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path, 2 * SIZE)
    kept = _get(copies, "a")
    assert kept is not None
    kept.close()
    assert _get(copies, "large", 3 * SIZE) is None
    assert _kept(tmp_path) == ["a.pages"]


def test_a_copy_that_was_cut_is_made_again(tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path)
    first = _get(copies, "a")
    assert first is not None
    first.close()
    os.truncate(first.path, 7)
    second = _get(copies, "a")
    assert second is not None
    assert second.made
    assert second.path.stat().st_size == SIZE


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(file: int) -> None:
        os.pwrite(file, b"half", 0)
        raise OSError(5, "Input/output error")

    copies = LocalCopies(tmp_path)
    with pytest.raises(OSError, match="Input/output error"):
        copies.get("a.pages", SIZE, fail)
    assert _kept(tmp_path) == []


def test_a_folder_that_can_not_be_used_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TableError, match=r"file/local can't hold local copies of shards .*name a folder"):
        LocalCopies(tmp_path / "file" / "local")


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path / "local")
    (tmp_path / "local" / ".room").unlink()
    (tmp_path / "local").rmdir()
    made = _get(copies, "a")
    assert made is not None
    assert made.path.exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={10 * SIZE}", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small disk can't be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_on_a_full_disk_unused_copies_make_room_and_else_there_is_none(small_disk: Path) -> None:
    copies = LocalCopies(small_disk / "local", 1 << 30)
    kept, unused = _get(copies, "a", 4 * SIZE), _get(copies, "b", 4 * SIZE)
    assert kept is not None
    assert unused is not None
    unused.close()
    made = _get(copies, "c", 4 * SIZE)
    assert made is not None
    assert _kept(small_disk / "local") == ["a.pages", "c.pages"]
    assert _get(copies, "d", 4 * SIZE) is None
    assert _kept(small_disk / "local") == ["a.pages", "c.pages"]


# --- processes ---------------------------------------------------------------------------------------------------------

_COPY = """
import os, sys
from pathlib import Path
from millrace.relations.localcopies import LocalCopies
folder, hold = Path(sys.argv[1]), sys.argv[2] == "hold"
def fill(file):
    os.pwrite(file, b"x" * 100, 0)
    print("copying", flush=True)
    if hold:
        sys.stdin.readline()
    os.pwrite(file, b"x" * 4096, 0)
copy = LocalCopies(folder).get("a.pages", 4096, fill)
print("made" if copy.made else "found", flush=True)
"""


def _start(folder: Path, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _COPY, str(folder), how]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _waits_for_a_lock(process: subprocess.Popen[str]) -> bool:
    return any("->" in line and f" {process.pid} " in line for line in Path("/proc/locks").read_text().splitlines())


def test_of_two_processes_one_copies_and_the_other_waits_for_it(tmp_path: Path) -> None:
    first = _start(tmp_path, "hold")
    second = None
    try:
        assert _line(first) == "copying"
        second = _start(tmp_path, "at once")
        end = time.monotonic() + 60
        while not _waits_for_a_lock(second):
            assert second.poll() is None
            assert time.monotonic() < end
        first.communicate("go on\n")
        assert _line(second) == "found"
        assert _kept(tmp_path) == ["a.pages"]
    finally:
        for process in filter(None, (first, second)):
            process.kill()
            process.communicate()


def test_what_a_killed_process_left_is_removed_by_the_next_that_copies(tmp_path: Path) -> None:
    killed = _start(tmp_path, "hold")
    assert _line(killed) == "copying"
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert _kept(tmp_path) == ["a.pages.draft", "a.pages.lock"]
    other = _get(LocalCopies(tmp_path), "b")
    assert other is not None
    assert _kept(tmp_path) == ["b.pages"]


def test_a_shard_whose_copying_was_killed_is_copied_again(tmp_path: Path) -> None:
    killed = _start(tmp_path, "hold")
    assert _line(killed) == "copying"
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    made = _get(LocalCopies(tmp_path), "a")
    assert made is not None
    assert made.made
    assert made.path.read_bytes() == b"x" * SIZE
    assert _kept(tmp_path) == ["a.pages"]


_SCAN = """
import sys
from pathlib import Path
from millrace.relations.folder import read_versions
from millrace.relations.localcopies import LocalCopies
from millrace.relations.stored import StoredRelation
table, folder = Path(sys.argv[1]), Path(sys.argv[2])
relation = StoredRelation(table, read_versions(table)[-1], "buffered", LocalCopies(folder))
sys.stdin.readline()
print(relation.read(0, relation.pages).rows, relation.take_io_counts()["copied_bytes"])
"""


def test_processes_that_start_together_copy_every_shard_once_between_them(table: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _SCAN, str(table), str(tmp_path)]
    running = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    try:
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [process.communicate()[0].split() for process in running]
    finally:
        for process in running:
            process.kill()
    assert [rows for rows, _ in answers] == ["6000"] * 4
    assert sum(int(copied) for _, copied in answers) == read_versions(table)[-1].bytes
