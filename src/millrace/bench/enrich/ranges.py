"""`millrace bench enrich-ranges`: which range an address lies in, a million ranges, against what people write on Spark.

Spark has no join for ranges. Plainly written, every row is compared with every range; so people cut the addresses into bins,
copy each range into all bins that it touches, join on the bin, and filter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace.bench.data import made_once
from millrace.bench.enrich.contenders import SORT_MERGE_PARTITIONS, Contender, IdentityMap, Plain, Ready, Workload
from millrace.bench.enrich.enrich import run_contest
from millrace.bench.enrich.measure import Progress
from millrace.bench.enrich.results import FLOOR
from millrace.bench.options import COLD_BATCHES, MIN_WARM_BATCHES, EnrichOptions
from millrace.relations.folder import FORMAT

ADDRESSES = 1 << 32
_BIN_BITS = 16
_SPREAD = 2_654_435_761  # odd, so that a key times this, cut to 32 bits, is an address of its own


def run_ranges(options: EnrichOptions, nested_rows: int, progress: Progress | None = None) -> dict[str, Any]:
    """Run the benchmark; the nested loop with batches of `nested_rows` rows, none if that is 0."""
    progress = progress or Progress()
    tuned = {"spark.sql.shuffle.partitions": str(SORT_MERGE_PARTITIONS), "spark.sql.autoBroadcastJoinThreshold": "-1"}
    millrace = Between("millrace-auto", opened=as_table)
    every: list[Contender] = [
        IdentityMap(FLOOR),
        millrace,
        Between("millrace-parquet", opened=as_it_is),
        SparkRanges("spark-binned", tuned, joined=binned),
        SparkRanges("spark-binned-defaults", joined=binned),
    ]
    report = run_contest("enrich-ranges", options, every, progress)
    if nested_rows:
        few = replace(options, batch_rows=(nested_rows,), repeats=1, cold_batches=COLD_BATCHES, warm_batches=MIN_WARM_BATCHES)
        loops = run_contest("enrich-ranges", few, [millrace, SparkRanges("spark-nested-loop", joined=nested_loop)], progress)
        report["results"] += loops["results"]
        report["rows_agree"] &= loops["rows_agree"]
        report["checksums_agree"] &= loops["checksums_agree"]
        report["options"]["batch_rows"] = (*options.batch_rows, nested_rows)
    return report


def address() -> Column:
    return F.col("key") * _SPREAD % ADDRESSES


def range_files(work: Workload) -> Path:
    """Ranges side by side, of random length, with a gap behind each."""
    options = work.options
    target = work.folder / f"ranges-{options.rows}-{options.seed}"

    def make() -> None:
        work.say(f"writing {options.rows:,} ranges")
        rng = np.random.default_rng(options.seed)
        ends = np.sort(rng.choice(ADDRESSES, options.rows, replace=False).astype(np.int64))
        starts = np.concatenate(([0], ends[:-1] + 1))
        ends -= (ends - starts) // 10
        names = pa.array([f"category-{i:03d}" for i in range(250)]).take(pa.array(rng.integers(0, 250, options.rows)))
        target.mkdir(parents=True)
        pq.write_table(pa.table({"ip_from": starts, "ip_to": ends, "category": names}), target / "part-0.parquet", 1 << 18)

    made_once(target, {"rows": options.rows, "seed": options.seed}, make)
    return target


@dataclass(frozen=True)
class Between(Plain):
    """`millrace.enrich` with `between`, from what `opened` makes of the Parquet files: a table, and where it lies."""

    opened: Callable[[Workload, Path], tuple[Any, Path]] = field(kw_only=True)

    @contextmanager
    def ready(self, work: Workload) -> Iterator[Ready]:
        import millrace as mr

        table, files = self.opened(work, range_files(work))
        options, on = work.options, mr.between("ip", "ip_from", "ip_to")

        def transform(stream: DataFrame) -> DataFrame:
            placed = stream.withColumn("ip", address())
            enriched = mr.enrich(placed, table, on, how=options.how, columns=["category"], memory=options.memory)
            return enriched.drop("ip")

        yield Ready(transform, files)


def as_it_is(work: Workload, files: Path) -> tuple[Any, Path]:
    """The Parquet files, scanned."""
    import millrace as mr

    return mr.ParquetTable(files), files


def as_table(work: Workload, files: Path) -> tuple[Any, Path]:
    """A table built from them, sorted by where ranges begin."""
    import millrace as mr

    target = work.folder / f"millrace-ranges-{work.options.rows}-{work.options.seed}"

    def build() -> None:
        work.say(f"building the millrace table of {work.options.rows:,} ranges")
        mr.MasterTable.build(work.spark.read.parquet(str(files)), key="ip_from", path=str(target))

    made_once(target, {"rows": work.options.rows, "seed": work.options.seed, "format": FORMAT}, build)
    return mr.MasterTable.open(str(target)), target


@dataclass(frozen=True)
class SparkRanges(Plain):
    """Spark alone; `joined` makes the join of stream, ranges and how."""

    joined: Callable[[DataFrame, DataFrame, str], DataFrame] = field(kw_only=True)

    @contextmanager
    def ready(self, work: Workload) -> Iterator[Ready]:
        files = range_files(work)
        ranges = work.spark.read.parquet(str(files))
        yield Ready(lambda stream: self.joined(stream.withColumn("ip", address()), ranges, work.options.how), files)


def binned(stream: DataFrame, ranges: DataFrame, how: str) -> DataFrame:
    """The usual way: an equi-join on bins of 65,536 addresses."""
    bins = F.sequence(F.shiftright("ip_from", _BIN_BITS), F.shiftright("ip_to", _BIN_BITS))
    copies = ranges.withColumn("bin", F.explode(bins))
    cut = stream.withColumn("own_bin", F.shiftright("ip", _BIN_BITS))
    inside = (F.col("own_bin") == F.col("bin")) & F.col("ip").between(F.col("ip_from"), F.col("ip_to"))
    return cut.join(copies, inside, how).drop("ip", "own_bin", "bin", "ip_from", "ip_to")


def nested_loop(stream: DataFrame, ranges: DataFrame, how: str) -> DataFrame:
    """Plainly written: Spark compares every row with every range."""
    inside = F.col("ip").between(F.col("ip_from"), F.col("ip_to"))
    return stream.join(F.broadcast(ranges), inside, how).drop("ip", "ip_from", "ip_to")
