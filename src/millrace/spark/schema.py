"""Columns of DataFrames: which column a name means, and its type in Spark and in Arrow (as a Python worker sees it)."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from millrace.core.errors import SchemaError

_SPARK_FIELD = b"millrace.spark_field"


def arrow_type(name: str, kind: DataType) -> pa.DataType:
    """The Arrow type a column of this Spark type has in a worker, timestamps in UTC."""
    try:
        return to_arrow_type(kind, timezone="UTC")
    except (PySparkException, TypeError, ValueError) as refused:
        what = f"column {name!r} of type {kind.simpleString()}"
        raise SchemaError(f"{what} can't go through Arrow ({refused}); {_way_out(kind)} or leave it out") from None


def _way_out(kind: DataType) -> str:
    """`array()` and `map()` have no types of their own inside, and Arrow no such lists or maps."""
    text = kind.simpleString()
    return f"cast it to a type without void, such as {text.replace('void', 'string')}," if "void" in text else "cast it"


def arrow_schema(schema: StructType) -> pa.Schema:
    return pa.schema([_arrow_field(field) for field in schema])


def _arrow_field(field: StructField) -> pa.Field:
    """Arrow knows no collations: they go along as the field's metadata."""
    metadata = {_SPARK_FIELD: StructField(field.name, field.dataType).json()} if _collated(field.dataType) else None
    return pa.field(field.name, arrow_type(field.name, field.dataType), field.nullable, metadata)


def with_collation(column: Column, field: pa.Field) -> Column:
    """A column as it came back through Arrow, with the collation that it has in the table."""
    told = (field.metadata or {}).get(_SPARK_FIELD)
    return column if told is None else column.cast(StructField.fromJson(json.loads(told)).dataType)


def _collated(kind: DataType) -> bool:
    """Whether the type holds text that is not compared by its bytes."""
    if isinstance(kind, StructType):
        return any(_collated(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return _collated(kind.elementType)
    if isinstance(kind, MapType):
        return _collated(kind.keyType) or _collated(kind.valueType)
    return isinstance(kind, StringType) and getattr(kind, "collation", None) not in (None, "UTF8_BINARY")


def column_field(frame: DataFrame, name: str, what: str) -> StructField:
    """The column of this name, as Spark finds it. If there is none, the error lists the columns."""
    if not isinstance(name, str):
        raise SchemaError(f"columns of the {what} are given by name; got {name!r}; it has {', '.join(frame.columns)}")
    sensitive = case_sensitive(frame)
    fields = [f for f in frame.schema.fields if f.name == name or (not sensitive and f.name.lower() == name.lower())]
    if not fields:
        raise SchemaError(f"the {what} has no column {name!r}; it has {', '.join(frame.columns)}")
    if len(fields) > 1:
        raise SchemaError(f"the {what} has {len(fields)} columns {name!r}: rename all but one of them")
    return fields[0]


def check_key_types(fields: Sequence[StructField]) -> None:
    """Refuse keys that Spark compares in ways that codes can't."""
    for field in fields:
        kind = field.dataType
        if isinstance(kind, StringType) and _collated(kind):
            raise SchemaError(
                f"key column {field.name!r} has collation {kind.collation}, whose equality is not that of its bytes; "
                "use a UTF8_BINARY column, for instance lower(column), as key"
            )


def case_sensitive(frame: DataFrame) -> bool:
    return str(frame.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"


def session_zone(frame: DataFrame) -> str:
    """The time zone of the session, as Arrow spells it: a name, or +hh:mm."""
    zone = str(frame.sparkSession.conf.get("spark.sql.session.timeZone", "UTC"))
    offset = re.fullmatch(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?", zone)
    if offset:
        return f"{offset[1]}{int(offset[2]):02}:{offset[3] or '00'}"
    return "UTC" if zone in ("Z", "UT") else zone


def spelled(name: str, names: Sequence[str], sensitive: bool) -> str:
    """The name among `names` that Spark would find; `name` itself if there is none.

    >>> spelled("ID", ["id", "name"], False), spelled("ID", ["id", "name"], True)
    ('id', 'ID')
    """
    if name in names or sensitive:
        return name
    found = [one for one in names if one.lower() == name.lower()]
    if len(found) > 1:
        raise SchemaError(f"column {name!r} may be each of {', '.join(found)}: write it as it is spelled there")
    return found[0] if found else name


def named_column(frame: DataFrame, name: str) -> Column:
    """The column of exactly that name, dots and all."""
    return frame["`" + name.replace("`", "``") + "`"]


def free_names(taken: Sequence[str], count: int) -> list[str]:
    """Names that no column has.

    >>> free_names(["id", "__MILLRACE1"], 2)
    ['__millrace', '__millrace2']
    """
    lower = {name.lower() for name in taken}
    free = (name for name in (f"__millrace{n or ''}" for n in itertools.count()) if name not in lower)
    return list(itertools.islice(free, count))
