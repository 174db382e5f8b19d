"""Builds in a process of their own, so that a test can kill one, or give it a session with other limits.

python -m tests.spark.buildjob long FOLDER         tables of long rows, on a driver that may be sent 1 MiB
python -m tests.spark.buildjob many FOLDER         a table of many rows, which takes a while
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

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


def many(folder: Path) -> None:
    """A build of several seconds."""
    spark = session("local[2]", folder)
    data = spark.range(3_000_000).selectExpr("id", "repeat(string(id), 10) AS text")
    mr.MasterTable.build(data, "id", folder / "table", shards=8)


if __name__ == "__main__":
    {"long": long, "many": many}[sys.argv[1]](Path(sys.argv[2]))
