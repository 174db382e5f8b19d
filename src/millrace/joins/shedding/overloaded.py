"""A join under load: what it can't serve is shed, and comes back when the stream is slower.

Naeem, Dobbie, Weber, Lutteroth: Efficient semi-stream joins with caching and load shedding, section 4, for the detection and
for shedding *after considering*. Polyzotis et al. (MESHJOIN, TKDE 2008) for shedding up front.

    arrivals --> [ stream buffer ] --> [ join: window ] --> rows
                        |    ^              |
                        v    |              v
                 [ shed file, or another sink: oldest first ]

The loop, with w = tuples served in a step:
    1. the join takes what it has room for. If more than 2w tuples are left in the buffer, the policy chooses as many as are
       too many, and they are shed;
    2. the join takes what it has room for now, and makes a step;
    3. fewer than 2w in the buffer: tuples that were shed come back, oldest first, up to 2w. Tuples that were outside for
       longer than the age limit come back even if there are more, and are not shed again.

Differs from the paper:
    - w counts all tuples that left in a step, those of a front stage too. The larger of the last step and a running mean
      counts, so that one poor page does not look like overload. The paper compares with w_B alone.
    - The join takes what it has room for before tuples are shed: a read that served many leaves more room than 2w.
    - All policies shed a sixteenth of the window at least, because one look through it costs the same for any number.
    - The paper loads 2w tuples back; here what is missing to 2w.
    - Nothing is ever lost, except by policy `drop`: a tuple that can't be written stays.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget, format_bytes, parse_bytes
from millrace.core.errors import BudgetError, ParameterError, SpillError
from millrace.core.protocols import Withdrawn
from millrace.core.step import Step
from millrace.joins.shedding.arrival_steps import ArrivalSteps
from millrace.joins.shedding.buffer import StreamBuffer, Tuples, joined
from millrace.joins.shedding.policies import Inside, make_policy, stage_that_waits
from millrace.joins.shedding.store import Nowhere, ShedFile, Sink

NUMBER = "number of the tuple"  # the column that goes with the rows into a sink
LOOKUP_POSITION = 0.15  # of the paper
_PORTION = 16  # of the window, to be shed at once
_WAITS = 16  # an age limit: so many times the longest wait in the join
_SCRATCH_BYTES = 32  # per slot, to look through a window
_OWN_BYTES = 4 << 20
_LEAST_BYTES = 64 << 10
_FEW = 64


class Overloaded:
    """Holds a join whose spec is `returnable`, and has its interface; `offer` always takes all rows.

    `policy`: drop, sample, keep, considering or selective. `memory`: for the stream buffer, the file's buffers and the look
    through the window, beside the memory of the join. `folder`: of the file. `sink`: instead of a file. `position`: which
    partition of its queue HYBRIDJOIN reads next while `considering` sheds, from 0, the oldest, to 1. `age_limit`: steps.

    >>> from millrace.core.protocols import JoinSpec
    >>> from millrace.joins.hybridjoin import HybridJoin
    >>> from millrace.relations.memory import MemoryRelation
    >>> products = MemoryRelation(pa.table({"id": [1, 2], "price": [10, 20]}), "id", rows_per_page=1)
    >>> sales = pa.record_batch({"product": [1, 2] * 5000})
    >>> spec = JoinSpec(sales.schema, (("product", "id"),), "inner", ("product",), ("price",), returnable=True)
    >>> with Overloaded(HybridJoin(products, spec, Budget("16k")), policy="keep", memory="100k") as join:
    ...     taken, shed, rows = join.offer(sales), join.deferred, 0
    ...     while join.pending:
    ...         rows += join.step().output.num_rows
    >>> taken, shed > 0, rows, join.deferred
    (10000, True, 10000, 0)
    """

    def __init__(
        self, join: Any, *, policy: str = "selective", memory: int | str | None = None, folder: Path | str | None = None,
        sink: Sink | None = None, position: float = LOOKUP_POSITION, age_limit: int | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        _check(join, position, age_limit, sink)
        self.join = join
        self.policy = policy
        self._policy = make_policy(policy, join)
        self._position = position if policy == "considering" else 0.0
        self.age_limit = age_limit if age_limit is not None else _WAITS * int(join.longest_wait)
        self._capacity = int(join.capacity)
        self._budget = self._reserved(memory)
        self._limit = self._budget.holdings()["stream buffer"]
        self._buffer = StreamBuffer(self._stage.returned_schema)
        self._inside = Inside(self._buffer, join, np.random.default_rng(seed))
        self.sink: Sink = Nowhere()
        if policy != "drop":
            file_bytes = self._budget.holdings()["shed file buffers"]
            self.sink = sink if sink is not None else ShedFile(folder, buffer_bytes=file_bytes)
        self._outside: deque[list[int]] = deque()  # how many were shed in which step
        self._arrivals = ArrivalSteps()
        self.deferred = self.arrived = 0  # tuples outside; tuples that ever came
        self._posted_deferred = self._posted_arrived = self._posted_bytes = 0
        self._steps = 0
        self._served = float(self._capacity)
        self._served_so_far = 0  # since the last step that read
        self._failed: SpillError | None = None  # to be raised by the next call
        self._give_up = False  # shedding has just failed: the next step does without

    @property
    def _stage(self) -> Any:
        """Where tuples wait now: a cached join makes its back stage anew when it shares out its memory."""
        return stage_that_waits(self.join)

    def _reserved(self, memory: int | str | None) -> Budget:
        """What this takes beside the join."""
        scratch = ArrivalSteps.bytes_used + 8 * int(getattr(self._stage, "places", 0))
        if self._policy.asks_window:
            scratch += self._capacity * _SCRATCH_BYTES
        given = scratch + _OWN_BYTES if memory is None else parse_bytes(memory)
        if given < scratch + _LEAST_BYTES:
            raise BudgetError(
                f"shedding needs at least {format_bytes(scratch + _LEAST_BYTES)} beside the join; got {format_bytes(given)}: "
                f"give memory={scratch + _LEAST_BYTES} or more",
                scratch + _LEAST_BYTES,
            )
        budget = Budget(given)
        budget.reserve("look through the window, and counts", scratch)
        budget.reserve("stream buffer", (given - scratch) * 3 // 4)
        budget.reserve("shed file buffers", (given - scratch) // 4)
        return budget

    @property
    def pending(self) -> int:
        """Tuples inside: in the buffer and in the join."""
        return len(self._buffer) + int(self.join.pending)

    @property
    def share_lost(self) -> float:
        """Policy `drop`: the share of all tuples that were dropped."""
        return self.deferred / max(1, self.arrived) if isinstance(self.sink, Nowhere) else 0.0

    @property
    def longest_wait(self) -> int:
        """In the join. While there is too much load, tuples may wait before it, and outside."""
        return int(self.join.longest_wait)

    @property
    def bytes_used(self) -> int:
        return int(self.join.bytes_used) + self._budget.used_bytes

    @property
    def capacity(self) -> int:
        return self._capacity

    def __enter__(self) -> Overloaded:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Remove the file. What is in it is lost: drain first."""
        self.sink.close()

    def offer(self, batch: pa.RecordBatch) -> int:
        """Take rows: all of them, unless tuples can't be shed. If none could be taken, the error says why."""
        self._raise_failure()
        rows = batch.select(self._buffer.nothing.rows.schema.names)
        taken = 0
        while taken < rows.num_rows:
            some = self._fitting(rows.slice(taken))
            if some == 0:
                try:
                    self._make_room()
                except SpillError:
                    if not taken:
                        raise
                    break
                continue
            self._enter(rows.slice(taken, some))
            taken += some
        return taken

    def step(self) -> Step:
        self._raise_failure()
        if not self._give_up:
            self._shed_excess()
        self._give_up = False
        self._fill()
        step: Step = self.join.step()
        self._note_served(step.counts.removed)
        if len(self._inside.safe):
            self._inside.safe = np.setdiff1d(self._inside.safe, step.left)
        self._steps += 1
        self._bring_back()
        return self._own(step)

    def _note_served(self, left: int) -> None:
        """Steps of a front stage alone belong to the step that reads."""
        self._served_so_far += left
        if not getattr(self.join, "front_alone", False):
            self._served = max(self._served_so_far, (7 * self._served + self._served_so_far) / 8)
            self._served_so_far = 0

    def withdraw(self, numbers: Int64Array) -> Withdrawn:
        """Refused: tuples are withdrawn by the policy."""
        raise ParameterError("tuples of a join that sheds can't be given back; withdraw from the join that it holds")

    def _own(self, step: Step) -> Step:
        """The step with the counts of what came from the stream, and of what is outside."""
        written = getattr(self.sink, "written_bytes", 0)
        counts = replace(
            step.counts, tuples_in=self.arrived - self._posted_arrived, deferred=self.deferred - self._posted_deferred,
            spilled_bytes=written - self._posted_bytes,
        )  # fmt: skip
        self._posted_arrived, self._posted_deferred, self._posted_bytes = self.arrived, self.deferred, written
        return replace(step, counts=counts, entered=self._arrivals.steps_of(step.left))

    def _raise_failure(self) -> None:
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error

    def _enter(self, rows: pa.RecordBatch) -> None:
        numbers = np.arange(self.arrived, self.arrived + rows.num_rows)
        self._policy.arrive(rows, self.join)
        self._buffer.append(Tuples(rows, numbers))
        self._arrivals.add(self.arrived, self._steps)
        self.arrived += rows.num_rows

    def _fitting(self, rows: pa.RecordBatch) -> int:
        """Rows for which the buffer has room; one if it is empty."""
        each = (rows.nbytes + 8 * rows.num_rows) / rows.num_rows
        room = int((self._limit - self._buffer.nbytes) / each)
        return min(rows.num_rows, max(room, 0 if len(self._buffer) else 1))

    @property
    def _wanted(self) -> int:
        """Tuples that may be in the buffer: 2w, or what three quarters of its memory hold."""
        served = max(2 * self._served, _FEW)
        return max(1, int(min(served, 0.75 * self._limit / max(1.0, self._buffer.row_bytes))))

    def _make_room(self) -> None:
        """The buffer is full. Only if the join takes nothing of it, tuples are shed."""
        before = len(self._buffer)
        self._fill()
        if len(self._buffer) < before:
            return
        if before > self._wanted:
            self._shed(before - self._wanted)
            self._fill()
        if len(self._buffer) == before:  # the policy finds nothing to shed, or the join can't take the others yet
            self._shed_positions(np.arange(before - max(1, before // 4), before))

    def _shed_excess(self) -> None:
        """What the join has room for is no excess, so it comes first. A front stage alone that is full is no overload."""
        self._fill()
        if getattr(self.join, "front_is_full", False):
            return
        excess = len(self._buffer) - self._wanted
        portion = self._capacity // _PORTION
        room = int((self._limit - self._buffer.nbytes) / max(1.0, self._buffer.row_bytes))
        if excess > 0 and (excess >= portion or room < excess):
            self._shed(excess)

    def _shed(self, count: int) -> None:
        """Let tuples go outside that the policy chooses."""
        self._look_up_at(self._position)
        chosen = self._policy.choose(count, self._inside)
        marks = np.zeros(len(self._buffer), np.bool_)
        marks[chosen.positions] = True
        parts = [self._buffer.remove(marks)] if len(chosen.positions) else []
        if len(chosen.numbers):
            given = self.join.withdraw(chosen.numbers)
            parts.append(Tuples(given.rows, given.numbers))
        if parts:
            self._put(joined(parts))

    def _shed_positions(self, positions: Int64Array) -> None:
        marks = np.zeros(len(self._buffer), np.bool_)
        marks[positions] = True
        self._put(self._buffer.remove(marks))

    def _put(self, tuples: Tuples) -> None:
        if not len(tuples.numbers):
            return
        try:
            self.sink.put(tuples.rows.append_column(NUMBER, pa.array(tuples.numbers)))
        except SpillError as error:
            self._buffer.insert(tuples)
            self._give_up = True
            raise SpillError(
                f"{error}. No tuple is lost: {len(tuples.numbers)} stay inside; step on, then offer more"
            ) from error
        self.deferred += len(tuples.numbers)
        if self._outside and self._outside[-1][1] == self._steps:
            self._outside[-1][0] += len(tuples.numbers)
        else:
            self._outside.append([len(tuples.numbers), self._steps])

    def _fill(self) -> None:
        """Let the join take what it has room for."""
        while len(self._buffer):
            rows, numbers = self._buffer.whole()
            taken = self.join.offer_numbered(rows, numbers, self._steps)
            self._buffer.drop_front(taken)
            if taken < len(numbers):
                return

    def _look_up_at(self, position: float) -> None:
        if hasattr(self._stage, "lookup_position"):
            self._stage.lookup_position = position

    def _bring_back(self) -> None:
        """Tuples that were shed come back if there is room for them, or if they were outside for too long."""
        if not self._outside or isinstance(self.sink, Nowhere):
            return
        room = self._wanted - len(self._buffer)
        overdue = self._steps - self._outside[0][1] > self.age_limit
        if overdue:  # half of what is served at most, and never more than the buffer may hold
            room = max(room, min(int(self._served) // 2 + 1, self._wanted - len(self._inside.safe)))
        if self.pending == 0:
            room = max(room, 1)
        if room > 0:
            if not overdue:
                self._look_up_at(0.0)
            try:
                self._take_back(room, overdue=overdue)
            except SpillError as error:
                self._failed = error

    def _take_back(self, count: int, *, overdue: bool) -> None:
        parts: list[Tuples] = []
        try:
            while count > 0 and self.deferred:
                batch = self.sink.take(count)
                if batch is None:
                    break
                numbers = batch.column(NUMBER).to_numpy().astype(np.int64)
                parts.append(Tuples(batch.drop_columns([NUMBER]), numbers))
                self._came_back(len(numbers))
                count -= len(numbers)
        finally:  # what came before a read failed is here
            if parts:
                back = joined(parts)
                self._buffer.insert(back)
                if overdue:
                    self._inside.safe = np.concatenate((self._inside.safe, back.numbers))

    def _came_back(self, count: int) -> None:
        self.deferred -= count
        while count:
            first = self._outside[0]
            gone = min(count, first[0])
            first[0] -= gone
            count -= gone
            if not first[0]:
                self._outside.popleft()


def _check(join: Any, position: Any, age_limit: Any, sink: Any) -> None:
    if isinstance(join, Overloaded):
        raise ParameterError("this join sheds already; give the join that it holds")
    if isinstance(position, (bool, str)) or not isinstance(position, (int, float)) or not 0 <= position <= 1:
        raise ParameterError(f"position must be a number from 0 (the oldest) to 1 (the newest); got {position!r}")
    if age_limit is not None and (isinstance(age_limit, bool) or not isinstance(age_limit, int) or age_limit < 1):
        raise ParameterError(f"age_limit must be a whole number of steps, at least 1; got {age_limit!r}")
    if sink is not None and not all(callable(getattr(sink, name, None)) for name in ("put", "take", "close")):
        raise ParameterError(f"sink must have put(batch), take(rows) and close(); got {type(sink).__name__}")
