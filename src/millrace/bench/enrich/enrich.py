"""`millrace bench enrich`: a stream enriched from a large table, by everyone, in one run on the same files.

1. Master data and streams are made, or found from an earlier run.
2. In one Spark session: a discarded query to warm the JVM up, then the floors and millrace as often as asked, then the others.
   Each gets fresh Python workers, a collected heap, its table in the page cache, and cold micro-batches that don't count.
3. The broadcast join runs in a process with a driver of its own, after that session is gone: it may run out of memory.
4. Row counts of every micro-batch and a checksum of the first are compared; ratios are to medians of the same run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millrace.bench.data import FILES_PER_BATCH, ROW_BYTES
from millrace.bench.enrich.contenders import Contender, IdentityMap, contenders
from millrace.bench.enrich.isolated import measure_isolated
from millrace.bench.enrich.measure import Prepared, Progress, folders, measure, prepared
from millrace.bench.enrich.microbatch import CLOCK
from millrace.bench.enrich.results import FLOOR, Result, checksums_agree, compared, merged, rows_agree
from millrace.bench.options import EnrichOptions

ISOLATED = ("spark-broadcast",)
CLOSE = (
    "read-only", "identity-map", "identity-udf", "identity-chained", "identity-one-pass", "millrace-auto", "millrace-chained",
)  # fmt: skip


def run_enrich(options: EnrichOptions, progress: Progress | None = None) -> dict[str, Any]:
    """Run the benchmark; the returned values are plain, ready for JSON."""
    return run_contest("enrich", options, contenders(options), progress or Progress())


def run_contest(benchmark: str, options: EnrichOptions, every: Sequence[Contender], progress: Progress) -> dict[str, Any]:
    """Contenders over the same files, in one session."""
    with folders(options.data, options.rebuild) as where:
        with prepared(options, where, progress.say) as ready:
            results = _in_turn([one for one in every if one.name not in ISOLATED], ready, progress)
        for contender in every:
            if contender.name in ISOLATED:
                results += measure_isolated(contender.name, options, where, progress)
        sizes = {"master_parquet_bytes": sum(path.stat().st_size for path in ready.work.master.iterdir())}
    return summary(benchmark, options, ready.about, sizes, merged(results))


def _in_turn(every: list[Contender], ready: Prepared, progress: Progress) -> list[Result]:
    """Repeats are interleaved: what disturbs the machine for a while then disturbs everyone.

    Those come first that are close to each other, as often as asked: a disturbance could decide between them, and so could
    what the JVM has learnt of the plans of others. The others run once.
    """
    work, streams, scratch = ready.work, ready.streams, ready.where.scratch
    progress.say("warming the JVM up")
    measure(IdentityMap(FLOOR), work, streams[:1], scratch, Progress())
    close = [contender for contender in every if contender.name in CLOSE]
    turns = [*[close] * work.options.repeats, [contender for contender in every if contender not in close]]
    return [result for turn in turns for contender in turn for result in measure(contender, work, streams, scratch, progress)]


def summary(
    benchmark: str, options: EnrichOptions, about: dict[str, Any], sizes: dict[str, int], results: list[Result]
) -> dict[str, Any]:
    return {
        "benchmark": benchmark,
        "clock": CLOCK,
        "cold_batches_dropped": options.cold_batches,
        "seed": options.seed,
        "options": options.to_json(),
        **about,
        "data": {"row_bytes": ROW_BYTES, "partitions_per_batch": FILES_PER_BATCH, **sizes},
        "rows_agree": rows_agree(results),
        "checksums_agree": checksums_agree(results),
        "results": compared(results),
    }
