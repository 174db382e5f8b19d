"""What a join may ask for beside equal keys: ranges, bands, similar texts, and any expression over both sides.

`between`, `near`, `similar` and `expr` make the conditions that `on=` takes. A condition says which columns of either side it
needs, and whether their types can be compared. `joins` finds the rows for which a condition holds. `zone` is the time zone of
the session: dates, and times without a zone, are compared with times in this zone.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.errors import ParameterError, SchemaError
from millrace.core.keys import KeyCodec
from millrace.core.order_codes import check_zone, common_type

Pairs = tuple[tuple[str, str], ...]
Closed = Literal["both", "left", "right", "neither"]
Kind = Literal["between", "near", "similar", "expr"]
Method = Literal["levenshtein", "indel", "jaro_winkler"]

CLOSED: tuple[Closed, ...] = ("both", "left", "right", "neither")
METHODS: tuple[Method, ...] = ("levenshtein", "indel", "jaro_winkler")
STREAM, MASTER = "stream.", "master."  # how an expression names the two sides


def key_pairs(on: Any) -> Pairs:
    """`on` as (stream column, table column) pairs.

    >>> key_pairs("id"), key_pairs({"product": "id"})
    ((('id', 'id'),), (('product', 'id'),))
    """
    if isinstance(on, str):
        return ((on, on),)
    if isinstance(on, Mapping):
        pairs: list[Any] = list(on.items())
    elif isinstance(on, tuple) and len(on) == 2 and all(isinstance(part, str) for part in on):
        pairs = [on]
    elif isinstance(on, Sequence):
        pairs = [(part, part) if isinstance(part, str) else tuple(part) if isinstance(part, Sequence) else () for part in on]
    else:
        pairs = []
    if not pairs or any([type(part) for part in pair] != [str, str] for pair in pairs):
        raise ParameterError(
            "on must be a column, a list, a pair or a dict of stream -> table columns, or a condition such as "
            f"mr.between(...); got {on!r}"
        )
    return tuple((mine, theirs) for mine, theirs in pairs)


@dataclass(frozen=True)
class Between:
    """The stream's value lies inside a range of the table, and the keys of `on` are equal. See `between`."""

    value: str
    low: str
    high: str
    on: Pairs = ()
    closed: Closed = "both"
    open_ended: bool = False
    zone: str = "UTC"

    kind: ClassVar[Kind] = "between"

    def __str__(self) -> str:
        ends = "" if self.closed == "both" else f", closed: {self.closed}"
        return f"{self.value} between {self.low} and {self.high}{ends}{', open-ended' * self.open_ended}{_and_equal(self.on)}"

    def stream_columns(self, schema: pa.Schema) -> tuple[str, ...]:
        return _distinct([self.value, *(mine for mine, _ in self.on)])

    def table_columns(self, schema: pa.Schema) -> tuple[str, ...]:
        return _distinct([self.low, self.high, *(theirs for _, theirs in self.on)])

    def renamed(self, names: Mapping[str, str]) -> Between:
        return replace(self, value=names[self.value], on=_renamed(self.on, names))

    def in_zone(self, zone: str) -> Between:
        return replace(self, zone=zone)

    def check(self, stream: pa.Schema, table: pa.Schema) -> None:
        _check_columns(self, stream, table)
        check_zone(self.compared(stream, table), self.common_type(stream, table), self.zone)
        _check_keys(self.on, stream, table)

    def compared(self, stream: pa.Schema, table: pa.Schema) -> list[pa.Field]:
        return [stream.field(self.value), table.field(self.low), table.field(self.high)]

    def common_type(self, stream: pa.Schema, table: pa.Schema) -> pa.DataType:
        """The type in which values and ends are compared."""
        return common_type(self.compared(stream, table), only_compared=True)


@dataclass(frozen=True)
class Near:
    """The stream's value and the table's lie at most `width` apart, and the keys of `on` are equal. See `near`."""

    value: str
    other: str
    width: Any
    on: Pairs = ()
    zone: str = "UTC"

    kind: ClassVar[Kind] = "near"

    def __str__(self) -> str:
        return f"{self.value} within {self.width} of {self.other}{_and_equal(self.on)}"

    def stream_columns(self, schema: pa.Schema) -> tuple[str, ...]:
        return _distinct([self.value, *(mine for mine, _ in self.on)])

    def table_columns(self, schema: pa.Schema) -> tuple[str, ...]:
        return _distinct([self.other, *(theirs for _, theirs in self.on)])

    def renamed(self, names: Mapping[str, str]) -> Near:
        return replace(self, value=names[self.value], on=_renamed(self.on, names))

    def in_zone(self, zone: str) -> Near:
        return replace(self, zone=zone)

    def check(self, stream: pa.Schema, table: pa.Schema) -> None:
        _check_columns(self, stream, table)
        common = self.common_type(stream, table)
        check_zone(self.compared(stream, table), common, self.zone)
        self.units(common)
        _check_keys(self.on, stream, table)

    def compared(self, stream: pa.Schema, table: pa.Schema) -> list[pa.Field]:
        return [stream.field(self.value), table.field(self.other)]

    def common_type(self, stream: pa.Schema, table: pa.Schema) -> pa.DataType:
        """The type in which distances are measured."""
        return common_type(self.compared(stream, table))

    def units(self, common: pa.DataType) -> float | int:
        """`width` in the unit of type `common`: a float for floats, whole units for all other types."""
        if pa.types.is_floating(common):
            if isinstance(self.width, (int, float, decimal.Decimal)):
                return float(self.width)
        elif pa.types.is_integer(common) and isinstance(self.width, (int, float, decimal.Decimal)):
            return math.floor(self.width)
        elif pa.types.is_decimal(common) and isinstance(self.width, (int, float, decimal.Decimal)):
            return math.floor(decimal.Decimal(str(self.width)).scaleb(common.scale))
        elif pa.types.is_date(common):
            days = self.width.days if isinstance(self.width, datetime.timedelta) else self.width
            if isinstance(days, (int, float)):
                return math.floor(days)
        elif (pa.types.is_timestamp(common) or pa.types.is_duration(common)) and isinstance(self.width, datetime.timedelta):
            microseconds = self.width // datetime.timedelta(microseconds=1)
            per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[common.unit]
            return microseconds * per_second // 10**6
        wanted = "a datetime.timedelta" if pa.types.is_timestamp(common) or pa.types.is_duration(common) else "a number"
        raise ParameterError(f"the width of near({self.value!r}, ...) must be {wanted} for {common}; got {self.width!r}")


@dataclass(frozen=True)
class Similar:
    """The two texts are similar to a degree of at least `threshold`. See `similar`."""

    text: str
    other: str
    threshold: float
    method: Method = "levenshtein"
    on: Pairs = ()

    kind: ClassVar[Kind] = "similar"

    def __str__(self) -> str:
        return f"{self.text} similar to {self.other}, {self.method} of {self.threshold:g} or more"

    def stream_columns(self, schema: pa.Schema) -> tuple[str, ...]:
        return (self.text,)

    def table_columns(self, schema: pa.Schema) -> tuple[str, ...]:
        return (self.other,)

    def renamed(self, names: Mapping[str, str]) -> Similar:
        return replace(self, text=names[self.text])

    def in_zone(self, zone: str) -> Similar:
        return self

    def check(self, stream: pa.Schema, table: pa.Schema) -> None:
        _check_columns(self, stream, table)
        for field in (stream.field(self.text), table.field(self.other)):
            if not (pa.types.is_string(field.type) or pa.types.is_large_string(field.type)):
                raise SchemaError(f"similar compares texts; column {field.name!r} is {field.type}: cast it to a string first")


@dataclass(frozen=True)
class Expr:
    """An expression that is true: SQL text, or an Arrow expression. See `expr`."""

    expression: Any
    names: Pairs = ()  # name in the expression -> stream column, where they differ
    on: Pairs = ()
    zone: str = "UTC"

    kind: ClassVar[Kind] = "expr"

    def __str__(self) -> str:
        return str(self.expression)

    @property
    def is_sql(self) -> bool:
        return isinstance(self.expression, str)

    def stream_columns(self, schema: pa.Schema) -> tuple[str, ...]:
        """All columns that the expression could mean. A name that it contains by chance costs only memory."""
        spelled = {column: name for name, column in self.names}
        return self._named([(name, spelled.get(name, name)) for name in schema.names], STREAM)

    def table_columns(self, schema: pa.Schema) -> tuple[str, ...]:
        return self._named([(name, name) for name in schema.names], MASTER)

    def _named(self, columns: Sequence[tuple[str, str]], side: str) -> tuple[str, ...]:
        text = str(self.expression).lower()
        prefix = "" if self.is_sql else side
        return tuple(column for column, name in columns if (prefix + name).lower() in text)

    def renamed(self, names: Pairs) -> Expr:
        return replace(self, names=names)

    def in_zone(self, zone: str) -> Expr:
        return replace(self, zone=zone)

    def check(self, stream: pa.Schema, table: pa.Schema) -> None:
        """The expression is checked in full where it is evaluated: see `joins.matching`."""


Condition = Between | Near | Similar | Expr


def between(value: str, low: str, high: str, *, on: Any = None, closed: str = "both", open_ended: bool = False) -> Between:
    """The stream's `value` lies between `low` and `high` of the table.

    on          keys that must be equal too, given as `on` of `enrich`: the row of this product that is valid at that time
    closed      which ends belong to the range: both, left, right or neither
    open_ended  a null end is no end; otherwise a range with a null end holds nothing

    Values are integers, floats, dates, timestamps or decimals of at most 18 digits. Different types are compared as Spark
    does: a date beside a timestamp is midnight in the session's time zone.

    >>> between("sold_at", "valid_from", "valid_to", on="product_id", closed="left", open_ended=True).on
    (('product_id', 'product_id'),)
    """
    if closed not in CLOSED:
        raise ParameterError(f"closed must be one of {', '.join(CLOSED)}; got {closed!r}")
    return Between(value, low, high, _optional_pairs(on), closed, open_ended)


def near(value: str, other: str, width: Any, *, on: Any = None) -> Near:
    """The stream's `value` and the table's `other` lie at most `width` apart: a number, or a `timedelta` for times.

    `on` names keys that must be equal too.

    >>> near("x", "x", 0.5).width
    0.5
    """
    good = width >= datetime.timedelta(0) if isinstance(width, datetime.timedelta) else _number(width) and 0 <= width < math.inf
    if not good:
        raise ParameterError(f"the width of near must be a number or a timedelta of at least 0; got {width!r}")
    return Near(value, other, width, _optional_pairs(on))


def similar(text: str, other: str, threshold: float, *, method: str = "levenshtein") -> Similar:
    """The stream's `text` and the table's `other` are similar to a degree of `threshold`, 0 to 1, or more.

    method  levenshtein: 1 - edits / length of the longer; indel: the same without replacing; jaro_winkler

    >>> similar("name", "name", 0.9).method
    'levenshtein'
    """
    if not _number(threshold) or not 0 <= threshold <= 1:
        raise ParameterError(f"the threshold of similar must lie between 0 and 1; got {threshold!r}")
    if method not in METHODS:
        raise ParameterError(f"the method of similar must be one of {', '.join(METHODS)}; got {method!r}")
    return Similar(text, other, float(threshold), method)


def expr(expression: str | pc.Expression) -> Expr:
    """Any condition over both sides: rows for which the expression is true.

    SQL text names columns as `stream.x` and `master.y` (or `x`, where only one side has an x) and is evaluated by DuckDB.
    An Arrow expression names columns as `pc.field("stream.x")` and `pc.field("master.y")`.

    >>> expr("stream.weight * 1.1 < master.limit").is_sql
    True
    """
    if isinstance(expression, str):
        if not expression.strip():
            raise ParameterError("expr needs an expression; got an empty text")
    elif not isinstance(expression, pc.Expression):
        raise ParameterError(f"expr takes SQL text or an Arrow expression; got {type(expression).__name__}")
    return Expr(expression)


def _optional_pairs(on: Any) -> Pairs:
    return () if on is None else key_pairs(on)


def equal_keys(on: Pairs) -> str:
    """Keys that must be equal, in words.

    >>> equal_keys((("product", "id"), ("day", "day")))
    'product = id, day = day'
    """
    return ", ".join(f"{mine} = {theirs}" for mine, theirs in on)


def _and_equal(on: Pairs) -> str:
    return f", {equal_keys(on)}" if on else ""


def _number(value: Any) -> bool:
    return isinstance(value, (int, float, decimal.Decimal)) and not isinstance(value, bool)


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _renamed(on: Pairs, names: Mapping[str, str]) -> Pairs:
    return tuple((names[mine], theirs) for mine, theirs in on)


def _check_columns(condition: Between | Near | Similar, stream: pa.Schema, table: pa.Schema) -> None:
    sides = (("stream", stream, condition.stream_columns(stream)), ("table", table, condition.table_columns(table)))
    for side, schema, names in sides:
        for name in names:
            if name not in schema.names:
                raise SchemaError(f"the {side} has no column {name!r}; it has {', '.join(schema.names)}")


def _check_keys(on: Pairs, stream: pa.Schema, table: pa.Schema) -> None:
    if on:
        codec = KeyCodec(tuple(table.field(theirs).type for _, theirs in on))
        codec.check([(mine, stream.field(mine).type) for mine, _ in on])
