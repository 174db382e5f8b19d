"""One join of a run, from its first row to the exact answer, or until more room is needed than was prepared."""

from __future__ import annotations

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.errors import BudgetError
from millrace.online.joins.invocation import Expanding
from millrace.online.joins.prjoin import PRJoin
from millrace.online.protocol import A, B, Progress
from millrace.online.question.recorder import Recorder
from millrace.online.run.memory import divide, too_small
from millrace.online.run.prepare import Prepared
from millrace.online.run.reporting import Moment, Reporter
from millrace.online.run.reports import Report
from millrace.online.sampling.heavy_keys import HeavyKeys
from millrace.online.storage.inputs import BatchInput
from millrace.online.storage.spill import FileSpill

_FIRST_SHARE, _FIRST_ROWS = 0.01, 100  # of the rows, before the first report
_HELD = 3  # batches of records: joined, ready, and being made


class Early(Expanding):
    """The usual condition, with the first join after a hundredth of the input even where much more fits into memory."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._rows = rows

    def begin(self, partitions: int, memory_rows: int, order: Int64Array) -> None:
        rows = min(memory_rows / 64, max(_FIRST_ROWS, _FIRST_SHARE * self._rows))
        self.first_share = min(1.0, max(1.0, rows) / memory_rows)
        super().begin(partitions, memory_rows, order)


class Attempt:
    """Reads, joins and reports. A memory that is too small is an error that says what would do."""

    def __init__(self, prepared: Prepared) -> None:
        query, self._prepared = prepared.query, prepared
        self.budget = Budget(prepared.options.memory_bytes)
        self._recorders = (Recorder(query.sides[A], finite=True), Recorder(query.sides[B], finite=True))
        self._inputs: list[BatchInput] = []
        self._join: PRJoin | None = None
        try:
            self._heavy = self._start()
        except BudgetError:
            self.close()
            raise too_small(prepared) from None
        except BaseException:
            self.close()
            raise
        self._reporter = Reporter(prepared, self._recorders, self._heavy)

    def _start(self) -> HeavyKeys | None:
        prepared, options, budget = self._prepared, self._prepared.options, self.budget
        division = divide(prepared, budget)
        heavy = None if division.heavy is None else HeavyKeys(prepared.heavy_codes, division.heavy, budget)
        self._inputs = [self._input(side, division.batch_rows[side]) for side in (A, B)]
        a, b = self._inputs if heavy is None else map(heavy.watched, (A, B), self._inputs)
        self._join = PRJoin(
            a, b, prepared.query.functions, budget, FileSpill(options.spill, limit_bytes=options.spill_limit_bytes),
            invocation=Early(sum(prepared.rows)), layout=division.layout, seed=options.seed, threads=prepared.threads,
        )  # fmt: skip
        return heavy

    def _input(self, side: int, rows: int) -> BatchInput:
        prepared, recorder = self._prepared, self._recorders[side]
        source = prepared.sources[side]
        batches = source.batches(prepared.question.columns(side), rows, prepared.options.seed * 2 + side)
        return BatchInput(batches, recorder.reusing(_HELD), source.rows, recorder.side.width, ahead=1)

    @property
    def groups_seen(self) -> tuple[int, int]:
        """Of either side, so far."""
        a, b = (len(recorder.groups) for recorder in self._recorders)
        return a, b

    def step(self) -> Progress:
        """One step of the join; `NeedsRoom` where rows do not fit what was prepared."""
        assert self._join is not None
        progress = self._join.step()
        if progress.reported and self._heavy is not None:
            self._heavy.joined(progress.pieces.rows_a, progress.pieces.rows_b, self._join.partition_of)
        return progress

    def report(self, progress: Progress, moment: Moment) -> Report:
        return self._reporter.report(progress, moment)

    def close(self) -> None:
        """Give back memory and temporary space."""
        if self._join is not None:
            self._join.close()
            self._join = None
        for each in self._inputs:
            each.close()
        self._inputs = []
