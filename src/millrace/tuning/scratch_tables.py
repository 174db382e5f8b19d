"""Tables that calibration measures joins and look-ups with. They are gone afterwards, also after Ctrl-C."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

from millrace.core.errors import TableError
from millrace.relations.build import build_table
from millrace.relations.files import ReadMode
from millrace.relations.folder import read_versions
from millrace.relations.generated import KEY, SURROGATE_KEY, generated_rows
from millrace.relations.stored import StoredRelation

ROW_BYTES = 64
COLUMNS = (SURROGATE_KEY, "description")  # what joins put out: 44 bytes, a typical row
COLUMNS_BYTES = 44
_MADE_AT_ONCE = 500_000
_PREFIX = ".millrace-calibration-"  # then the process


@contextmanager
def scratch_folder(place: Path) -> Iterator[Path]:
    """A folder on the disk of a place, or, if nothing can be written there, where temporary files go."""
    folder = place if place.is_dir() else place.parent
    if not os.access(folder, os.W_OK):
        folder = Path(tempfile.gettempdir())
    _remove_left_behind(folder)
    try:
        scratch = tempfile.TemporaryDirectory(dir=folder, prefix=f"{_PREFIX}{os.getpid()}-", ignore_cleanup_errors=True)
    except OSError as refused:
        raise TableError(f"{folder} can't be written ({refused}): name another folder on the same disk") from refused
    with scratch as name:
        yield Path(name)


def _remove_left_behind(folder: Path) -> None:
    """Folders of calibrations here that were killed."""
    for left in folder.glob(f"{_PREFIX}*"):
        process = left.name.removeprefix(_PREFIX).partition("-")[0]
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            shutil.rmtree(left, ignore_errors=True)


def build_scratch(folder: Path, rows: int, page_bytes: int) -> Path:
    """A table of rows with the keys 1 to `rows`."""
    table = folder / f"rows-{rows}-{page_bytes}"
    parts = [np.arange(first, min(first + _MADE_AT_ONCE, rows + 1)) for first in range(1, rows + 1, _MADE_AT_ONCE)]
    try:
        made = pa.Table.from_batches([generated_rows(keys, ROW_BYTES) for keys in parts])
        build_table(table, made, KEY, page_bytes=page_bytes)
    except OSError as refused:
        raise TableError(f"{folder} can't be written ({refused}): free some space, or name another folder") from refused
    return table


@contextmanager
def opened(table: Path, mode: ReadMode) -> Iterator[StoredRelation]:
    relation = StoredRelation(table, read_versions(table)[-1], mode)
    try:
        yield relation
    finally:
        relation.close()
