"""How the columns of a table lie in a page: which buffers there are, and how wide values are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

CODE_COLUMN = "__millrace_code"

Kind = Literal["fixed", "bits", "bytes", "nested"]


@dataclass(frozen=True)
class ColumnLayout:
    """Where one column's buffers stand in the index: `buffer` is the number of its first one."""

    name: str
    type: pa.DataType
    kind: Kind
    width: int  # bytes of a value, 0 where that varies
    buffer: int

    @property
    def buffers(self) -> int:
        return {"fixed": 2, "bits": 2, "bytes": 3, "nested": 0}[self.kind]


def column_layouts(schema: pa.Schema) -> list[ColumnLayout]:
    """The layout of every column of a page, in the order of the page's buffers."""
    layouts = []
    buffer = 0
    for field in schema:
        kind, width = _kind(field.type)
        layouts.append(ColumnLayout(field.name, field.type, kind, width, buffer))
        buffer += layouts[-1].buffers
    return layouts


def _kind(kind: pa.DataType) -> tuple[Kind, int]:
    if pa.types.is_boolean(kind):
        return "bits", 0
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return "bytes", 0
    if pa.types.is_primitive(kind) or pa.types.is_decimal128(kind):
        width = kind.bit_width // 8
        if width in (1, 2, 4, 8, 16):
            return "fixed", width
    return "nested", 0


def buffer_offsets(batch: pa.RecordBatch, start: int, layouts: list[ColumnLayout]) -> Iterator[int]:
    """Offset from address `start` of every buffer of a decoded page; -1 where there is no such buffer (no nulls)."""
    for layout in layouts:
        if layout.kind == "nested":
            continue
        column = batch.column(layout.name)
        for buffer in column.buffers():
            yield buffer.address - start if buffer is not None and buffer.size else -1
