"""Master tables of Arrow rows, built without Spark and opened, for tests of what is done with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

import millrace as mr
from millrace.relations.build import build_table


def built_table(path: Path, rows: pa.Table, key: str | list[str] = "id", **options: Any) -> mr.MasterTable:
    """The rows as a table of small pages, so that few rows are several pages."""
    build_table(path, rows, key, page_bytes=4096, **options)
    return mr.MasterTable.open(path)
