"""What a Python worker keeps between tasks: the rows that a table's stream wants most, and settings that did well.

A worker is used again for the next micro-batch, for whatever partition comes, so the rows are kept by the table's version and
the columns that are put out, not by partition. Spark ends a worker after a minute without work. So the rows are also written to
a file of the executor, now and then, from which a new worker starts. The file lies in a folder that goes with the application.

The rows of a task's tables count against the budget of the task. Rows of other tables are given up.

Settings are the rows of a group that fitted last, so that no task begins with a group that is given up again, and the share of
the memory that suits the front stage. They hold for the next task in this worker that joins the table in the same way; a new
worker begins with the plan.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import xxhash
from pyspark import SparkFiles

from millrace.core.protocols import JoinSpec, Relation
from millrace.joins import hot_file
from millrace.joins.cache_share import BETTER
from millrace.joins.cached import CachedJoin
from millrace.joins.front_stage import kept_schema
from millrace.joins.hot_rows import HotRows
from millrace.relations.stored import StoredRelation
from millrace.spark.plan import JoinPlan

_SAVE_SECONDS = 10.0  # between two writes of a file by one worker
_FILE_BYTES = 8 << 20
_FILES = 8
_KEPT = 2  # tables of other tasks whose rows stay for a while
_LATELY = 32  # tasks
_MOST_SETTINGS = 64  # kinds of joins and table versions
_hot: dict[str, HotRows] = {}
_saved: dict[str, float] = {}
_settings: dict[str, TaskSettings] = {}


@dataclass
class TaskSettings:
    """What tasks found out for one table. None: as planned."""

    group_rows: int | None = None  # that fitted last
    cache_share: float | None = None
    _tasks: int = 0
    _shown: dict[float, tuple[int, float]] = field(default_factory=dict)  # by share: the last task with it, seconds for a row

    def follow(self, share: float, promised: float, seconds: float) -> None:
        """A task with this share took so many seconds for a row; another share is promised to be better.

        A share that was tried lately counts by what it gave, so that shares do not go to and fro."""
        self._tasks += 1
        self._shown[round(share, 2)] = self._tasks, seconds
        lately = {one: took for one, (task, took) in self._shown.items() if self._tasks - task <= _LATELY}
        best = min(lately, key=lambda one: lately[one])
        if BETTER * lately[best] < seconds:
            self.cache_share = best
        elif promised != share and round(promised, 2) not in lately:
            self.cache_share = promised

    @staticmethod
    def of(plan: JoinPlan, relation: Relation) -> TaskSettings:
        """The settings of this worker for such a join with this version of the table."""
        asked, version = plan.asked, getattr(relation, "version", None)
        about = (
            asked.table.path, version.index_checksum if version is not None else "", asked.strategy, asked.shape, asked.on,
            asked.columns, asked.how, str(asked.condition), asked.front, plan.memory, plan.read,
        )  # fmt: skip
        found = _settings.pop(repr(about), None) or TaskSettings()
        for name in list(_settings)[: max(0, len(_settings) - _MOST_SETTINGS)]:
            del _settings[name]
        _settings[repr(about)] = found  # the newest stands last
        return found


@dataclass(frozen=True)
class FrontRows:
    """The rows of one table version for one kind of look-up, by their name in this worker."""

    name: str

    @staticmethod
    def of(relation: StoredRelation, spec: JoinSpec) -> FrontRows:
        """Rows are the same for the same version, columns and key; semi and anti joins keep one row of a key."""
        schema = kept_schema(relation, spec)
        about = f"{schema.to_string(show_field_metadata=False)} {spec.how in ('semi', 'anti')}"
        return FrontRows(f"{relation.version.index_checksum}-{xxhash.xxh3_64_hexdigest(about.encode())}")

    def take(self) -> HotRows | None:
        """The rows, which the task has for itself until it gives them back."""
        return _hot.pop(self.name, None)

    def warm(self, join: CachedJoin) -> bool:
        """Fill an empty front stage from the file, if there is one."""
        front, path = join.front, self._path()
        return front is not None and path is not None and not front.hot.keys and hot_file.load(path, front.hot, self.name)

    def give_back(self, hot: HotRows) -> None:
        """Keep rows for the next task, and write them to the file if that was not done lately."""
        for name in list(_hot)[: max(0, len(_hot) - _KEPT)]:
            del _hot[name]
        _hot[self.name] = hot
        path = self._path()
        if path is None or not hot.keys or time.monotonic() - _saved.get(self.name, -_SAVE_SECONDS) < _SAVE_SECONDS:
            return
        _saved[self.name] = time.monotonic()
        if hot_file.save(path, hot, self.name, min(_FILE_BYTES, hot.nbytes // 2)):
            hot_file.remove_old(path.parent, _FILES)

    def _path(self) -> Path | None:
        """The file of this executor; None outside of a Spark task."""
        root = getattr(SparkFiles, "_root_directory", None)
        return Path(root) / "millrace-front" / f"{self.name}.hot" if root else None
