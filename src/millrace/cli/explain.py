"""`millrace explain`: what an `enrich` of Parquet files would do, how fast, and whether it keeps up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from millrace.cli.session import local_session, require_spark
from millrace.core.errors import ParameterError, TableError
from millrace.relations.folder import table_exists
from millrace.relations.lakeformats import refuse_logged_tables
from millrace.relations.paths import local_path

_SHOWN_ROWS = (20_000, 200_000, 1_000_000)


@dataclass(frozen=True)
class ExplainOptions:
    """What the command was asked."""

    stream: Path
    table: Path
    on: str
    how: str = "inner"
    columns: str | None = None
    memory: str = "256m"
    strategy: str = "auto"
    read: str = "auto"
    partitions: int | None = None
    arrivals: float | None = None
    zipf: float | None = None
    sample: int | None = None


def run_explain(options: ExplainOptions, *, as_json: bool, console: Console) -> bool:
    """Print the plan and the forecast; returns False if an arrival rate was given and the join does not keep up."""
    stream, table = local_path(options.stream), local_path(options.table)
    for path in (stream, table):
        if not path.exists():
            raise TableError(
                f"there is no {path}; give Parquet files for the stream, and a table or Parquet files to join with"
            )
    refuse_logged_tables(stream, by_spark=True)
    on, columns = _keys(options.on), _names(options.columns) if options.columns is not None else None
    require_spark()
    import millrace as mr

    with TemporaryDirectory(prefix="millrace-spark-", ignore_cleanup_errors=True) as scratch, ExitStack() as session:
        with Console(stderr=True).status("starting Spark ..."):
            spark = session.enter_context(local_session(Path(scratch), driver_memory="1g", brief=True))
        found = mr.MasterTable.open(table) if table_exists(table) else mr.ParquetTable(table)
        explained = mr.explain(
            spark.read.parquet(str(stream.absolute())), found, on, options.how, columns=columns, memory=options.memory,
            strategy=options.strategy, read=options.read, partitions=options.partitions, skew=options.zipf,
            arrivals_per_second=options.arrivals, sample=options.sample,
        )  # fmt: skip
        if as_json:
            print(json.dumps(_as_json(explained), indent=2))
        else:
            console.print(str(explained), markup=False, highlight=False, soft_wrap=True)
    return explained.keeps_up is not False


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _keys(text: str) -> Sequence[str] | dict[str, str]:
    """`a,b`, or `stream=table` pairs."""
    names = _names(text)
    if not names:
        raise ParameterError("--on must name at least one column, such as --on product_id or --on id=product_id")
    if not any("=" in name for name in names):
        return names
    pairs = [name.partition("=") for name in names]
    return {mine.strip(): theirs.strip() or mine.strip() for mine, _, theirs in pairs}


def _as_json(explained: Any) -> dict[str, Any]:
    return {
        "strategy": explained.strategy,
        "tuples_per_second": explained.tuples_per_second,
        "seconds_per_batch": {rows: explained.seconds_per_batch(rows) for rows in _SHOWN_ROWS},
        "rows_per_batch": explained.rows_per_batch,
        "pages_per_1000_rows": explained.pages_per_1000_rows,
        "memory_split": explained.memory_split,
        "keeps_up": explained.keeps_up,
        "headroom": explained.headroom,
        "latency_seconds": explained.latency_seconds,
        "runner_up": explained.runner_up,
        "with_other_memory": explained.changes,
        "skew": str(explained.skew),
        "notes": explained.notes,
        "plan": str(explained.plan),
    }
