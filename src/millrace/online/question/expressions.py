"""SQL text over the columns of two sides: parsed, columns found, and taken apart into products of one-sided parts where it can.

    "l_extendedprice * (1 - l_discount)"      one side                      evaluated before the join
    "price * qty + fee"                       price(a) qty(b) + fee(a)      products: no pair is made
    "greatest of both", "a.x > b.y"           neither                       pairs are made, and it is evaluated on them

A column is named by itself, or as left.x and right.x (a.x and b.x) where both sides have it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from millrace.core.errors import ParameterError, SchemaError
from millrace.online.protocol import A, B

Node = Any  # a node of sqlglot's syntax tree
SIDES = ("left", "right")
_NAMES = {"left": A, "a": A, "right": B, "b": B}
_QUIET = (exp.Column, exp.Identifier, exp.Literal, exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Paren)  # never make a null of none


@dataclass(frozen=True, eq=False)
class Expression:
    """An expression whose columns are known: in `node` they are named left.x and right.x."""

    text: str
    node: Node

    @cached_property
    def sides(self) -> frozenset[int]:
        return frozenset(SIDES.index(column.table) for column in self.node.find_all(exp.Column))

    def columns(self, side: int) -> tuple[str, ...]:
        return tuple(dict.fromkeys(c.name for c in self.node.find_all(exp.Column) if c.table == SIDES[side]))

    @cached_property
    def key(self) -> str:
        """Equal for equal expressions."""
        return str(self.node.sql())

    def without_nulls(self, null_free: Callable[[int, str], bool]) -> bool:
        """Whether it is never null, as far as can be told from columns that are not."""
        if not all(isinstance(node, _QUIET) for node in self.node.walk()):
            return False
        return all(null_free(SIDES.index(column.table), column.name) for column in self.node.find_all(exp.Column))


class Names:
    """The columns of both sides. `same`: columns that the join makes equal; either may be meant by their common name."""

    def __init__(self, schemas: tuple[pa.Schema, pa.Schema], same: Sequence[tuple[str, str]]) -> None:
        self._schemas = schemas
        self._same = {mine for mine, theirs in same if mine == theirs}

    def find(self, name: str, side: int | None = None) -> tuple[int, str]:
        """Side and exact name of a column; an error says what there is."""
        sides = (A, B) if side is None else (side,)
        found = [(at, column) for at in sides for column in self._spelled(at, name)]
        if len({at for at, _ in found}) == 2 and name in self._same:
            found = found[:1]
        if len(found) == 1:
            return found[0]
        if found:
            raise SchemaError(f"column {name!r} is on both sides; write left.{name} or right.{name}")
        there = "; ".join(f"{SIDES[at]} has {', '.join(self._schemas[at].names)}" for at in sides)
        raise SchemaError(f"there is no column {name!r}; {there}")

    def _spelled(self, side: int, name: str) -> list[str]:
        names = self._schemas[side].names
        if names.count(name) == 1:
            return [name]
        return [column for column in names if column.lower() == name.lower()]

    def parse(self, text: Any, what: str) -> Expression:
        """`what` names the expression in errors."""
        node = _parsed(text, what)

        def resolved(part: Node) -> Node:
            if not isinstance(part, exp.Column):
                return part
            table = part.table.lower()
            if table and table not in _NAMES:
                raise ParameterError(
                    f"{what} {text!r} names a table {part.table!r}; write left.{part.name} or right.{part.name}"
                )
            side, name = self.find(part.name, _NAMES[table] if table else None)
            return exp.column(exp.to_identifier(name, quoted=True), table=SIDES[side])

        return Expression(text, node.transform(resolved))


def reason_of(wrong: SqlglotError) -> str:
    """What the parser says, in one line and without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", " ".join(str(wrong).split()))


def _parsed(text: Any, what: str) -> Node:
    if not isinstance(text, str) or not text.strip():
        raise ParameterError(f"{what} must be SQL text over the columns of both sides; got {text!r}")
    try:
        node = sqlglot.parse_one(text)
    except SqlglotError as wrong:
        raise ParameterError(f"can't read {what} {text!r}: {reason_of(wrong)}") from None
    for part in node.walk():
        if isinstance(part, exp.AggFunc):
            raise ParameterError(f"{what} {text!r} holds an aggregate; give the expression alone, as in mr.sum_('x * y')")
        if isinstance(part, (exp.Query, exp.Alias, exp.Star, exp.Window, exp.Command, exp.DDL)):
            raise ParameterError(f"{what} {text!r} is more than an expression; give an expression over columns alone")
    return node


def conjuncts(expression: Expression) -> list[Expression]:
    """Conditions that must all hold."""
    node = expression.node.unnest()
    if isinstance(node, exp.And):
        parts = [node.left, node.right]
        return [part for each in parts for part in conjuncts(Expression(expression.text, each))]
    return [Expression(expression.text, node)]


Term = tuple["Expression | None", "Expression | None"]  # a factor of A and one of B; None is 1


def products(expression: Expression) -> tuple[Term, ...] | None:
    """The expression as a sum of products u(a) v(b); None: it is no such sum.

    >>> names = Names((pa.schema({"x": pa.int64()}), pa.schema({"y": pa.int64(), "z": pa.int64()})), [])
    >>> [(u.key, v.key) for u, v in products(names.parse("x * (y - z)", "value"))]
    [('left."x"', '(right."y" - right."z")')]
    >>> products(names.parse("abs(x - y)", "value")) is None
    True
    """
    found = _terms(expression.node)
    if found is None:
        return None

    def made(part: Node) -> Expression | None:
        return None if part is None else Expression(expression.text, part)

    return tuple((made(one), made(other)) for one, other in found)


_Pair = tuple[Node, Node]


def _terms(node: Node) -> list[_Pair] | None:
    sides = Expression("", node).sides
    if sides <= {A}:
        return [(node, None)]
    if sides == {B}:
        return [(None, node)]
    if isinstance(node, exp.Paren):
        return _terms(node.this)
    if isinstance(node, exp.Neg):
        return _negative(_terms(node.this))
    if isinstance(node, (exp.Add, exp.Sub, exp.Mul, exp.Div)):
        one, other = _terms(node.left), _terms(node.right)
        if one is None or other is None:
            return None
        if isinstance(node, exp.Mul):
            return [(_times(a, c), _times(b, d)) for a, b in one for c, d in other]
        if isinstance(node, exp.Div):
            return _divided(one, other)
        added = other if isinstance(node, exp.Add) else _negative(other)
        return one + (added or [])
    return None


def _negative(terms: list[_Pair] | None) -> list[_Pair] | None:
    if terms is None:
        return None
    return [(exp.Neg(this=_grouped(a)), b) if a is not None else (None, exp.Neg(this=_grouped(b))) for a, b in terms]


def _divided(terms: list[_Pair], by: list[_Pair]) -> list[_Pair] | None:
    if len(by) != 1 or None not in by[0]:
        return None
    divisor, other = by[0]
    return [(_over(a, divisor), b) if other is None else (a, _over(b, other)) for a, b in terms]


def _over(node: Node, divisor: Node) -> Node:
    return exp.Div(this=exp.Literal.number(1) if node is None else _grouped(node), expression=_grouped(divisor))


def _times(one: Node, other: Node) -> Node:
    if one is None or other is None:
        return one if other is None else other
    return exp.Mul(this=_grouped(one), expression=_grouped(other))


def _grouped(node: Node) -> Node:
    copy = node.copy()
    return copy if isinstance(node, (exp.Column, exp.Literal, exp.Paren)) else exp.Paren(this=copy)
