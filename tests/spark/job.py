"""Queries in a process of their own, so that a test can kill it, or give it a session that retries tasks.

python job.py stream SOURCE TABLE FOLDER SLEEP_SECONDS
python job.py retry FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import millrace as mr


def session(master: str, scratch: Path) -> SparkSession:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
        "spark.sql.files.openCostInBytes": str(128 << 20),  # a task for every file
        "spark.driver.memory": "600m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    builder = SparkSession.builder.master(master).appName("millrace-job")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def stream(source: Path, table: Path, folder: Path, sleep_seconds: float) -> None:
    """Enrich two files a batch into a Parquet sink. Tasks of odd files leave a mark and sleep before they write."""
    spark = session("local[2]", folder)
    marks = str(folder / "marks")
    os.makedirs(marks, exist_ok=True)

    @F.udf("long")
    def linger(file: int) -> int:
        mark = os.path.join(marks, str(file))
        if file % 2 and not os.path.exists(mark):
            open(mark, "w").close()
            time.sleep(sleep_seconds)
        return file

    schema = spark.read.parquet(str(source)).schema
    sales = spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).parquet(str(source))
    enriched = mr.enrich(sales, mr.MasterTable.open(table), "id", how="left")
    _run(enriched.withColumn("file", linger("file")), folder)
    spark.stop()


def _run(rows: DataFrame, folder: Path) -> StreamingQuery:
    """The query, at the end of what there is."""
    writer = rows.writeStream.format("parquet").option("path", str(folder / "out"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def retry(folder: Path) -> None:
    """Let every task fail once, in several ways, and print what the reports and the rows say."""
    spark = session("local[2,3]", folder)
    keys = [key for key in range(30) for _ in range(3)]
    mr.MasterTable.build(_frame(spark, pa.table({"id": keys, "v": keys})), "id", folder / "few", shards=1)
    mr.MasterTable.build(_frame(spark, pa.table({"id": range(30), "v": range(30)})), "id", folder / "unique", shards=1)
    mr.MasterTable.build(_frame(spark, pa.table({"id": keys * 7, "v": keys * 7})), "id", folder / "many", shards=1)
    source = folder / "source"
    source.mkdir()
    for number in range(4):
        ids = pa.array([None if n % 10 == 3 else n % 50 for n in range(number * 500, number * 500 + 500)], pa.int64())
        pq.write_table(pa.table({"n": range(number * 500, number * 500 + 500), "id": ids}), source / f"{number}.parquet")
    results = {}
    for shape in ("unique", "few", "many"):
        table = mr.MasterTable.open(folder / shape)
        for way in ("before", "after", "killed"):
            marks = folder / f"marks-{shape}-{way}"
            marks.mkdir()
            fail = _fail_once(str(marks), kill=way == "killed")
            results[f"{shape} {way}"] = _streamed(spark, source, table, fail, way, folder / f"{shape}-{way}")
            if way != "killed":
                results[f"{shape} {way} batch"] = _batch(spark, source, table, fail, way, marks)
    print("RESULT " + json.dumps(results))
    spark.stop()


def _frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    return spark.createDataFrame(rows).coalesce(1)


def _fail_once(marks: str, *, kill: bool) -> Callable[..., object]:
    """A column function that fails late in the first attempt at each file's rows."""

    @F.udf("long")
    def fail(n: int) -> int:
        if n % 500 == 490:
            mark = os.path.join(marks, str(n))
            if not os.path.exists(mark):
                open(mark, "w").close()
                if kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("the first attempt fails")
        return n

    return fail


def _query(rows: DataFrame, table: mr.MasterTable, fail: Callable[..., object], way: str, **options: object) -> DataFrame:
    if way == "before":
        rows = rows.withColumn("n", fail("n"))
    rows = mr.enrich(rows, table, "id", how="left", **options)
    return rows if way == "before" else rows.withColumn("n", fail("n"))


def _streamed(
    spark: SparkSession, source: Path, table: mr.MasterTable, fail: Callable[..., object], way: str, folder: Path
) -> dict[str, object]:
    schema = spark.read.parquet(str(source)).schema
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).parquet(str(source))
    query = _run(_query(rows, table, fail, way), folder)
    reports = [report for report in mr.reports(query) if report.rows_in]
    for report in reports:
        report.ledger.check()
    numbers = [row[0] for row in spark.read.parquet(str(folder / "out")).select("n").collect()]
    return {"reports": [_counts(report) for report in reports], "rows": len(numbers), "distinct": len(set(numbers))}


def _batch(
    spark: SparkSession, source: Path, table: mr.MasterTable, fail: Callable[..., object], way: str, marks: Path
) -> dict[str, object]:
    for mark in marks.iterdir():
        mark.unlink()
    watch = Observation()
    numbers = [
        row["n"] for row in _query(spark.read.parquet(str(source)), table, fail, way, observation=watch).select("n").collect()
    ]
    (report,) = mr.reports(watch)
    report.ledger.check()
    return {"reports": [_counts(report)], "rows": len(numbers), "distinct": len(set(numbers))}


def _counts(report: mr.BatchReport) -> list[int]:
    return [report.rows_in, report.matched, report.counts.absent_keys, report.counts.null_keys, report.counts.matches]


if __name__ == "__main__":
    if sys.argv[1] == "stream":
        stream(Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), float(sys.argv[5]))
    else:
        retry(Path(sys.argv[2]))
