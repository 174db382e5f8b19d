"""A run of `mr.estimate`: an iterator of reports that ends with the exact answer, and can be stopped at any time.

Prepared --> Attempt: [ step, step, report ] ... --> exact --> closed
    ^                   |
    +---- more groups, or longer texts, than the sample had shown: from the start, with more room
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType

import numpy as np

from millrace.core.budget import Budget
from millrace.core.errors import ParameterError, SpillError
from millrace.online.coverage.coverage import Coverage
from millrace.online.coverage.verify import verify_coverage
from millrace.online.protocol import Progress
from millrace.online.question.sides import NeedsRoom
from millrace.online.run.attempt import Attempt
from millrace.online.run.memory import history_bytes
from millrace.online.run.prepare import Prepared
from millrace.online.run.reporting import Moment
from millrace.online.run.reports import Held, Report, against_the_end

_FEW_REPORTS = 16


class Run:
    """Iterate for reports; the last one is exact. Or say when to stop: `until`, `seconds`, `exact`.

    `history` holds the reports, `last` the newest. Leaving a `with` block, `close()`, an error or Ctrl-C end the run; temporary
    data are gone then, and the reports stay.
    """

    def __init__(self, prepared: Prepared, started: float) -> None:
        """`started`: when work on the question began, by `time.monotonic`."""
        self.history: list[Report] = []
        self._prepared = prepared
        self._target = prepared.options.target
        self._closed = self._done = False
        self._attempt: Attempt | None = None
        self._reports = 0  # so far
        self._seconds = 0.0  # worked so far
        self._ended_at: float | None = None
        self._entered = started
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        self._attempt = Attempt(self._prepared)
        self.budget: Budget = self._attempt.budget
        self._work_done()
        self._began = self._seconds  # to read: forecasts leave out what was before

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
                report = None if progress is None else self._open.report(progress, self._moment())
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
        if len(self.history) > max(_FEW_REPORTS, history_bytes(self._prepared.options.memory_bytes) // report.held_bytes):
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
        due = self.history[-1].seconds + self._prepared.options.every if self.history else 0.0
        newer: Progress | None = None
        while True:
            try:
                progress = self._open.step()
            except NeedsRoom as more:
                self._restart(more)
                continue
            self._work_done()
            if progress.input_ended and self._ended_at is None:
                self._ended_at = self._seconds
            newer = progress if progress.reported else newer
            if progress.done or (progress.reported and self._seconds >= due):
                return progress
            if deadline is not None and self._seconds >= deadline and (self.history or newer is not None):
                return newer

    @property
    def _open(self) -> Attempt:
        assert self._attempt is not None
        return self._attempt

    def _restart(self, more: NeedsRoom) -> None:
        self._open.close()
        self._prepared = self._prepared.with_more(more, self._open.groups_seen)
        self._stop()
        self._ended_at = None
        self._begin()

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
        prepared, options = self._prepared, self._prepared.options
        return verify_coverage(prepared.query, prepared.sources, options.rule, name, reshuffles, rows, options.seed)

    def close(self) -> None:
        """End the run, and give back memory and temporary space. The reports stay."""
        self._stop()
        if not self._closed:
            self._closed = True
            for source in self._prepared.sources:
                source.close()

    def _stop(self) -> None:
        if self._attempt is not None:
            self._attempt.close()
            self._attempt = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_attempt"):
            self.close()
