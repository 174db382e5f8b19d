"""The arguments of `MasterTable.build`, checked before anything runs. Each error names the column or the argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, CharType, DataType, MapType, StructField, StructType, UserDefinedType

from millrace.core.errors import ParameterError, SchemaError
from millrace.spark.arguments import check_frame
from millrace.spark.schema import case_sensitive, check_key_types, column_field

_CHAR = "__CHAR_VARCHAR_TYPE_STRING"  # where Spark keeps that a string column was declared as CHAR


def check_batch(data: Any, what: str) -> None:
    """Tables are built from batch DataFrames."""
    check_frame(data, what)
    if data.isStreaming:
        raise ParameterError(f"{what} must be a batch DataFrame; this one is streaming: use spark.read, not spark.readStream")


def key_fields(data: DataFrame, key: str | Sequence[str]) -> list[StructField]:
    """The key columns. Each column is there once, and values of its type are equal if their bytes are equal."""
    fields = [_key_field(data, name) for name in _names(key)]
    twice = [name for name, count in Counter(field.name for field in fields).items() if count > 1]
    if twice:
        raise ParameterError(f"key names column {twice[0]!r} more than once; name each key column once")
    check_key_types(fields)
    for field in fields:
        if isinstance(field.dataType, CharType) or str(field.metadata.get(_CHAR, "")).startswith("char("):
            raise SchemaError(
                f"key column {field.name!r} is CHAR, which Spark pads with blanks when it compares; use a string as key: "
                f"data.withColumn({field.name!r}, rtrim({field.name!r}))"
            )
    return fields


def _names(key: Any) -> list[str]:
    names = [key] if isinstance(key, str) else list(key) if isinstance(key, (list, tuple)) else [key]
    if not names:
        raise ParameterError("key must name at least one column, as in key='product_id' or key=['shop', 'product_id']")
    for name in names:
        if not isinstance(name, str):
            raise ParameterError(
                f"key must be the name of a column or a list of names, as in key='product_id'; got {type(name).__name__}"
            )
    return names


def _key_field(data: DataFrame, name: str) -> StructField:
    try:
        return column_field(data, name, "table")
    except SchemaError as refused:
        parts = [part.strip() for part in name.split(",")]
        if len(parts) > 1 and all(part in data.columns for part in parts):
            raise SchemaError(f"{refused}; for a key of several columns give a list: key={parts!r}") from None
        if "." in name and name.split(".")[0] in data.columns:
            raise SchemaError(
                f"{refused}; a key can't lie inside a struct: give it a column, as in data.withColumn('key', col({name!r}))"
            ) from None
        raise


def check_columns(data: DataFrame) -> None:
    """Every column comes back from the table as it was: its name and its type."""
    if not case_sensitive(data):
        spelt: dict[str, str] = {}
        for name in data.columns:
            other = spelt.setdefault(name.lower(), name)
            if other != name:
                raise SchemaError(f"columns {other!r} and {name!r} differ only in upper and lower case; rename one of them")
    for field in data.schema.fields:
        for kind in _parts(field.dataType):
            _check_type(field.name, kind)


def _parts(kind: DataType) -> Iterator[DataType]:
    """A type and all types inside of it."""
    yield kind
    if isinstance(kind, ArrayType):
        yield from _parts(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _parts(kind.keyType)
        yield from _parts(kind.valueType)
    elif isinstance(kind, StructType):
        for field in kind.fields:
            yield from _parts(field.dataType)


def _check_type(name: str, kind: DataType) -> None:
    if isinstance(kind, UserDefinedType):
        raise SchemaError(
            f"column {name!r} has the user-defined type {type(kind).__name__}, which a table can't keep; select its parts as "
            "columns, or leave it out"
        )
    if isinstance(kind, StructType) and len(set(kind.names)) < len(kind.names):
        raise SchemaError(f"column {name!r} holds a struct with two fields of one name ({', '.join(kind.names)}); rename one")


def check_shards(shards: Any) -> None:
    if shards is None:
        return
    if isinstance(shards, bool) or not isinstance(shards, int):
        raise ParameterError(f"shards must be a whole number; got {shards!r}")
    if shards < 1:
        raise ParameterError(f"shards must be at least 1; got {shards}")


def check_progress(progress: Any) -> None:
    if progress is not None and not isinstance(progress, bool):
        raise ParameterError(f"progress must be True, False or None; got {progress!r}")
