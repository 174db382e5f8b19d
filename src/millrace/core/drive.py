"""The in-process host: feeds a join from a stream, keeps the ledger, and turns entry steps into times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

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

    An empty batch is a pause: the join steps without new input, once if `steps_per_batch` says so, or until it is empty
    when that is None. A batch that does not fit is offered again after each step. The ledger is checked after every step.

    Processing time in steps of a tuple that leaves at step n is n minus its entry step; a host that runs on a clock keeps
    the clock of each step and subtracts.
    """
    ledger = ledger if ledger is not None else Ledger()

    def stepped() -> Step:
        step = join.step()
        ledger.post(step.counts, join.pending)
        return step

    for batch in stream:
        offered = 0
        while offered < batch.num_rows:
            offered += join.offer(batch.slice(offered))
            if offered < batch.num_rows:
                yield stepped()
        steps = 0
        while steps_per_batch is None or steps < steps_per_batch:
            if not join.pending and batch.num_rows == 0:
                break
            yield stepped()
            steps += 1
            if steps_per_batch is None and not join.pending:
                break
    while join.pending:
        yield stepped()


def total(steps: Iterable[Step]) -> StepCounts:
    """The counts of all steps together."""
    counts = StepCounts()
    for step in steps:
        counts = counts + step.counts
    return counts
