"""`millrace bench enrich-io`: what the read planner reads, against the two plain ways to read the same pages.

For each batch size, a task's share of the batch (half: two tasks) is joined by SWEEPJOIN with direct I/O. Then the pages
it wanted are read twice more by the same code: one random read per wanted page, and one sequential pass over everything
from the first wanted page to the last. Only the time inside the reads counts. The three are interleaved and repeated.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.bench.data import ROW_BYTES, master_files
from millrace.bench.enrich.contenders import Workload, open_master_table
from millrace.bench.enrich.measure import Progress, folders
from millrace.bench.enrich.session import describe_machine, spark_session
from millrace.bench.options import EnrichOptions, ReadOptions
from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.drive import drive
from millrace.core.ledger import Ledger
from millrace.core.protocols import JoinSpec
from millrace.core.unitcosts import UnitCosts, calibrate_reads
from millrace.joins.sweepjoin import BUFFER_BYTES, SweepJoin
from millrace.relations.stored import StoredRelation
from millrace.streams import ZipfKeys

TASKS = 2
WAYS = ("sweep", "random", "sequential")


def run_reads(options: ReadOptions, progress: Progress | None = None) -> dict[str, Any]:
    """Run the benchmark; the returned values are plain, ready for JSON."""
    progress = progress or Progress()
    chosen = EnrichOptions(rows=options.rows, seed=options.seed, data=options.data)
    with (
        folders(options.data, options.rebuild) as where,
        spark_session(chosen.driver_memory, where.scratch) as spark,
    ):
        about = describe_machine(spark, chosen.driver_memory)
        work = Workload(spark, chosen, master_files(chosen, where.data, progress.say), where.data, progress.say)
        relation = open_master_table(work).relation("direct")
        progress.say("calibrating")
        costs = calibrate_reads(relation.largest_shard(), relation.page_bytes, seconds=1.0)
        results = []
        for batch_rows in options.batch_rows:
            progress.say(f"{batch_rows:,} rows a batch")
            results.append(_measure(relation, costs, batch_rows, options))
    return {
        "benchmark": "enrich-io",
        "clock": "time inside direct reads of one task, alone on the disk",
        "seed": options.seed,
        "options": options.to_json(),
        **about,
        "data": {"row_bytes": ROW_BYTES, "pages": relation.pages, "page_bytes": relation.page_bytes},
        "unit_costs": {"seek_ms": round(costs.seek * 1e3, 4), "sequential_mb_per_second": round(1e-6 / costs.read_byte)},
        "rows_agree": all(result["matched"] == result["task_rows"] for result in results),
        "checksums_agree": True,  # every page is checked against its checksum as it is read
        "results": results,
    }


def _measure(relation: StoredRelation, costs: UnitCosts, batch_rows: int, options: ReadOptions) -> dict[str, Any]:
    keys = ZipfKeys(options.rows, options.zipf, scatter=True, seed=options.seed).draw(batch_rows // TASKS)
    wanted = np.unique(relation.locate(keys).first)
    matched: list[int] = []
    ways: dict[str, Callable[[], None]] = {
        "sweep": lambda: matched.append(_sweep(relation, costs, keys, options.memory)),
        "random": lambda: _read(relation, wanted, np.ones(len(wanted), np.int64)),
        "sequential": lambda: _read(relation, wanted[:1], np.array([wanted[-1] - wanted[0] + 1])),
    }
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    reads: dict[str, int] = {}
    pages_bytes: dict[str, int] = {}
    for _ in range(options.repeats):
        for way in WAYS:
            relation.take_io_counts()
            ways[way]()
            counts = relation.take_io_counts()
            seconds[way].append(counts["read_seconds"])
            reads[way], pages_bytes[way] = int(counts["disk_reads"]), int(counts["disk_bytes"])
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    best = min(medians["random"], medians["sequential"])
    return {
        "status": "ok",
        "batch_rows": batch_rows,
        "task_rows": len(keys),
        "matched": min(matched),  # every key is in the table
        "wanted_pages": len(wanted),
        "seconds": seconds,
        "median_seconds": medians,
        "reads": reads,
        "bytes": pages_bytes,
        "ratio_to_the_cheaper": medians["sweep"] / best,
    }


def _sweep(relation: StoredRelation, costs: UnitCosts, keys: Int64Array, memory: str) -> int:
    batch = pa.record_batch({"key": keys})
    spec = JoinSpec(batch.schema, (("key", "key"),), "inner", (), ("surrogate_key",))
    ledger = Ledger()
    for _ in drive(SweepJoin(relation, spec, Budget(memory), costs=costs), [batch], ledger=ledger):
        pass
    return ledger.matched


def _read(relation: StoredRelation, firsts: Int64Array, counts: Int64Array) -> None:
    """The given runs of pages, a buffer at a time; a run longer than the buffer is cut."""
    room = BUFFER_BYTES // relation.page_bytes
    if len(firsts) == 1:
        starts = np.arange(firsts[0], firsts[0] + counts[0], room)
        counts = np.minimum(room, firsts[0] + counts[0] - starts)
        for first, count in zip(starts, counts, strict=True):
            relation.read(int(first), int(count))
        return
    for at in range(0, len(firsts), room):
        relation.read_many(firsts[at : at + room], counts[at : at + room])
