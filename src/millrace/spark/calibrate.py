"""`mr.calibrate`: costs of this machine, of a table's disk and of Spark, measured and kept for the plans to come.

    without a session   disk, look-ups and joins: half a minute
    with a session      Spark's own part too: half a minute more

On a cluster the first three are measured in a task, on an executor, and all of it is kept on the driver, which plans.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from millrace.core.calibration import Calibration, Part, as_object, load_calibration, of_object, save_calibration
from millrace.core.errors import ParameterError
from millrace.relations.paths import local_path
from millrace.spark.calibrate_batches import BatchEffort, calibrate_batches
from millrace.spark.master import MasterTable
from millrace.spark.parquet import ParquetTable
from millrace.spark.workers import local_context, use_this_python
from millrace.tuning.calibrate import Effort, calibrate_machine, measured_here

_SPARK: tuple[Part, ...] = ("spark",)


def calibrate(
    table: MasterTable | ParquetTable | str | Path | None = None,
    spark: SparkSession | None = None,
    *,
    say: Callable[[str], None] = lambda _: None,
    effort: Effort | None = None,
    batches: BatchEffort | None = None,
) -> Calibration:
    """Measure, and keep what was measured for `enrich`, `explain` and joins in process. Returns what is known then.

    table    whose disk is measured; default: the disk of the working folder. A path may also name a folder without a table
    spark    also measure what Spark takes beside the join, with streaming queries of this session. On a cluster the disk and
             the processor are measured on an executor, which must see the table under the same path
    say      hears what is being measured

    Nothing else should be at work meanwhile. Kept in the folder that MILLRACE_CALIBRATION names, else in ~/.cache/millrace.
    """
    path = _path_of(table)
    if spark is not None and not hasattr(spark, "readStream"):
        raise ParameterError(f"spark must be a SparkSession; got {type(spark).__name__}")
    cluster = spark is not None and local_context(spark) is None
    if spark is not None:
        use_this_python(spark)
    if spark is not None and cluster:
        say("measuring on an executor: disk, look-ups and joins")
        found, remarks = measured_in_task(spark, path, effort)
    else:
        found, remarks = calibrate_machine(path, say=say, effort=effort)
    if spark is not None:
        found = found.with_parts(calibrate_spark(spark, say=say, batches=batches))
    for remark in remarks:
        say(remark)
    save_calibration(found, path, cluster=cluster)
    return load_calibration(path, cluster=cluster)


def calibrate_spark(
    spark: SparkSession, *, say: Callable[[str], None] = lambda _: None, batches: BatchEffort | None = None
) -> Calibration:
    """Spark's own part alone. Not kept."""
    files = local_context(spark) is not None
    costs, spread = calibrate_batches(spark, files=files, say=say, effort=batches or BatchEffort())
    named = {f"spark.{name}": value for name, value in spread.items()}
    return Calibration(spark=costs, spread=named, measured=dict.fromkeys(_SPARK, measured_here()))


def measured_in_task(spark: SparkSession, path: Path, effort: Effort | None = None) -> tuple[Calibration, list[str]]:
    """What an executor measures. It comes back as text."""
    frame = spark.range(0, 1, 1, 1).mapInArrow(_InTask(str(path), effort).run, "text string")
    row = frame.first()
    assert row is not None
    told = json.loads(row["text"])
    return of_object(told["parts"]), list(told["remarks"])


@dataclass(frozen=True)
class _InTask:
    path: str
    effort: Effort | None

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                found, remarks = calibrate_machine(Path(self.path), effort=self.effort)
                yield pa.record_batch({"text": [json.dumps({"parts": as_object(found), "remarks": remarks})]})


def _path_of(table: Any) -> Path:
    """Where the table lies, or the working folder."""
    if table is None:
        return Path().absolute()
    if isinstance(table, (MasterTable, ParquetTable)):
        return Path(table.path).absolute()
    if isinstance(table, (str, Path)):
        return local_path(table).absolute()
    raise ParameterError(f"table must be a MasterTable, a ParquetTable or a path; got {type(table).__name__}")
