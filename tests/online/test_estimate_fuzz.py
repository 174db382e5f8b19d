"""Random questions over random tables: the end is what DuckDB says on the same rows, in any memory, from Parquet or Arrow."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.core.errors import BudgetError

AGGREGATES = ("sum", "count", "avg", "var_pop", "var_samp", "stddev_pop", "stddev_samp")
ODD = (math.nan, math.inf, -math.inf, -0.0, 0.0)
KEYS = ("number", "number of 32 bits", "text", "both", "day", "time", "float", "decimal", "flag", "hot", "decimals")
SQL = ("id", "small", "name", "amount", "price", "whole", "flag", "day", "moment", "cents")


class Case:
    """One question over two tables, both random."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = np.random.default_rng(seed)
        self.kind = KEYS[seed % len(KEYS)]
        self.most = int(self.random.choice([3, 60, 500]))  # keys
        self.odd = bool(self.random.random() < 0.2)
        sizes = [int(self.random.choice([0, 1, 3, 40, 400, 1500], p=[0.03, 0.03, 0.04, 0.2, 0.4, 0.3])) for _ in "lr"]
        self.tables = [self._table(rows, side) for side, rows in enumerate(sizes)]
        self.on, self.sql_on = self._key()
        self.one_self = bool(self.random.random() < 0.1)
        if self.one_self:
            self.tables[1] = self.tables[0].rename_columns([f"r_{name[2:]}" for name in self.tables[0].column_names])
        self.asked = self._aggregates()
        self.where = self._where()
        self.group_by = self._groups()

    # --- tables

    def _nulls(self, values: Sequence[Any]) -> list[Any]:
        share = float(self.random.choice([0.0, 0.1, 0.9], p=[0.5, 0.4, 0.1]))
        return [None if gone else value for value, gone in zip(values, self.random.random(len(values)) < share, strict=True)]

    def _table(self, rows: int, side: int) -> pa.Table:
        random = self.random
        ids = random.integers(-1, self.most, rows)
        if self.kind == "hot":
            ids = np.where(random.random(rows) < 0.5, 1, ids)
        floats = random.choice([*ODD, 1.5, 2.5, 3.25], rows) if self.odd else random.integers(-8, 9, rows) / 4
        zone = pa.timestamp("us", "Europe/Berlin")
        names = self._nulls([f"no {'ä' * (int(i) % 4)}{i}" for i in ids])
        day = [datetime.date(2020, 1, 1) + datetime.timedelta(int(i)) for i in ids]
        columns = {
            "id": pa.array(self._nulls(ids.tolist()), pa.int64()),
            "small": pa.array(self._nulls(ids.tolist()), pa.int32() if side else pa.int16()),
            "name": pa.array(names, pa.string()).dictionary_encode() if random.random() < 0.3 else pa.array(names, pa.string()),
            "amount": pa.array(self._nulls(floats.tolist()), pa.float64()),
            "price": pa.array(self._nulls((random.integers(-400, 400, rows) / 8).tolist()), pa.float64()),
            "whole": pa.array(self._nulls(random.integers(-99, 99, rows).tolist()), pa.int64()),
            "flag": pa.array(self._nulls((random.random(rows) < 0.5).tolist()), pa.bool_()),
            "day": pa.array(self._nulls(day), pa.date32()),
            "moment": pa.array(self._nulls([datetime.datetime(d.year, d.month, d.day, 3) for d in day]), zone),
            "cents": pa.array(self._nulls([decimal.Decimal(int(i)) / 4 for i in ids]), pa.decimal128(12, 2)),
            "unused": pa.array([[1, 2]] * rows, pa.list_(pa.int64())),
        }
        prefix = "lr"[side]
        return pa.table({f"{prefix}_{name}": column for name, column in columns.items()})

    def _key(self) -> tuple[Any, str]:
        pairs = {
            "number": [("id", "id")],
            "hot": [("id", "id")],
            "number of 32 bits": [("id", "small")],
            "text": [("name", "name")],
            "both": [("id", "small"), ("name", "name")],
            "decimals": [("cents", "cents"), ("flag", "flag")],
            "day": [("day", "day")],
            "time": [("moment", "moment")],
            "float": [("amount", "amount")],
            "decimal": [("cents", "cents")],
            "flag": [("flag", "flag")],
        }[self.kind]
        named = [(f"l_{one}", f"r_{other}") for one, other in pairs]
        return (named[0] if len(named) == 1 else named), " AND ".join(f"{one} = {other}" for one, other in named)

    # --- questions

    def _aggregates(self) -> dict[str, str]:
        values = (
            "l_price", "r_price", "l_whole * r_whole", "l_price * (1 - r_price) + r_whole", "r_cents", "l_flag::INT",
            "abs(l_price - r_price)", "CASE WHEN l_whole > r_whole THEN l_price ELSE r_price END",
            "coalesce(l_whole, r_whole)", "l_amount", "r_amount * l_whole", "-r_whole", "l_whole / 4",
        )  # fmt: skip
        count = int(self.random.integers(1, 4))
        asked = {"n": "count(*)"}
        for number in range(count):
            name, value = self.random.choice(AGGREGATES), str(self.random.choice(values))
            if self.odd and name.startswith(("var", "stddev")) and "amount" in value:
                name = "sum"  # DuckDB refuses variances of infinities
            asked[f"a{number}"] = f"{name}({value})"
        return asked

    def _where(self) -> str | None:
        conditions = (
            "l_whole > 0", "r_name LIKE '%1%'", "r_flag", "l_day >= DATE '2020-01-03'", "l_whole < r_whole",
            "r_amount > 0.5", "l_price BETWEEN -10 AND 20 OR r_flag", "l_whole IN (1, 2, 3, 4, 5, 6, 7, 8)",
            "r_price IS NOT NULL", "NOT (l_flag AND r_whole > 3)", "1 = 1", "l_whole = 1000", "length(l_name) > 5",
            "upper(r_name) LIKE 'NO%'", "l_moment >= r_moment", "l_day <> r_day", "year(l_day) = 2020 OR l_flag IS NULL",
            "round(l_price) <= round(r_price)", "l_cents > r_price", "l_cents >= r_cents", "r_cents <> 0.25", "l_flag = r_flag",
            "nullif(l_whole, 0) % 3 = 1",
            "l_amount >= r_amount", "l_name < r_name", "coalesce(l_name, 'none') NOT IN ('no 1', 'none')",
        )  # fmt: skip
        count = int(self.random.choice([0, 1, 2], p=[0.4, 0.4, 0.2]))
        chosen = self.random.choice(conditions, count, replace=False)
        return " AND ".join(f"({each})" for each in chosen) or None

    def _groups(self) -> list[str]:
        columns = ["l_flag", "r_flag", "l_name", "r_day", "l_small", "r_cents", "l_amount", "r_moment"]
        columns = columns[:2] + [each for each in columns[2:] if self.most <= 60]  # 10,000 groups are the limit
        count = int(self.random.choice([0, 1, 2], p=[0.5, 0.35, 0.15]))
        return [str(each) for each in self.random.choice(columns, count, replace=False)]

    # --- answers

    def expected(self) -> dict[Any, tuple[Any, ...]]:
        connection = duckdb.connect()
        for name, table in zip("lr", self.tables, strict=True):
            connection.register(name, table)
        select = ", ".join([*self.group_by, *self.asked.values()])
        sql = f"SELECT {select} FROM l JOIN r ON {self.sql_on}"
        sql += f" WHERE {self.where}" if self.where else ""
        sql += f" GROUP BY {', '.join(self.group_by)}" if self.group_by else ""
        width = len(self.group_by)
        return {tuple(map(plain, row[:width])): row[width:] for row in connection.execute(sql).fetchall()}

    def inputs(self, folder: Path) -> list[Any]:
        given: list[Any] = []
        for side, table in enumerate(self.tables):
            path = folder / f"{self.seed}-{side}.parquet"
            if self.random.random() < 0.5:
                pq.write_table(table, path, row_group_size=int(self.random.choice([1, 37, 500])))
                given.append(path)
            else:
                given.append(table)
        return given

    def check(self, folder: Path) -> None:
        asked: dict[str, Any] = {"on": self.on, "where": self.where, "group_by": self.group_by or None, **self.asked}
        left, right = self.inputs(folder)
        asked |= {"threads": int(self.random.choice([1, 2])), "seed": self.seed, "every": 0}
        end = self._end(left, right, asked)
        expected = self.expected()
        groups = [()] if end.groups is None else [group if len(self.group_by) > 1 else (group,) for group in end.groups]
        assert sorted(map(str, (tuple(map(plain, group)) for group in groups))) == sorted(map(str, expected))
        for number, group in enumerate(groups):
            for name, truth in zip(self.asked, expected[tuple(map(plain, group))], strict=True):
                found = float(end.estimates[name].value[number])
                assert same(found, truth), (name, self.asked[name], group, found, truth)

    def _end(self, left: Any, right: Any, asked: dict[str, Any]) -> Any:
        """In the least memory, or in more. What an error asks for is enough for what had been seen of the groups by then."""
        memory: Any = str(self.random.choice(["1k", "1m", "100m"]))
        for _ in range(5):
            try:
                with mr.estimate(left, right, memory=memory, **asked) as run:
                    end = run.exact()
            except BudgetError as small:
                memory = small.needed_bytes
                continue
            assert run.budget.peak_bytes <= run.budget.memory_bytes
            return end
        raise AssertionError("no memory is enough")


def plain(value: Any) -> Any:
    """A part of a group's name that equals itself, and times of one zone."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC)
    return value + 0.0 if isinstance(value, float) else value  # -0.0 and 0.0 are one group


def same(found: float, truth: Any) -> bool:
    if truth is None or (isinstance(truth, float) and math.isnan(truth)):
        return math.isnan(found)
    return found == pytest.approx(float(truth), rel=1e-9, abs=1e-9)


def run_cases(first: int, last: int, folder: Path) -> None:
    for seed in range(first, last):
        case = Case(seed)
        try:
            case.check(folder)
        except Exception as wrong:
            question = f"{case.kind}, {case.asked}, where {case.where}, group by {case.group_by}"
            wrong.add_note(f"case {seed}: {question}, {[len(table) for table in case.tables]} rows")
            raise


def test_some_random_questions_end_as_duckdb_answers_them(tmp_path: Path) -> None:
    run_cases(0, 14, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1600, 100))
def test_random_questions_end_as_duckdb_answers_them(first: int, tmp_path: Path) -> None:
    run_cases(first, first + 100, tmp_path)
