"""Builds in a process of their own, so that a test can kill one, or give it a session with other limits.

python -m tests.spark.buildjob long FOLDER         tables of long rows, on a driver that may be sent 1 MiB
python -m tests.spark.buildjob endless FOLDER      a build that never ends: its last row waits
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from pyspark.sql import functions as F
from tests.spark.job import session

import millrace as mr


def long(folder: Path) -> None:
    """Rows of 40 KB, of 1 MB, and of both: short ones first, so that what was measured is too small."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--conf spark.driver.maxResultSize=1m pyspark-shell"
    spark = session("local[2]", folder)
    assert spark.sparkContext.getConf().get("spark.driver.maxResultSize") == "1m"
    text = "repeat(sha2(string(id), 256), {})"
    frames = {
        "40k": spark.range(2_100).selectExpr("id", f"{text.format(640)} AS text"),
        "1m": spark.range(24).selectExpr("id", f"{text.format(16_384)} AS text"),
        "mixed": spark.range(4_000).selectExpr("id", f"{text.format('int(if(id < 3900, 1, 16384))')} AS text"),
    }
    for name, data in frames.items():
        version = mr.MasterTable.build(data, "id", folder / name, shards=2).latest
        print(name, version.rows, version.rows_per_page, version.pages)


def endless(folder: Path) -> None:
    """Leaves a mark when its tasks write, and waits for a file that nobody writes."""
    spark = session("local[2]", folder)
    mark, never = str(folder / "started"), str(folder / "never")

    @F.udf("string")
    def held(key: int) -> str:
        if key == 9_999:
            Path(mark).touch()
            while not Path(never).exists():
                time.sleep(0.05)
        return "x" * 900

    # `held` runs behind the sort, in the tasks that write
    data = spark.range(10_000)
    data.write.parquet(str(folder / "source"))
    rows = spark.read.parquet(str(folder / "source")).where("id >= 0").withColumn("text", held("id"))
    mr.MasterTable.build(rows, "id", folder / "table", shards=2)


if __name__ == "__main__":
    {"long": long, "endless": endless}[sys.argv[1]](Path(sys.argv[2]))
