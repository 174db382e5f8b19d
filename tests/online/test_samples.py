"""How much of either table is looked at before a run starts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.online.sampling.samples import Look, block_sizes, take_samples
from millrace.online.tables.row_groups import ParquetSource

BLOCK = 250
MEMORY = 1_000_000  # a sixteenth of it: about 3,900 rows of 16 bytes
QUESTION: Any = SimpleNamespace(columns=lambda side: ["k", "v"])


def _sources(folder: Path, blocks: int) -> Any:
    rows = blocks * BLOCK
    pq.write_table(pa.table({"k": np.arange(rows), "v": np.zeros(rows)}), folder / "t.parquet", row_group_size=BLOCK)
    return ParquetSource(folder / "t.parquet"), ParquetSource(folder / "t.parquet")


@pytest.mark.parametrize(
    ("look", "blocks", "expected", "rows"),
    [
        ("first", 80, 16, 244),
        ("more", 80, 31, 126),  # half of their rows
        ("most", 80, 80, 48),  # all there are have all the room there is
        ("most", 400, 256, 16),  # the least that says anything
        ("more", 10, 10, 250),
    ],
)
def test_samples_take_blocks_and_rows_as_they_fit(look: Look, blocks: int, expected: int, rows: int, tmp_path: Path) -> None:
    sources = _sources(tmp_path, blocks)
    for sample in take_samples(sources, QUESTION, MEMORY, 1, look):
        assert [batch.num_rows for batch in sample] == [rows] * expected
    assert block_sizes(sources, QUESTION, MEMORY, 1, look) == ([BLOCK] * expected, [BLOCK] * expected)
