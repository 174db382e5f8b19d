"""A run in which tuples are taken back from the join at any moment, and offered again later.

A tuple that is offered again has a new number. `_Again` knows which tuple of the stream each number stands for, so that the
rows can be compared with those of a plain join.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.checks.run import BrokenLaw, Run, Watched, numbered, require
from millrace.core.arrays import Int64Array
from millrace.core.protocols import SemiStreamJoin

_NOBODY = 1_000_000  # a number that no tuple has


class _Again:
    """What is outside of the join: rows that have not come yet, and rows that were given back."""

    def __init__(self, stream: pa.RecordBatch) -> None:
        self.rest = stream
        self.next = 0
        self.origin: list[int] = []  # by number of a tuple: its place in the stream
        self.back: list[tuple[list[int], pa.RecordBatch]] = []
        self.withdrawn = 0

    @property
    def empty(self) -> bool:
        return not self.rest.num_rows and not self.back

    def offer_new(self, join: Watched, count: int) -> None:
        taken = join.offer(self.rest.slice(0, count))
        self.rest = self.rest.slice(taken)
        self.origin += range(self.next, self.next + taken)
        self.next += taken

    def offer_again(self, join: Watched) -> None:
        origins, rows = self.back.pop(0)
        taken = join.offer(rows)
        self.origin += origins[:taken]
        if taken < rows.num_rows:
            self.back.insert(0, (origins[taken:], rows.slice(taken)))

    def withdraw(self, join: Watched, numbers: Int64Array) -> None:
        given = join.withdraw(numbers)
        if len(given.numbers):
            self.back.append(([self.origin[number] for number in given.numbers.tolist()], given.rows))
        self.withdrawn += len(given.numbers)


def run_withdrawing(join: SemiStreamJoin, schema: pa.Schema, stream: pa.RecordBatch, seed: int) -> tuple[pa.Table, int]:
    """Run to the end. Returns the rows, each with its place in the stream, and how many tuples were given back."""
    random = np.random.default_rng(seed)
    run = Run(schema)
    watch = Watched(join, run, 50_000)
    again = _Again(stream)
    left: set[int] = set()
    for turn in range(100_000):
        if again.empty and not join.pending:
            break
        if again.back and random.random() < 0.4:
            again.offer_again(watch)
        elif again.rest.num_rows:
            again.offer_new(watch, int(random.integers(1, 20)))
        if turn < 200 and random.random() < 0.5:
            share = random.choice([0.05, 0.5, 1.0])
            asked = [number for number in range(len(again.origin)) if random.random() < share]
            again.withdraw(watch, np.array([*asked, _NOBODY, -1], np.int64))
        if random.random() < 0.7 or turn >= 200:
            _step(watch, again, left)
    require(again.empty and not join.pending, f"{join.pending} tuples still wait")
    _step(watch, again, left)
    require(run.ledger.deferred == again.withdrawn, f"{again.withdrawn} were given back, counted were {run.ledger.deferred}")
    origins = np.array(again.origin, np.int64)[run.sequence]
    return numbered(run.table, origins), again.withdrawn


def _step(watch: Watched, again: _Again, left: set[int]) -> None:
    step = watch.step()
    watch.run.ledger.post(step.counts, watch.pending)
    gone = {again.origin[number] for number in step.left.tolist()}
    if twice := gone & left:
        raise BrokenLaw(f"tuples {sorted(twice)} left, were offered again and left once more")
    left |= gone
