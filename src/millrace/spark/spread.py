"""A stream shuffled into a given number of tasks. A batch that runs again is shuffled the same way."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from millrace.core.conditions import Pairs
from millrace.spark.schema import case_sensitive, free_names, named_column


def spread_rows(stream: DataFrame, on: Pairs, partitions: int) -> DataFrame:
    """Shuffle by key. Rows with a null key, and all rows if there is no key, are spread by their other columns."""
    keys = [named_column(stream, mine) for mine, _ in on]
    others = _hashable_columns(stream)
    if not others:
        (text,) = free_names(stream.columns, 1)
        return stream.withColumn(text, F.struct("*").cast("string")).repartition(partitions, F.xxhash64(text)).drop(text)
    if not keys:
        return stream.repartition(partitions, F.xxhash64(*others))
    missing = reduce(Column.__or__, [key.isNull() for key in keys])
    return stream.repartition(partitions, F.when(missing, F.xxhash64(*others)).otherwise(F.xxhash64(*keys)))


def _hashable_columns(stream: DataFrame) -> list[Column]:
    """Columns that a name finds and that Spark has a hash for; keys are among them."""
    sensitive = case_sensitive(stream)
    names = [name if sensitive else name.lower() for name in stream.columns]
    fields = [f for name, f in zip(names, stream.schema, strict=True) if names.count(name) == 1 and _hashable(f.dataType)]
    return [named_column(stream, field.name) for field in fields]


def _hashable(kind: DataType) -> bool:
    """Whether Spark has a hash for values of this type: not for maps, however deep inside."""
    if isinstance(kind, StructType):
        return all(_hashable(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return _hashable(kind.elementType)
    return not isinstance(kind, (MapType, VariantType))
