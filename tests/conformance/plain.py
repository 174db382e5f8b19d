"""A plain join that keeps every law, and broken forms of it that each break one: do the laws notice?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from millrace.checks import ReadFailed
from millrace.core.budget import Budget
from millrace.core.errors import BudgetError
from millrace.core.keys import KeyCodec
from millrace.core.protocols import JoinSpec, PageRun, Relation
from millrace.core.step import Step, StepCounts
from millrace.joins.emit import Emitter
from millrace.structures.window import Window


class PlainJoin:
    """Nested loops: each step takes the oldest tuple and compares it with every page, one page at a time."""

    tuples_per_step = 1
    most_tuples = 1_000

    def __init__(self, relation: Relation, spec: JoinSpec, budget: Budget) -> None:
        spec.check_against(relation)
        self.relation = relation
        self.budget = budget
        self.window = Window(relation, spec, budget, self.plan(relation, spec, budget))
        self.emitter = Emitter(relation, spec, self.window)
        self.queue: list[int] = []
        self.page = 0
        self.met = StepCounts()

    def plan(self, relation: Relation, spec: JoinSpec, budget: Budget) -> int:
        budget.reserve("page", relation.page_bytes)
        slot = Window.bytes_per_tuple(relation, spec) + 16
        needed = budget.used_bytes + slot
        if needed > budget.memory_bytes:
            raise BudgetError(f"one tuple needs a budget of {needed} bytes", needed)
        slots = min(budget.free_bytes // slot, self.most_tuples)
        budget.reserve("queue", slots * 16)
        return slots

    @property
    def pending(self) -> int:
        return self.window.pending

    @property
    def longest_wait(self) -> int:
        return self.window.capacity

    @property
    def bytes_used(self) -> int:
        return self.budget.used_bytes

    def offer(self, batch: pa.RecordBatch) -> int:
        count, slots = self.window.admit(batch, batch.num_rows)
        self.queue += slots.tolist()
        return count

    def step(self) -> Step:
        self.emitter.begin()
        for _ in range(min(self.tuples_per_step, len(self.queue))):
            slot = self.queue[0]
            for run in self.runs():
                self.meet(run, slot)
            self.page = 0
            self.queue.pop(0)
            self.emitter.leave(np.array([slot]))
        step = self.emitter.finish(self.met)
        self.met = StepCounts()
        return step

    def runs(self) -> Iterator[PageRun]:
        while self.page < self.relation.pages:
            run = self.relation.read(self.page, 1)
            self.met += StepCounts(pages_read=1)
            self.page += 1
            yield run

    def meet(self, run: PageRun, slot: int) -> None:
        rows = np.flatnonzero(run.codes == self.window.code[slot])
        self.emitter.pairs(run, np.full(len(rows), slot), rows)


class TakesOneRowPerKey(PlainJoin):
    def meet(self, run: PageRun, slot: int) -> None:
        if not self.window.matched[slot]:
            rows = np.flatnonzero(run.codes == self.window.code[slot])[:1]
            self.emitter.pairs(run, np.full(len(rows), slot), rows)


class StopsAtGreaterCodes(PlainJoin):
    """Looks no further once it has seen a greater code: right where rows are sorted."""

    def runs(self) -> Iterator[PageRun]:
        for run in super().runs():
            yield run
            if run.codes[-1] > self.window.code[self.queue[0]]:
                return


class CallsNullsAbsent(PlainJoin):
    def step(self) -> Step:
        step = super().step()
        counts = replace(step.counts, absent_keys=step.counts.unmatched, null_keys=0)
        return replace(step, counts=counts)


class CallsAbsentNull(PlainJoin):
    def step(self) -> Step:
        step = super().step()
        counts = replace(step.counts, null_keys=step.counts.unmatched, absent_keys=0)
        return replace(step, counts=counts)


class ReadsAhead(PlainJoin):
    """Reads the first page whether anybody waits or not."""

    def step(self) -> Step:
        if self.relation.pages:
            self.relation.read(0, 1)
            self.met += StepCounts(pages_read=1)
        return super().step()


class NeedsAPage(PlainJoin):
    def runs(self) -> Iterator[PageRun]:
        if self.relation.rows < 2:
            yield self.relation.read(0, 2)
        yield from super().runs()


class WaitsForMore(PlainJoin):
    """As the textbook has it: no step before enough tuples have come."""

    def step(self) -> Step:
        return self.emitter.finish(StepCounts()) if self.pending < 8 else super().step()


class NoticesCuts(PlainJoin):
    """Takes the tuple of a batch of one row for absent."""

    def offer(self, batch: pa.RecordBatch) -> int:
        taken = super().offer(batch)
        if batch.num_rows == 1 and taken and self.queue:
            self.window.impossible_slots = np.append(self.window.impossible_slots, self.queue.pop())
        return taken


class TrustsCodes(PlainJoin):
    """Takes equal codes for equal keys."""

    def __init__(self, relation: Relation, spec: JoinSpec, budget: Budget) -> None:
        super().__init__(relation, spec, budget)
        self.emitter._verified = lambda run, slots, rows: (slots, rows)  # type: ignore[method-assign]


class ComparesBits(PlainJoin):
    """Compares floats by their bits, so that 0.0 is not -0.0."""

    def offer(self, batch: pa.RecordBatch) -> int:
        taken = super().offer(batch)
        for name in batch.schema.names:
            if pa.types.is_floating(batch.schema.field(name).type):
                numbers = batch.column(name).cast(pa.float64()).fill_null(1).to_numpy(zero_copy_only=False)[:taken]
                waiting = self.window.sequence[self.queue]
                first = self.window._offered - taken
                self.window.code[self.queue] += [
                    int(at >= first and np.signbit(numbers[at - first])) for at in waiting.tolist()
                ]
        return taken


class ComparesOneColumn(PlainJoin):
    def __init__(self, relation: Relation, spec: JoinSpec, budget: Budget) -> None:
        super().__init__(relation, spec, budget)
        codec = KeyCodec(relation.codec.types[-1:])
        self.last = spec.on[-1]
        self.codec = codec if len(spec.on) > 1 else None
        if self.codec:
            self.emitter._verified = lambda run, slots, rows: (slots, rows)  # type: ignore[method-assign]

    def meet(self, run: PageRun, slot: int) -> None:
        if self.codec is None:
            return super().meet(run, slot)
        assert self.window.rows is not None
        mine = self.codec.encode([self.window.rows.take(np.array([slot])).column(self.last[0])]).codes
        theirs = self.codec.encode([run.take(np.arange(run.rows), [self.last[1]]).column(0)]).codes
        rows = np.flatnonzero(theirs == mine)
        return self.emitter.pairs(run, np.full(len(rows), slot), rows)


class NeedsAnIndexSilently(PlainJoin):
    def offer(self, batch: pa.RecordBatch) -> int:
        self.relation.locate(np.zeros(0, np.int64))  # type: ignore[attr-defined]
        return super().offer(batch)


class NeverTouches(PlainJoin):
    def runs(self) -> Iterator[PageRun]:
        if not self.relation.resident:
            yield from super().runs()
            return
        run = self.relation.whole()  # type: ignore[attr-defined]
        run.match(np.zeros(1, np.int64), np.zeros(1, np.int64))
        yield run


class KeepsPages(PlainJoin):
    """Reads all pages first and looks at them afterwards."""

    def runs(self) -> Iterator[PageRun]:
        yield from list(super().runs())


class NeedsColumns(PlainJoin):
    def step(self) -> Step:
        step = super().step()
        return replace(step, sequence=step.sequence[: step.output.num_rows])


class RenamesColumns(PlainJoin):
    def step(self) -> Step:
        step = super().step()
        return replace(step, output=step.output.rename_columns([name.upper() for name in step.output.schema.names]))


class ReversesNumbers(PlainJoin):
    tuples_per_step = 3

    def step(self) -> Step:
        step = super().step()
        return replace(step, sequence=step.sequence[::-1])


class EntersLate(PlainJoin):
    def step(self) -> Step:
        step = super().step()
        return replace(step, entered=step.entered + 1)


class CountsTwice(PlainJoin):
    def step(self) -> Step:
        step = super().step()
        return replace(step, counts=replace(step.counts, matched=2 * step.counts.matched))


class HidesReads(PlainJoin):
    def step(self) -> Step:
        step = super().step()
        return replace(step, counts=replace(step.counts, pages_read=0))


class SwallowsErrors(PlainJoin):
    """Takes a page that can't be read for a page without the key."""

    def runs(self) -> Iterator[PageRun]:
        while self.page < self.relation.pages:
            self.page += 1
            try:
                yield self.relation.read(self.page - 1, 1)
            except ReadFailed:
                continue


class Hoards(PlainJoin):
    """Keeps every batch it ever saw."""

    def __init__(self, relation: Relation, spec: JoinSpec, budget: Budget) -> None:
        super().__init__(relation, spec, budget)
        self.seen: list[pa.RecordBatch] = []

    def offer(self, batch: pa.RecordBatch) -> int:
        taken = super().offer(batch)
        self.seen.append(batch.slice(0, taken))
        return taken


class IgnoresTheBudget(PlainJoin):
    def __init__(self, relation: Relation, spec: JoinSpec, budget: Budget) -> None:
        super().__init__(relation, spec, Budget("1m"))


class FloodsItsOutput(PlainJoin):
    tuples_per_step = 1_000_000


class LetsAllMissesLeaveAtOnce(PlainJoin):
    most_tuples = 1_000_000

    def offer(self, batch: pa.RecordBatch) -> int:
        taken = super().offer(batch)
        self.window.impossible_slots = np.array(self.queue, np.int64)
        self.queue = []
        return taken


class ServesTheNewest(PlainJoin):
    def step(self) -> Step:
        if self.queue:
            self.queue.insert(0, self.queue.pop())
        return super().step()


class AcceptsAnyKey(PlainJoin):
    def __init__(self, relation: Relation, spec: JoinSpec, budget: Budget) -> None:
        try:
            super().__init__(relation, spec, budget)
        except TypeError:
            self.relation = relation


# which law each broken join is caught by; every law has at least one
CAUGHT_BY: dict[str, type[PlainJoin]] = {
    "exact": TakesOneRowPerKey,
    "duplicates": TakesOneRowPerKey,
    "frequency_order": StopsAtGreaterCodes,
    "null_keys": CallsNullsAbsent,
    "absent_keys": CallsAbsentNull,
    "empty_stream": ReadsAhead,
    "empty_relation": NeedsAPage,
    "one_row_relation": NeedsAPage,
    "paused_stream": WaitsForMore,
    "early_end": WaitsForMore,
    "any_cut": NoticesCuts,
    "key_types": ComparesBits,
    "composite_keys": ComparesOneColumn,
    "colliding_codes": TrustsCodes,
    "index_free": NeedsAnIndexSilently,
    "used_in_place": NeverTouches,
    "stale_pages": KeepsPages,
    "nothing_carried": NeedsColumns,
    "output_schema": RenamesColumns,
    "sequence_numbers": ReversesNumbers,
    "entry_steps": EntersLate,
    "ledger": CountsTwice,
    "honest_reads": HidesReads,
    "idle": ReadsAhead,
    "failed_read": SwallowsErrors,
    "failing_for_good": SwallowsErrors,
    "bounded_memory": Hoards,
    "small_budget": IgnoresTheBudget,
    "bounded_output": FloodsItsOutput,
    "bounded_misses": LetsAllMissesLeaveAtOnce,
    "bounded_waits": ServesTheNewest,
    "wrong_keys": AcceptsAnyKey,
}
