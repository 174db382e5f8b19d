"""A join driven in process, over a whole stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from millrace.core.host import Host
from millrace.core.ledger import Ledger
from millrace.core.protocols import SemiStreamJoin
from millrace.core.step import Step, StepCounts


def drive(
    join: SemiStreamJoin,
    stream: Iterable[pa.RecordBatch],
    *,
    ledger: Ledger | None = None,
    steps_per_batch: int | None = 1,
) -> Iterator[Step]:
    """Run `join` over `stream` until every tuple has left, and yield each step.

    An empty batch is a pause: the join steps without new input, `steps_per_batch` times, or until it is empty if
    `steps_per_batch` is None. Rows that do not fit are offered again after each step. The ledger is checked after every step.

    The processing time of a tuple, in steps, is the step in which it leaves minus its entry step. A host with a clock keeps the
    time of each step and subtracts.
    """
    host = Host(join, ledger)
    for batch in stream:
        yield from host.feed(batch)
        if steps_per_batch is None:
            yield from host.drain()
            continue
        for _ in range(steps_per_batch):
            if not host.waiting and batch.num_rows == 0:
                break
            yield host.step()
    yield from host.drain()


def total(steps: Iterable[Step]) -> StepCounts:
    """The counts of all steps together."""
    counts = StepCounts()
    for step in steps:
        counts = counts + step.counts
    return counts
