"""The Python that Spark's workers run. It needs millrace.

Without `PYSPARK_PYTHON` Spark starts the first `python3` of the PATH. This may be another Python than that of the program: in
a notebook, or if a virtual environment is used without activating it. Workers on this machine therefore run the Python of the
program. For a cluster nothing is changed, because nothing is known about its hosts.
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
import subprocess
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from millrace.core.errors import MillraceError

if TYPE_CHECKING:  # `millrace doctor` asks for the problem of a Python where Spark is missing too
    from pyspark.sql import SparkSession

_log = logging.getLogger("millrace")
_SETTING = "PYSPARK_PYTHON"
_WAIT_SECONDS = 60.0
_PROBE = """
from importlib.util import find_spec
from platform import python_version
missing = [name for name in ("millrace", "pyarrow", "numba") if find_spec(name) is None]
print("has no " + missing[0] if missing else python_version())
"""


def use_this_python(session: SparkSession) -> None:
    """Let workers on this machine run this Python; a plain error if they can't."""
    context = local_context(session)
    if context is None or context.pythonExec == sys.executable or context._python_includes:
        return  # what was sent along with addPyFile, a worker finds in any Python
    problem = _known_problem(context.pythonExec, os.environ.get("PATH"), os.environ.get("PYTHONPATH"))
    if problem is None:
        return
    if not sys.executable or os.environ.get(_SETTING) == context.pythonExec:
        raise MillraceError(
            f"Spark's workers run {context.pythonExec}, which {problem}: before the session starts, say "
            f"os.environ[{_SETTING!r}] = sys.executable, or export {_SETTING}={sys.executable or 'a Python that has millrace'}"
        )
    _log.info("Spark's workers would run %s, which %s; from here on they run %s", context.pythonExec, problem, sys.executable)
    context.pythonExec = sys.executable


def local_context(session: SparkSession) -> Any:
    """The context of a session whose workers are children of this process; None for clusters and Spark Connect."""
    if not hasattr(session, "_jsparkSession"):
        return None
    context = session.sparkContext
    return context if context.master == "local" or context.master.startswith("local[") else None


@lru_cache(maxsize=16)
def _known_problem(command: str, path: str | None, modules: str | None) -> str | None:
    """`worker_problem`, asked once for each PATH and PYTHONPATH: another Python takes a moment to start."""
    return worker_problem(command)


def worker_problem(command: str) -> str | None:
    """What is wrong with a Python for workers; None if nothing is. Spark brings itself along."""
    found = shutil.which(command)
    if found is not None and _same_environment(found):
        return None
    try:
        said = subprocess.run([command, "-c", _PROBE], capture_output=True, text=True, check=False, timeout=_WAIT_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return "does not start"
    if said.returncode:
        return f"fails: {(said.stderr.strip().splitlines() or ['no message'])[-1]}"
    answer = said.stdout.strip()
    if answer.startswith("has no"):
        return answer
    mine = platform.python_version()
    return None if answer.split(".")[:2] == mine.split(".")[:2] else f"is Python {answer}, while this is {mine}"


def _same_environment(python: str) -> bool:
    """Whether a path leads to this Python and its packages. A virtual environment's Python is a link to another one, so the
    folder that holds the link counts too."""
    here = os.path.dirname(sys.executable or "/")
    return os.path.samefile(os.path.dirname(python), here) and os.path.realpath(python) == os.path.realpath(sys.executable)
