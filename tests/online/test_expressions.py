"""Expressions give what DuckDB gives, and are taken apart without a change."""

from __future__ import annotations

import math
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from millrace.online.question.evaluate import evaluate
from millrace.online.question.expressions import Expression, Names, conjuncts, products

ROWS = pa.table(
    {
        "i": pa.array([1, -2, None, 7, 0], pa.int32()),
        "j": pa.array([3, 0, 5, None, -4], pa.int64()),
        "x": pa.array([1.5, -2.5, None, math.nan, math.inf]),
        "z": pa.array([2.5, 4.0, 1.0, math.nan, -1.0]),
        "s": pa.array(["Apple", None, "pear", "plum %", ""]),
        "b": pa.array([True, False, None, True, False]),
        "d": pa.array([9000, 9131, None, 0, 12000], pa.int32()).cast(pa.date32()),
        "m": pa.array([1, 250, None, -75, 0], pa.int32()).cast(pa.decimal128(12, 2)),
    }
)
CONNECTION = duckdb.connect().register("rows", ROWS)
NAMES = Names((ROWS.schema, pa.schema({"other": pa.int64()})), [])


def _ours(text: str) -> list[Any]:
    batch = ROWS.combine_chunks().to_batches()[0]
    return evaluate(NAMES.parse(text, "value"), lambda _, name: batch.column(name), batch.num_rows).to_pylist()


@pytest.mark.parametrize(
    "text",
    [
        "i + j * 2 - 1", "x * (1 - z)", "-i", "i / j", "j % nullif(i, 0)", "x / z", "z % 2", "m * 1.5",
        "abs(j) + ceil(z) + floor(z)",
        "round(x)", "round(x * 3, 1)", "sqrt(abs(z))", "exp(i)", "ln(abs(z))", "power(z, 2)", "sign(i)",
        "i > j", "x >= z", "x = z", "x <> z", "x < z", "x <= z", "i = 7 OR j = 0", "NOT (i > 0 AND j > 0)", "i IS NULL",
        "x IS NOT NULL",
        "i IN (1, 7, j)", "i NOT IN (1, 2)", "i BETWEEN 0 AND j", "s LIKE 'p%'", "lower(s) LIKE '%e_r'", "s = 'pear'",
        "upper(s) > 'B'",
        "length(s)", "CASE WHEN i > 0 THEN j WHEN b THEN 2.5 ELSE -1 END", "CASE i WHEN 1 THEN 10 WHEN 7 THEN 70 END",
        "coalesce(i, j, 0)",
        "nullif(i, 7)", "b IS TRUE", "b", "d < DATE '1995-01-01'", "d >= '1994-08-23'", "extract(year FROM d)", "month(d)",
        "CAST(i AS DOUBLE) / 2", "m > 0.5", "CAST(s AS VARCHAR) = s", "1 = 1", "true",
    ],
)  # fmt: skip
def test_expressions_are_worked_out_as_duckdb_does(text: str) -> None:
    expected = [row[0] for row in CONNECTION.execute(f"SELECT {text} FROM rows").fetchall()]
    for mine, theirs in zip(_ours(text), expected, strict=True):
        if theirs is None or isinstance(theirs, bool):
            assert mine is theirs, (text, mine, theirs)
        else:
            assert mine == pytest.approx(float(theirs), nan_ok=True), (text, mine, theirs)


def _at(expression: Expression | None, columns: dict[str, float]) -> float:
    if expression is None:
        return 1.0
    return float(evaluate(expression, lambda _, name: pa.array([columns[name]]), 1)[0].as_py())


@pytest.mark.parametrize(
    "text", ["x * y", "x * (1 - y)", "(x + y) * (w - z)", "x * y / z + w", "-(x - y) * 2", "x / y / 4", "3 - x", "y", "x + y"]
)
def test_products_add_up_to_the_expression(text: str) -> None:
    left, right = pa.schema({"x": pa.float64(), "w": pa.float64()}), pa.schema({"y": pa.float64(), "z": pa.float64()})
    expression = Names((left, right), []).parse(text, "value")
    terms = products(expression)
    assert terms is not None
    random = np.random.default_rng(1)
    for _ in range(5):
        columns = dict(zip("xwyz", random.uniform(1, 9, 4).tolist(), strict=True))
        assert all(one is None or one.sides <= {0} for one, _ in terms)
        assert all(other is None or other.sides <= {1} for _, other in terms)
        assert sum(_at(one, columns) * _at(other, columns) for one, other in terms) == pytest.approx(_at(expression, columns))


def test_what_mixes_sides_otherwise_is_no_product() -> None:
    names = Names((pa.schema({"x": pa.float64()}), pa.schema({"y": pa.float64()})), [])
    for text in ("abs(x - y)", "x / (x + y)", "CASE WHEN x > 0 THEN y END", "coalesce(x, y)", "x > y", "power(x, y)"):
        assert products(names.parse(text, "value")) is None


def test_conditions_are_taken_apart_at_and_only() -> None:
    found = conjuncts(NAMES.parse("(i > 0 AND (j > 0 AND NOT b)) AND (x > 0 OR z > 0)", "where"))
    assert [each.columns(0) for each in found] == [("i",), ("j",), ("b",), ("x", "z")]
