"""A front stage and a back stage, held together: what the cached joins share.

    stream --> [ front stage ] --- hits ---------------> output
                     | misses
                     v
               [ back stage: INLJ, MESHJOIN, HYBRIDJOIN or SWEEPJOIN ] --> output

Both stages have a share of the one budget. With `cache_share="auto"` the share follows what the front stage earns: for a stream
whose keys are spread evenly the front stage shrinks to a hundredth, for one with hot keys it takes what gives the highest rate.
How the shares are weighed stands in `cache_share`. To change the share, the join takes no tuples until all have left, and then
both stages are made anew.

A front stage that answers next to nothing with the least share rests: tuples go past it, and it does not learn. It is awake a
sixteenth of the time, so that it notices when the stream has hot keys again.

A step makes a step of both stages. If the front stage alone had no room for more tuples, some steps only put out what it found,
so that the back stage does not read with a window that could have been filled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np
import pyarrow as pa

from millrace.core.arrays import BoolArray, Int64Array
from millrace.core.budget import Budget, format_bytes
from millrace.core.errors import BudgetError
from millrace.core.protocols import JoinSpec, Relation, Withdrawn
from millrace.core.step import Step, StepCounts
from millrace.cost import front_stage as cost
from millrace.cost.expected import Expected, StreamShape
from millrace.joins.cache_share import (
    BETTER,
    FIRST_SHARE,
    LEARNED,
    LEAST_SHARE,
    SHARES,
    Back,
    CacheShare,
    Division,
    best_share,
    check_threshold,
    divide_stages,
)
from millrace.joins.emit import Emitter
from millrace.joins.front_stage import FrontStage, Threshold, kept_keys, least_front_bytes
from millrace.joins.hot_rows import HotRows
from millrace.structures.window import Window

_FRONT_STEPS = 4, 64  # of the front stage alone, one after the other: more where tuples wait long anyway
_LITTLE = 0.5  # a front stage that answers less than this part of its share does not earn it
_FEW_TUPLES = 16  # looked up at a time where most of them are not taken
_RESTS_BELOW, _WAKES_ABOVE = 0.02, 0.04  # share of the stream answered in front: a look-up costs about as much as it saves
_REST_TURNS = 16  # of which one is spent awake
_ENOUGH_LOOKUPS = 512  # to believe what was seen in one turn
_CHANGED = 0.1  # of the stream: if so much more or less of it is answered in front, it has changed


class CachedJoin:
    """A front stage held together with a back stage. Subclasses say which back stage.

    `cache_share`: the front stage's share of the memory, 0 to 1, or "auto". 0: no front stage. `threshold`: how many tuples
    must wait for a key before its rows come in, or "auto". `hot`: the rows of an earlier front stage of the same kind. Further
    parameters are those of the back stage.

    Where pages are used in place, and where lists, structs or maps are put out, there is no front stage.
    """

    back_class: ClassVar[Any]
    counts_recent_keys: ClassVar[bool] = False  # for a back stage in which tuples do not wait for each other
    shares: ClassVar[tuple[float, ...]] = SHARES  # to choose from; with one share there is nothing to weigh
    learned: ClassVar[float] = LEARNED  # of what the keys that come most often would answer

    def __init__(
        self, relation: Relation, spec: JoinSpec, budget: Budget, *,
        cache_share: CacheShare = "auto", threshold: Threshold = "auto", hot: HotRows | None = None,
        fill_first: bool = False, **parameters: Any,
    ) -> None:  # fmt: skip
        check_threshold(threshold)
        self._relation, self._spec, self._budget = relation, spec, budget
        self._how = Back(self.back_class, parameters)
        self._wanted_share, self._threshold, self._fill_first = cache_share, threshold, fill_first
        self._free = budget.free_bytes
        division = self.divide(relation, spec, budget, cache_share=cache_share, threshold=threshold, **parameters)
        budget.reserve("front and back stage", self._free)
        self._offered = self._steps = 0
        self._next = 0  # the number of the next tuple
        self._served = 0  # by the back stage
        self._in_a_row = 0  # steps of the front stage alone
        self.front_alone = False  # whether the last step was one of them
        self._front_was_full = False
        self._ahead = 1024  # tuples that are looked up at a time
        self._seen = (relation.rows, relation.pages)
        self._next_share: float | None = None  # the share to change to, once all tuples have left
        self.resting = False  # whether the front stage rests, but for a sample
        self._build(division, hot)

    def _build(self, division: Division, hot: HotRows | None = None) -> None:
        """Make both stages."""
        self.front: FrontStage | None = None
        if division.front is not None:
            fits = hot is not None and hot.memory_bytes == division.front.hot_bytes
            self.front = FrontStage(self._relation, self._spec, division.front, self._threshold, hot if fits else None)
            if hot is not None and not fits:
                if hot.nbytes + division.front.memory_bytes <= self._free:  # both at once, before there is a back stage
                    hot.move_to(self.front.hot)
                if hot.handed_over:
                    hot.let_go()
        self._back_budget = Budget(division.back_bytes)
        self.back = self._how.make(self._relation, self._spec, self._back_budget)
        self._begin_trial(2 * self.back.capacity)
        self._trials = 0
        self._answered, self._hits_seen = 0.0, (0, 0)  # at the last trial, and tuples looked up then and since then
        if self.front is not None:
            self.front.learn_from(self._back_window, self._back_emitter)
            self._back_emitter.put_out_less(self.front.output_rows)
        self._wake()

    @classmethod
    def divide(
        cls, relation: Relation, spec: JoinSpec, budget: Budget, *,
        cache_share: CacheShare = "auto", threshold: Threshold = "auto", hot: HotRows | None = None,
        fill_first: bool = False, **parameters: Any,
    ) -> Division:  # fmt: skip
        """How the budget would be shared out; an error if it is too small. No array is made."""
        check_threshold(threshold)
        back = Back(cls.back_class, parameters)
        first = FIRST_SHARE if FIRST_SHARE in cls.shares else cls.shares[0]
        return divide_stages(relation, spec, budget, back, cache_share=cache_share, recent=cls.counts_recent_keys, now=first)

    @classmethod
    def expect(
        cls, relation: Relation, spec: JoinSpec, budget: Budget, stream: StreamShape, *,
        cache_share: CacheShare = "auto", threshold: Threshold = "auto", hot: HotRows | None = None,
        fill_first: bool = False, rows: float | None = None, **parameters: Any,
    ) -> Expected:  # fmt: skip
        """What both stages are expected to do, once the front stage has learned: in the long run, or with so many rows and then
        no more. An error if the budget is too small. No array is made."""
        shares = cls.shares if cache_share == "auto" else (cache_share,)
        fixed = cache_share != "auto"
        found = [cls._expect(relation, spec, budget, stream, share, fixed, rows, parameters) for share in shares]
        if len(found) == 1:
            return found[0]
        gains = [cost.gain(float(one.settings.get("cache_share", 0.0)), one.answered) for one in found]  # 0: no front stage
        first = next((i for i, one in enumerate(shares) if one == FIRST_SHARE), 0)
        best = int(np.argmax(gains))
        return found[best if gains[best] > BETTER * gains[first] else first]

    @classmethod
    def _expect(
        cls, relation: Relation, spec: JoinSpec, budget: Budget, stream: StreamShape, share: float, fixed: bool,
        rows: float | None, parameters: dict[str, Any],
    ) -> Expected:  # fmt: skip
        """What is expected of one share of the memory. `fixed`: it is not made smaller where the back stage needs more."""
        back = Back(cls.back_class, parameters)
        division = divide_stages(
            relation, spec, budget, back, cache_share=share if fixed or share == 0 else "auto", recent=cls.counts_recent_keys,
            now=share,
        )  # fmt: skip
        rest, answered, keys = stream, 0.0, 0
        if division.front is not None:
            keys = kept_keys(relation, spec, division.front, stream.sigma)
            answered = cls.learned * stream.popularity.share(keys)
            rest = stream.without(int(cls.learned * keys))
        behind = None if rows is None else rows * (1 - answered)
        expected: Expected = cls.back_class.expect(relation, spec, Budget(division.back_bytes), rest, rows=behind, **parameters)
        if division.front is None:
            return expected
        more = {"sigma": stream.sigma * (1 - stream.absent), "output_rows": division.front.output_rows}
        if rows is None:
            both = cost.iteration(expected.iteration, answered, **more)
        else:
            both = cost.drained(expected.iteration, rows, answered, **more)
        parts = {"front stage": division.front.memory_bytes, **expected.memory}
        settings = {"cache_share": division.front.memory_bytes / budget.free_bytes, "cached_keys": keys, **expected.settings}
        return Expected(both, expected.window_tuples, parts, settings, answered)

    @property
    def _back_window(self) -> Window:
        return cast(Window, self.back._window)

    @property
    def _back_emitter(self) -> Emitter:
        return cast(Emitter, self.back._emitter)

    @property
    def cache_share(self) -> float:
        """The share of the memory that the front stage has now."""
        return self.front.budget.memory_bytes / self._free if self.front is not None else 0.0

    @property
    def capacity(self) -> int:
        """Tuples that can wait at once."""
        return int(self.back.capacity)

    @property
    def pending(self) -> int:
        return int(self.back.pending) + (self.front.pending if self.front is not None else 0)

    @property
    def longest_wait(self) -> int:
        """As long as in the back stage: a tuple that the front stage answers does not wait."""
        return int(self.back.longest_wait)

    @property
    def bytes_used(self) -> int:
        return self._back_budget.used_bytes + (self.front.budget.used_bytes if self.front is not None else 0)

    def offer(self, batch: pa.RecordBatch) -> int:
        return self.offer_numbered(batch, np.arange(self._next, self._next + batch.num_rows), self._steps)

    def offer_numbered(self, batch: pa.RecordBatch, numbers: Int64Array, step: int) -> int:
        """`offer`, for whoever holds this join and counts tuples and steps himself."""
        self._front_was_full = False
        self._steps = step
        if self._next_share is not None and self.pending:
            return 0
        self._look_at_relation()
        if self._asleep:
            taken = int(self.back.offer_numbered(batch, numbers, step))
            self._note_taken(taken, numbers)
            return taken
        taken = 0
        while taken < batch.num_rows:
            some = batch.slice(taken, self._ahead if self.front is not None else batch.num_rows)
            count = self._offer(some, numbers[taken : taken + some.num_rows])
            taken += count
            if count < some.num_rows:
                self._ahead = max(_FEW_TUPLES, min(self._ahead, 2 * count))
                break
            if self.front is not None and some.num_rows == self._ahead:
                self._ahead = min(2 * self._ahead, self.front.rows_at_once)
        return taken

    def _offer(self, batch: pa.RecordBatch, numbers: Int64Array) -> int:
        """Offer tuples that are looked up at once."""
        if self.front is None:
            taken = int(self.back.offer_numbered(batch, numbers, self._steps))
            self._note_taken(taken, numbers)
            return taken
        entries, codes = self.front.find(batch)
        hits = np.flatnonzero(entries >= 0)
        upto = batch.num_rows
        answered = None
        if self.front.keeps_rows:
            answered = batch if len(hits) == batch.num_rows else batch.take(pa.array(hits))
        fit = self.front.fits(entries[hits], answered)
        if fit < len(hits):
            upto = int(hits[fit])
            self._front_was_full = True
        misses = np.flatnonzero(entries[:upto] < 0)
        if len(misses):
            missed = batch.slice(0, upto) if len(misses) == upto else batch.take(pa.array(misses))
            with self._speaking_of_all_memory():
                went = int(self.back.offer_numbered(missed, numbers[misses], self._steps))
            if went < len(misses):
                upto = int(misses[went])
                self._front_was_full = False
                misses = misses[:went]
        hits = hits[: np.searchsorted(hits, upto)]
        self.front.note(upto, entries[hits], codes[misses])
        if len(hits):
            rows = None if answered is None else answered.slice(0, len(hits))
            self.front.answer(rows, codes[hits], entries[hits], numbers[hits], self._steps)
        if self._served >= self._trial_counts:
            self._trial_tuples += upto
            self._trial_hits += len(hits)
        self._note_taken(upto, numbers)
        return upto

    def _note_taken(self, count: int, numbers: Int64Array) -> None:
        self._offered += count
        self._next = max(self._next, 1 + int(numbers[:count].max(initial=-1)))

    def answers(self, rows: pa.RecordBatch) -> BoolArray:
        """Which of these tuples the front stage would answer now."""
        if self.front is None or self._asleep:
            return np.zeros(rows.num_rows, np.bool_)
        entries, _ = self.front.find(rows)
        return np.asarray(entries >= 0)

    @property
    def front_is_full(self) -> bool:
        """Whether only the front stage stopped the last offer: a step makes room there without a read."""
        return self._front_was_full

    def withdraw(self, numbers: Int64Array) -> Withdrawn:
        """Give waiting tuples back; see `SemiStreamJoin`. What the front stage has answered does not wait."""
        return cast(Withdrawn, self.back.withdraw(numbers))

    def step(self) -> Step:
        self._look_at_relation()
        if self.front is None:
            step = self._back_step()
        elif self._asleep and not self.front.pending:
            self.front_alone, self._in_a_row = False, 0
            step = self._back_step()
            self._served += step.counts.removed
        else:
            self.front.now = self._next
            step = self._step_of_both(self.front)
        self._steps += 1
        if self._weighs:
            self._rest_or_wake()
            self._look_at_hits()
            self._weigh()
        return step

    def _back_step(self) -> Step:
        self._back_window.steps = self._steps
        with self._speaking_of_all_memory():
            return cast(Step, self.back.step())

    @contextmanager
    def _speaking_of_all_memory(self) -> Iterator[None]:
        """An error of the back stage names the memory that it needs; users give memory to both stages."""
        try:
            yield
        except BudgetError as small:
            if self.front is None:
                raise
            front = self.front.budget.memory_bytes
            needed = self._budget.memory_bytes - self._free + small.needed_bytes + front
            if self._wanted_share != "auto":  # the share grows with the memory
                needed = max(needed, int(small.needed_bytes / (1 - self.cache_share)) + 1)
            raise BudgetError(
                f"the memory budget of {format_bytes(self._budget.memory_bytes)} is too small for a row that came: the front "
                f"stage has {format_bytes(front)} of it; give memory={needed} or more, or a smaller cache_share",
                needed,
            ) from small

    def _step_of_both(self, front: FrontStage) -> Step:
        most = min(max(_FRONT_STEPS[0], self.longest_wait // 2), _FRONT_STEPS[1])
        alone = self._front_was_full and front.pending and (self._fill_first or self._in_a_row < most)
        self._front_was_full = False
        self.front_alone = bool(alone)
        if alone:
            self._in_a_row += 1
            step, window = front.step(self._steps), self._back_window
            came = StepCounts(tuples_in=window.arrived, deferred=window.given_back)
            window.arrived = window.given_back = 0
            return replace(step, counts=step.counts + came)
        back = self._back_step()  # first: if it fails, nothing of the front stage is lost
        self._in_a_row = 0
        self._served += back.counts.removed
        return _together(back, front.step(self._steps))

    def _look_at_relation(self) -> None:
        """If the relation has grown, what is in memory may not be all rows of a key any more."""
        seen = (self._relation.rows, self._relation.pages)
        if seen != self._seen:
            self._seen = seen
            if self.front is not None:
                self.front.forget(self._next)

    # --- the share of the front stage

    @property
    def settled(self) -> bool:
        """Whether the share was weighed once both stages were in their stride, and is not about to change."""
        return not self._weighs or (self._trials >= 2 and self._next_share is None)

    @property
    def _weighs(self) -> bool:
        return self._wanted_share == "auto" and self.front is not None and len(self.shares) > 1

    def _begin_trial(self, tuples: int) -> None:
        """Let the back stage serve so many tuples before the share is looked at. The last quarter of this time tells how much
        of the stream is answered in front."""
        self._trial_counts, self._trial_ends = self._served + 3 * tuples // 4, self._served + tuples
        self._trial_hits = self._trial_tuples = 0

    def _weigh(self) -> None:
        """At the end of a trial, find the share that would give the highest rate."""
        if self._next_share is not None:
            if not self.pending:
                self._change_share(self._next_share)
            return
        front = self.front
        if self._served < self._trial_ends or front is None:
            return
        share, answered = self.cache_share, self._trial_hits / max(1, self._trial_tuples)
        if self._trials:
            best = best_share(share, answered, np.sort(front.hot.scores())[::-1], self.shares)
        else:
            best = LEAST_SHARE if answered < _LITTLE * share else share
        self._trials += 1
        self._answered, self._hits_seen = answered, front.looked_up
        self._begin_trial(2 * self.back.capacity + front.hot.period << min(self._trials, 8))
        best = max(best, least_front_bytes(self._relation, self._spec) / self._free)
        if abs(best - share) > 1e-3 and best <= max(0.5, share):
            self._next_share = best
        elif best <= share and answered < _RESTS_BELOW and share <= self._least_share and not self.resting:
            self._rest()

    def _look_at_hits(self) -> None:
        """Trials become long. Between them, notice that the front stage answers much more of the stream, or much less."""
        front = self.front
        if self._trials < 2 or self.resting or self._next_share is not None or front is None:
            return
        lookups, hits = (now - before for now, before in zip(front.looked_up, self._hits_seen, strict=True))
        if lookups < 2 * self.back.capacity + front.hot.period:
            return
        self._hits_seen = front.looked_up
        if abs(hits / lookups - self._answered) > _CHANGED:
            self._trials = 1
            self._begin_trial(2 * self.back.capacity + front.hot.period)

    def _change_share(self, share: float) -> None:
        """All tuples have left: make both stages anew, and keep the rows that are wanted most."""
        self._next_share = None
        try:
            division = divide_stages(
                self._relation, self._spec, Budget(self._free), self._how, cache_share="auto", recent=self.counts_recent_keys,
                now=share,
            )  # fmt: skip
        except BudgetError:
            return
        trials, since = self._trials, self.front.since if self.front is not None else 0
        hot = self.hand_over()
        self._build(division, hot)
        assert self.front is not None
        self._trials = trials
        self._begin_trial(2 * self.back.capacity + self.front.hot.period << min(trials, 8))
        self.front.since = since

    def hand_over(self) -> HotRows | None:
        """The rows of the front stage, for a join that takes the place of this one. No tuple is inside, and none may be offered
        any more. The memory of both stages is free then, but for these rows."""
        self._look_at_relation()
        front, self.front = self.front, None
        if front is None:
            return None
        self._back_emitter.watcher = None
        del self.back, self._back_budget
        front.retire()
        front.hot.handed_over = True
        return front.hot

    # --- a front stage that is of little use rests

    @property
    def _least_share(self) -> float:
        """The smallest share that there is, or a little more."""
        return max(LEAST_SHARE, least_front_bytes(self._relation, self._spec) / self._free) + 1e-3

    def _wake(self) -> None:
        self.resting = self._asleep = False
        self._turns = self._turn_ends = 0
        self._looked_up = (0, 0)  # and answered, when the turn began

    def _rest(self) -> None:
        self.resting = True
        self._turn_ends = self._served

    def _rest_or_wake(self) -> None:
        """At the end of a turn, sleep, or be awake for a turn. Who sees hits then stays awake, and is weighed soon."""
        front = self.front
        if not self.resting or self._served < self._turn_ends or front is None:
            return
        if not self._asleep and self._turns:
            lookups, hits = (now - before for now, before in zip(front.looked_up, self._looked_up, strict=True))
            if lookups >= _ENOUGH_LOOKUPS and hits > _WAKES_ABOVE * lookups:
                self._wake()
                self._trials = 1
                self._begin_trial(2 * self.back.capacity + front.hot.period)
                return
        asleep = self._turns % _REST_TURNS != 0
        if asleep:
            front.stop_learning(self._back_emitter)
        else:
            front.learn_from(self._back_window, self._back_emitter)
        self._asleep = asleep
        # Where keys have several rows, a turn is longer than any tuple waits: it has to meet all rows of a key.
        self._turn_ends = self._served + (max(1, self.back.capacity // 8) if front.one_row else 2 * self.back.capacity)
        self._looked_up = front.looked_up
        self._turns += 1


def _together(back: Step, front: Step) -> Step:
    """The step of both stages."""
    counts = back.counts + front.counts
    parts = [step for step in (back, front) if step.output.num_rows]
    output = parts[0].output if len(parts) == 1 else back.output
    if len(parts) == 2:
        output = pa.concat_batches([back.output, front.output])
    return Step(
        counts, output, np.concatenate((back.sequence, front.sequence)),
        np.concatenate((back.entered, front.entered)), np.concatenate((back.left, front.left)),
    )  # fmt: skip
