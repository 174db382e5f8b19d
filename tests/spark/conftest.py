"""One lazy Spark session for all tests, small and quiet; what a test leaves behind is cleared away."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # tests are short: less compiling, half the time
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


@pytest.fixture(scope="session")
def spark_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    scratch = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2]").appName("millrace-tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.local.dir", str(scratch / "local"))
    session = builder.config("spark.sql.warehouse.dir", str(scratch / "warehouse")).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def spark(spark_session: SparkSession) -> Iterator[SparkSession]:
    """The session; queries, cached data and settings of a test do not outlive it."""
    before = dict(spark_session.conf.getAll)
    yield spark_session
    for query in spark_session.streams.active:
        query.stop()
    spark_session.catalog.clearCache()
    after = dict(spark_session.conf.getAll)
    for name in after.keys() | before.keys():
        if after.get(name) == before.get(name):
            continue
        if name in before:
            spark_session.conf.set(name, before[name])
        else:
            spark_session.conf.unset(name)


@pytest.fixture
def interpreted(spark: SparkSession) -> None:
    """For tests of many small queries: compiling each would take longer than running it. Settings are reset afterwards."""
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """A folder for tables."""
    return tmp_path / "warehouse"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system than the tables."""
    folder = Path("/dev/shm") / f"millrace-test-{uuid.uuid4().hex}"
    folder.mkdir()
    if folder.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("this machine has one file system only")
    yield folder
    shutil.rmtree(folder)
