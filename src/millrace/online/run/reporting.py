"""Reports of a run: from what a join has joined to estimates with intervals, and when it will be narrow enough.

pieces --> those of groups that have been seen --> totals --> with heavy keys --> with blocks --> aggregates --> intervals
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.online.protocol import A, B, Pieces, Progress
from millrace.online.question.query import Output
from millrace.online.question.recorder import Recorder
from millrace.online.run.prepare import Prepared
from millrace.online.run.reports import Report, relative_widths
from millrace.online.sampling.heavy_keys import HeavyKeys
from millrace.online.statistics.aggregates import Point, aggregate, projected, trusted
from millrace.online.statistics.answers import totals_of
from millrace.online.statistics.estimators import Totals
from millrace.online.statistics.intervals import Estimates, intervals
from millrace.online.statistics.outlook import Marks, pace, seconds_to_exact, share_for
from millrace.online.statistics.pieces_snapshot import PiecesSnapshot
from millrace.online.statistics.tails import heavy_key_note


@dataclass(frozen=True)
class Moment:
    """When a report is made."""

    number: int
    seconds: float  # worked so far
    reading: float  # of these, since reading began
    ended_after: float | None  # when all input had been read, since reading began
    target: float
    groups: tuple[Any, ...] | None  # of the report before
    marks: Marks  # of reports before


class Reporter:
    """Makes the reports of one join."""

    def __init__(self, prepared: Prepared, recorders: tuple[Recorder, Recorder], heavy: HeavyKeys | None) -> None:
        self._query, self._rows, self._order, self._heavy = prepared.query, prepared.rows, prepared.order, heavy
        self._recorders = recorders
        rule, labels = prepared.options.rule, [output.label for output in prepared.query.outputs]
        self._rules = {label: replace(rule, positive=label in prepared.positive) for label in labels}

    def report(self, progress: Progress, moment: Moment) -> Report:
        groups, chosen, pieces = self._selected(progress.pieces, moment.groups)
        ended = progress.input_ended and bool(progress.pieces.exact.any())  # from then on sizes of partitions are final
        totals = totals_of(pieces, *self._rows, input_ended=ended, done=progress.done)
        assert totals is not None
        largest: FloatArray | None = None
        notes: tuple[str, ...] = ()
        if self._heavy is not None and not progress.done:
            pieces, largest = self._heavy.applied(pieces, chosen, *self._rows, ended=ended)
            wide = totals_of(pieces, *self._rows, input_ended=ended)
            assert wide is not None
            note = heavy_key_note(totals, wide)
            totals, notes = replace(wide, parts=totals.parts), () if note is None else (note,)
        totals, order = self._order.applied(totals, pieces, *self._rows)
        points = [self._point(output, totals, pieces) for output in self._query.outputs]
        estimates = {
            output.label: intervals(point, self._rules[output.label], largest=_share_of(output, point, largest), notes=notes)
            for output, point in zip(self._query.outputs, points, strict=True)
        }
        read = (progress.counters.rows_a, progress.counters.rows_b)
        share = sum(read) / max(1, sum(self._rows))
        done = float(progress.pieces.exact.mean()) if progress.input_ended else 0.0
        return Report(
            moment.number, moment.seconds, read, self._rows, int(totals.pairs.sum()), progress.done, estimates, groups, order,
            moment.target, self._seconds_to_target(pieces, estimates, points, progress, moment, order.inflation),
            None if progress.done else seconds_to_exact(
                moment.reading, share, done, moment.ended_after, moment.marks, progress.counters.temp_written_bytes
            ),
            progress.counters.temp_written_bytes,
        )  # fmt: skip

    @staticmethod
    def _point(output: Output, totals: Totals, pieces: PiecesSnapshot) -> Point:
        point = aggregate(output.aggregate, output.of(totals), output.shift)
        point = trusted(point, totals.parts, output.gradient(point.gradient, totals.value.shape[-1]))
        if output.count is not None:  # of its own matches: those that have a value
            found = pieces.t[..., output.count].sum(axis=0) + pieces.certain.t[:, output.count]
            point = replace(point, pairs=np.rint(found).astype(np.int64))
        return _with_nulls(point)

    def _selected(
        self, pieces: Pieces, before: tuple[Any, ...] | None
    ) -> tuple[tuple[Any, ...] | None, Int64Array, PiecesSnapshot]:
        """The groups that have been seen, and the pieces of these alone. `pairs` are those that pass all conditions."""
        kept = self._query.kept
        groups: tuple[Any, ...] | None = None
        if not self._query.question.group_order:
            chosen = np.zeros(1, np.int64)
        else:
            chosen = np.flatnonzero(_pairs_by_group(pieces, kept))
            seen = (self._recorders[A].groups, self._recorders[B].groups)
            groups = tuple(self._query.group_key(int(number), seen) for number in chosen)
            groups = before if before == groups else groups  # held once
        found = pieces.snapshot(chosen)
        return groups, chosen, found if kept is None else found.counting(kept)

    def _seconds_to_target(
        self,
        pieces: PiecesSnapshot,
        estimates: dict[str, Estimates],
        points: list[Point],
        progress: Progress,
        moment: Moment,
        inflation: float,
    ) -> float | None:
        """For the aggregate and group that are furthest from it."""
        if progress.done:
            return 0.0
        worst: tuple[float, int, int] | None = None
        for number, each in enumerate(estimates.values()):
            relative = relative_widths(each)
            if len(relative) and (worst is None or relative.max() > worst[0]):
                worst = (float(relative.max()), number, int(relative.argmax()))
        if worst is None or not np.isfinite(worst[0]):
            return None
        if worst[0] <= moment.target:
            return 0.0
        if progress.input_ended:
            return None
        relative_now, number, group = worst
        output, point = self._query.outputs[number], points[number]
        wanted = float(point.variance[group]) * (moment.target / relative_now) ** 2 / inflation
        gradient = output.gradient(point.gradient, pieces.t.shape[-1])[group]
        share = share_for(pieces, *self._rows, gradient, wanted, group)
        if share is None:
            return None
        joined = float((pieces.rows_a + pieces.rows_b).mean()) / sum(self._rows)
        read = (progress.counters.rows_a + progress.counters.rows_b) / sum(self._rows)
        return max(0.0, pace(moment.reading, read, moment.marks) * read * (share / joined - 1))  # joining lags behind reading


def _pairs_by_group(pieces: Pieces, kept: int | None) -> Int64Array:
    """Pairs of each group; with `kept`, the function that is 1 for those that pass all conditions, of these alone."""
    if kept is None:
        return pieces.pairs.sum(axis=0) + pieces.certain.pairs
    pairs, certain = (np.rint(each.t[..., kept]).astype(np.int64) for each in (pieces, pieces.certain))
    return pairs.sum(axis=0) + certain


def _share_of(output: Output, point: Point, largest: FloatArray | None) -> FloatArray | None:
    """What the largest row adds to the variance of an aggregate, by group."""
    return None if largest is None else projected(largest, output.gradient(point.gradient, largest.shape[-1]))


def _with_nulls(point: Point) -> Point:
    """SQL's SUM of no value is null: NaN here, as for the other aggregates. Of an estimate nobody can tell yet."""
    if point.exact and point.name == "SUM":
        return replace(point, value=np.where(point.pairs > 0, point.value, np.nan))
    return point
