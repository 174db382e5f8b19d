"""What Spark makes of an `enrich` call: nothing that a micro-batch should not pay for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.running import read_stream, run_query, write_files

import millrace as mr
from millrace.relations.build import build_table

pytestmark = pytest.mark.spark

BATCHES = 5


@pytest.fixture
def table(warehouse: Path) -> mr.MasterTable:
    build_table(warehouse, pa.table({"id": pa.array(range(100), pa.int64()), "v": [f"v{n}" for n in range(100)]}), "id")
    return mr.MasterTable.open(warehouse)


def _sales(folder: Path, files: int) -> Path:
    return write_files(pa.table({"id": pa.array([n % 120 for n in range(600)], pa.int64())}), folder, files)


def _returned_types(rows: DataFrame) -> list[str]:
    """What the Python functions of a plan return."""
    found = []
    plan: Any = rows._jdf.queryExecution().executedPlan()  # type: ignore[operator]
    while plan.children().size():
        if "ArrowEvalPython" in plan.nodeName():
            found += [attribute.dataType().simpleString() for attribute in _each(plan.resultAttrs())]
        plan = plan.children().head()
    return found


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]


def _plan(rows: DataFrame) -> str:
    return str(rows._jdf.queryExecution().executedPlan().toString())  # type: ignore[operator]


def test_rows_go_to_python_as_rows_made_by_compiled_code(spark: SparkSession, table: mr.MasterTable, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.codegen.wholeStage", "true")
    rows = spark.read.parquet(str(_sales(tmp_path / "source", 1)))
    lines = [line.strip() for line in _plan(mr.enrich(rows, table, "id", how="left")).splitlines()]
    (call,) = [number for number, line in enumerate(lines) if "ArrowEvalPython" in line]
    assert "FileScan" not in lines[call + 1]
    assert re.search(r"\*\(\d+\) Project", lines[call + 1]), lines[call + 1]


@pytest.mark.parametrize(("how", "plain"), [("left", "string"), ("semi", "boolean"), ("anti", "boolean"), ("inner", None)])
def test_one_value_to_a_row_comes_back_without_a_struct(
    spark: SparkSession, table: mr.MasterTable, tmp_path: Path, how: str, plain: str | None
) -> None:
    rows = spark.read.parquet(str(_sales(tmp_path / "source", 1)))
    enriched = mr.enrich(rows, table, "id", how=how)
    (returned,) = _returned_types(enriched)
    assert returned == (plain or "struct<c0:boolean,c1:string>")
    found = {(row.id, row.v) if how in ("left", "inner") else row.id for row in enriched.collect()}
    known = {(n, f"v{n}") for n in range(100)}
    assert (
        found
        == {
            "left": known | {(n, None) for n in range(100, 120)},
            "inner": known,
            "semi": set(range(100)),
            "anti": set(range(100, 120)),
        }[how]
    )


@pytest.mark.parametrize("strategy", ["sweepjoin", "hybridjoin"])
def test_no_micro_batch_but_the_first_compiles_code(
    spark: SparkSession, table: mr.MasterTable, tmp_path: Path, strategy: str
) -> None:
    spark.conf.set("spark.sql.codegen.wholeStage", "true")
    spark.conf.set("spark.sql.codegen.factoryMode", "CODEGEN_ONLY")
    compiled = spark.sparkContext._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME().getCount  # type: ignore[union-attr]

    def run(name: str, batches: int) -> int:
        source = _sales(tmp_path / name / "source", batches)
        enriched = mr.enrich(read_stream(spark, source), table, "id", how="left", strategy=strategy)
        before = compiled()
        done = run_query(enriched, tmp_path / name, sink="noop")
        assert len([one for one in done.query.recentProgress if one.numInputRows]) == batches
        return int(compiled() - before)

    run("first", 1)
    assert run("second", BATCHES) < BATCHES
