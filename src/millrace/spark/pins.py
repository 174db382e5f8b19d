"""The table version of a batch inside `foreachBatch`: chosen once, the same when the batch is replayed.

The query that runs inside `foreachBatch` has a timestamp of its own, so the version can't follow from it. The first run of a
batch writes the version it saw into the table's folder, and whoever runs the batch again reads it there.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from pyspark.sql import SparkSession

from millrace.core.errors import TableError

_KEPT = 100  # pins of a query that are kept: Spark replays the last batch only


def batch_identity(spark: SparkSession) -> tuple[str, int] | None:
    """Query and batch, when this is called inside `foreachBatch`."""
    context = getattr(spark, "_sc", None)
    if context is None:
        return None
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    return (query, int(batch)) if query and batch else None


def pinned_version(table: Path, identity: tuple[str, int], number: int) -> int:
    """The version that the first run of this batch saw; `number` if this is the first. Whoever writes first wins."""
    query, batch = identity
    folder = table / "pins" / query
    pin = folder / f"{batch:012d}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{uuid.uuid4().hex}"
        draft.write_text(str(number))
        try:
            os.link(draft, pin)
        except FileExistsError:
            pass  # a run before this one has chosen
        finally:
            draft.unlink()
        for old in sorted(folder.glob("[0-9]*"))[:-_KEPT]:
            old.unlink(missing_ok=True)
        return int(pin.read_text())
    except OSError as refused:
        raise TableError(
            f"inside foreachBatch the version of a batch is kept in {folder}, and that can't be written ({refused}); "
            "make the table's folder writable for the driver"
        ) from refused
