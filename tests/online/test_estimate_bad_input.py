"""What can't be estimated is refused before anything runs, with a reason and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.core.errors import BudgetError, DamagedTableError, MillraceError, ParameterError, SchemaError, TableError
from millrace.relations.build import build_table

LEFT = pa.table(
    {
        "k": [1, 2, 3],
        "x": [1.0, 2.0, 3.0],
        "name": ["a", "b", "c"],
        "both": [1, 2, 3],
        "big": pa.array([1, 2, 3], pa.uint64()),
        "several": [[1], [2, 3], None],
    }
)
RIGHT = pa.table({"k": [1, 2, 2], "y": [1, 2, 3], "t": ["p", "q", "r"], "both": [1, 2, 3]})


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"on": "z"}, SchemaError, "no column 'z'; left has k, x"),
        ({"on": ("k", "z")}, SchemaError, "no column 'z'; right has k, y"),
        ({"on": ("k", "t")}, SchemaError, r"left\.k is int64 and right\.t is string: they can't be compared"),
        ({"on": ("x", "y")}, SchemaError, "can't be compared"),
        ({"on": ("big", "y")}, SchemaError, "uint64 can't be a key"),
        ({"on": 3}, ParameterError, "on must be a column"),
        ({"s": mr.sum_("z")}, SchemaError, "no column 'z'"),
        ({"s": mr.sum_("other.y")}, ParameterError, "table 'other'; write left.y or right.y"),
        ({"s": mr.sum_("both")}, SchemaError, "on both sides; write left.both or right.both"),
        ({"s": mr.sum_("t")}, SchemaError, "SUM of 't', which is string; choose a numeric column"),
        ({"s": mr.avg("name")}, SchemaError, "AVG of 'name'"),
        ({"s": mr.sum_("x + t")}, SchemaError, r"can't work out 'x \+ t': string is no number"),
        ({"s": mr.sum_("x +")}, ParameterError, r"can't read s 'x \+'"),
        ({"s": mr.sum_("x y")}, ParameterError, "more than an expression"),
        ({"s": mr.sum_("SELECT x")}, ParameterError, "more than an expression"),
        ({"s": mr.sum_("sum(x)")}, ParameterError, "holds an aggregate"),
        ({"s": mr.sum_("frobnicate(x)")}, ParameterError, "is not known here; there are"),
        ({"s": mr.sum_("CAST(x AS INT)")}, ParameterError, "SQL engines differ"),
        ({"s": "max(x)"}, ParameterError, "MAX cannot be estimated from a sample: the rows not yet read may hold any value"),
        ({"s": "min(x)"}, ParameterError, "MIN cannot be estimated"),
        ({"s": "count(DISTINCT x)"}, ParameterError, "DISTINCT cannot be estimated"),
        ({"s": "sum(DISTINCT x)"}, ParameterError, "DISTINCT cannot be estimated"),
        ({"s": "x + 1"}, ParameterError, "is no aggregate"),
        ({"memmory": "5m"}, ParameterError, "no option 'memmory'; did you mean memory='5m'"),
        ({"s": "sum(x"}, ParameterError, "can't read s="),
        ({"s": 3}, ParameterError, "s must be an aggregate"),
        ({"where": "x"}, SchemaError, "not a condition"),
        ({"where": "x > 'abc'"}, SchemaError, "can't be compared"),
        ({"where": "x > "}, ParameterError, "can't read where"),
        ({"group_by": "z"}, SchemaError, "no column 'z'"),
        ({"group_by": "several"}, SchemaError, "can't group by 'several', which is list"),
        ({"on": ("several", "k")}, SchemaError, "can't be a key"),
        ({"group_by": "x + 1"}, ParameterError, "group_by takes columns"),
        ({"memory": "2k"}, BudgetError, r"too small for this estimate; give memory=\d+"),
        ({"memory": "some"}, ParameterError, "can't read 'some' as a size"),
        ({"confidence": 95}, ParameterError, "confidence must be"),
        ({"interval": "sometimes"}, ParameterError, "interval must be"),
        ({"order": "sorted"}, ParameterError, "order must be"),
        ({"engine": "spark"}, ParameterError, "on Spark are not there yet"),
        ({"engine": "gpu"}, ParameterError, "engine must be"),
        ({"threads": 8}, ParameterError, "threads must be 1 or 2"),
        ({"seed": -1}, ParameterError, "seed must be"),
        ({"target": 0}, ParameterError, "target must be above 0"),
        ({"spill": "no/such/folder"}, MillraceError, "no folder no/such/folder"),
    ],
)
def test_bad_input_is_refused_with_a_reason(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    asked: dict[str, Any] = {"on": "k", "s": mr.sum_("x"), **changes}
    with pytest.raises(error, match=message):
        mr.estimate(LEFT, RIGHT, **asked)


def test_something_must_be_asked_for() -> None:
    with pytest.raises(ParameterError, match="nothing is asked for"):
        mr.estimate(LEFT, RIGHT, on="k")
    with pytest.raises(ParameterError, match="takes SQL text"):
        mr.sum_("")


def test_a_budget_too_small_says_what_would_do() -> None:
    with pytest.raises(BudgetError) as small:
        mr.estimate(LEFT, RIGHT, on="k", memory="2k", s=mr.sum_("x"))
    needed = small.value.needed_bytes
    assert mr.estimate(LEFT, RIGHT, on="k", memory=needed, s=mr.sum_("x")).exact()["s"].value == 5.0


def test_too_many_groups_are_refused(tmp_path: Path) -> None:
    rows = 30_000
    left, right = pa.table({"k": range(rows)}), pa.table({"k": range(rows), "g": range(rows)})
    with pytest.raises(ParameterError, match=r"10,000 is the limit; group by a column with fewer values"):
        mr.estimate(left, right, on="k", group_by="g", n=mr.count()).exact()


class DataFrame:
    """Looks like Spark's to whoever asks for the module alone."""


def test_inputs_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 and then nothing of the kind")
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    pq.write_table(RIGHT, mixed / "a.parquet")
    pq.write_table(RIGHT.set_column(1, "y", [["1", "2", "3"]]), mixed / "b.parquet")
    build_table(tmp_path / "built", RIGHT, "k")
    for given, error, message in (
        (tmp_path / "built", TableError, "is a millrace table: .*estimate Parquet, Arrow or DuckDB"),
        (tmp_path / "none", TableError, "there is no Parquet folder"),
        (empty, TableError, "holds no Parquet files"),
        (broken, TableError, "can't be read as a Parquet file"),
        (mixed, SchemaError, "differ: column 'y' is int64 in one and string in another"),
        (7, ParameterError, "must be a Parquet folder or file.*got int"),
        ([RIGHT], ParameterError, "got list"),
    ):
        with pytest.raises(error, match=message):
            mr.estimate(LEFT, given, on="k", s=mr.sum_("x * y"))
    DataFrame.__module__ = "pyspark.sql.dataframe"
    with pytest.raises(ParameterError, match=r"Spark DataFrame.*write it as Parquet and give the folder"):
        mr.estimate(DataFrame(), RIGHT, on="k", n=mr.count())


def test_a_damaged_row_group_is_an_error_never_fewer_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    rows = 50_000
    pq.write_table(pa.table({"k": range(rows)}), path, row_group_size=5000, use_dictionary=False, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[len(content) // 3 : len(content) // 3 + 2000] = bytes(2000)
    path.write_bytes(bytes(content))
    with pytest.raises(DamagedTableError, match="can't be read"):
        mr.estimate(pa.table({"k": range(rows)}), path, on="k", n=mr.count(), memory="1m").exact()
