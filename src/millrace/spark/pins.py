"""Pins: what the first run of a batch saw, written down, so that a second run of the batch sees the same.

A query inside `foreachBatch` has a timestamp of its own, so the version of a table can't follow from the time. The first run of
a batch writes the version that it saw into the table's folder. For a `ParquetTable` with `pins=` it writes the list of files.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from millrace.core.errors import ParameterError, TableError
from millrace.relations.parquet_files import ParquetSource, hidden
from millrace.relations.paths import local_path
from millrace.spark.planned import unreachable

_KEPT = 100  # pins of a query that are kept: Spark replays the last batch only
_MARK = "table.json"


def batch_identity(spark: SparkSession) -> tuple[str, int] | None:
    """Query and batch, when this is called inside `foreachBatch`."""
    context = getattr(spark, "_sc", None)
    if context is None:
        return None
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    return (query, int(batch)) if query and batch else None


def batch_name(batch: int) -> str:
    """The name of the pin of a batch inside `foreachBatch`."""
    return f"{batch:012d}"


def pinned_version(table: Path, identity: tuple[str, int], number: int) -> int:
    """The version that the first run of this batch saw; `number` if this is the first run. The first writer wins."""
    query, batch = identity
    folder = table / "pins" / query
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return int(_first_text(folder, batch_name(batch), lambda: str(number)))
    except OSError as refused:
        raise TableError(
            f"inside foreachBatch the version of a batch is kept in {folder}, and that can't be written ({refused}); "
            "make the table's folder writable for the driver"
        ) from refused


@dataclass(frozen=True)
class FilePins:
    """Lists of files of one Parquet table, in a folder that driver and executors share."""

    folder: str
    mark: str  # what the driver wrote there: an executor that does not find it sees another folder

    @classmethod
    def prepare(cls, folder: str, table: str) -> FilePins:
        """For the driver: a folder for this table among those that may share `folder`."""
        place = Path(folder) / f"{Path(table).name}-{hashlib.sha256(table.encode()).hexdigest()[:12]}"
        try:
            place.mkdir(parents=True, exist_ok=True)
            mark = _first_text(place, _MARK, lambda: json.dumps({"table": table, "mark": uuid.uuid4().hex}))
        except OSError as refused:
            raise TableError(
                f"pins={folder} can't be written ({refused}); give a folder that the driver may write"
            ) from refused
        return cls(str(place), mark)

    def files(self, query: str, name: str, list_now: Callable[[], tuple[ParquetSource, ...]]) -> tuple[ParquetSource, ...]:
        """The files that the first run of this batch saw; the files that `list_now` finds if this is the first run."""
        try:
            if Path(self.folder, _MARK).read_text() != self.mark:
                raise FileNotFoundError
        except FileNotFoundError:
            raise TableError(unreachable(self.folder, what="folder of pins")) from None
        folder = Path(self.folder, query)
        try:
            folder.mkdir(exist_ok=True)
            text = _first_text(folder, name, lambda: json.dumps([asdict(source) for source in list_now()]))
        except OSError as refused:
            raise TableError(
                f"the files of a batch are kept in {folder}, and that can't be written ({refused}); make the folder given as "
                "pins= writable for driver and executors"
            ) from refused
        return tuple(_source(one) for one in json.loads(text))


def pins_folder(given: str | Path, table: str) -> str:
    """The folder for pins, which must not be part of the table."""
    folder = local_path(given).absolute()
    inside = os.path.relpath(os.path.realpath(folder), os.path.realpath(table))
    parts = Path(inside).parts
    if parts[:1] != ("..",) and not any(hidden(part) for part in parts):
        raise ParameterError(
            f"pins={folder} lies among the files of {table}; give a folder elsewhere, or one whose name starts with _"
        )
    return str(folder)


def _source(plain: dict[str, object]) -> ParquetSource:
    partition = tuple((name, value) for name, value in plain.pop("partition"))  # type: ignore[attr-defined]
    return ParquetSource(**plain, partition=partition)  # type: ignore[arg-type]


def _first_text(folder: Path, name: str, make: Callable[[], str]) -> str:
    """The text of a pin, as its first writer wrote it. Older pins are removed."""
    pin = folder / name
    try:
        return pin.read_text()
    except FileNotFoundError:
        pass
    draft = folder / f".{uuid.uuid4().hex}"
    draft.write_text(make())
    try:
        os.link(draft, pin)
    except FileExistsError:
        pass  # another run has chosen
    finally:
        draft.unlink()
    for old in sorted(folder.glob("[0-9]*"))[:-_KEPT]:
        old.unlink(missing_ok=True)
    return pin.read_text()
