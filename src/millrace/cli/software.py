"""Checks of what millrace runs on: Python, Java, packages, compiled kernels, Spark and its Python workers."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from millrace.cli.findings import Finding
from millrace.core.arrays import Int64Array
from millrace.core.errors import MillraceError
from millrace.spark.workers import worker_problem

LEAST_PYTHON = (3, 11)
JAVA_VERSIONS = (17, 21)
LEAST_VERSIONS = {"pyspark": (4, 1), "pyarrow": (20, 0), "numba": (0, 61), "pandas": (2, 2)}
_FROM_EXTRA = {"pyspark", "pandas"}
_WAIT_SECONDS = 60.0
_JAVA_ADVICE = "install Java 17 or 21 (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) and point JAVA_HOME to it"


def check_python() -> list[Finding]:
    found = f"{platform.python_version()} at {sys.executable}"
    values = {"version": platform.python_version(), "executable": sys.executable}
    if sys.version_info < LEAST_PYTHON:
        return [Finding("python", "fail", found, f"install Python {LEAST_PYTHON[0]}.{LEAST_PYTHON[1]} or newer", values)]
    return [Finding("python", "ok", found, values=values)]


def check_java() -> list[Finding]:
    """The java that Spark will start: that of JAVA_HOME if set, else the first java on the PATH."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if command is None:
        return [Finding("java", "fail", "not on the PATH, and JAVA_HOME is not set", _JAVA_ADVICE)]
    where = f"{command} ({'from JAVA_HOME' if home else 'from the PATH'})"
    try:
        said = subprocess.run([command, "-version"], capture_output=True, text=True, check=True, timeout=_WAIT_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return [Finding("java", "fail", f"{where} does not start", _JAVA_ADVICE)]
    major = java_major(said.stderr + said.stdout)
    found, values = f"{major or 'unknown version'} at {where}", {"major": major, "command": command}
    if major in JAVA_VERSIONS:
        return [Finding("java", "ok", found, values=values)]
    if major is not None and major > max(JAVA_VERSIONS):
        return [Finding("java", "warn", found, "millrace is tested with Java 17 and 21", values)]
    return [Finding("java", "fail", found, _JAVA_ADVICE, values)]


def java_major(banner: str) -> int | None:
    """The major version in what `java -version` prints.

    >>> java_major('openjdk version "17.0.15" 2025-04-15'), java_major('java version "1.8.0_402"'), java_major("no")
    (17, 8, None)
    """
    found = re.search(r'version "(?:1\.)?(\d+)', banner)
    return int(found[1]) if found else None


def check_packages() -> list[Finding]:
    return [*(_package(name, least) for name, least in LEAST_VERSIONS.items()), *_other_millrace()]


def _package(name: str, least: tuple[int, int]) -> Finding:
    wanted = f"{name}>={least[0]}.{least[1]}"
    advice = "pip install 'millrace-spark[spark]'" if name in _FROM_EXTRA else f"pip install '{wanted}'"
    try:
        found = version(name)
    except PackageNotFoundError:
        return Finding(name, "fail", "not installed", advice)
    if release(found) < least:
        return Finding(name, "fail", f"{found}, too old", advice, {"version": found})
    if name == "pandas" and release(found) >= (3, 0):
        return Finding(name, "warn", found, "PySpark warns with pandas 3: pip install 'pandas<3'", {"version": found})
    return Finding(name, "ok", found, values={"version": found})


def _other_millrace() -> list[Finding]:
    """On PyPI, `millrace` is another product, whose files have the names of ours: whichever is installed last wins."""
    try:
        files = distribution("millrace").files or []
    except PackageNotFoundError:
        return []
    if not any(str(file) == "millrace/__init__.py" for file in files):
        return []  # a checkout under the name it had before: it only points to the sources
    found = f"the distribution 'millrace' {version('millrace')} is another product and takes the same name for its import"
    advice = "pip uninstall millrace && pip install --force-reinstall --no-deps millrace-spark"
    return [Finding("millrace", "fail", found, advice)]


def release(text: str) -> tuple[int, int]:
    """The first two numbers of a version.

    >>> release("4.1.0.dev2"), release("26")
    ((4, 1), (26, 0))
    """
    major, minor = [*re.findall(r"\d+", text), "0", "0"][:2]
    return int(major), int(minor)


def check_kernels() -> list[Finding]:
    """Compiles a kernel, or loads it from numba's cache."""
    before = time.perf_counter()
    try:
        result = _kernel_sum()
    except Exception as failed:
        advice = "make a folder for numba's cache writable, or name one: NUMBA_CACHE_DIR"
        return [Finding("kernels", "fail", f"numba can't compile: {type(failed).__name__}: {failed}", advice)]
    if result != 10:
        return [Finding("kernels", "fail", f"a kernel gives {result} for 10", "reinstall numba and llvmlite")]
    return [Finding("kernels", "ok", f"compiled and right, {time.perf_counter() - before:.1f} s")]


def _kernel_sum() -> int:
    import numpy as np

    from millrace.core.compiled import kernel

    @kernel
    def total(values: Int64Array) -> int:
        result = 0
        for value in values:
            result += value
        return result

    return int(total(np.arange(5)))


def check_workers() -> list[Finding]:
    """The Python of Spark's workers. It needs millrace, pyarrow and this Python's version. With a local master, `enrich` and
    `build` choose such a Python, unless the user has named another."""
    named = os.environ.get("PYSPARK_PYTHON")
    shown = f"PYSPARK_PYTHON={named}" if named else "PYSPARK_PYTHON is not set, so Spark takes python3 of the PATH"
    problem = worker_problem(named or "python3")
    if problem is None:
        return [Finding("workers", "ok", f"{shown}: has millrace and pyarrow")]
    export = f"export PYSPARK_PYTHON={sys.executable} before you start your own sessions"
    if named:
        advice = f"{export} (millrace's commands do so themselves)"
        return [Finding("workers", "fail", f"{shown}, and that {problem}", advice)]
    found = f"{shown}, and that {problem}; with a local master, enrich and build give workers this Python by themselves"
    advice = (
        f"for Python UDFs that run before enrich or build: {export}; on a cluster, name a Python of its hosts that has millrace"
    )
    return [Finding("workers", "note", found, advice)]


def check_spark_job(scratch: Path) -> list[Finding]:
    """Start Spark, and send a few rows through Python workers."""
    from millrace.cli.session import local_session

    before = time.perf_counter()
    try:
        with local_session(scratch, driver_memory="1g", brief=True) as spark:
            started = time.perf_counter() - before
            rows = spark.range(0, 1000, 1, 2).mapInArrow(_same, "id long").count()
    except MillraceError as failed:
        return [Finding("spark job", "fail", str(failed), "correct what is said there")]
    except Exception as failed:
        advice = "run `millrace --debug doctor` for all of Spark's messages"
        return [Finding("spark job", "fail", str(failed).strip().splitlines()[0], advice)]
    if rows != 1000:
        return [Finding("spark job", "fail", f"{rows} of 1000 rows came back from mapInArrow", "reinstall pyspark and pyarrow")]
    seconds = time.perf_counter() - before
    found = f"1000 rows through mapInArrow; Spark started in {started:.1f} s, all of it took {seconds:.1f} s"
    return [Finding("spark job", "ok", found, values={"start_seconds": started, "seconds": seconds})]


def _same(batches: Iterator[object]) -> Iterator[object]:
    yield from batches
