"""What Spark makes of an `enrich` call: nothing that a micro-batch should not pay for."""

from __future__ import annotations

from pathlib import Path

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


def _plan(rows: DataFrame) -> str:
    return str(rows._jdf.queryExecution().executedPlan().toString())  # type: ignore[operator]


def test_rows_go_to_python_as_rows(spark: SparkSession, table: mr.MasterTable, tmp_path: Path) -> None:
    rows = spark.read.parquet(str(_sales(tmp_path / "source", 1)))
    lines = [line.strip() for line in _plan(mr.enrich(rows, table, "id", how="left")).splitlines()]
    (call,) = [number for number, line in enumerate(lines) if "ArrowEvalPython" in line]
    assert "FileScan" not in lines[call + 1]
    assert "Project" in lines[call + 1]


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
