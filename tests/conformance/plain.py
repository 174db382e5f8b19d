"""A plain join that keeps every law, and broken forms of it that each break one: do the laws notice?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from millrace.checks import ReadFailed
from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.errors import BudgetError
from millrace.core.keys import KeyCodec
from millrace.core.protocols import HOWS, How, JoinSpec, PageRun, Relation, Withdrawn
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

    def withdraw(self, numbers: Int64Array) -> Withdrawn:
        slots = np.intersect1d(self.window.find(numbers), np.array(self.queue[self.page > 0 :], np.int64))
        self.queue = [slot for slot in self.queue if slot not in slots]
        return self.window.give_back(slots)

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


class GivesBackAndKeeps(PlainJoin):
    """Gives rows back, and joins them all the same."""

    def withdraw(self, numbers: Int64Array) -> Withdrawn:
        slots = self.window.find(numbers)[:1]
        assert self.window.rows is not None
        return Withdrawn(self.window.sequence[slots], self.window.rows.take(slots))


class AcceptsAnyKey(PlainJoin):
    def __init__(self, relation: Relation, spec: JoinSpec, budget: Budget) -> None:
        try:
            super().__init__(relation, spec, budget)
        except TypeError:
            self.relation = relation


@dataclass(frozen=True)
class Caught:
    """A broken join, what the law says of it in the first of `hows`, and in which joins the law says it."""

    join: type[PlainJoin]
    problem: str  # a regular expression, from the beginning
    hows: tuple[How, ...] = HOWS


_ROWS_DIFFER = r"the join \(left\) differs from the reference \(right\): rows of .* that differ:\s+"
_LACKS_ROWS = _ROWS_DIFFER + r"only left: 0\s+only right: [1-9]"
_HAS_TOO_MANY = _ROWS_DIFFER + r"only left: [1-9]\d*\s+1 x "

# which broken join each law catches, and how
CAUGHT_BY: dict[str, Caught] = {
    "exact": Caught(TakesOneRowPerKey, _LACKS_ROWS, ("inner", "left")),
    "duplicates": Caught(TakesOneRowPerKey, _LACKS_ROWS, ("inner", "left")),
    "frequency_order": Caught(StopsAtGreaterCodes, _LACKS_ROWS),
    "null_keys": Caught(CallsNullsAbsent, "30 tuples have a null key, counted were 0"),
    "absent_keys": Caught(CallsAbsentNull, "30 tuples have an absent key, counted were 0"),
    "empty_stream": Caught(ReadsAhead, r"nothing arrived, but pages were read: \[\(0, 1\), "),
    "empty_relation": Caught(NeedsAPage, "pages 0 to 1 do not exist: the relation has 0 pages"),
    "one_row_relation": Caught(NeedsAPage, "pages 0 to 1 do not exist: the relation has 1 pages"),
    "paused_stream": Caught(WaitsForMore, r"7 tuples still wait after \d+ steps: they may never leave"),
    "early_end": Caught(WaitsForMore, r"1 tuples still wait after \d+ steps: they may never leave"),
    "any_cut": Caught(NoticesCuts, _LACKS_ROWS),
    "key_types": Caught(ComparesBits, "key type float: " + _LACKS_ROWS),
    "composite_keys": Caught(ComparesOneColumn, _HAS_TOO_MANY),
    "colliding_codes": Caught(TrustsCodes, _HAS_TOO_MANY),
    "index_free": Caught(NeedsAnIndexSilently, "'IndexFree' object has no attribute 'locate'"),
    "used_in_place": Caught(NeverTouches, r"pages \[0\] were used and never touched"),
    "stale_pages": Caught(KeepsPages, "pages of read 1 were used after read 11"),
    "nothing_carried": Caught(
        NeedsColumns, r"without columns, sequence numbers Counter\({3: 3, .*are missing, Counter\(\) too many"
    ),
    "output_schema": Caught(RenamesColumns, r"it puts out EVENT: int64\s.*, not event: int64\s"),
    "sequence_numbers": Caught(ReversesNumbers, _HAS_TOO_MANY),
    "entry_steps": Caught(EntersLate, r"step 0: tuples left that entered in steps \[1, 1\]"),
    "ledger": Caught(CountsTwice, "the ledger does not balance after step 1: 10 rows in, but 2 matched"),
    "honest_reads": Caught(HidesReads, r"it counts 0 pages read; the relation saw \[\(0, 1\), "),
    "idle": Caught(ReadsAhead, r"with nothing offered a step counts StepCounts\(tuples_in=0, pages_read=1, "),
    "failed_read": Caught(SwallowsErrors, "1 reads failed, and 0 errors came out"),
    "failing_for_good": Caught(SwallowsErrors, "no page could be read, and all tuples left all the same"),
    "bounded_memory": Caught(Hoards, r"it says it uses 345 bytes and holds \d+; the budget is 345"),
    "small_budget": Caught(IgnoresTheBudget, "it was built with one byte of memory"),
    "bounded_output": Caught(FloodsItsOutput, "a step put out 90000 rows; more than 65536 must wait", ("inner", "left")),
    "bounded_misses": Caught(
        LetsAllMissesLeaveAtOnce, "a step put out 75536 rows; more than 65536 must wait", ("left", "anti")
    ),
    "bounded_waits": Caught(ServesTheNewest, "tuple 0 is inside after 25 reads; the join says 24 at most"),
    "withdrawn": Caught(GivesBackAndKeeps, r"it gave back 1 of \d+ tuples, but pending is \d+"),
    "wrong_keys": Caught(AcceptsAnyKey, "string was accepted as the key of a table whose key is int64"),
}
