"""Finite streams of `millrace bench online`: PR-Join beside RPJ, XJoin and HMJ, results over time and time to the end.

As in the paper: a million 12-byte rows a stream, keys 1 to 10,000, memory for 1,000 pages of 1,024 bytes.

    slow         one row a millisecond, of either stream in turn
    fast         a hundred
    five-fold    slow, one stream five times as fast as the other
    reverse      slow, the keys that are frequent in one stream are rare in the other
    unreliable   as slow on the average, with gaps from a Zipf distribution; PR-Join and RPJ only, as the paper has it

Fewer rows may really be joined, each of which then stands for several. Not in the paper, which took them from RPJ's simulator:
keys have Zipf exponent 0.5; a transfer takes 0.1 ms and then 2 us a kilobyte, so that temporary data can be read again while
fast streams come; streams that are silent for 0.1 s have stalled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.budget import Budget
from millrace.core.devices import VirtualClock, VirtualDevice, device
from millrace.online.joins.hmj import HMJ
from millrace.online.joins.prjoin import PRJoin
from millrace.online.joins.rpj import RPJ
from millrace.online.joins.xjoin import XJoin
from millrace.online.pair_functions import Products
from millrace.online.protocol import A, B
from millrace.online.storage.memory_plan import Layout
from millrace.online.storage.spill import VirtualSpill
from millrace.online.virtual.arrivals import Arrivals, ArrivingInput

ROWS, KEYS, ROW_BYTES, PAGE_BYTES, PAGES = 1_000_000, 10_000, 12, 1024, 1000
WORDS = 2
ZIPF = 0.5
DEVICE = "ssd"
TIMEOUT = 0.1
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Stream:
    seconds_a_row: float = 1e-3  # of either
    share_a: float = 0.5  # of the rows that come
    reverse: bool = False
    unreliable: bool = False


STREAMS = {
    "slow": Stream(),
    "fast": Stream(seconds_a_row=1e-5),
    "five-fold": Stream(share_a=5 / 6),
    "reverse": Stream(reverse=True),
    "unreliable": Stream(unreliable=True),
}
JOINS = {"prjoin": PRJoin, "rpj": RPJ, "xjoin": XJoin, "hmj": HMJ}


def tables(stream: Stream, rows: int, seed: int) -> tuple[Int64Array, Int64Array]:
    random = np.random.default_rng([seed, 1])
    weights = np.arange(1, KEYS + 1) ** -ZIPF
    names = random.permutation(KEYS) + 1
    found = []
    for side in (A, B):
        ranks = np.searchsorted(np.cumsum(weights) / weights.sum(), random.random(rows))
        ranks = np.minimum(ranks, KEYS - 1)
        codes = names[KEYS - 1 - ranks if stream.reverse and side == B else ranks]
        found.append(np.stack([codes, np.zeros(rows, np.int64)], axis=1))
    return found[A], found[B]


def times(stream: Stream, rows: int, seed: int) -> tuple[FloatArray, FloatArray]:
    random = np.random.default_rng([seed, 2])
    found = []
    for share in (stream.share_a, 1 - stream.share_a):
        gap = stream.seconds_a_row / share * ROWS / rows
        gaps = np.full(rows, gap)
        if stream.unreliable:
            # P(k) ~ 1/k^2 up to the number of rows, scaled to the same mean; the same gaps on both sides would stall together
            sizes = np.minimum(np.floor(1 / (1 - random.random(rows))), rows)
            gaps = sizes * (gap / sizes.mean())
        found.append(np.cumsum(gaps))
    return found[A], found[B]


def run_stream(name: str, rows: int, seed: int, joins: Sequence[str] = ()) -> dict[str, Any]:
    """Joins, PR-Join and RPJ among them, on one kind of streams: those given, or all that are run there."""
    stream = STREAMS[name]
    joins = joins or (("prjoin", "rpj") if stream.unreliable else tuple(JOINS))
    words, arriving = tables(stream, rows, seed), times(stream, rows, seed)
    end = float(max(arriving[A][-1], arriving[B][-1]))
    runs = {join: _run(join, words, arriving, end) for join in joins}
    prjoin, rpj = runs["prjoin"], runs["rpj"]
    over_time = sum(prjoin["results_at"]) / max(1, sum(rpj["results_at"]))
    checks = [
        _check(f"{name} streams: PR-Join's results while they come over RPJ's", over_time, 0.9 if stream.unreliable else 1.0),
        _check(f"{name} streams: RPJ's time to the end over PR-Join's", rpj["seconds"] / prjoin["seconds"], 1.0),
    ]
    return {
        "streams": name,
        "rows": rows,
        "end_of_streams_seconds": end,
        "shares_of_that_time": list(SHARES),
        "joins": runs,
        "answers_agree": len({tuple(run["answer"]) for run in runs.values()}) == 1,
        "checks": checks,
    }


def _check(claim: str, figure: float, bound: float) -> dict[str, Any]:
    return {"claim": claim, "figure": figure, "bound": bound, "at": "least", "holds": bool(figure >= bound)}


def _run(
    name: str, words: tuple[Int64Array, Int64Array], arriving: tuple[FloatArray, FloatArray], end: float
) -> dict[str, Any]:
    clock = VirtualClock()
    timeout = TIMEOUT * ROWS / len(words[A])  # gaps between rows that stand for several are longer, too
    arrivals = Arrivals(clock, *arriving, timeout=timeout, patience=end / 2000)
    a, b = (ArrivingInput(words[side], side, arrivals) for side in (A, B))
    scale = ROWS * ROW_BYTES / words[A].nbytes
    budget = Budget(int(PAGES * PAGE_BYTES / scale))
    spill = VirtualSpill(VirtualDevice(device(DEVICE), clock), scale=scale, write_bytes=64 * PAGE_BYTES)
    options: dict[str, Any] = {"stop": False} if name == "prjoin" else {}
    layout = Layout(page_bytes=max(8 * WORDS, int(PAGE_BYTES / scale)))
    join = JOINS[name](a, b, Products(((),), ((),)), budget, spill, layout=layout, **options)
    at, found = [0.0], [0]
    try:
        while True:
            progress = join.step()
            at.append(clock.now)
            found.append(progress.counters.results)
            if progress.done:
                break
            if progress.stalled:
                clock.wait_until(arrivals.next())
    finally:
        join.close()
    place = np.searchsorted(at, [share * end for share in SHARES], "right") - 1
    counters = progress.counters
    return {
        "seconds": clock.now,
        "seconds_after_the_streams": clock.now - end,
        "results": counters.results,
        "results_at": [found[i] for i in place],
        "temporary_written_bytes": counters.temp_written_bytes * scale,
        "temporary_read_bytes": counters.temp_read_bytes * scale,
        "budget_peak_bytes": budget.peak_bytes,
        "answer": [float(value) for value in join.pieces.answer()[0]],
    }
