"""Spark's own part: fitted from micro-batches, measured for a moment, learned from a query; and where calibrations are used."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from tests.spark.running import frame

import millrace as mr
from millrace.catalog import algorithm
from millrace.cli.calibrate import run_calibrate
from millrace.core.calibration import (
    FOLDER_VARIABLE,
    Calibration,
    LookUpCosts,
    Measured,
    ReadCosts,
    SparkCosts,
    load_calibration,
    save_calibration,
)
from millrace.core.errors import ParameterError, TableError
from millrace.core.unitcosts import UnitCosts
from millrace.relations.build import build_table
from millrace.relations.folder import read_versions
from millrace.relations.stored import StoredRelation
from millrace.spark import calibrate as calibrating
from millrace.spark.calibrate_batches import _NARROW, _WIDE, BatchEffort, Shape, Timed, fit_batches
from millrace.spark.learn_costs import Batch, batches_of, learned
from millrace.spark.registry import unit_costs
from millrace.tuning.calibrate import Effort

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]

TRUE = SparkCosts(batch=0.2, task=0.03, row=5e-7, found_byte=3e-9, whole_row=2e-6)
MEASURED = Measured(time.time(), "here")
QUICK = Effort(
    disk_seconds=0.1, look_up_seconds=0.1, work_seconds=0.1, sample_bytes=16 << 20,
    join_tables=((5_000, 64 << 10), (5_000, 8 << 10)), look_up_rows=(1_000,), algorithms=(algorithm("sweepjoin"),),
)  # fmt: skip
QUICK_BATCHES = BatchEffort(small_rows=100, large_rows=2_000, compiling=1, warming=0, kept=1, rounds=1)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept"


def seconds_of(shape: Shape, cores: int) -> float:
    waves = -(-shape.tasks // cores)
    rows = waves * shape.rows / shape.tasks
    row = (
        TRUE.whole_row + _NARROW * TRUE.found_byte
        if shape.whole
        else TRUE.row + TRUE.found_byte * (_WIDE if shape.wide else _NARROW)
    )
    return (0.1 if shape.made else TRUE.batch) + waves * TRUE.task + rows * row


def test_costs_of_spark_are_found_from_micro_batches_of_several_shapes() -> None:
    shapes = [
        Shape(1_000, 4), Shape(800_000, 4), Shape(800_000, 4, wide=True), Shape(400_000, 4, whole=True),
        Shape(1_000, 4, made=True), Shape(1_000, 16, made=True),
    ]  # fmt: skip
    seen = [Timed(shape, seconds_of(shape, 4) * share) for shape in shapes for share in (0.99, 1.0, 1.01, 5.0)]
    costs, spread = fit_batches(seen, cores=4)
    for name, value in vars(TRUE).items():
        assert getattr(costs, name) == pytest.approx(value, rel=0.15), name
    assert set(spread) == set(vars(TRUE))


def test_a_moment_of_calibration_with_a_session(spark: SparkSession, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "tables").mkdir()
    said: list[str] = []
    found = mr.calibrate(tmp_path / "tables", spark, say=said.append, effort=QUICK, batches=QUICK_BATCHES)  # type: ignore[call-arg]
    assert found.note == ""
    assert found.spark.batch > 0
    assert all(value >= 0 for value in vars(found.spark).values())
    assert list((tmp_path / "tables").iterdir()) == []
    assert sorted(path.name.partition("-")[0] for path in folder.iterdir()) == ["disk", "machine"]
    assert load_calibration(tmp_path / "tables") == found
    assert any("Spark's own part" in text for text in said)


def test_on_a_cluster_an_executor_measures_and_the_driver_keeps(
    spark: SparkSession, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrating, "local_context", lambda session: None)
    monkeypatch.setattr(calibrating, "calibrate_spark", lambda *args, **named: Calibration(measured={"spark": MEASURED}))
    monkeypatch.setattr(calibrating, "calibrate_machine", None)  # the driver's; tasks have a module of their own
    found = mr.calibrate(tmp_path, spark, effort=QUICK)
    assert found.note == ""
    assert set(found.work) == {"sweepjoin"}
    assert all(path.name.startswith("cluster-") for path in folder.iterdir())
    assert "on this machine" in load_calibration(tmp_path).note


@pytest.mark.parametrize(("table", "spark_given", "said"), [(7, None, "got int"), (None, "local", "spark must be")])
def test_wrong_arguments_are_refused(table: Any, spark_given: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        mr.calibrate(table, spark_given)


def kept(**parts: Any) -> Calibration:
    return Calibration(**parts, measured=dict.fromkeys(parts, MEASURED))  # type: ignore[misc]


def test_the_driver_reads_by_a_calibration_and_a_forecast_uses_it(spark: SparkSession, tmp_path: Path) -> None:
    rows = pa.table({"id": range(20_000), "v": [f"value {key:>20}" for key in range(20_000)]})
    build_table(tmp_path / "t", rows, "id", page_bytes=4096)
    table = mr.MasterTable.open(tmp_path / "t")
    stream = frame(spark, pa.table({"id": pa.array([1, 2, 3], pa.int64())}))
    slow = {"direct": ReadCosts(0.5, 1e-6, 1e-3), "buffered": ReadCosts()}
    relation = StoredRelation(tmp_path / "t", read_versions(tmp_path / "t")[-1], "direct")
    try:
        save_calibration(kept(work={"hybridjoin": UnitCosts(probe=1e-4)}), tmp_path / "t")
        assert unit_costs(relation).seek < 0.5  # measured on the way
        partly = mr.explain(stream, table, "id", read="direct", strategy="hybridjoin").plan.joins[0].costs
        assert partly is not None
        assert (partly.probe, partly.seek) == (1e-4, unit_costs(relation).seek)
        save_calibration(kept(reads=slow), tmp_path / "t")
        assert unit_costs(relation) == UnitCosts(seek=0.5, read_byte=1e-6, request=1e-3)
        whole = mr.explain(stream, table, "id", read="direct", strategy="hybridjoin").plan.joins[0].costs
        assert whole is not None
        assert (whole.probe, whole.seek, whole.request) == (1e-4, 0.5, 1e-3)
    finally:
        relation.close()


def test_a_row_of_a_big_table_takes_longer_in_a_forecast(spark: SparkSession, tmp_path: Path) -> None:
    rows = pa.table({"id": range(20_000), "v": range(20_000)})
    build_table(tmp_path / "t", rows, "id", page_bytes=4096)
    stream = frame(spark, pa.table({"id": pa.array([1, 2, 3], pa.int64())}))

    def seconds() -> float:
        return mr.explain(stream, mr.MasterTable.open(tmp_path / "t"), "id", read="mmap").seconds_per_batch(1_000_000)

    save_calibration(kept(look_up=LookUpCosts(row=1e-6, row_by_rows=((1_000.0, 1e-8), (10_000_000.0, 2e-6)))))
    before = seconds()
    save_calibration(kept(look_up=LookUpCosts(row=1e-6, row_by_rows=((1_000.0, 1e-8), (20_000.0, 2e-6)))))
    assert seconds() > before + 0.4 * 1e-6 * 1_000_000 / 2


def test_costs_are_learned_from_micro_batches_of_several_sizes() -> None:
    known = kept(spark=SparkCosts(task=0.01, whole_row=9e-6))
    random = np.random.default_rng(1)
    batches = [
        Batch(rows, 0.3 + 0.01 + (rows * 8e-7 + joins) / 2, joins)
        for rows, joins in zip(random.integers(1_000, 900_000, 20).tolist(), random.uniform(0, 1, 20).tolist(), strict=True)
    ]
    found = learned(batches, known, cores=2)
    assert (found.spark.batch, found.spark.row) == pytest.approx((0.3, 8e-7), rel=0.03)
    assert (found.spark.task, found.spark.whole_row) == (0.01, 9e-6)
    assert set(found.measured) == {"spark"}


@pytest.mark.parametrize("rows", [[], [10], [100, 100, 100, 150, 150], [10, 100, 100, 100], [10, 100, 100, 1_000]])
def test_micro_batches_of_one_size_teach_nothing(rows: list[int]) -> None:
    with pytest.raises(ParameterError, match="twice as many rows as two others"):
        learned([Batch(count, 1.0, 0.0) for count in rows], Calibration(), cores=2)


def test_a_query_with_batches_of_one_size_is_refused_and_another_thing_too(spark: SparkSession) -> None:
    progress = [SimpleNamespace(batchId=n, numInputRows=9, durationMs={"triggerExecution": 5, "addBatch": 4},
                                observedMetrics={}, runId="r") for n in range(50)]  # fmt: skip
    with pytest.raises(ParameterError, match=r"35 micro-batches of 9 to 9 rows"):
        mr.learn_costs(SimpleNamespace(recentProgress=progress))
    with pytest.raises(ParameterError, match="streaming query; got str"):
        mr.learn_costs("query")


def test_what_a_query_with_a_join_took_is_learned_and_kept(spark: SparkSession, tmp_path: Path) -> None:
    rows = pa.table({"id": range(5_000), "v": range(5_000)})
    build_table(tmp_path / "t", rows, "id", page_bytes=4096)
    (tmp_path / "stream").mkdir()
    for number, size in enumerate([50, 50, 50, 50, 50, 4_000, 50, 4_000]):
        spark.range(size).coalesce(1).write.parquet(str(tmp_path / "stream" / f"part={number}"))
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "stream" / "*"))
    joined = mr.enrich(stream, mr.MasterTable.open(tmp_path / "t"), "id")
    query = (
        joined.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    assert [batch.rows for batch in batches_of(query, Calibration())] == [50, 4_000, 50, 4_000]  # without the first half
    assert all(batch.join_seconds > 0 for batch in batches_of(query, Calibration()))
    found = mr.learn_costs(query)
    assert found.has("spark")
    assert found.spark.batch > 0
    assert found == load_calibration()


def test_the_command_prints_costs_with_units_and_where_they_are_kept(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(tmp_path / "out", "w") as out:
        run_calibrate(tmp_path, spark=False, as_json=False, console=Console(file=out, width=200), effort=QUICK)
    printed = (tmp_path / "out").read_text()
    for expected in ("look_up.call", "work.sweepjoin.tuple", "ns/byte", "note: Spark's own part was not measured", str(folder)):
        assert expected in printed
    run_calibrate(tmp_path, spark=False, as_json=True, console=Console(), effort=QUICK)
    told = json.loads(capsys.readouterr().out)
    assert set(told["parts"]) == {"reads", "work", "look_up"}
    assert len(told["files"]) == 2
    with pytest.raises(TableError, match="nowhere"):
        run_calibrate(tmp_path / "nowhere", spark=False, as_json=False, console=Console())


def test_a_calibration_of_another_session_is_kept_when_one_part_is_learned(tmp_path: Path) -> None:
    save_calibration(kept(spark=replace(TRUE), look_up=LookUpCosts()), tmp_path)
    save_calibration(kept(spark=replace(TRUE, batch=0.9)), tmp_path)
    found = load_calibration(tmp_path)
    assert (found.spark.batch, found.spark.row) == (0.9, TRUE.row)
    assert found.has("look_up")
