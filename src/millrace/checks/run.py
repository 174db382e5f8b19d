"""Runs a join under watch: records what a law needs to know about every step, and stops a join that never ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from millrace.checks.reference import as_table, reference_join, reference_pairs
from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.drive import drive
from millrace.core.errors import BudgetError, MillraceError
from millrace.core.ledger import Ledger
from millrace.core.protocols import JoinSpec, Relation, SemiStreamJoin, Withdrawn
from millrace.core.step import Step, StepCounts

ROOMY = 1 << 20  # a budget in which all sample data fits at once
SEQUENCE = "sequence of the tuple"  # name of the column that holds sequence numbers, where they are compared too


class BrokenLaw(MillraceError, AssertionError):
    """A join broke a law."""


class Make(Protocol):
    """Builds the join to be checked: a join class, or a `functools.partial` of a join class with parameters."""

    def __call__(self, relation: Relation, spec: JoinSpec, budget: Budget, /) -> SemiStreamJoin: ...


@dataclass
class Run:
    """What came out of a join. `offered_before[n]` is how many tuples were offered before step n."""

    schema: pa.Schema
    steps: list[Step] = field(default_factory=list)
    offered_before: list[int] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def totals(self) -> StepCounts:
        return self.ledger.totals

    @property
    def table(self) -> pa.Table:
        """All rows put out."""
        return pa.Table.from_batches([step.output for step in self.steps], self.schema)

    @property
    def sequence(self) -> Int64Array:
        return np.concatenate([np.zeros(0, np.int64), *(step.sequence for step in self.steps)])

    @property
    def numbered(self) -> pa.Table:
        """All rows put out, each with the number of its stream tuple."""
        return numbered(self.table, self.sequence)


class Watched:
    """A join whose every call is checked: what `offer` says, what `pending` says, how many steps it takes.

    A `Watched` is a `SemiStreamJoin` itself, so that hosts can't tell the difference.
    """

    def __init__(self, join: SemiStreamJoin, run: Run, step_limit: int) -> None:
        self.join = join
        self.run = run
        self._step_limit = step_limit
        self._offered = 0
        self._waiting = 0  # by the counts of the steps that came to their end

    @property
    def pending(self) -> int:
        return self.join.pending

    @pending.setter
    def pending(self, count: int) -> None:
        raise AttributeError("pending is the join's own")

    @property
    def longest_wait(self) -> int:
        return self.join.longest_wait

    @property
    def bytes_used(self) -> int:
        return self.join.bytes_used

    def offer(self, batch: pa.RecordBatch) -> int:
        before = self.join.pending
        taken = self.join.offer(batch)
        if not 0 <= taken <= batch.num_rows:
            raise BrokenLaw(f"offer took {taken} of {batch.num_rows} rows")
        if self.join.pending != before + taken:
            raise BrokenLaw(f"offer took {taken} rows, but pending went from {before} to {self.join.pending}")
        if taken == 0 and before == 0 and batch.num_rows:
            raise BrokenLaw("the join is empty and still takes no row: the stream would wait for ever")
        self._offered += taken
        self._waiting += taken
        return taken

    def step(self) -> Step:
        if len(self.run.steps) >= self._step_limit:
            raise BrokenLaw(f"{self.join.pending} tuples still wait after {self._step_limit} steps: they may never leave")
        before = self._waiting
        step = self.join.step()
        self._waiting -= step.counts.removed + step.counts.deferred
        if self.join.pending != self._waiting:
            raise BrokenLaw(f"{step.counts.removed} of {before} tuples left, but pending is {self.join.pending}")
        self.run.steps.append(step)
        self.run.offered_before.append(self._offered)
        return step

    def withdraw(self, numbers: Int64Array) -> Withdrawn:
        before = self.join.pending
        given = self.join.withdraw(numbers)
        if len(given.numbers) != given.rows.num_rows:
            raise BrokenLaw(f"it gave back {given.rows.num_rows} rows with {len(given.numbers)} numbers")
        if len(np.intersect1d(given.numbers, numbers)) != len(given.numbers):
            raise BrokenLaw(f"asked for tuples {numbers.tolist()}, it gave back {given.numbers.tolist()}")
        if self.join.pending != before - len(given.numbers):
            raise BrokenLaw(f"it gave back {len(given.numbers)} of {before} tuples, but pending is {self.join.pending}")
        return given


def watched(
    make: Make, relation: Relation, spec: JoinSpec, stream: Iterable[pa.RecordBatch], *,
    memory: int | str = ROOMY, steps_per_batch: int | None = 1,
) -> Iterator[Watched]:  # fmt: skip
    """Run the join over `stream` and hand it out after every step; once more when it is done."""
    budget = Budget(memory)
    batches = list(stream)
    rows = sum(batch.num_rows for batch in batches)
    run = Run(spec.output_schema(relation))
    limit = 1_000 + 4 * (rows + len(batches)) * (relation.pages + 2)
    join = Watched(make(relation, spec, budget), run, limit)
    for _ in drive(join, batches, ledger=run.ledger, steps_per_batch=steps_per_batch):
        yield join
    yield join


def run_join(
    make: Make, relation: Relation, spec: JoinSpec, stream: Iterable[pa.RecordBatch], *,
    memory: int | str = ROOMY, steps_per_batch: int | None = 1,
) -> Run:  # fmt: skip
    """Run the join over all of `stream`."""
    for join in watched(make, relation, spec, stream, memory=memory, steps_per_batch=steps_per_batch):
        run = join.run
    return run


def expected(stream: pa.Table | Iterable[pa.RecordBatch], relation_rows: pa.Table, spec: JoinSpec) -> pa.Table:
    """The rows of the reference, each with the number of its stream tuple."""
    table = as_table(stream, spec.stream_schema)
    numbers = [pair[0] for pair in reference_pairs(table, relation_rows, spec)]
    return numbered(reference_join(table, relation_rows, spec), np.array(numbers, np.int64))


def numbered(table: pa.Table, sequence: Int64Array) -> pa.Table:
    columns = [*table.columns, pa.chunked_array([pa.array(sequence, pa.int64())])]
    if table.num_columns and table.num_rows != len(sequence):
        raise BrokenLaw(f"{table.num_rows} rows came out with {len(sequence)} sequence numbers")
    return pa.Table.from_arrays(columns, schema=table.schema.append(pa.field(SEQUENCE, pa.int64())))


def require(condition: object, problem: object) -> None:
    if not condition:
        raise BrokenLaw(str(problem))


def tightest(make: Make, relation: Relation, spec: JoinSpec) -> int:
    """The smallest budget in which the join works, as its own errors say."""
    memory = 1
    for _ in range(64):
        try:
            make(relation, spec, Budget(memory))
            return memory
        except BudgetError as error:
            require(
                error.needed_bytes > memory,
                f"{memory} bytes are too few, and it asks for {error.needed_bytes}: {error}",
            )
            memory = error.needed_bytes
    raise BrokenLaw(f"it asked for more memory 64 times, for {memory} bytes in the end")
