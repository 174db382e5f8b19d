"""Which files a micro-batch sees by their times."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millrace.core.errors import TableError
from millrace.relations.parquet_files import Listing, ParquetSource, list_folder
from millrace.relations.parquet_times import TICK_NS, files_at, refuse_times_ahead

T = 1_700_000_000_000_000  # of the batch, in microseconds
LIMIT = T * 1000 - TICK_NS
EARLY, LATE = LIMIT - 5_000_000_000, LIMIT + 5_000_000_000


def source(
    name: str, modified: int = EARLY, changed: int = EARLY, moved: int = 0, settled: int = LATE
) -> ParquetSource:  # fmt: skip
    return ParquetSource(f"/lake/{name}", 1, modified, changed, (), moved, settled)


def listing(*files: ParquetSource) -> Listing:
    return Listing(files, frozenset({"/lake"}))


def names(files: tuple[ParquetSource, ...]) -> list[str]:
    return [Path(file.path).name for file in files]


def test_a_running_query_has_its_known_files_and_those_that_came_before_the_batch() -> None:
    known = listing(source("known", LATE, LATE))
    found = listing(
        source("known", LATE, LATE),
        source("early", LIMIT, LIMIT),
        source("late", LIMIT + 1, LIMIT + 1),
        source("renamed", EARLY, LATE),
        source("in a renamed folder", moved=LATE),
    )
    assert names(files_at(T, found, known)) == ["known", "early"]


def test_a_replay_has_the_files_whose_times_are_before_the_batch() -> None:
    found = listing(source("early", LIMIT, LIMIT), source("late", LIMIT + 1, LIMIT + 1))
    assert names(files_at(T, found, None)) == ["early"]


def test_a_file_that_was_only_touched_still_counts_where_its_folders_show_that_nothing_came() -> None:
    found = listing(source("touched", changed=LATE, settled=EARLY))
    assert names(files_at(T, found, None)) == names(files_at(T, found, listing())) == ["touched"]


@pytest.mark.parametrize(
    "unclear",
    [source("x", EARLY, LATE), source("x", LATE, EARLY), source("x", moved=LATE)],
    ids=["renamed", "stamped", "moved"],
)
def test_a_replay_that_times_leave_open_is_an_error_with_both_times(unclear: ParquetSource) -> None:
    with pytest.raises(TableError, match=r"2023-11-14 .* /lake/x can't be known.*2023-11-14 .*2023-11-14 .*pins="):
        files_at(T, listing(source("early"), unclear), None)


def test_files_from_the_future_are_refused_before_a_stream_starts() -> None:
    refuse_times_ahead(listing(source("x", LATE, LATE)), LATE // 1000)
    with pytest.raises(TableError, match=r"/lake/x came at 2023-11-14 22:13:24.*set the clocks, or give"):
        refuse_times_ahead(listing(source("x", changed=LATE)), T)


def test_a_folder_that_is_renamed_or_linked_is_as_new_as_its_name(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    for day in ("1", "2", "3"):
        place = tmp_path / day
        place.mkdir()
        (place / "a.parquet").write_text("x")
    lake.mkdir()
    (tmp_path / "1").rename(lake / "day=1")
    os.symlink(tmp_path / "2", lake / "day=2")
    (tmp_path / "3").rename(lake / "day=3")
    (lake / "day=3" / "b.parquet").write_text("x")  # a file that comes hides when the folder came
    since = {name: (lake / name).lstat().st_ctime_ns for name in ("day=1", "day=2")}
    files = {str(Path(one.path).relative_to(lake)): one for one in list_folder(lake).files}
    assert files["day=1/a.parquet"].moved_ns in (0, since["day=1"])  # 0: within one tick of the clock
    assert files["day=2/a.parquet"].moved_ns == since["day=2"]
    known = list_folder(lake).folders
    assert all(one.moved_ns == 0 for one in list_folder(lake, known).files)
