"""`millrace bench enrich-auto`: whether `strategy="auto"` takes the right join on Spark, and what `mr.explain` expects.

1. This machine is calibrated with Spark, as by `millrace tune --calibrate --spark`.
2. In each workload (read mode x memory x rows of a micro-batch) `mr.explain` is asked about all joins. The three it expects
   to be fastest, the join that auto takes, and `sweepjoin` run as streaming queries that get each micro-batch in turn. Of joins
   that do the same, as where keys are looked up in memory at once, one runs.
3. The time of auto's join is divided by that of the best one (addBatch). The time that was expected is compared with that of
   the whole trigger, from looking for new files to the commit.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from rich.table import Table

from millrace.bench.data import StreamFiles, warm_page_cache
from millrace.bench.enrich.contenders import Workload, open_master_table
from millrace.bench.enrich.in_turn import QUIET, batch_seconds, run_in_turn
from millrace.bench.enrich.measure import Progress, folders, prepared
from millrace.bench.enrich.microbatch import CLOCK
from millrace.bench.enrich.results import OK, Result
from millrace.bench.options import EnrichOptions
from millrace.catalog import ALGORITHMS
from millrace.core.calibration import FOLDER_VARIABLE
from millrace.core.errors import BudgetError

READS = ("mmap", "direct")
MEMORY = ("32m", "128m")
GOOD = 1.15  # times the best
CLOSE = 0.25  # of the measured time
_MOST_RIVALS = 3
_ALWAYS = "sweepjoin"
_HEADINGS = (
    "read", "memory", "batch", "auto", "seconds", "x best", "trigger", "expected", "error", "others (trigger, expected)",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One workload."""

    read: str
    memory: str
    files: StreamFiles

    @property
    def about(self) -> dict[str, Any]:
        return {"read": self.read, "memory": self.memory, "batch_rows": self.files.batch_rows}


def run_auto(options: EnrichOptions, progress: Progress | None = None) -> dict[str, Any]:
    """Run the benchmark; the returned values are plain, ready for JSON."""
    import millrace as mr

    progress = progress or Progress()
    with folders(options.data, options.rebuild) as where, prepared(options, where, progress.say, QUIET) as ready:
        table = open_master_table(ready.work)
        warm_page_cache(ready.work.store("millrace"))
        with _own_calibration():
            progress.say("calibrating this machine, with Spark")
            mr.calibrate(ready.work.store("millrace"), spark=ready.work.spark)
            cases = [Case(read, memory, files) for read in READS for memory in MEMORY for files in ready.streams]
            results = []
            for number, case in enumerate(cases):
                results.append(_measured(ready.work, table, case, where.scratch / str(number), progress))
                progress.finished(Result(results[-1]["chosen"], case.files.batch_rows, seconds=(results[-1]["seconds"],)))
    return {
        "benchmark": "enrich-auto", "clock": CLOCK, "options": options.to_json(), **ready.about,
        "rows_agree": all(result["rows_agree"] for result in results), "checksums_agree": True, "results": results,
    }  # fmt: skip


@contextmanager
def _own_calibration() -> Iterator[None]:
    """Nothing that was measured another day counts, and nothing is kept."""
    before = os.environ.get(FOLDER_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="millrace-calibration-") as folder:
        os.environ[FOLDER_VARIABLE] = folder
        try:
            yield
        finally:
            os.environ.pop(FOLDER_VARIABLE)
            if before is not None:
                os.environ[FOLDER_VARIABLE] = before


def _measured(work: Workload, table: Any, case: Case, scratch: Path, progress: Progress) -> dict[str, Any]:
    options, rows = work.options, case.files.batch_rows
    source = work.spark.readStream.schema(from_arrow_schema(case.files.schema)).parquet(str(case.files.folder))
    explained = _call("explain", options, table, case, "auto", source)
    chosen = explained.strategy
    expected = {chosen: explained.seconds_per_batch(rows)}
    ways = {_way(explained)}
    for row in ALGORITHMS:
        if "spark" in row.hosts and row.name not in expected:
            try:
                other = _call("explain", options, table, case, row.name, source)
            except BudgetError:
                continue
            if _way(other) not in ways:
                ways.add(_way(other))
                expected[row.name] = other.seconds_per_batch(rows)
    best = sorted(expected, key=expected.__getitem__)[:_MOST_RIVALS]
    names = list(dict.fromkeys([chosen, *best, *([_ALWAYS] if _ALWAYS in expected else [])]))
    transforms = {name: partial(_enriched, options, table, case, name) for name in names}

    def said(number: int) -> None:
        where = f"{case.read}, {case.memory}, {rows:,} rows a batch"
        progress.say(f"{where}: round {number + 1} of {case.files.batches}, {', '.join(names)}")

    entries = run_in_turn(work.spark, transforms, case.files, scratch, said=said)
    seconds = {name: median(batch_seconds(found, options.cold_batches)) for name, found in entries.items()}
    whole = {name: median(batch_seconds(found, options.cold_batches, "triggerExecution")) for name, found in entries.items()}
    least = min(seconds, key=seconds.__getitem__)
    return {
        **case.about, "status": OK, "chosen": chosen, "seconds": seconds[chosen], "all_seconds": seconds, "best": least,
        "ratio": seconds[chosen] / seconds[least], "expected_seconds": expected[chosen],
        "trigger_seconds": whole[chosen], "error": expected[chosen] / whole[chosen] - 1,
        "all_expected": {name: expected[name] for name in names}, "all_trigger_seconds": whole,
        "rows_agree": len({tuple(one.sink.numOutputRows for one in found) for found in entries.values()}) == 1,
    }  # fmt: skip


def _way(explained: Any) -> str:
    """What is really done: look-ups at once are the same under any name."""
    join = explained.plan.joins[0]
    return str(join.asked.strategy if join.access == "join" else join.access)


def _call(function: str, options: EnrichOptions, table: Any, case: Case, strategy: str, stream: DataFrame) -> Any:
    import millrace as mr

    return getattr(mr, function)(
        stream, table, on="key", how=options.how, columns=list(options.columns), memory=case.memory, read=case.read,
        strategy=strategy, skew=options.zipf, arrivals_per_second=case.files.batch_rows,
    )  # fmt: skip


def _enriched(options: EnrichOptions, table: Any, case: Case, strategy: str, stream: DataFrame) -> DataFrame:
    enriched: DataFrame = _call("enrich", options, table, case, strategy, stream)
    return enriched


def auto_table(report: dict[str, Any]) -> Table:
    options, results = report["options"], report["results"]
    worst = max(result["ratio"] for result in results)
    close = sum(abs(result["error"]) <= CLOSE for result in results)
    table = Table(
        title=f"R = {options['rows']:,} rows, Zipf {options['zipf']:g}, {options['how']} join: what auto takes",
        caption=f"Median seconds of warm micro-batches, queries in turn. At worst {worst:.2f}x the best (goal {GOOD}x). "
        f"Expected time within {CLOSE:.0%} of the measured one in {close} of {len(results)} workloads.",
    )
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading in ("read", "auto") or heading.startswith("others") else "right")
    for result in results:
        others = (
            f"{name} {seconds:.3f} ({result['all_expected'][name]:.3f})"
            for name, seconds in result["all_trigger_seconds"].items()
            if name != result["chosen"]
        )
        table.add_row(
            result["read"], result["memory"], f"{result['batch_rows']:,}", result["chosen"], f"{result['seconds']:.3f}",
            f"{result['ratio']:.2f}", f"{result['trigger_seconds']:.3f}", f"{result['expected_seconds']:.3f}",
            f"{result['error']:+.0%}", ", ".join(others),
        )  # fmt: skip
    return table
