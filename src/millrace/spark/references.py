"""References such as `stream["x"]`, kept across an operator that makes its rows anew.

A `mapInArrow` puts out columns of its own, and Spark finds `stream["x"]` by a number that only the stream's own column has. So
the stream is read under other numbers below the operator, and the columns above the operator get the numbers of the stream.
This needs classes of Spark that are not public. Under Spark Connect, or if another Spark lacks these classes, columns are
found by name only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


class Renumbered:
    """A stream under other numbers, as `frame`, and the way back."""

    def __init__(self, stream: DataFrame) -> None:
        self._stream = stream
        self._numbers: list[Any] | None = None
        self.frame = stream
        if hasattr(stream, "_jdf"):
            try:
                self._renumber(stream.sparkSession._jvm.org.apache.spark.sql)
            except (Py4JError, TypeError):  # a class that is not there is a package to py4j, which can't be called
                self.frame, self._numbers = stream, None

    def _renumber(self, spark: Any) -> None:
        plan, plans = self._stream._jdf.queryExecution().analyzed(), spark.catalyst.plans
        kind, unconditional = plans.JoinType.apply("inner"), self._stream.sparkSession._jvm.scala.Option.empty()
        # what is joined with itself, Spark renumbers on the right
        itself = plans.logical.Join(plan, plan, kind, unconditional, plans.logical.JoinHint.NONE())
        right = spark.catalyst.analysis.DeduplicateRelations.apply(itself).right()
        if right.outputSet().intersect(plan.outputSet()).isEmpty():
            rows = spark.classic.Dataset.ofRows(self._stream._jdf.sparkSession(), right)
            self.frame = DataFrame(rows, self._stream.sparkSession)
            self._numbers = _items(plan.output())

    def restore(self, rows: DataFrame, names: Sequence[str]) -> list[Column]:
        """The columns `names` of `rows` as those of the stream: their names, metadata, qualifiers and numbers."""
        if self._numbers is None:
            fields = self._stream.schema.fields
            return [F.col(name).alias(f.name, metadata=f.metadata) for name, f in zip(names, fields, strict=True)]
        jvm = rows.sparkSession._jvm
        spark, some = jvm.org.apache.spark.sql, jvm.scala.Option.apply
        found = {one.name(): one for one in _items(rows._jdf.queryExecution().analyzed().output())}
        aliases = [
            spark.catalyst.expressions.Alias(
                found[name], old.name(), old.exprId(), old.qualifier(), some(old.metadata()), old.qualifier().take(0)
            )
            for name, old in zip(names, self._numbers, strict=True)
        ]
        return [Column(spark.classic.ExpressionUtils.column(alias)) for alias in aliases]


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]
