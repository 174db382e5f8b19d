"""A join seen from outside, step by step: what it read, what it had been offered, who waited, what came out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from millrace.checks.run import ROOMY, Make, watched
from millrace.core.protocols import JoinSpec
from millrace.core.step import Step
from millrace.relations.memory import MemoryRelation


@dataclass(frozen=True)
class Moment:
    """One step. Stream tuples are numbered from 0: those below `offered` had been offered when the step ran."""

    number: int
    step: Step
    reads: tuple[tuple[int, int], ...]  # (first page, pages), in order
    offered: int
    waited: int  # tuples inside when the step began
    pending: int  # and when it had ended

    @property
    def pages(self) -> list[int]:
        return [page for first, count in self.reads for page in range(first, first + count)]


def traced(
    make: Make, relation: MemoryRelation, spec: JoinSpec, stream: Iterable[pa.RecordBatch], *,
    memory: int = ROOMY, steps_per_batch: int | None = 1,
) -> list[Moment]:  # fmt: skip
    """Run the join and keep a moment for every step."""
    moments: list[Moment] = []
    seen = len(relation.reads)
    for join in watched(make, relation, spec, stream, memory=memory, steps_per_batch=steps_per_batch):
        if len(join.run.steps) == len(moments):
            break  # the last call only says that it is done
        step = join.run.steps[-1]
        reads, seen = tuple(relation.reads[seen:]), len(relation.reads)
        offered, waited = join.run.offered_before[-1], join.pending + step.counts.removed
        moments.append(Moment(len(moments), step, reads, offered, waited, join.pending))
    return moments
