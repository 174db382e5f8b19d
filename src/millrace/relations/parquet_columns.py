"""The columns of one Parquet file: where they lie, between which values they are, and their values in the types of a query.

Parquet names a column inside a struct by a path with dots, and a column may have dots in its own name: `a.b` can be either.
So columns are found by their place in the schema, never by such a path.
"""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.core.errors import SchemaError
from millrace.relations.calendar import Calendars, Mode, has_times, is_old, rebased

# Pairs (in the file, in the query) that Spark converts too; other kinds never become one another.
_CONVERTED = {("integer", "float"), ("integer", "decimal"), ("string", "binary"), ("binary", "string")}


@dataclass(frozen=True)
class Reading:
    """How the session that planned a query reads files."""

    zone: str = "UTC"  # of timestamps in folder names
    case_sensitive: bool = True
    calendars: Calendars = field(default_factory=Calendars)
    converts_int96: bool = False  # timestamps of other writers than Spark, from the session's zone


AS_WRITTEN = Reading()


class FileColumns:
    """The columns of an open file. Footers are small and cheap to go through."""

    def __init__(self, file: pq.ParquetFile, path: str, reading: Reading) -> None:
        self._path = path
        self._reading = reading
        self._metadata = file.metadata
        self._schema = file.schema
        self._fields = file.schema_arrow
        self._calendars = reading.calendars.of_file(file.metadata.metadata)
        ends = list(accumulate((_leaves(field.type) for field in self._fields), initial=0))
        self._ends = ends if ends[-1] == len(file.schema) else None  # None: a type that is not understood

    def name(self, wanted: str) -> str:
        """The column's name in this file, found as Spark finds it."""
        names: Sequence[str] = self._fields.names
        found = [name for name in names if name == wanted]
        if not found and not self._reading.case_sensitive:
            found = [name for name in names if name.lower() == wanted.lower()]
        if len(found) != 1:
            many = f"has {len(found)} columns" if found else "has no column"
            raise SchemaError(f"{self._path} {many} {wanted!r}: its schema is not that of the other files")
        return found[0]

    def names(self, wanted: Sequence[str]) -> list[str]:
        """Columns to read. A name with dots in it may bring a column inside a struct along."""
        return [self.name(one) for one in wanted] or self._fields.names[:1]

    def leaves(self, names: Sequence[str]) -> list[int]:
        """Places of the Parquet columns that these columns take."""
        if self._ends is None:
            return list(range(len(self._schema)))
        places = [self._fields.get_field_index(name) for name in names]
        return [leaf for place in places for leaf in range(self._ends[place], self._ends[place + 1])]

    def column(self, batch: pa.RecordBatch, wanted: pa.Field) -> pa.Array:
        """A column of rows of the file, in the type that the query was planned with."""
        name = self.name(wanted.name)
        column = batch.column(batch.schema.names.index(name))
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        where = f"{self._path}, column {name!r}"
        mode = self._mode(name)
        if mode != "CORRECTED":
            column = rebased(column, mode, where)
        if column.type == wanted.type:
            return column
        try:
            if not _fits(column.type, wanted.type):
                raise pa.ArrowTypeError("another kind of type")
            return _without_views(column).cast(wanted.type)
        except pa.ArrowException as wrong:
            raise SchemaError(f"{where} is {column.type} and the query was planned with {wanted.type} ({wrong})") from wrong

    def bounds(self, group: int, wanted: pa.Field) -> tuple[pa.Scalar, pa.Scalar] | None:
        """Between which values a column lies in a row group. None where the file does not say, or not beyond doubt: only signed
        integers, and what is stored as such, have an order that all writers agree on."""
        name = self.name(wanted.name)
        place = self._fields.get_field_index(name)
        if self._ends is None or self._ends[place + 1] - self._ends[place] != 1:
            return None
        found = self._metadata.row_group(group).column(self._ends[place])
        kind = self._fields.field(place).type
        if found.path_in_schema != name or not _signed(kind, found.physical_type):
            return None
        statistics = found.statistics
        if statistics is None or not statistics.has_min_max:
            return None
        low, high = statistics.min_raw, statistics.max_raw
        if low > high or (self._mode(name) != "CORRECTED" and is_old(low, kind)):
            return None
        try:
            return _scalar(low, kind).cast(wanted.type), _scalar(high, kind).cast(wanted.type)
        except (pa.ArrowException, ValueError):
            return None

    def _mode(self, name: str) -> Mode:
        """By which calendar old values of a column are meant."""
        place = self._fields.get_field_index(name)
        if not has_times(self._fields.field(place).type):
            return "CORRECTED"
        leaves = range(len(self._schema)) if self._ends is None else range(self._ends[place], self._ends[place + 1])
        if not any(self._schema.column(leaf).physical_type == "INT96" for leaf in leaves):
            return self._calendars.datetimes
        if self._reading.converts_int96 and not (self._metadata.created_by or "").startswith("parquet-mr"):
            raise SchemaError(
                f"{self._path}, column {name!r}: INT96 timestamps of another writer than Spark, which the session moves to its "
                "time zone; set spark.sql.parquet.int96TimestampConversion to false, or leave the column out"
            )
        return self._calendars.int96


def _without_views(column: pa.Array) -> pa.Array:
    """Lists for list views: Arrow's own cast makes arrays of them whose offsets end too early."""
    if pa.types.is_list_view(column.type) or pa.types.is_large_list_view(column.type):
        lengths = pc.list_value_length(column).fill_null(0).to_numpy()
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pc.list_flatten(column), mask=column.is_null())
    if "list_view" in str(column.type):
        raise pa.ArrowTypeError("list views inside other types; write the column with plain lists")
    return column


def _leaves(kind: pa.DataType) -> int:
    """Columns of Parquet that a column of this type takes."""
    if isinstance(kind, pa.BaseExtensionType):
        return _leaves(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _leaves(kind.value_type)
    if pa.types.is_nested(kind):
        return sum(_leaves(kind.field(i).type) for i in range(kind.num_fields))
    return 1


def _signed(kind: pa.DataType, physical: str) -> bool:
    whole = pa.types.is_signed_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)
    if whole or pa.types.is_duration(kind) or pa.types.is_decimal(kind):
        return physical in ("INT32", "INT64")
    return bool(pa.types.is_boolean(kind)) and physical == "BOOLEAN"


def _scalar(raw: int, kind: pa.DataType) -> pa.Scalar:
    """What a stored number means."""
    if pa.types.is_decimal(kind):
        return pa.scalar(decimal.Decimal(raw).scaleb(-kind.scale, decimal.Context(prec=40)), kind)
    stored = pa.scalar(raw)
    return (stored.cast(pa.int32()) if pa.types.is_date32(kind) else stored).cast(kind)


def _fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    one, other = _kind(given), _kind(wanted)
    if one == other == "timestamp" and given.tz and not wanted.tz:
        return False  # a moment is no time of day
    return one == other or one == "null" or (one, other) in _CONVERTED


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_nested(kind):
        return "nested"
    for name, test in _KINDS:
        if test(kind):
            return name
    return str(kind)


_KINDS = (
    ("null", pa.types.is_null),
    ("integer", pa.types.is_integer),
    ("float", pa.types.is_floating),
    ("decimal", pa.types.is_decimal),
    ("string", lambda kind: "string" in str(kind)),
    ("binary", lambda kind: "binary" in str(kind)),
    ("date", pa.types.is_date),
    ("timestamp", pa.types.is_timestamp),
)
