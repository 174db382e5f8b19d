"""Pages in place by themselves: they lie where their addresses say, and a page needs one check for as long as it lies there."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from millrace.core.errors import DamagedTableError
from millrace.relations.build import build_table
from millrace.relations.folder import TableVersion
from millrace.relations.localcopies import LocalCopies
from millrace.relations.mapped_pages import MappedPages
from millrace.relations.page_index import PageIndex
from millrace.relations.shard_files import ShardFiles
from millrace.relations.table_file import IndexFile


def _mapped(folder: Path, local: LocalCopies | None = None) -> tuple[MappedPages, ShardFiles, PageIndex]:
    version: TableVersion = build_table(
        folder, pa.table({"id": range(3000), "v": range(3000)}), "id", page_bytes=4096, shards=3
    )
    index = PageIndex.of(
        IndexFile(folder / version.folder / "index.arrow", version.index_checksum).columns, version.rows_per_page,
        sorted_codes=True,
    )  # fmt: skip
    files = ShardFiles(folder / version.folder, version, index, "mmap", local)
    return MappedPages(index, files), files, index


def _bytes(mapped: MappedPages, index: PageIndex, page: int) -> bytes:
    return ctypes.string_at(int(mapped.addresses[page]), int(index.sizes[page]))


def _on_disk(files: ShardFiles, index: PageIndex, page: int) -> bytes:
    begin = int(index.offsets[page])
    return files.files[int(index.shards[page])].path.read_bytes()[begin : begin + int(index.sizes[page])]


def test_every_page_lies_at_its_address(tmp_path: Path) -> None:
    mapped, files, index = _mapped(tmp_path / "t")
    assert index.shards_of(np.arange(len(index))) == [0, 1, 2]
    for page in range(len(index)):
        assert _bytes(mapped, index, page) == _on_disk(files, index, page)
    assert (mapped.cards["codes"] == mapped.addresses + index.arrays[2]).all()
    files.close()


def test_a_page_is_counted_when_it_is_first_touched_and_as_many_are_checked_ahead(tmp_path: Path) -> None:
    mapped, files, index = _mapped(tmp_path / "t")
    mapped.touch(np.array([5, 2, 5]))
    assert np.flatnonzero(mapped.checked).tolist() == [0, 1, 2, 5]
    counts = files.counts.take()
    assert (counts["disk_reads"], counts["disk_bytes"]) == (2, index.sizes[2] + index.sizes[5])
    mapped.touch(np.array([0, 5]))
    assert files.counts.take()["disk_reads"] == 0
    files.close()


def test_only_pages_that_codes_are_on_are_touched(tmp_path: Path) -> None:
    mapped, files, index = _mapped(tmp_path / "t", LocalCopies(tmp_path / "local"))  # with copies nothing is checked ahead
    pages, used = mapped.first_pages(np.array([0, 2999, 2998]), np.array([True, True, True]))
    assert pages.tolist() == [0, len(index) - 1, len(index) - 1]
    assert (used, np.flatnonzero(mapped.checked).tolist()) == (2, [0, len(index) - 1])
    files.close()


def test_pages_of_a_copy_have_other_addresses_and_are_checked_anew(tmp_path: Path) -> None:
    mapped, files, index = _mapped(tmp_path / "t", LocalCopies(tmp_path / "local"))
    mapped.checked[:] = True
    addresses = mapped.addresses
    before = addresses.copy()
    mapped.make_local(1)
    moved = np.arange(len(index))[index.pages_of(1)]
    assert np.flatnonzero(addresses != before).tolist() == moved.tolist()  # in the array that runs have
    assert np.flatnonzero(~mapped.checked).tolist() == moved.tolist()
    assert files.files[1].path.parent == tmp_path / "local"
    assert _bytes(mapped, index, int(moved[-1])) == _on_disk(files, index, int(moved[-1]))
    files.close()


def test_shards_made_local_before_one_that_is_damaged_are_used_where_they_are_now(tmp_path: Path) -> None:
    mapped, files, index = _mapped(tmp_path / "t", LocalCopies(tmp_path / "local"))
    before = mapped.addresses.copy()
    with open(files.files[1].path, "r+b") as shard:
        shard.write(b"\xff\xfe\xfd")
    with pytest.raises(DamagedTableError, match=r"page 0 of .*restore the file"):
        mapped.touch(np.arange(len(index)))
    assert np.flatnonzero(mapped.addresses != before).tolist() == np.flatnonzero(index.shards == 0).tolist()
    mapped.touch(np.flatnonzero(index.shards == 0))
    assert mapped.checked.sum() == (index.shards == 0).sum()
    files.close()
