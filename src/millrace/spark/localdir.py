"""Where executors keep local copies of shards: two settings of the session.

spark.millrace.localDir        a folder on a disk of each executor; `$NAME` is a variable of the executor's environment
spark.millrace.localDirLimit   space that the copies may take, such as "50g"; default: half of the disk
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pyspark.sql import SparkSession

from millrace.core.budget import parse_bytes
from millrace.core.errors import ParameterError
from millrace.relations.localcopies import LocalCopies

FOLDER, LIMIT = "spark.millrace.localDir", "spark.millrace.localDirLimit"


@dataclass(frozen=True)
class LocalDir:
    """The settings, as they travel to the executors."""

    folder: str
    limit_bytes: int | None

    @staticmethod
    def of(session: SparkSession) -> LocalDir | None:
        folder, limit = session.conf.get(FOLDER, None), session.conf.get(LIMIT, None)
        if not folder:
            return None
        if not folder.startswith(("/", "$")):
            raise ParameterError(f"{FOLDER} must be an absolute path, the same on every executor; got {folder!r}")
        try:
            return LocalDir(folder, parse_bytes(limit) if limit else None)
        except ParameterError as wrong:
            raise ParameterError(f"{LIMIT}: {wrong}") from None

    def copies(self, table: Path) -> LocalCopies | None:
        """For a task: where to keep copies of this table. None if the table lies on the same disk: nothing to gain."""
        copies, device = _copies(self)
        return copies if table.stat().st_dev != device else None


@cache
def _copies(local: LocalDir) -> tuple[LocalCopies, int]:
    folder = os.path.expandvars(local.folder)
    if "$" in folder or not os.path.isabs(folder):
        host = socket.gethostname()
        raise ParameterError(f"{FOLDER} is {local.folder!r}, which names no folder on host {host}: set the variable there")
    return LocalCopies(Path(folder), local.limit_bytes), os.stat(folder).st_dev
