"""The Spark session that all contenders of a run share, and what it runs on."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from millrace.bench.memory import WORKER_TAG, machine_bytes
from millrace.bench.versions import versions_of
from millrace.core.errors import MillraceError

CORES = 2
SESSION_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(CORES),
    # Shuffle files of a finished micro-batch go at once; otherwise a large table fills the disk within a query.
    "spark.sql.classic.shuffleDependency.fileCleanup.enabled": "true",
}
PACKAGES = ("pyspark", "pyarrow", "numpy", "numba", "rocksdict", "redis", "hiredis")


@contextmanager
def spark_session(driver_memory: str, scratch: Path) -> Iterator[SparkSession]:
    """A local session of its own, closed at the end together with its JVM."""
    if SparkSession.getActiveSession() is not None:
        raise MillraceError("a Spark session is running in this process; run the benchmark in a process of its own.")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("millrace-bench")
    builder = builder.config("spark.driver.memory", driver_memory).config("spark.local.dir", str(scratch))
    for name, value in SESSION_SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Settings for the queries started in this block; what was there before comes back."""
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


@contextmanager
def fresh_workers(spark: SparkSession, tag: str) -> Iterator[None]:
    """Python workers that only this block's functions use, so that memory is nobody else's."""
    environment = spark.sparkContext.environment
    environment[WORKER_TAG] = tag
    try:
        yield
    finally:
        environment.pop(WORKER_TAG, None)


def jvm_pid(spark: SparkSession) -> int:
    return int(_jvm(spark).java.lang.ProcessHandle.current().pid())


def collect_garbage(spark: SparkSession) -> None:
    """Start the next query with a clean heap, and let Spark drop shuffle files nobody refers to."""
    _jvm(spark).java.lang.System.gc()


def describe_machine(spark: SparkSession, driver_memory: str) -> dict[str, Any]:
    """Versions and sizes that belong to every measurement."""
    return {
        "versions": {
            **versions_of(*PACKAGES),
            "java": str(_jvm(spark).java.lang.System.getProperty("java.version")),
        },
        "machine": {"cores": os.cpu_count(), "memory_bytes": machine_bytes(), "system": platform.system()},
        "session": {"master": f"local[{CORES}]", "spark.driver.memory": driver_memory, **SESSION_SETTINGS},
    }


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm
