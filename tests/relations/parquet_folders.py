"""Arrow rows as a folder of Parquet files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def parquet_folder(folder: Path, rows: pa.Table, *, files: int, rows_per_group: int) -> Path:
    """The rows in files 0.parquet, 1.parquet, ... of the same number of rows, the last of which may have fewer."""
    folder.mkdir()
    size = -(-rows.num_rows // files)
    for number in range(files):
        pq.write_table(rows.slice(number * size, size), folder / f"{number}.parquet", row_group_size=rows_per_group)
    return folder
