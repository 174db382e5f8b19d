"""A Spark Connect client, in a process of its own. Prints `RESULT` and what it found as JSON.

python connect_job.py URL FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation, SparkSession
from tests.cluster.data import FILES, PRODUCTS, SALES
from tests.cluster.driver import counts, files
from tests.spark.running import SPARK_HOW, same_rows, write_files

import millrace as mr

COPIES = {"unique": 1, "few": 3, "many": 20}


def main(spark: SparkSession, folder: Path) -> dict[str, Any]:
    source = write_files(SALES, folder / "sales", FILES)
    sales = spark.read.parquet(str(source))
    found: dict[str, Any] = {}
    for shape, copies in COPIES.items():
        lake = folder / f"{shape}.parquet"
        pq.write_table(pa.concat_tables([PRODUCTS] * copies), lake)
        products = spark.read.parquet(str(lake))
        table = mr.MasterTable.build(products, "id", folder / shape, shards=2)
        for how in ("left", "anti") if shape == "unique" else ("inner",):
            expected = sales.join(products, "id", SPARK_HOW[how])
            found[f"{shape} {how}"] = checked(sales, table, how, expected)
        found[f"{shape} streamed"] = streamed(spark, source, table, folder / f"{shape}-stream")
        expected = sales.join(products, "id", "left")
        written = spark.read.parquet(str(folder / f"{shape}-stream" / "out")).select(expected.columns)
        found[f"{shape} streamed"]["same"] = bool(same_rows(written, expected))
    lake = mr.ParquetTable(folder / "unique.parquet")
    found["parquet left"] = checked(sales, lake, "left", sales.join(spark.read.parquet(lake.path), "id", "left"))
    found["lookups"] = lookups(sales, folder)
    found["explained"] = explained(sales, folder)
    found["hot keys"] = hot_keys(spark, source, folder)
    found["foreach"] = foreach(spark, source, folder)
    found["errors"] = errors(spark, sales, folder)
    return found


def explained(sales: DataFrame, folder: Path) -> dict[str, Any]:
    table = mr.MasterTable.open(folder / "unique")
    one = mr.explain(sales, table, "id", "left", read="direct", memory="8m", arrivals_per_second=1_000, sample=1_000)
    sent = mr.enrich(sales, table, "id", "left", strategy="broadcast").count()
    return {
        "strategy": one.strategy, "keeps_up": one.keeps_up, "rate": one.tuples_per_second, "rows": one.enrich().count(),
        "sampled": "in a sample of" in str(one), "broadcast": sent,
    }  # fmt: skip


def checked(sales: DataFrame, table: Any, how: str, expected: DataFrame) -> dict[str, Any]:
    watch = Observation(f"watch {how}")
    rows = mr.enrich(sales, table, "id", how=how, observation=watch).select(expected.columns).toArrow()
    (report,) = mr.reports(watch)
    return {"same": bool(same_rows(rows, expected)), "report": counts(report)}


def streamed(spark: SparkSession, source: Path, table: mr.MasterTable, folder: Path) -> dict[str, Any]:
    enriched = mr.enrich(files(spark, source), table, "id", how="left", name="sales")
    writer = enriched.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "out"))
    query.awaitTermination()
    reports = [report for report in mr.reports(query) if report.rows_in]
    return {"reports": [counts(report) for report in reports], "names": [report.name for report in reports]}


def lookups(sales: DataFrame, folder: Path) -> bool:
    one, other = mr.MasterTable.open(folder / "unique"), mr.MasterTable.open(folder / "few")
    both = mr.enrich(sales, [mr.Lookup(one, "id", columns={"name": "a"}), mr.Lookup(other, "id", columns={"price": "b"})])
    chained = mr.enrich(mr.enrich(sales, one, "id", columns={"name": "a"}), other, "id", columns={"price": "b"})
    return bool(same_rows(both, chained))


def hot_keys(spark: SparkSession, source: Path, folder: Path) -> dict[str, list[Any]]:
    """The last digits of the ids, most frequent first, counted by an observation and over a streaming query."""
    found = {}
    for shape in ("unique", "many"):
        table, watch = mr.MasterTable.open(folder / shape), Observation()
        batch = spark.read.parquet(str(source)).selectExpr("id % 10 AS digit")
        mr.enrich(batch, table, ("digit", "id"), how="left", hot_keys=20, observation=watch).count()
        stream = files(spark, source).selectExpr("id % 10 AS digit")
        writer = mr.enrich(stream, table, ("digit", "id"), how="left", hot_keys=20).writeStream.format("noop")
        checkpoint = str(folder / f"{shape}-hot-checkpoint")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        for way, hot in ((f"{shape} observed", mr.hot_keys(watch)), (f"{shape} streamed", mr.hot_keys(query))):
            found[way] = [hot.rows, hot.null_keys, sorted([one.key, one.rows, one.at_most] for one in hot)]
    return found


def foreach(spark: SparkSession, source: Path, folder: Path) -> int:
    table, out = str(folder / "unique"), str(folder / "foreach")

    def write(batch: DataFrame, number: int) -> None:
        mr.enrich(batch, mr.MasterTable.open(table), "id", how="left").write.mode("append").parquet(out)

    writer = files(spark, source).writeStream.foreachBatch(write).option("checkpointLocation", f"{out}-checkpoint")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return spark.read.parquet(out).where("name IS NOT NULL").count()


def errors(spark: SparkSession, sales: DataFrame, folder: Path) -> dict[str, list[str]]:
    table = mr.MasterTable.open(folder / "unique")

    def damaged() -> None:
        mr.MasterTable.build(spark.read.parquet(str(folder / "unique.parquet")), "id", folder / "bad", shards=1)
        (shard,) = (folder / "bad").glob("v*/*.pages")
        with open(shard, "r+b") as file:
            file.seek(500)
            file.write(b"\xff" * 8)
        mr.enrich(sales, mr.MasterTable.open(folder / "bad"), "id").toArrow()

    unseen = Observation("unseen")
    attempts: dict[str, Callable[[], Any]] = {
        "missing column": lambda: mr.enrich(sales, table, "nothing"),
        "small budget": lambda: mr.enrich(sales, table, "id", memory=1000),
        "no action": lambda: (mr.enrich(sales, table, "id", observation=unseen), mr.reports(unseen)),
        "damaged": damaged,
    }
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except Exception as failed:
            error = mr.task_error(failed)
            said[name] = [type(error).__name__, str(error) if error is not None else str(failed)]
    return said


if __name__ == "__main__":
    place = Path(sys.argv[2])
    place.mkdir(parents=True, exist_ok=True)
    session = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
    try:
        answer = main(session, place)
    finally:
        session.stop()
    print("RESULT " + json.dumps(answer), flush=True)
