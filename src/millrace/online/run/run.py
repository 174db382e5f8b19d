"""A run of `mr.estimate`: an iterator of reports that ends with the exact answer, and can be stopped at any time.

begin --> sample, plan --> [ step, step, report ] ... --> exact --> closed
             ^                  |
             +---- more groups, or longer texts, than the sample had shown: from the start, with more room
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget, format_bytes
from millrace.core.errors import BudgetError, ParameterError, SpillError
from millrace.online.coverage.coverage import Coverage
from millrace.online.coverage.verify import verify_coverage
from millrace.online.joins.invocation import Expanding
from millrace.online.joins.prjoin import PRJoin
from millrace.online.pair_functions import Products
from millrace.online.protocol import A, B, Pieces, Progress
from millrace.online.question.query import MOST_GROUPS, Query, Question, Room
from millrace.online.question.sides import NeedsRoom
from millrace.online.run.reporting import Moment, Reporter
from millrace.online.run.reports import Held, Report, against_the_end
from millrace.online.sampling.heavy_keys import HeavyKeys, heavy_codes, most_keys
from millrace.online.sampling.rank_tests import columns_in_order
from millrace.online.sampling.row_order import UNKNOWN, Chosen, Order, agreed, check_sources
from millrace.online.sampling.samples import (
    Batches,
    Look,
    block_sizes,
    check_groups,
    never_negative,
    pilots,
    room_for,
    take_samples,
)
from millrace.online.statistics.intervals import IntervalRule
from millrace.online.storage.inputs import BatchInput
from millrace.online.storage.memory_plan import Layout, make_plan
from millrace.online.storage.needs import least_memory
from millrace.online.storage.spill import FileSpill
from millrace.online.tables.row_groups import ParquetSource
from millrace.online.tables.sources import Source

_WINDOW = 64  # a batch of rows takes that part of the memory, of either side
_FIRST_SHARE, _FIRST_ROWS = 0.01, 100  # of the rows, before the first report
_STEPS = 128  # batches of a side, at least
_PARTITION_ROWS = 4096
_OTHER_SEED = 1_000_003
_HISTORY_BYTES, _HISTORY_SHARE = 4 << 20, 32  # so many bytes of reports, beside the memory, or that part of it
_FEW_REPORTS = 16
_LOOKS = 4  # at samples, to find out how much memory is needed
_MIXING = 10  # rows of a row group are put into random order in that part of the memory, of either side
_TOO_LARGE = (
    "rows of {table} are in some order inside their row groups ({names}), and these are too large to be mixed, so there is no "
    "interval until the end. Give memory={needed} or more, or write the table in smaller row groups or in random order"
)
_MOST_BATCH_ROWS = 1 << 16
_HELD = 3  # batches of records: joined, ready, and being made


@dataclass(frozen=True)
class Options:
    memory_bytes: int
    seed: int
    rule: IntervalRule
    order: Chosen
    target: float
    every: float
    threads: int
    spill: str | Path | None
    spill_limit_bytes: int | None


def _history_bytes(memory_bytes: int) -> int:
    """What reports may take."""
    return max(_HISTORY_BYTES, memory_bytes // _HISTORY_SHARE)


class Early(Expanding):
    """The usual condition, with the first join after a hundredth of the input even where much more fits into memory."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._rows = rows

    def begin(self, partitions: int, memory_rows: int, order: Int64Array) -> None:
        rows = min(memory_rows / 64, max(_FIRST_ROWS, _FIRST_SHARE * self._rows))
        self.first_share = min(1.0, max(1.0, rows) / memory_rows)
        super().begin(partitions, memory_rows, order)


class Run:
    """Iterate for reports; the last one is exact. Or say when to stop: `until`, `seconds`, `exact`.

    `history` holds the reports, `last` the newest. Leaving a `with` block, `close()`, an error or Ctrl-C end the run; temporary
    data are gone then, and the reports stay.
    """

    def __init__(self, question: Question, sources: tuple[Source, Source], options: Options, started: float) -> None:
        self.history: list[Report] = []
        self._join: PRJoin | None = None
        self._inputs: list[BatchInput] = []
        self._closed = self._done = False
        self._question, self._sources, self._options = question, sources, options
        self._target = options.target
        self._rows = (sources[A].rows, sources[B].rows)
        self._reports = 0  # so far
        self._seconds = 0.0  # worked so far
        self._ended_at: float | None = None
        try:
            too_large = self._mixed()
            samples = take_samples(sources, question, options.memory_bytes, options.seed)
            self._pilots = pilots(question, samples)
            self._positive = never_negative(question, samples)
            room = room_for(question, samples)
            with np.errstate(all="ignore"):
                self._order = self._checked_order(room, samples) if too_large is None else replace(UNKNOWN, message=too_large)
            self._heavy_codes = self._find_heavy(room, samples)
            del samples
            self._begin(room)
        except BaseException:
            self.close()
            raise
        self._entered = started
        self._work_done()
        self._began = self._seconds  # to read: forecasts leave out what was before

    # --- starting, and starting again

    def _query(self, room: Room) -> Query:
        seeds = [None if source.random else self._options.seed * 2 + side for side, source in enumerate(self._sources)]
        return Query(self._question, self._sources, room, self._pilots, (seeds[A], seeds[B]))

    def _begin(self, room: Room) -> None:
        options = self._options
        check_groups(*room.groups)
        self._room, self.query = room, self._query(room)
        self.query.ask_for_finite_values()
        budget = Budget(options.memory_bytes)
        spill = FileSpill(options.spill, limit_bytes=options.spill_limit_bytes)
        try:
            rows = self._reserve(budget)
            self._heavy = self._watch(budget)
            self._inputs = [self._input(side, rows[side]) for side in (A, B)]
            a, b = self._inputs if self._heavy is None else map(self._heavy.watched, (A, B), self._inputs)
            self._join = PRJoin(
                a, b, self.query.functions, budget, spill,
                invocation=Early(sum(self._rows)), layout=self._layout(budget), seed=options.seed, threads=self._threads,
            )  # fmt: skip
        except BudgetError:
            self._stop()
            raise self._too_small() from None
        self.budget = budget
        self._reporter = Reporter(self.query, self._rows, options.rule, self._positive, self._order, self._heavy)

    def _mixed(self) -> str | None:
        """Tables whose rows lie in some order inside row groups are read in random order inside them. If one can't be: why."""
        options = self._options
        for side, source in enumerate(self._sources):
            if options.order == "random" or not isinstance(source, ParquetSource) or not source.rows:
                continue
            columns = self._question.columns(side)
            ordered = [columns_in_order(part, neighbours=True) for part in source.inside(columns, options.seed)]
            if (any(ordered) or options.order == "blocks") and not source.mix(columns, options.memory_bytes // _MIXING):
                needed = _MIXING * source.mixing_bytes(columns)
                return _TOO_LARGE.format(table=source.folder, names=", ".join(sorted(set().union(*ordered))), needed=needed)
            source.random = source.blocks == 1
        return None

    def _checked_order(self, room: Room, samples: tuple[Batches, Batches]) -> Order:
        """One sample in thirty may look like blocks by chance; then another, of more blocks, must, too. If both say blocks and
        not how much these add, the most blocks that fit have the last word."""
        options = self._options
        found = self._order_of(room, samples, options.seed, "first")
        if found.use == "rows" or (options.order != "auto" and found.clusters is not None):
            return found
        with suppress(NeedsRoom):  # for groups or texts that the first sample did not show: reading will ask for it, too
            found = agreed(found, self._another(room, options.seed + _OTHER_SEED, "more"))
            if found.use == "blocks" and found.clusters is None:
                found = agreed(found, self._another(room, options.seed + 2 * _OTHER_SEED, "most"))
        return found

    def _another(self, room: Room, seed: int, look: Look) -> Order:
        samples = take_samples(self._sources, self._question, self._options.memory_bytes, seed, look)
        return self._order_of(room, samples, seed, look)

    def _order_of(self, room: Room, samples: tuple[Batches, Batches], seed: int, look: Look) -> Order:
        query = self._query(room)
        sizes = block_sizes(self._sources, self._question, self._options.memory_bytes, seed, look)
        return check_sources(self._sources, samples, sizes, query.sides, query.functions, self._options.order)

    def _find_heavy(self, room: Room, samples: tuple[Batches, Batches]) -> Int64Array:
        query = self._query(room)
        if not isinstance(query.functions, Products):
            return np.zeros(0, np.int64)
        return heavy_codes(query.sides, samples, query.functions)

    def _watch(self, budget: Budget) -> HeavyKeys | None:
        functions = self.query.functions
        if not isinstance(functions, Products) or not len(self._heavy_codes) or not most_keys(functions, budget.memory_bytes):
            return None
        return HeavyKeys(self._heavy_codes, functions, budget)

    def _layout(self, budget: Budget) -> Layout:
        """Tables that fit into memory easily need few partitions: a join of one has its price."""
        needed = sum(8 * rows * side.width for rows, side in zip(self._rows, self.query.sides, strict=True))
        if needed > budget.memory_bytes // 4:
            return Layout()
        return Layout(partitions=max(8, min(256, sum(self._rows) // _PARTITION_ROWS)))

    @property
    def _threads(self) -> int:
        return self._options.threads if isinstance(self.query.functions, Products) else 1

    def _reserve(self, budget: Budget) -> tuple[int, int]:
        """Set memory aside for reports and for batches on their way to the join: how many rows those have."""
        budget.reserve("reports", _history_bytes(budget.memory_bytes) - _HISTORY_BYTES)
        found = []
        for side, name in ((A, "left"), (B, "right")):
            source, width = self._sources[side], self.query.sides[side].width
            budget.reserve(f"{name} table", source.held_bytes)
            each = source.row_bytes(self._question.columns(side)) + 3 * 8 * width
            rows = min(_MOST_BATCH_ROWS, budget.memory_bytes // (_WINDOW * each), -(-source.rows // _STEPS))
            rows = max(64, rows)
            budget.reserve(f"{name} batches", 2 * rows * each)
            found.append(rows)
        return found[A], found[B]

    def _input(self, side: int, rows: int) -> BatchInput:
        source, columns = self._sources[side], self._question.columns(side)
        batches = source.batches(columns, rows, self._options.seed * 2 + side)
        records = self.query.sides[side]
        return BatchInput(batches, records.reusing(_HELD), source.rows, records.width, ahead=1)

    def _too_small(self) -> BudgetError:
        """Says what would do. A sample in more memory may show more groups and longer texts, which need more."""
        needed = self._options.memory_bytes
        for _ in range(_LOOKS):
            needed = least_memory(self._fits, needed)
            mixed = [source for source in self._sources if isinstance(source, ParquetSource) and source.mixed]
            for source in mixed:
                source.mix(self._question.columns(self._sources.index(source)), needed // _MIXING)
            samples = take_samples(self._sources, self._question, needed, self._options.seed)
            room = self._room.most(room_for(self._question, samples))
            self._heavy_codes = self._find_heavy(room, samples)
            self._room, self.query = room, self._query(room)
            if self._fits(needed):
                break
        return BudgetError(
            f"the memory budget of {format_bytes(self._options.memory_bytes)} is too small for this estimate; give "
            f"memory={needed} ({format_bytes(needed)}) or more",
            needed,
        )

    def _fits(self, memory: int) -> bool:
        functions = self.query.functions
        budget = Budget(memory)
        try:
            self._reserve(budget)
            self._watch(budget)
            each = Pieces.bytes_each(functions.functions, functions.groups)
            widths = (self.query.sides[A].width, self.query.sides[B].width)
            make_plan(
                functions,
                widths,
                self._rows,
                budget,
                self._layout(budget),
                FileSpill(self._options.spill).buffer_bytes,
                each,
                self._threads,
            )
        except BudgetError:
            return False
        return True

    # --- going on

    def __iter__(self) -> Iterator[Report]:
        return self

    def __next__(self) -> Report:
        report = self._advance(None)
        if report is None:
            raise StopIteration
        return report

    def _advance(self, deadline: float | None) -> Report | None:
        """The next report; None: there is none, or `deadline` (in seconds worked) has come and there is one already."""
        if self._done or self._closed:
            return None
        self._entered = time.monotonic()
        try:
            with np.errstate(all="ignore"):  # infinities and NaN of the data go into the answer
                progress = self._steps(deadline)
                report = None if progress is None else self._reporter.report(progress, self._moment())
        except SpillError as full:
            self.close()
            raise SpillError(f"{full}. The last report stays in run.last; temporary data are gone") from full
        except BaseException:
            self.close()
            raise
        if report is not None:
            self._remember(report)
        self._done = report is not None and report.exact
        self._work_done()
        if self._done:
            self._stop()
        return report

    def _remember(self, report: Report) -> None:
        """Every second report goes when they take too much memory, so that what stays is spread evenly."""
        self.history.append(report)
        self._reports += 1
        if len(self.history) > max(_FEW_REPORTS, _history_bytes(self._options.memory_bytes) // report.held_bytes):
            self.history[:] = [*self.history[:-1:2], report]

    def _moment(self) -> Moment:
        groups = self.history[-1].groups if self.history else None
        ended = None if self._ended_at is None else self._ended_at - self._began
        marks = [(report.seconds - self._began, report.share_read) for report in self.history if report.seconds > self._began]
        return Moment(self._reports + 1, self._seconds, self._seconds - self._began, ended, self._target, groups, marks)

    def _work_done(self) -> None:
        now = time.monotonic()
        self._seconds += now - self._entered
        self._entered = now

    def _steps(self, deadline: float | None) -> Progress | None:
        due = self.history[-1].seconds + self._options.every if self.history else 0.0
        newer: Progress | None = None
        while True:
            try:
                assert self._join is not None
                progress = self._join.step()
            except NeedsRoom as more:
                self._restart(more)
                continue
            if progress.reported and self._heavy is not None:
                self._heavy.joined(progress.pieces.rows_a, progress.pieces.rows_b, self._join.partition_of)
            self._work_done()
            if progress.input_ended and self._ended_at is None:
                self._ended_at = self._seconds
            newer = progress if progress.reported else newer
            if progress.done or (progress.reported and self._seconds >= due):
                return progress
            if deadline is not None and self._seconds >= deadline and (self.history or newer is not None):
                return newer

    def _restart(self, more: NeedsRoom) -> None:
        self._stop()
        self._ended_at = None
        seen = [1 if side.grouping is None else len(side.grouping.keys) for side in self.query.sides]
        self._begin(_more(self._room, more, (seen[A], seen[B])))
        self._work_done()
        self._began = self._seconds

    # --- stopping

    @property
    def last(self) -> Report | None:
        """The newest report."""
        return self.history[-1] if self.history else None

    def until(self, relative: float | None = None, *, seconds: float | None = None) -> Report:
        """Go on until all intervals reach at most `relative` of their values to either side, for so long, or to the end.

        The run stays open: go on, or close it.
        """
        if relative is None and seconds is None:
            raise ParameterError("until needs relative= or seconds=; use exact() to run to the end")
        if (relative is not None and not relative >= 0) or (seconds is not None and not seconds >= 0):
            raise ParameterError(f"relative and seconds must be 0 or more; got {relative!r} and {seconds!r}")
        if relative:
            self._target = relative
        deadline = None if seconds is None else self._seconds + seconds
        report = self.last
        while not self._enough(report, relative, deadline):
            newer = self._advance(deadline)
            if newer is None:
                break
            report = newer
        report = self.last
        if report is None:
            raise ParameterError("the run was closed before its first report; start it again")
        return report

    def _enough(self, report: Report | None, relative: float | None, deadline: float | None) -> bool:
        if report is None:
            return False
        narrow = relative is not None and report.relative_half_width <= relative
        return report.exact or narrow or (deadline is not None and self._seconds >= deadline)

    def seconds(self, seconds: float) -> Report:
        """Go on for so many seconds; the newest report by then."""
        return self.until(seconds=seconds)

    def exact(self) -> Report:
        """Go on to the end: the exact answer."""
        for _ in self:
            pass
        if self.last is None or not self.last.exact:
            raise ParameterError("the run was closed before its end; start it again")
        return self.last

    def held(self) -> dict[str, Held]:
        """How many of the early intervals held the exact answer, by aggregate. At the end of the run only."""
        return against_the_end(self.history)

    def verify(self, name: str | None = None, *, reshuffles: int = 200, rows: int = 50_000) -> Coverage:
        """How often intervals hold on these very tables: both reshuffled many times, and estimated from each time.

        Of larger tables the rows of some keys are taken, about `rows` of them. Reads both tables once.
        """
        if self._closed:
            raise ParameterError("the run is closed; verify before closing it")
        return verify_coverage(self.query, self._sources, self._options.rule, name, reshuffles, rows, self._options.seed)

    def close(self) -> None:
        """End the run, and give back memory and temporary space. The reports stay."""
        self._stop()
        if not self._closed:
            self._closed = True
            for source in self._sources:
                source.close()

    def _stop(self) -> None:
        if self._join is not None:
            self._join.close()
            self._join = None
        for each in self._inputs:
            each.close()
        self._inputs = []

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_sources"):
            self.close()


def _more(room: Room, more: NeedsRoom, seen: tuple[int, int]) -> Room:
    """Room for more, with some to spare as long as there is any. `seen`: groups of either side so far."""
    groups = list(room.groups)
    if more.groups:
        other = 1 - more.side
        most = MOST_GROUPS // groups[other]
        groups[more.side] = max(more.groups, min(most, max(2 * more.groups, 4 * groups[more.side])))
        groups[other] = max(seen[other], min(groups[other], MOST_GROUPS // groups[more.side]))
    return Room((groups[A], groups[B]), max(room.text_bytes, -(-2 * more.text_bytes // 8) * 8), room.odd or more.odd)
