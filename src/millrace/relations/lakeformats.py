"""Folders of Parquet files in which a log says which files and rows count: who reads all the files reads deleted rows too."""

from __future__ import annotations

import os
from pathlib import Path

from millrace.core.errors import TableError

_LEVELS = 8  # folders above the given one: it may be a partition of such a table
_LOGS = {"_delta_log": "Delta", ".hoodie": "Hudi", "_spark_metadata": "streaming"}


def refuse_logged_tables(given: Path, *, by_spark: bool = False) -> None:
    """An error where the folder belongs to a Delta, Iceberg or Hudi table, or is what a streaming query of Spark writes.
    `by_spark`: it is Spark that reads the files, and it knows its own log."""
    root = given.absolute()
    for folder in (root, *root.parents[:_LEVELS]):
        kind = _kind(folder)
        if kind == "streaming":
            if by_spark:
                continue
            raise TableError(
                f"{folder} is written by a streaming query, whose log in _spark_metadata says which of the files count; "
                f"read it with spark.read.parquet({str(folder)!r}) and build a MasterTable from that DataFrame, or write that "
                "DataFrame to a folder of its own"
            )
        if kind:
            raise TableError(
                f"{folder} is a table in the format {kind}: its files hold rows that were deleted or replaced, and its log "
                f"says which count; read it with Spark (spark.read.format({kind.lower()!r})) and build a MasterTable from that "
                "DataFrame"
            )


def _kind(folder: Path) -> str:
    for name, kind in _LOGS.items():
        if (folder / name).is_dir():
            return kind
    try:
        with os.scandir(folder / "metadata") as entries:
            return "Iceberg" if any(entry.name.endswith(".metadata.json") for entry in entries) else ""
    except OSError:  # there is none
        return ""
