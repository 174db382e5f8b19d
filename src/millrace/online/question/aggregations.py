"""The aggregates that a user asks for: `mr.sum_("x * y")`, `mr.count()`, or SQL text such as "avg(x)"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from millrace.core.errors import ParameterError
from millrace.online.question.expressions import reason_of
from millrace.online.statistics.aggregates import AGGREGATES, known, refusal


@dataclass(frozen=True)
class Aggregation:
    """An aggregate, by SQL's name, of an expression; without one it counts rows."""

    name: str
    text: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", known(self.name))
        if self.text is None and self.name != "COUNT":
            raise ParameterError(f"{self.name} needs an expression over the columns of both sides; got none")
        given: object = self.text
        if given is not None and not (isinstance(given, str) and given.strip()):
            raise ParameterError(f"{self.name} takes SQL text over the columns of both sides; got {self.text!r}")


def sum_(expression: str) -> Aggregation:
    """SUM of an expression over the columns of both sides; nulls are left out."""
    return Aggregation("SUM", expression)


def count(expression: str | None = None) -> Aggregation:
    """COUNT of the joined rows, or of those whose expression is not null."""
    return Aggregation("COUNT", None if expression == "*" else expression)


def avg(expression: str) -> Aggregation:
    """AVG: the mean."""
    return Aggregation("AVG", expression)


def var_pop(expression: str) -> Aggregation:
    """VAR_POP: the mean square around the mean."""
    return Aggregation("VAR_POP", expression)


def var_samp(expression: str) -> Aggregation:
    """VAR_SAMP, SQL's VARIANCE: over the number of rows less one."""
    return Aggregation("VAR_SAMP", expression)


def stddev_pop(expression: str) -> Aggregation:
    """STDDEV_POP: the root of VAR_POP."""
    return Aggregation("STDDEV_POP", expression)


def stddev_samp(expression: str) -> Aggregation:
    """STDDEV_SAMP, SQL's STDDEV: the root of VAR_SAMP."""
    return Aggregation("STDDEV_SAMP", expression)


_BY_NODE: dict[Any, str] = {
    exp.Sum: "SUM",
    exp.Count: "COUNT",
    exp.Avg: "AVG",
    exp.VariancePop: "VAR_POP",
    exp.Variance: "VAR_SAMP",
    exp.StddevPop: "STDDEV_POP",
    exp.Stddev: "STDDEV_SAMP",
    exp.StddevSamp: "STDDEV_SAMP",
    exp.Min: "MIN",
    exp.Max: "MAX",
}


def aggregation(label: str, given: Aggregation | str) -> Aggregation:
    """What a user gave under a name.

    >>> aggregation("n", "count(*)")
    Aggregation(name='COUNT', text=None)
    """
    if isinstance(given, Aggregation):
        return given
    if not isinstance(given, str):
        raise ParameterError(f"{label} must be an aggregate such as mr.sum_('x * y') or mr.count(); got {given!r}")
    try:
        node = sqlglot.parse_one(given)
    except SqlglotError as wrong:
        raise ParameterError(f"can't read {label}={given!r}: {reason_of(wrong)}") from None
    name = _BY_NODE.get(type(node))
    if name is None:
        raise ParameterError(f"{label}={given!r} is no aggregate; write one of {', '.join(AGGREGATES)} around it")
    if isinstance(node.this, exp.Distinct):
        raise ParameterError(refusal(f"{name} DISTINCT") or "")
    return Aggregation(name, None if isinstance(node.this, exp.Star) else node.this.sql())
