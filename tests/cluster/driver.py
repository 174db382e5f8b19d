"""A driver on the cluster, in a process of its own. Prints `RESULT` and what it found as JSON.

python driver.py enrich URL FOLDER           build, a batch query, a scan of Parquet, and a streaming query whose task waits
                                             in file HELD until FOLDER/go is there, after it has written its pid to FOLDER/held
python driver.py unreachable URL FOLDER      the same with a table in FOLDER/hidden, where the workers see an empty folder
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from tests.cluster.data import BATCHES, FILES, FILES_PER_BATCH, HELD, PRODUCTS, SALES
from tests.cluster.standalone import SETTINGS
from tests.spark.running import same_rows, write_files

import millrace as mr
from millrace.relations.build import build_table


def session(url: str, folder: Path) -> SparkSession:
    builder = SparkSession.builder.master(url).appName("millrace-cluster")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.local.dir", str(folder / "driver-local"))
    spark = builder.config("spark.sql.warehouse.dir", str(folder / "driver-warehouse")).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def enrich(spark: SparkSession, folder: Path) -> dict[str, Any]:
    pq.write_table(PRODUCTS, folder / "products.parquet")
    source = write_files(SALES, folder / "sales", FILES)
    products, sales = spark.read.parquet(str(folder / "products.parquet")), spark.read.parquet(str(source))
    table = mr.MasterTable.build(products, "id", folder / "table", shards=4, page_bytes=4096)
    expected = sales.join(products, "id", "left").select("n", "id", "file", "name", "price").toArrow()

    watch = Observation()
    batch = mr.enrich(sales, table, "id", how="left", observation=watch).toArrow()
    scanned = mr.enrich(sales, mr.ParquetTable(folder / "products.parquet"), "id", how="left").toArrow()
    query = stream(spark, folder, mr.enrich(files(spark, source), table, "id", how="left"), held=True)
    written = spark.read.parquet(str(folder / "out")).toArrow()
    return {
        "table_bytes": table.latest.bytes,
        "copies": sorted(f"{table.latest.index_checksum}-{shard.file}" for shard in table.latest.shards),
        "batch": bool(same_rows(batch, expected)),
        "scanned": bool(same_rows(scanned, expected)),
        "streamed": bool(same_rows(written.select(expected.column_names), expected)),
        "batch_report": counts(mr.reports(watch)[0]),
        "reports": [counts(report) for report in mr.reports(query) if report.rows_in],
        "copied_bytes": sum(report.copied_bytes for report in [*mr.reports(watch), *mr.reports(query)]),
        "remote_shards": max(report.remote_shards for report in [*mr.reports(watch), *mr.reports(query)]),
    }


def files(spark: SparkSession, source: Path) -> DataFrame:
    schema = spark.read.parquet(str(source)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(str(source))


def stream(spark: SparkSession, folder: Path, rows: DataFrame, *, held: bool) -> Any:
    mark, go = str(folder / "held"), str(folder / "go")

    @F.udf("long")
    def hold(file: int) -> int:
        if file == HELD and not os.path.exists(mark):
            with open(mark + ".draft", "w") as draft:
                draft.write(str(os.getpid()))
            os.rename(mark + ".draft", mark)
            while not os.path.exists(go):
                time.sleep(0.02)
        return file

    if held:
        rows = rows.withColumn("file", hold("file"))
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "out"))
    query.awaitTermination()
    assert len(list((folder / "checkpoint" / "commits").glob("[0-9]*"))) == BATCHES
    return query


def counts(report: mr.BatchReport) -> list[int]:
    report.ledger.check()
    return [report.rows_in, report.matched, report.counts.absent_keys, report.counts.null_keys, report.counts.matches]


def unreachable(spark: SparkSession, folder: Path) -> dict[str, Any]:
    source = write_files(SALES, folder / "sales", FILES)
    sales = spark.read.parquet(str(source))
    hidden = folder / "hidden"
    build_table(hidden / "table", PRODUCTS, "id")
    (hidden / "lake").mkdir()
    pq.write_table(PRODUCTS, hidden / "lake" / "products.parquet")
    table = mr.MasterTable.open(hidden / "table")
    attempts = {
        "batch": lambda: mr.enrich(sales, table, "id").toArrow(),
        "stream": lambda: stream(spark, folder, mr.enrich(files(spark, source), table, "id"), held=False),
        "parquet": lambda: mr.enrich(sales, mr.ParquetTable(hidden / "lake"), "id").toArrow(),
        "build": lambda: mr.MasterTable.build(sales, "n", hidden / "new"),
    }
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except Exception as failed:
            error = mr.task_error(failed)
            said[name] = [type(error).__name__, str(error) if error is not None else str(failed)]
    said["left"] = sorted(path.name for path in (hidden / "new").iterdir()) if (hidden / "new").exists() else []
    said["written"] = sorted(path.name for path in (folder / "out").glob("*.parquet"))
    return said


if __name__ == "__main__":
    work, url, place = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    place.mkdir(parents=True, exist_ok=True)
    spark = session(url, place)
    try:
        found = {"enrich": enrich, "unreachable": unreachable}[work](spark, place)
    finally:
        spark.stop()
    print("RESULT " + json.dumps(found), flush=True)
