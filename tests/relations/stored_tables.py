"""Tables of Arrow rows in a folder, built and opened as relations; and a folder's bytes damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.relations.build import build_table
from millrace.relations.folder import read_versions
from millrace.relations.localcopies import LocalCopies
from millrace.relations.stored import ReadMode, StoredRelation


def stored(
    folder: Path, rows: pa.Table, key: str | list[str] = "id", mode: ReadMode = "mmap", **options: Any
) -> StoredRelation:
    """The rows on small pages, so that few rows are several pages."""
    return StoredRelation(folder, build_table(folder, rows, key, page_bytes=4096, **options), mode)


def newest(folder: Path, mode: ReadMode = "buffered", copies: LocalCopies | None = None) -> StoredRelation:
    """The last version of the table that is there."""
    return StoredRelation(folder, read_versions(folder)[-1], mode, copies)


def flip_bit(path: Path, place: int) -> None:
    """One bit of the byte at `place`; once more, and the file is as it was."""
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 0x04]))
