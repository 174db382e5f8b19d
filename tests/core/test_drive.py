"""The drive loop, with a join that only writes down what it is asked to do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from millrace.core.drive import drive, total
from millrace.core.errors import MillraceError
from millrace.core.ledger import Ledger, LedgerError
from millrace.core.step import Step, StepCounts

NOTHING = np.zeros(0, np.int64)
EMPTY = pa.record_batch({"key": pa.array([], pa.int64())})


class Diary:
    """Takes `room` tuples, lets one leave per step, and keeps a diary."""

    bytes_used = 0

    def __init__(self, room: int, loses: int = 0) -> None:
        self.pending = 0
        self.diary: list[str] = []
        self._room = room
        self._new = 0
        self._loses = loses

    def offer(self, batch: pa.RecordBatch) -> int:
        taken = min(int(batch.num_rows), self._room - self.pending)
        self.pending += taken
        self._new += taken
        self.diary.append(f"took {taken} of {batch.num_rows}")
        return taken

    def step(self) -> Step:
        left = min(1, self.pending)
        self.pending -= left
        counts = StepCounts(tuples_in=self._new, removed=left, matched=left - min(left, self._loses))
        self._new = 0
        self.diary.append(f"step, {self.pending} wait")
        return Step(counts, EMPTY, NOTHING, np.zeros(left, np.int64))


def batch(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array(range(rows), pa.int64())})


def driven(join: Diary, sizes: list[int], **settings: int | None) -> list[str]:
    list(drive(join, [batch(size) for size in sizes], **settings))  # type: ignore[arg-type]
    return join.diary


def test_a_batch_is_offered_a_step_follows_and_the_rest_is_drained() -> None:
    assert driven(Diary(9), [2, 1]) == [
        "took 2 of 2", "step, 1 wait", "took 1 of 1", "step, 1 wait", "step, 0 wait",
    ]  # fmt: skip


def test_what_does_not_fit_is_offered_again_after_a_step() -> None:
    assert driven(Diary(2), [4]) == [
        "took 2 of 4", "step, 1 wait", "took 1 of 2", "step, 1 wait", "took 1 of 1", "step, 1 wait", "step, 0 wait",
    ]  # fmt: skip


def test_a_join_that_takes_nothing_for_ever_is_an_error_and_not_an_endless_loop() -> None:
    with pytest.raises(MillraceError, match="Diary takes no rows though none wait in it"):
        driven(Diary(0), [1])


def test_an_empty_batch_is_a_pause_in_which_the_join_goes_on() -> None:
    assert driven(Diary(9), [3, 0, 0, 0, 0]) == ["took 3 of 3", "step, 2 wait", "step, 1 wait", "step, 0 wait"]


def test_without_a_limit_of_steps_the_join_is_emptied_after_every_batch() -> None:
    assert driven(Diary(9), [2, 0, 1], steps_per_batch=None) == [
        "took 2 of 2", "step, 1 wait", "step, 0 wait", "took 1 of 1", "step, 0 wait",
    ]  # fmt: skip


def test_with_no_steps_per_batch_it_steps_only_when_it_is_full_or_the_stream_ends() -> None:
    assert driven(Diary(3), [1, 1, 0, 2], steps_per_batch=0) == [
        "took 1 of 1", "took 1 of 1", "took 1 of 2", "step, 2 wait", "took 1 of 1", "step, 2 wait", "step, 1 wait",
        "step, 0 wait",
    ]  # fmt: skip


def test_a_stream_that_never_brings_anything_makes_no_step() -> None:
    assert driven(Diary(9), []) == []
    assert driven(Diary(9), [0, 0]) == []


def test_steps_come_out_one_by_one_and_the_stream_is_taken_as_needed() -> None:
    join = Diary(9)

    def endless() -> Iterator[pa.RecordBatch]:
        while True:
            yield batch(2)

    steps = drive(join, endless())
    for _ in range(3):
        next(steps)
    assert join.diary[-1] == "step, 3 wait"
    assert len(join.diary) == 6


def test_the_ledger_has_seen_every_step() -> None:
    ledger = Ledger()
    steps = list(drive(Diary(2), [batch(5)], ledger=ledger))
    assert (ledger.rows_in, ledger.matched, ledger.waiting) == (5, 5, 0)
    assert ledger.totals == total(steps)
    assert ledger.steps == len(steps)


def test_a_join_that_loses_a_row_is_stopped_at_that_step() -> None:
    with pytest.raises(LedgerError):
        driven(Diary(9, loses=1), [3])
