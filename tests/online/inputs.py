"""Inputs for tests: rows of Parquet files, and rows that come in fits and starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.core.errors import SchemaError
from millrace.online.protocol import Batch, Input
from millrace.online.question.recorder import Recorder
from millrace.online.question.sides import Side
from millrace.online.storage.inputs import NOTHING, BatchInput
from millrace.relations.parquet_files import list_files


def parquet_input(folder: str | Path, side: Side, *, batch_rows: int = 1 << 16, seed: int | None = None) -> BatchInput:
    """The rows of Parquet files; with a seed, row groups come in random order."""
    files = [pq.ParquetFile(source.path) for source in list_files(folder)]
    groups = [(file, group) for file in files for group in range(file.metadata.num_row_groups)]
    if seed is not None:
        groups = [groups[i] for i in np.random.default_rng(seed).permutation(len(groups))]
    wanted = list(
        dict.fromkeys([*side.key, *(name for word in side.words for need in word.needs for name in need.columns(side.number))])
    )
    for file in files:
        for name in wanted:
            if name not in file.schema_arrow.names:
                names = ", ".join(file.schema_arrow.names)
                raise SchemaError(f"the files of {folder} have no column {name!r}; they have {names}")

    def batches() -> Iterator[pa.RecordBatch]:
        for file, group in groups:
            yield from file.iter_batches(batch_rows, row_groups=[group], columns=wanted, use_threads=False)

    return BatchInput(batches(), Recorder(side).numbered, sum(file.metadata.num_rows for file in files), side.width)


class StallingInput:
    """Another input that gives at most `portions[k]` rows at its k-th read (0: it has none then), and all it has after that."""

    def __init__(self, wrapped: Input, portions: Iterator[int]) -> None:
        self._wrapped, self._portions = wrapped, portions
        self.rows, self.width = wrapped.rows, wrapped.width

    @property
    def ended(self) -> bool:
        return self._wrapped.ended

    def read(self, rows: int) -> Batch:
        portion = min(rows, next(self._portions, rows))
        return self._wrapped.read(portion) if portion else Batch(np.zeros((0, self.width), np.int64), NOTHING, 0)
