"""The output of all steps of a group, gathered and put in the order of the stream."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.rowbytes import sizes_of
from millrace.core.step import Step
from millrace.spark.plan import Asked

_SMALL_ROWS = 128  # outputs shorter than this are merged, many at a time: each takes kilobytes beside its rows
_SMALL_OUTPUTS = 256

Columns = Callable[[int, int], list[pa.Array]]


class Gathered:
    """The output of many steps, on the way to one batch. Small outputs are merged: a batch of one row takes a kilobyte."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._sequences: list[Int64Array] = []
        self._outputs: list[pa.RecordBatch] = []
        self._small = 0  # outputs at the end that are still to be merged
        self.bytes = 0

    def add(self, step: Step) -> None:
        if not len(step.sequence):
            return
        self._sequences.append(step.sequence)
        self._outputs.append(step.output)
        self.bytes += step.output.nbytes
        self._small = self._small + 1 if len(step.sequence) < _SMALL_ROWS else 0
        if self._small == _SMALL_OUTPUTS:
            self._outputs[-self._small :] = [pa.concat_batches(self._outputs[-self._small :])]
            self._sequences[-self._small :] = [np.concatenate(self._sequences[-self._small :])]
            self._small = 0

    def together(self) -> tuple[Int64Array, pa.RecordBatch]:
        if len(self._outputs) > 1:
            return np.concatenate(self._sequences), pa.concat_batches(self._outputs)
        return (self._sequences[0], self._outputs[0]) if self._outputs else (np.zeros(0, np.int64), no_rows(self._schema))


def in_stream_order(
    asked: Asked, rows: int, sequence: Int64Array, output: pa.RecordBatch, measured_from: int
) -> tuple[Columns, Int64Array | None]:
    """What goes back for a range of rows of a group: (flag, columns ...) or (array of matches). Also the bytes of each row, if
    all rows together take more than `measured_from`."""
    sizes = sizes_of(output.columns, output.num_rows) if output.nbytes > measured_from else None
    if asked.shape == "array":
        order = np.argsort(sequence, kind="stable")
        starts = np.searchsorted(sequence[order], np.arange(rows + 1))
        if sizes is not None:
            sizes = np.diff(np.concatenate(([0], np.cumsum(sizes[order])))[starts])
        return lambda start, end: [_lists(output, order, starts[start : end + 1])], sizes
    flags = np.zeros(rows, np.bool_)
    flags[sequence] = True
    places = np.zeros(rows, np.int64)
    places[sequence] = np.arange(len(sequence))
    if sizes is not None:
        sizes = np.where(flags, sizes[places], 0)

    def columns(start: int, end: int) -> list[pa.Array]:
        flag = [pa.array(flags[start:end])] if asked.flagged else []
        if not output.num_columns:
            return flag
        wanted = pa.array(places[start:end], mask=~flags[start:end])
        return [*flag, *output.take(wanted).columns]

    return columns, sizes


def _lists(output: pa.RecordBatch, order: Int64Array, starts: Int64Array) -> pa.Array:
    """One list of structs per row."""
    rows = output.take(pa.array(order[starts[0] : starts[-1]]))
    if rows.num_columns:
        structs = pa.StructArray.from_arrays(rows.columns, [f"c{i}" for i in range(rows.num_columns)])
    else:  # a struct of nothing, whose length only the matches tell
        structs = pa.Array.from_buffers(pa.struct([]), int(starts[-1] - starts[0]), [None])
    return pa.ListArray.from_arrays(pa.array(starts - starts[0], pa.int32()), structs)


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)
