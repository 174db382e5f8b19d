"""A join whose settings follow the stream while it runs: disk buffer, pinned pages, memory shares, and which join it is.

    stream --> [ watch: a sample of the keys ] --> [ the join of now ] --> rows
                        |                                 ^
                        v  every so often                 |  once all tuples have left
                    seen: skew, absent keys,              |
                    rows for a key, how full --> judge --> other settings

The loop:
    1. rows go to the join that is held, and a part of them is counted;
    2. every so often, the judge compares what other settings promise for the stream as it is now (see `judge`);
    3. for a change, no more tuples are taken. The join steps until all have left;
    4. the old join lets its memory go. Then the new one is made in the same budget. If both have a front stage, hot rows go on.

No tuple is lost or repeated, and none waits longer than in the join that it is in. MESHJOIN's authors left changing w and b
while it runs as future work. A cached join shares its memory out by itself (see `joins.cached`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.catalog import algorithm
from millrace.core.arrays import BoolArray, Int64Array
from millrace.core.budget import Budget, format_bytes
from millrace.core.errors import BudgetError, ParameterError, StrategyError
from millrace.core.protocols import JoinSpec, Relation, Withdrawn
from millrace.core.step import Step
from millrace.cost.expected import StreamShape
from millrace.joins.cached import CachedJoin
from millrace.joins.hot_rows import HotRows
from millrace.joins.shedding.policies import stage_that_waits
from millrace.tuning.arrivals import checked_arrivals
from millrace.tuning.choose import CostsOf
from millrace.tuning.judge import Decide, Judge, Wanted
from millrace.tuning.settings import Setting, Tuner
from millrace.tuning.watch import Watch

_WATCH_SHARE = 64  # of the memory
_MOST_COUNTERS, _FEWEST_COUNTERS = 1024, 8
_LOOK_WINDOWS = 4  # between two looks
_LEAST_LOOK = 1 << 14  # tuples


@dataclass(frozen=True)
class Change:
    """What was changed before this step, and why."""

    step: int
    before: Setting
    after: Setting
    why: str

    def __str__(self) -> str:
        return f"step {self.step:,}: {self.before} -> {self.after}: {self.why}"


class FollowingJoin:
    """Holds a join, and changes it as the stream changes. A `SemiStreamJoin` itself.

    `strategy`: of the join; "auto": any, and another one when that is better. `stream`: what is known of the stream before it
    comes. `costs_of`: unit costs by strategy. `arrivals_per_second`: may be set at any time by a host that knows; a join that
    keeps up is left alone. `look_tuples`: between two looks. `decide`: decides on changes, instead of a `Judge`. Further
    parameters are those of the one strategy that is named, and stay as they are.

    >>> from millrace.relations.memory import MemoryRelation
    >>> products = MemoryRelation(pa.table({"id": [1, 2], "price": [10, 20]}), "id")
    >>> sales = pa.record_batch({"product": [2, 1]})
    >>> spec = JoinSpec(sales.schema, (("product", "id"),), "inner", ("product",), ("price",))
    >>> join = FollowingJoin(products, spec, Budget("64k"), "meshjoin")
    >>> join.offer(sales), join.step().output.num_rows, str(join.setting), join.changes
    (2, 2, 'meshjoin()', [])
    """

    def __init__(
        self, relation: Relation, spec: JoinSpec, budget: Budget, strategy: str = "auto", *,
        stream: StreamShape | None = None, costs_of: CostsOf | None = None, arrivals_per_second: float | None = None,
        look_tuples: int | None = None, decide: Decide | None = None, hot: HotRows | None = None, **parameters: Any,
    ) -> None:  # fmt: skip
        if strategy == "auto" and parameters:
            raise ParameterError(f'name the strategy that takes {", ".join(sorted(parameters))}, instead of "auto"')
        if look_tuples is not None and not look_tuples >= 1:
            raise ParameterError(f"look_tuples must be at least 1; got {look_tuples}")
        if arrivals_per_second is not None:
            checked_arrivals(arrivals_per_second)
        self._budget, self._free = budget, budget.free_bytes
        counters = _counters(self._free)
        self._bytes = self._free - Watch.bytes_for(counters)  # of the join
        self._look_tuples = look_tuples
        strategies = None if strategy == "auto" else (strategy,)
        self._tuner = Tuner(relation, spec, self._bytes, strategies, costs_of, parameters)
        with self._speaking_of_all_memory():
            self._make(self._tuner.best(stream or StreamShape.zipf(0.0, relation.rows)), hot)
        budget.reserve("a join whose settings follow the stream", self._free)
        self._watch = Watch(relation, spec, counters, stream.order if stream is not None else "scattered")
        self._judge = Judge(self._tuner, arrivals_per_second)
        self._decide: Decide = decide or self._judge
        self._watch_bytes = Watch.bytes_for(counters)
        self.changes: list[Change] = []
        self._wanted: Wanted | None = None  # to change to, once all tuples have left
        self._steps = self._next = self._taken = 0
        self._refused = False  # whether the last offer found too little room
        self._wait_before = 0  # the longest wait in the join that was given up in the last step
        self._begin_look()

    def _make(self, setting: Setting, hot: HotRows | None = None) -> None:
        """The join to hold, in a budget of its own."""
        more = {"hot": hot} if hot is not None and algorithm(setting.strategy).cached else {}
        self._join_budget = Budget(max(1, self._bytes))
        self.held: Any = self._tuner.make(setting, self._join_budget, **more)
        self.setting = setting

    # --- what every join says of itself

    @property
    def arrivals_per_second(self) -> float | None:
        """How fast tuples arrive, if the host knows."""
        return self._judge.arrivals_per_second

    @arrivals_per_second.setter
    def arrivals_per_second(self, rate: float | None) -> None:
        if rate is not None:
            checked_arrivals(rate)
        self._judge.arrivals_per_second = rate

    @property
    def pending(self) -> int:
        return int(self.held.pending)

    @property
    def longest_wait(self) -> int:
        """As long as in the join that is held. After a step in which the join changed: also in the one before, which the tuples
        of this step were in."""
        return max(int(self.held.longest_wait), self._wait_before)

    @property
    def bytes_used(self) -> int:
        return int(self.held.bytes_used) + self._watch_bytes

    @property
    def capacity(self) -> int:
        """Tuples that can wait at once, with the present settings."""
        return int(self.held.capacity)

    @property
    def look_tuples(self) -> int:
        """Tuples between two looks."""
        return self._look_tuples or max(_LEAST_LOOK, _LOOK_WINDOWS * self.capacity)

    @property
    def settled(self) -> bool:
        """Whether no change is on its way, here or in the join that is held."""
        return self._wanted is None and bool(getattr(self.held, "settled", True))

    @property
    def back(self) -> Any:
        """Where tuples wait now."""
        return stage_that_waits(self.held)

    @property
    def front_alone(self) -> bool:
        """Whether the last step was one of a front stage alone."""
        return bool(getattr(self.held, "front_alone", False))

    @property
    def front_is_full(self) -> bool:
        """Whether only a front stage stopped the last offer."""
        return self._wanted is None and bool(getattr(self.held, "front_is_full", False))

    def answers(self, rows: pa.RecordBatch) -> BoolArray:
        """Which of these tuples a front stage would answer now."""
        if not isinstance(self.held, CachedJoin):
            return np.zeros(rows.num_rows, np.bool_)
        return self.held.answers(rows)

    def offer(self, batch: pa.RecordBatch) -> int:
        return self.offer_numbered(batch, np.arange(self._next, self._next + batch.num_rows), self._steps)

    def offer_numbered(self, batch: pa.RecordBatch, numbers: Int64Array, step: int) -> int:
        """`offer`, for whoever holds this join and counts tuples and steps himself."""
        self._steps = step
        if self._wanted is not None and self.pending:  # step 3
            self._refused = True
            return 0
        with self._speaking_of_all_memory():
            taken = int(self.held.offer_numbered(batch, numbers, step))  # step 1
        self._refused = taken < batch.num_rows
        if taken:
            self._next = max(self._next, 1 + int(numbers[:taken].max()))
            self._taken += taken
            self._watch.took(batch.slice(0, taken))
        return taken

    def withdraw(self, numbers: Int64Array) -> Withdrawn:
        """Give waiting tuples back; see `SemiStreamJoin`."""
        given: Withdrawn = self.held.withdraw(numbers)
        return given

    def step(self) -> Step:
        self._wait_before = 0
        with self._speaking_of_all_memory():
            step: Step = self.held.step()
        self._steps += 1
        self._watch.stepped(step.counts, refused=self._refused)
        self._refused = False
        if self._wanted is None and self._taken >= self._look_at:
            self._look()
        if self._wanted is not None and not self.pending:
            self._change(self._wanted)
        return step

    # --- changes

    def _begin_look(self) -> None:
        self._look_at = self._taken + self.look_tuples
        self._watch.begin(self.look_tuples)

    def _look(self) -> None:
        """Step 2."""
        seen = self._watch.look()
        self._begin_look()
        try:
            wanted = self._decide(self.setting, seen)
            if wanted is not None:
                self._tuner.check(wanted.setting)
        except (BudgetError, StrategyError):  # nothing else fits any more: the join goes on as it is
            return
        self._wanted = wanted

    def _change(self, wanted: Wanted) -> None:
        """Step 4: all tuples have left."""
        self._wanted = None
        before, self._wait_before = self.setting, int(self.held.longest_wait)
        hot = self.held.hand_over() if isinstance(self.held, CachedJoin) else None
        del self.held, self._join_budget
        if not algorithm(wanted.setting.strategy).cached:
            hot = None
        try:
            self._make(wanted.setting, hot)
        except BudgetError:  # it was checked, so this should not happen; what there was still fits
            self._make(before)
            return
        self.changes.append(Change(self._steps, before, wanted.setting, wanted.why))
        self._begin_look()

    @contextmanager
    def _speaking_of_all_memory(self) -> Iterator[None]:
        """An error of the join names the memory that it needs; users give memory for the watch, too."""
        try:
            yield
        except BudgetError as small:
            others = self._budget.memory_bytes - self._free
            needed = others + -(-small.needed_bytes * _WATCH_SHARE // (_WATCH_SHARE - 1)) + 1
            text = str(small).split("; give memory=")[0]
            raise BudgetError(
                f"{text} (of {format_bytes(self._budget.memory_bytes)}, the join has all but what the watch takes); "
                f"give memory={needed} or more", needed,
            ) from small  # fmt: skip


def _counters(memory_bytes: int) -> int:
    """Counters of keys that the watch has room for; 0 if that is too few to tell anything."""
    count = _MOST_COUNTERS
    while count >= _FEWEST_COUNTERS and Watch.bytes_for(count) > memory_bytes // _WATCH_SHARE:
        count //= 2
    return count if count >= _FEWEST_COUNTERS else 0
