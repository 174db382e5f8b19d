"""SQL expressions worked out on Arrow columns, a batch at a time, by the rules of SQL.

Arithmetic is in doubles, and so is division: by zero it gives an infinity or NaN. A null makes a null, a condition that is null
does not hold, NaN equals NaN and is above all numbers. Trying an expression on no rows tells its type, and whether it can be
worked out at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from millrace.core.errors import ParameterError, SchemaError
from millrace.online.question.expressions import SIDES, Expression
from millrace.online.question.records import is_short_decimal, unscaled

Value = Any  # an Arrow array or scalar
Columns = Callable[[int, str], pa.Array]
KNOWN = (
    "+ - * / %, comparisons, AND OR NOT, IS NULL, IN, BETWEEN, LIKE, CASE, CAST, COALESCE, NULLIF, ABS, CEIL, EXP, FLOOR, "
    "LENGTH, LN, LOWER, POWER, ROUND, SIGN, SQRT, UPPER, YEAR, MONTH, DAY"
)
_CASTS = {
    "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64(), "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(), "DECIMAL": pa.float64(), "BOOLEAN": pa.bool_(), "VARCHAR": pa.string(), "TEXT": pa.string(),
    "DATE": pa.date32(), "TIMESTAMP": pa.timestamp("us"),
}  # fmt: skip


def evaluate(expression: Expression, columns: Columns, rows: int) -> pa.Array:
    """One value per row. `columns(side, name)` gives a column."""
    try:
        value = _value(expression.node, columns)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as wrong:
        raise SchemaError(f"can't work out {expression.text!r}: {_first_line(wrong)}") from None
    except (SchemaError, ParameterError) as wrong:
        raise type(wrong)(f"can't work out {expression.text!r}: {wrong}") from None
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, rows)
    return value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value


def type_of(expression: Expression, schemas: tuple[pa.Schema, pa.Schema]) -> pa.DataType:
    """Its type, from an evaluation on no rows; an error says what is wrong with it."""
    return evaluate(expression, lambda side, name: pa.array([], plain_type(schemas[side].field(name).type)), 0).type


def plain_type(kind: pa.DataType) -> pa.DataType:
    """What a column of this type is worked with as."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    if pa.types.is_large_binary(kind) or kind == pa.binary_view():
        return pa.binary()
    return kind


def plain(column: pa.Array) -> pa.Array:
    """A column without dictionary or large offsets."""
    kind = plain_type(column.type)
    return column if kind == column.type else column.cast(kind)


def is_number(kind: pa.DataType) -> bool:
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return bool(numeric or pa.types.is_boolean(kind) or pa.types.is_null(kind))


def doubles(values: pa.Array) -> pa.Array:
    """Numbers as doubles."""
    kind = values.type
    if kind == pa.float64():
        return values
    if not is_number(kind):
        raise SchemaError(f"{kind} is no number; choose a numeric column, or cast it")
    if is_short_decimal(kind) and isinstance(values, pa.Array):
        # Arrow multiplies by 0.1 and so on, so that 0.3 would not be the 0.3 of a query; this is the nearest double
        numbers = unscaled(values).astype(np.float64) / 10.0**kind.scale
        return pa.array(numbers, mask=values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None)
    return (values.cast(pa.int8()) if pa.types.is_boolean(kind) else values).cast(pa.float64(), safe=False)


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0]


def _value(node: Any, columns: Columns) -> Value:
    work = _RULES.get(type(node))
    if work is None:
        raise ParameterError(f"{node.sql()!r} is not known here; there are {KNOWN}")
    return work(node, lambda part: _value(part, columns), columns)


Of = Callable[[Any], Value]


def _column(node: Any, of: Of, columns: Columns) -> Value:
    return columns(SIDES.index(node.table), node.name)


def _literal(node: Any, of: Of, columns: Columns) -> Value:
    if node.is_string:
        return pa.scalar(node.this)
    text = str(node.this)
    return pa.scalar(int(text)) if text.isdigit() and int(text) < 1 << 63 else pa.scalar(float(text))


def _arithmetic(work: Callable[[Value, Value], Value]) -> Callable[[Any, Of, Columns], Value]:
    return lambda node, of, columns: work(doubles(of(node.left)), doubles(of(node.right)))


def _modulo(one: Value, other: Value) -> Value:
    """The sign is that of the first, as in SQL."""
    if isinstance(one, pa.Scalar) and isinstance(other, pa.Scalar):
        return _modulo(pa.repeat(one, 1), other)[0]
    rows = len(other) if isinstance(one, pa.Scalar) else len(one)
    both = [pa.repeat(value, rows) if isinstance(value, pa.Scalar) else value for value in (one, other)]
    with np.errstate(invalid="ignore"):
        rest = np.fmod(*(value.fill_null(1.0).to_numpy(zero_copy_only=False) for value in both))
    there = pc.and_(both[0].is_valid(), both[1].is_valid())
    return pc.if_else(there, pa.array(rest), pa.scalar(None, pa.float64()))


def _function(work: Callable[..., Value], **options: Any) -> Callable[[Any, Of, Columns], Value]:
    """Of one number."""
    return lambda node, of, columns: work(doubles(of(node.this)), **options)


def _text(work: Callable[[Value], Value]) -> Callable[[Any, Of, Columns], Value]:
    return lambda node, of, columns: work(_string(of(node.this)))


def _string(value: Value) -> Value:
    if not pa.types.is_string(value.type):
        raise SchemaError(f"{value.type} is no text")
    return value


def _round(node: Any, of: Of, columns: Columns) -> Value:
    digits = node.args.get("decimals")
    count = int(_literal(digits, of, columns).as_py()) if digits is not None else 0
    return pc.round(doubles(of(node.this)), ndigits=count, round_mode="half_towards_infinity")


def _date_part(work: Callable[[Value], Value]) -> Callable[[Any, Of, Columns], Value]:
    def part(node: Any, of: Of, columns: Columns) -> Value:
        this = node.this
        while isinstance(this, exp.TsOrDsToDate):
            this = this.this
        return work(of(this))

    return part


def _extract(node: Any, of: Of, columns: Columns) -> Value:
    parts = {"YEAR": pc.year, "MONTH": pc.month, "DAY": pc.day, "HOUR": pc.hour, "MINUTE": pc.minute, "QUARTER": pc.quarter}
    name = str(node.this).upper()
    if name not in parts:
        raise ParameterError(f"EXTRACT takes {', '.join(parts)}; got {name}")
    return parts[name](of(node.expression))


def _comparison(name: str) -> Callable[[Any, Of, Columns], Value]:
    return lambda node, of, columns: compared(name, of(node.left), of(node.right))


def compared(name: str, one: Value, other: Value) -> Value:
    """= <> < <= > >=; NaN equals NaN and is above all other numbers."""
    one, other = _alike(one, other)
    if name in ("!=", "<=", ">="):
        return pc.invert(compared({"!=": "=", "<=": ">", ">=": "<"}[name], one, other))
    if name == ">":
        return compared("<", other, one)
    answer = pc.equal(one, other) if name == "=" else pc.less(one, other)
    if pa.types.is_floating(one.type):
        nan, other_nan = pc.is_nan(one), pc.is_nan(other)
        answer = pc.or_(answer, pc.and_(nan if name == "=" else pc.invert(nan), other_nan))
    return answer


def _alike(one: Value, other: Value) -> tuple[Value, Value]:
    """Two values of one type, where SQL would compare them."""
    a, b = one.type, other.type
    if a == b:
        return one, other
    if pa.types.is_null(a) or pa.types.is_null(b):
        return (one.cast(b), other) if pa.types.is_null(a) else (one, other.cast(a))
    if pa.types.is_integer(a) and pa.types.is_integer(b) and pa.uint64() not in (a, b):
        return one.cast(pa.int64()), other.cast(pa.int64())
    if is_number(a) and is_number(b) and not pa.types.is_boolean(a) and not pa.types.is_boolean(b):
        return doubles(one), doubles(other)
    if pa.types.is_temporal(a) and pa.types.is_string(b) and isinstance(other, pa.Scalar):
        return one, other.cast(a)
    if pa.types.is_temporal(b) and pa.types.is_string(a) and isinstance(one, pa.Scalar):
        return one.cast(b), other
    if pa.types.is_temporal(a) and pa.types.is_temporal(b) and not (pa.types.is_time(a) or pa.types.is_time(b)):
        zone = next((kind.tz for kind in (a, b) if pa.types.is_timestamp(kind)), None)
        return one.cast(pa.timestamp("us", zone)), other.cast(pa.timestamp("us", zone))
    raise SchemaError(f"{a} and {b} can't be compared; cast one of them")


def _in(node: Any, of: Of, columns: Columns) -> Value:
    if node.args.get("query") is not None:
        raise ParameterError("IN takes a list of values; got a query")
    this = of(node.this)
    answer = None
    for one in node.expressions:
        same = compared("=", this, of(one))
        answer = same if answer is None else pc.or_kleene(answer, same)
    return pa.scalar(False) if answer is None else answer


def _between(node: Any, of: Of, columns: Columns) -> Value:
    this = of(node.this)
    return pc.and_kleene(compared(">=", this, of(node.args["low"])), compared("<=", this, of(node.args["high"])))


def _logic(work: Callable[[Value, Value], Value]) -> Callable[[Any, Of, Columns], Value]:
    return lambda node, of, columns: work(_boolean(of(node.left)), _boolean(of(node.right)))


def _boolean(value: Value) -> Value:
    if pa.types.is_null(value.type):
        return value.cast(pa.bool_())
    if not pa.types.is_boolean(value.type):
        raise SchemaError(f"{value.type} is no condition; compare it with something")
    return value


def _is(node: Any, of: Of, columns: Columns) -> Value:
    this, what = of(node.left), node.right
    if isinstance(what, exp.Null):
        return pc.is_null(this)
    if isinstance(what, exp.Boolean):
        return pc.fill_null(pc.equal(_boolean(this), what.this), False)
    raise ParameterError(f"{node.sql()!r} is not known here; there are IS NULL, IS TRUE and IS FALSE")


def _like(node: Any, of: Of, columns: Columns) -> Value:
    pattern = of(node.expression)
    if not isinstance(pattern, pa.Scalar):
        raise ParameterError("LIKE takes a pattern, not a column")
    return pc.match_like(_string(of(node.this)), pattern.as_py(), ignore_case=isinstance(node, exp.ILike))


def _case(node: Any, of: Of, columns: Columns) -> Value:
    this = node.args.get("this")
    conditions = [
        _boolean(of(branch.this)) if this is None else compared("=", of(this), of(branch.this)) for branch in node.args["ifs"]
    ]
    default = node.args.get("default")
    values = [of(branch.args["true"]) for branch in node.args["ifs"]]
    return _chosen(conditions, values, pa.scalar(None) if default is None else of(default))


def _if(node: Any, of: Of, columns: Columns) -> Value:
    otherwise = node.args.get("false")
    return _chosen([_boolean(of(node.this))], [of(node.args["true"])], pa.scalar(None) if otherwise is None else of(otherwise))


def _chosen(conditions: list[Value], values: list[Value], default: Value) -> Value:
    *values, answer = _one_type([*values, default])
    for condition, value in zip(conditions[::-1], values[::-1], strict=True):
        answer = pc.if_else(pc.fill_null(condition, False), value, answer)
    return answer


def _one_type(values: list[Value]) -> list[Value]:
    kinds = {value.type for value in values if not pa.types.is_null(value.type)}
    if len(kinds) > 1:
        return [doubles(value) for value in values]
    return [value.cast(next(iter(kinds))) if kinds and pa.types.is_null(value.type) else value for value in values]


def _coalesce(node: Any, of: Of, columns: Columns) -> Value:
    return pc.coalesce(*_one_type([of(part) for part in (node.this, *node.expressions)]))


def _null_if(node: Any, of: Of, columns: Columns) -> Value:
    this, other = of(node.this), of(node.expression)
    same = pc.fill_null(compared("=", this, other), False)
    return pc.if_else(same, pa.scalar(None, this.type), this)


def _cast(node: Any, of: Of, columns: Columns) -> Value:
    name = node.to.this.value if hasattr(node.to.this, "value") else str(node.to.this)
    target = _CASTS.get(name)
    if target is None:
        raise ParameterError(f"CAST knows {', '.join(_CASTS)}; got {name}")
    value = of(node.this)
    if pa.types.is_integer(target) and not (
        pa.types.is_integer(value.type) or pa.types.is_boolean(value.type) or pa.types.is_null(value.type)
    ):
        raise ParameterError(f"SQL engines differ in how they cast {value.type} to {name}; use FLOOR, CEIL or ROUND")
    if target == pa.float64():
        return value.cast(target) if pa.types.is_string(value.type) else doubles(value)
    return value.cast(target)


Rule = Callable[[Any, Of, Columns], Value]
_RULES: dict[Any, Rule] = {
    exp.Column: _column,
    exp.Literal: _literal,
    exp.Boolean: lambda node, of, columns: pa.scalar(bool(node.this)),
    exp.Null: lambda node, of, columns: pa.scalar(None),
    exp.Paren: lambda node, of, columns: of(node.this),
    exp.Neg: _function(pc.negate),
    exp.Add: _arithmetic(pc.add),
    exp.Sub: _arithmetic(pc.subtract),
    exp.Mul: _arithmetic(pc.multiply),
    exp.Div: _arithmetic(pc.divide),
    exp.Mod: _arithmetic(_modulo),
    exp.Pow: lambda node, of, columns: pc.power(doubles(of(node.this)), doubles(of(node.expression))),
    exp.EQ: _comparison("="),
    exp.NEQ: _comparison("!="),
    exp.LT: _comparison("<"),
    exp.LTE: _comparison("<="),
    exp.GT: _comparison(">"),
    exp.GTE: _comparison(">="),
    exp.And: _logic(pc.and_kleene),
    exp.Or: _logic(pc.or_kleene),
    exp.Not: lambda node, of, columns: pc.invert(_boolean(of(node.this))),
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.Like: _like,
    exp.ILike: _like,
    exp.Case: _case,
    exp.If: _if,
    exp.Coalesce: _coalesce,
    exp.Nullif: _null_if,
    exp.Cast: _cast,
    exp.Abs: _function(pc.abs),
    exp.Ceil: _function(pc.ceil),
    exp.Floor: _function(pc.floor),
    exp.Exp: _function(pc.exp),
    exp.Ln: _function(pc.ln),
    exp.Sqrt: _function(pc.sqrt),
    exp.Sign: _function(pc.sign),
    exp.Round: _round,
    exp.Lower: _text(pc.utf8_lower),
    exp.Upper: _text(pc.utf8_upper),
    exp.Length: _text(pc.utf8_length),
    exp.Year: _date_part(pc.year),
    exp.Month: _date_part(pc.month),
    exp.Day: _date_part(pc.day),
    exp.Extract: _extract,
}
