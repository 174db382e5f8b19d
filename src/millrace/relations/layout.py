"""What a page holds, and how a row lies in it.

A page is an Arrow IPC record batch with the key codes, one record per row, and any nested columns as they are:

    codes     int64   int64   int64  ...          sorted; searched without touching a row
    records   record  record  record ...          a binary column
    nested    lists, structs and maps, if the table has any

A record has all other values of a row side by side, so that whoever wants the row finds it in two or three lines of memory,
where columns would take at least one line each:

    | null bits | fixed-width values | end of each text | texts one after the other |
      head: the same size in every row of a table          tail
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import pyarrow as pa

CODE_COLUMN = "__millrace_code"
RECORD_COLUMN = "__millrace_record"

Kind = Literal["fixed", "bits", "bytes"]


@dataclass(frozen=True)
class PackedColumn:
    """A column inside a record: `place` is where its value, or the end of its text, stands."""

    name: str
    type: pa.DataType
    kind: Kind
    width: int  # bytes at `place`
    place: int
    number: int  # its null bit

    @property
    def null_flag(self) -> int:
        """The bit of this column in the null mask of a page; columns behind the 62nd share one."""
        return 1 << min(self.number, 62)


@dataclass(frozen=True)
class PageLayout:
    """How rows with the columns `stored` lie in a page whose codes are column `code`."""

    stored: pa.Schema
    code: str

    @cached_property
    def packed(self) -> tuple[PackedColumn, ...]:
        fields = [field for field in self.stored if field.name != self.code and _kind(field.type) is not None]
        place = -(-len(fields) // 8)
        columns: list[PackedColumn] = []
        for field in sorted(fields, key=lambda field: _kind(field.type) == ("bytes", 4)):  # texts last, their ends together
            kind, width = _kind(field.type) or ("fixed", 0)
            columns.append(PackedColumn(field.name, field.type, kind, width, place, len(columns)))
            place += width
        return tuple(columns)

    @cached_property
    def head_bytes(self) -> int:
        last = self.packed[-1] if self.packed else None
        return last.place + last.width if last is not None else 0

    @cached_property
    def by_name(self) -> dict[str, PackedColumn]:
        return {column.name: column for column in self.packed}

    @cached_property
    def texts(self) -> tuple[PackedColumn, ...]:
        return tuple(column for column in self.packed if column.kind == "bytes")

    @cached_property
    def nested(self) -> tuple[str, ...]:
        return tuple(name for name in self.stored.names if name != self.code and name not in self.by_name)

    @cached_property
    def page_schema(self) -> pa.Schema:
        records = [pa.field(CODE_COLUMN, pa.int64(), nullable=False), pa.field(RECORD_COLUMN, pa.binary(), nullable=False)]
        return pa.schema([*records, *(self.stored.field(name) for name in self.nested)])


def _kind(kind: pa.DataType) -> tuple[Kind, int] | None:
    """How values of a type lie in a record; None for nested ones."""
    if pa.types.is_boolean(kind):
        return "bits", 1
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return "bytes", 4
    if pa.types.is_primitive(kind) or pa.types.is_decimal128(kind):
        width = kind.bit_width // 8
        if width in (1, 2, 4, 8, 16):
            return "fixed", width
    return None
