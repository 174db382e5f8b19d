"""A standalone Spark cluster and a Spark Connect server on this machine, from the pip package, and none of it left behind.

Every worker has folders of its own for Spark and for local copies of shards, and may be blind to a folder: it sees an empty one
there, as on a machine that has not mounted it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyspark
from tests.spark.running import wait_until

import millrace

HOST = "127.0.0.1"
SCRATCH = "MILLRACE_TEST_SCRATCH"  # in the environment of a worker: its own folder on another file system than the tables
_HOME = Path(pyspark.__file__).parent
_SOURCE = str(Path(millrace.__file__).parents[1])
_ROOT = Path(__file__).parents[2]
_MEMORY_FILES = Path("/dev/shm")

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.driver.memory": "800m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.memory": "600m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executorEnv.PYTHONPATH": _SOURCE,  # what executors need to import millrace where it is not installed
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # no job before both executors are there
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.cores.max": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.files.openCostInBytes": str(128 << 20),  # a task for every file
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    "spark.millrace.localDir": f"${SCRATCH}/shards",
}


@dataclass
class _Started:
    process: subprocess.Popen[bytes]
    log: Path


@dataclass
class Worker(_Started):
    scratch: Path

    @property
    def copies(self) -> list[str]:
        """Names of the shards that it has copied."""
        return sorted(path.name for path in (self.scratch / "shards").glob("*.pages"))


class Program:
    """A module of this folder, run in a process of its own; its result is a line of JSON."""

    def __init__(self, module: str, *arguments: object) -> None:
        command = [sys.executable, "-m", f"tests.cluster.{module}", *map(str, arguments)]
        paths = os.pathsep.join([_SOURCE, str(_ROOT)])
        variables = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_")} | {"PYTHONPATH": paths}
        self.process = subprocess.Popen(
            command, cwd=_ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def result(self) -> Any:
        output, _ = self.process.communicate()
        assert self.process.returncode == 0, output[-6000:]
        (line,) = [line for line in output.splitlines() if line.startswith("RESULT ")]
        return json.loads(line.removeprefix("RESULT "))

    def stop(self) -> None:
        _stop([self.process])


class Cluster:
    """A master and two workers, each with room for one executor of one core."""

    def __init__(self, folder: Path, *, hidden: Path | None = None) -> None:
        self._folder = folder
        self._scratch = _MEMORY_FILES / f"millrace-test-{os.getpid()}-{folder.name}"
        self._processes: list[_Started] = []
        self.workers: list[Worker] = []
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._start(hidden)
        except BaseException:
            self.stop()
            raise

    def _start(self, hidden: Path | None) -> None:
        ports = ["--host", HOST, "--port", "0", "--webui-port", "0"]
        master = self._run("master", ["org.apache.spark.deploy.master.Master", *ports])
        self.url = self.said(master, r"Starting Spark master at (spark://\S+)")
        self.said(master, r"(New state: ALIVE)")
        for number in range(2):
            name = f"worker-{number}"
            scratch = self._scratch / name
            scratch.mkdir(parents=True)
            room = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / name / "work")]
            environment = {SCRATCH: str(scratch), "SPARK_LOCAL_DIRS": str(self._folder / name / "local")}
            started = self._run(name, ["org.apache.spark.deploy.worker.Worker", *ports, *room, self.url], environment, hidden)
            self.workers.append(Worker(started.process, started.log, scratch))
        for worker in self.workers:
            self.said(worker, r"(Successfully registered with master)")

    def connect_server(self) -> str:
        """Start a Spark Connect server whose executors are those of this cluster; where it listens."""
        settings = {**SETTINGS, "spark.master": self.url, "spark.connect.grpc.binding.port": "0"}
        settings |= {"spark.connect.grpc.binding.address": HOST, "spark.local.dir": str(self._folder / "connect" / "local")}
        settings |= {"spark.sql.warehouse.dir": str(self._folder / "connect" / "warehouse")}
        options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        server = "org.apache.spark.sql.connect.service.SparkConnectServer"
        submit = ["org.apache.spark.deploy.SparkSubmit", "--class", server, *options, "spark-internal"]
        started = self._run("connect", submit, {"SPARK_DAEMON_MEMORY": SETTINGS["spark.driver.memory"]})
        port = self.said(started, r"Spark Connect server started at:? \S*?:(\d+)")
        return f"sc://{HOST}:{port}"

    def family(self) -> list[psutil.Process]:
        """All processes that are there because of this cluster."""
        mine = [psutil.Process(started.process.pid) for started in self._processes if started.process.poll() is None]
        found = list(mine)
        for one in mine:
            with suppress(psutil.NoSuchProcess):
                found += one.children(recursive=True)
        return found

    def _run(
        self, name: str, command: Sequence[str], environment: dict[str, str] | None = None, hidden: Path | None = None
    ) -> _Started:
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        whole = [str(_HOME / "bin" / "spark-class"), *command]
        if hidden is not None:
            whole = blind(hidden, whole)
        daemon = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
        python = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": _SOURCE}
        variables = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
        variables |= {"SPARK_HOME": str(_HOME), "SPARK_LOG_DIR": str(folder), **daemon, **python, **(environment or {})}
        log = folder / "log"
        with open(log, "wb") as output:
            process = subprocess.Popen(
                whole, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=variables, cwd=folder
            )
        started = _Started(process, log)
        self._processes.append(started)
        return started

    def said(self, started: _Started, pattern: str) -> str:
        """Wait until a process has logged something, and return what the pattern's group is."""

        def found() -> re.Match[str] | None:
            text = started.log.read_text(errors="replace")
            assert started.process.poll() is None, f"{started.log} ended:\n{text[-4000:]}"
            return re.search(pattern, text)

        return wait_until(found, seconds=120, what=f"{pattern!r} in {started.log}").group(1)

    def executors(self) -> set[int]:
        """Executors are children of workers; what is left of the script that started a worker may be one too."""
        children = [child for worker in self.workers for child in psutil.Process(worker.process.pid).children()]
        return {child.pid for child in children if _is_executor(child)}

    def executor_of(self, pid: int) -> int:
        """The executor that a Python worker belongs to."""
        executors = self.executors()
        (found,) = [parent.pid for parent in psutil.Process(pid).parents() if parent.pid in executors]
        return found

    def stop(self) -> None:
        """End everything that was started, and what that has started, and remove what it wrote beside `folder`."""
        _stop([started.process for started in reversed(self._processes)])
        self._processes, self.workers = [], []
        shutil.rmtree(self._scratch, ignore_errors=True)


def _is_executor(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):  # a zombie is none either
        return any(part.endswith("ExecutorBackend") for part in process.cmdline())
    return False


def blind(folder: Path, command: Sequence[str]) -> list[str]:
    """The command, run where `folder` is an empty one."""
    script = f"mount -t tmpfs tmpfs {shlex.quote(str(folder))} && exec {shlex.join(command)}"
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]


def can_blind(folder: Path) -> bool:
    return subprocess.run(blind(folder, ["true"]), capture_output=True, check=False).returncode == 0


def _stop(processes: Sequence[subprocess.Popen[Any]]) -> None:
    """First ask, parents before what they look after, then insist; children that have left their group are found too."""
    family: list[psutil.Process] = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            family += psutil.Process(process.pid).children(recursive=True)
        process.terminate()
    for process in processes:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    _, left = psutil.wait_procs(family, 10)
    for child in left:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(left, 10)
