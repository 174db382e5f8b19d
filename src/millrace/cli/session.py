"""The local Spark session of a command: quiet, in UTC, with the Python of the command. It leaves no trace."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from millrace.core.errors import MillraceError
from millrace.spark.failures import task_error

DEBUG = "MILLRACE_DEBUG"
LOG_FILE = "spark.log"
_STOP_SECONDS = 20.0


def debugging() -> bool:
    """Whether tracebacks and Spark's own messages are wanted."""
    return os.environ.get(DEBUG, "") not in ("", "0", "false")


def require_spark() -> None:
    """If Spark is missing, raise an error that says what to install."""
    try:
        import pyspark  # noqa: F401
    except ModuleNotFoundError:
        raise MillraceError("this command needs Spark, which is not installed: pip install 'millrace-spark[spark]'") from None


@contextmanager
def local_session(scratch: Path, *, driver_memory: str = "2g", brief: bool = False) -> Iterator[Any]:
    """A Spark session on all cores of this machine, stopped at the end together with its JVM.

    `brief` is for work of less than a minute: the JVM compiles quickly rather than well.

    `scratch`: folder for Spark's temporary files and the JVM's log; the caller removes it. A session that already runs in this
    process is used as it is and left running.
    """
    require_spark()
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    before = _children()
    try:
        yield _start(scratch, _settings(scratch, driver_memory, brief))
    except Exception as failed:
        if not of_spark(failed):
            raise
        raise MillraceError(spark_message(failed)) from failed
    finally:
        with uninterrupted():
            _stop(_children() - before)


def of_spark(error: Exception) -> bool:
    return type(error).__module__.split(".")[0] in ("pyspark", "py4j")


def spark_message(error: Exception) -> str:
    """Spark's message of an error, in one line unless more is wanted. The JVM must still run."""
    if debugging():
        return str(error)
    said = task_error(error)
    if said is not None:
        return str(said)
    java = getattr(error, "java_exception", None)
    text = str(error) if java is None else str(java.toString())
    return f"Spark failed: {text.strip().splitlines()[0]} (millrace --debug shows all of it)"


def _start(scratch: Path, settings: dict[str, str]) -> Any:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    # Workers must run the Python that has millrace; Spark would take the first python3 of the PATH.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    conf = SparkConf().setAll(list(settings.items()))
    log = scratch / LOG_FILE
    try:
        with open(log, "wb") as output:
            streams = {} if debugging() else {"stdout": output, "stderr": subprocess.STDOUT}
            gateway = launch_gateway(conf, streams)
        context = SparkContext(conf=conf, gateway=gateway)
    except (OSError, PySparkException) as failed:
        raise MillraceError(_why_not(log, failed)) from failed
    context.setLogLevel("WARN" if debugging() else "ERROR")
    _keep_signals_plain()
    return SparkSession(context)


def _settings(scratch: Path, driver_memory: str, brief: bool) -> dict[str, str]:
    java = [f'"-Djava.io.tmpdir={scratch}"', *(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"] if brief else [])]
    return {
        "spark.master": "local[*]",
        "spark.app.name": "millrace",
        "spark.driver.memory": driver_memory,
        "spark.driver.extraJavaOptions": " ".join(java),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "spark-warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
    }


def _keep_signals_plain() -> None:
    """Take back the SIGINT handler that Spark installed: it would call the JVM while another call may be under way."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not debugging():
        # py4j logs an interrupted call, with traceback, to the root logger; a handler there keeps it off the terminal.
        logging.getLogger().addHandler(logging.NullHandler())


def _stop(children: set[psutil.Process]) -> None:
    """Stop the session and then the JVM, started or half-started, so that nothing writes into `scratch` any more."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    running = SparkSession._instantiatedSession or SparkContext._active_spark_context
    if running is not None:
        running.stop()
    if SparkContext._gateway is not None:
        SparkContext._gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = None
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.terminate()
    _, alive = psutil.wait_procs(children, _STOP_SECONDS)
    for child in alive:
        child.kill()
    psutil.wait_procs(alive, _STOP_SECONDS)


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children())


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A second Ctrl-C must not cut the clean-up short."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _why_not(log: Path, failed: Exception) -> str:
    """Why Spark did not start: Java, if Java is the cause; else the last line of the JVM."""
    from millrace.cli.software import check_java

    for finding in check_java():
        if finding.status == "fail":
            return f"Spark did not start, java: {finding.found}; {finding.advice}"
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "Exception" in line]
    return f"Spark did not start: {(telling or lines or [str(failed)])[-1]}; run `millrace doctor`"
