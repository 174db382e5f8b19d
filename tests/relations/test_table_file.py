"""One file of a table: where it is used, when it is copied, and what is said of it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.core.errors import DamagedTableError
from millrace.relations.localcopies import LocalCopies
from millrace.relations.table_file import ReadCounts, TableFile

SIZE = 8192


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    path = tmp_path / "shared" / "shard-0.pages"
    path.parent.mkdir()
    path.write_bytes(b"a" * 4096 + b"b" * 4096)
    return path


def _pieces(path: Path, asked: list[int]) -> Iterator[bytes]:
    asked.append(1)
    yield path.read_bytes()


def _read(file: TableFile) -> bytes:
    view = memoryview(bytearray(3))
    file.read(4096, [view], "page 1")
    return bytes(view)


def _copies(folder: Path, limit_bytes: int = 2 * SIZE) -> LocalCopies:
    return LocalCopies(folder, limit_bytes)


def test_without_a_folder_for_copies_nothing_is_copied(shared: Path) -> None:
    file, asked = TableFile(shared, SIZE, "buffered", None, "sum"), list[int]()
    assert not file.make_local(_pieces(shared, asked))
    assert (file.path, file.remote, asked, _read(file)) == (shared, False, [], b"bbb")
    file.close()


def test_a_copy_is_made_once_and_used_from_then_on(shared: Path, tmp_path: Path) -> None:
    local, asked = tmp_path / "local", list[int]()
    first, second = (TableFile(shared, SIZE, "buffered", _copies(local), "sum") for _ in range(2))
    assert first.make_local(_pieces(shared, asked))
    assert not first.make_local(_pieces(shared, asked))  # it is used already
    assert second.make_local(_pieces(shared, asked))  # there is one
    assert len(asked) == 1
    assert first.path == second.path == local / "sum-shard-0.pages"
    assert (first.take_copied_bytes(), first.take_copied_bytes(), second.take_copied_bytes()) == (SIZE, 0, 0)
    shared.write_bytes(b"c" * SIZE)
    assert _read(first) == b"bbb"
    assert not first.changed()  # what it uses is not what was written to
    first.close()
    second.close()


def test_where_there_was_no_room_it_is_only_tried_again_and_told_once(
    shared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local, asked = tmp_path / "local", list[int]()
    copies = _copies(local, SIZE)
    other = copies.get("other", SIZE, lambda target: None)
    assert other is not None
    file = TableFile(shared, SIZE, "buffered", copies, "sum")
    with caplog.at_level(logging.WARNING, "millrace"):
        assert not file.make_local(_pieces(shared, asked), again=True)  # it was never asked for
        assert not file.remote
        assert not file.make_local(_pieces(shared, asked))
        assert file.remote
        assert not file.make_local(_pieces(shared, asked), again=True)
        other.close()
        assert not file.make_local(_pieces(shared, asked))  # there is room, but this is not again
    assert [record.message for record in caplog.records] == [
        f"no room for a local copy of {shared} ({SIZE} bytes): it is read where it is"
    ]
    assert file.make_local(_pieces(shared, asked), again=True)
    assert (file.remote, len(asked), _read(file)) == (False, 1, b"bbb")
    file.close()


def test_a_damaged_part_is_named_and_only_a_copy_is_removed(shared: Path, tmp_path: Path) -> None:
    file = TableFile(shared, SIZE, "mmap", _copies(tmp_path / "local"), "sum")
    with pytest.raises(DamagedTableError, match=f"page 7 of {shared} is damaged.*restore the file or build the table again"):
        file.refuse("page 7")
    assert file.make_local(_pieces(shared, []))
    copy = file.path
    with pytest.raises(DamagedTableError, match=f"page 7 of {copy} is damaged.*this copy of {shared} has been removed"):
        file.refuse("page 7")
    assert (shared.exists(), copy.exists()) == (True, False)
    assert file.changed()
    file.close()


def test_it_can_be_closed_twice_and_closes_nobody_elses_file(shared: Path) -> None:
    file = TableFile(shared, SIZE, "buffered", None, "sum")
    file.close()
    another = os.open(shared, os.O_RDONLY)  # gets the number that was given back
    file.close()
    assert os.read(another, 1) == b"a"
    os.close(another)


def test_counts_add_up_until_they_are_taken() -> None:
    counts = ReadCounts()
    before = time.perf_counter()
    counts.note(2, 300, before)
    counts.note(1, 5, before)
    taken = counts.take()
    assert (taken["disk_reads"], taken["disk_bytes"]) == (3, 305)
    assert taken["read_seconds"] > 0
    assert counts.take() == {"disk_reads": 0, "disk_bytes": 0, "read_seconds": 0.0}
