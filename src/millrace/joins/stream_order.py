"""Output of any join in stream order: a row is held until every earlier tuple has left.

The MESHJOIN paper sketches this (section 5): a tuple's matches wait until the tuple leaves. Here they also wait for earlier
tuples.

    join --> rows of tuples 7 3 3 9  -->  held [ 3 3 7 9 ]  -->  all of 0..4 have left: 3 3 go out
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.budget import format_bytes
from millrace.core.errors import BudgetError, ParameterError
from millrace.core.protocols import SemiStreamJoin, Withdrawn
from millrace.core.step import Step


class Ordered:
    """A join whose rows come in stream order; rows of one tuple in the order in which they were found.

    `held_bytes`: what held rows may take beside the join. When half of this is used, no more tuples are taken until rows have
    gone out. Tuples inside may still find more rows than fit: then an error says how much memory is enough.

    >>> from millrace.core.budget import Budget
    >>> from millrace.core.protocols import JoinSpec
    >>> from millrace.joins.hybridjoin import HybridJoin
    >>> from millrace.relations.memory import MemoryRelation
    >>> products = MemoryRelation(pa.table({"id": [1, 2], "price": [10, 20]}), "id", rows_per_page=1)
    >>> sales = pa.record_batch({"product": [2, 1, 2]})
    >>> spec = JoinSpec(sales.schema, (("product", "id"),), "inner", ("product",), ("price",))
    >>> join = Ordered(HybridJoin(products, spec, Budget("64k"), buffer_pages=1), held_bytes=1 << 20)
    >>> join.offer(sales), join.step().output["product"].to_pylist(), join.step().output["product"].to_pylist()
    (3, [2], [1, 2])
    """

    def __init__(self, join: SemiStreamJoin, held_bytes: int) -> None:
        self._join = join
        self._limit = held_bytes
        self._next = 0  # every tuple before this one has left
        self._gone = np.zeros(0, np.bool_)  # of the tuples from there on
        self._held: list[tuple[Int64Array, pa.RecordBatch]] = []
        self._held_bytes = 0

    @property
    def pending(self) -> int:
        return self._join.pending

    @property
    def longest_wait(self) -> int:
        """The most reads until the rows of a tuple are out. Earlier tuples have left by then."""
        return self._join.longest_wait

    @property
    def bytes_used(self) -> int:
        return self._join.bytes_used + self._held_bytes + self._gone.nbytes

    def offer(self, batch: pa.RecordBatch) -> int:
        if self._held_bytes > self._limit // 2 and self.pending:
            return 0
        return self._join.offer(batch)

    def step(self) -> Step:
        step = self._join.step()
        if len(step.sequence):
            self._held.append((step.sequence, step.output))
            self._held_bytes += step.output.nbytes + step.sequence.nbytes
        moved = self._pass(step.left)
        sequence, output = self._release(step.output) if moved else (np.zeros(0, np.int64), step.output.slice(0, 0))
        self._check()
        return replace(step, sequence=sequence, output=output)

    def withdraw(self, numbers: Int64Array) -> Withdrawn:
        """Refused: while a tuple is outside, all later rows would have to be held, just when there are too many."""
        raise ParameterError("tuples of a join in stream order can't be given back: leave ordered= out")

    def _pass(self, left: Int64Array) -> bool:
        """Note which tuples left; returns whether the first tuple inside has changed."""
        if not len(left):
            return False
        room = int(left.max()) + 1 - self._next
        if room > len(self._gone):
            self._gone = np.concatenate((self._gone, np.zeros(room - len(self._gone), np.bool_)))
        self._gone[left - self._next] = True
        stay = np.flatnonzero(~self._gone)
        done = int(stay[0]) if len(stay) else len(self._gone)
        self._next += done
        self._gone = self._gone[done:].copy()
        return done > 0

    def _release(self, like: pa.RecordBatch) -> tuple[Int64Array, pa.RecordBatch]:
        """Rows of tuples before the first tuple inside, in order."""
        ready: list[tuple[Int64Array, pa.RecordBatch]] = []
        held: list[tuple[Int64Array, pa.RecordBatch]] = []
        for sequence, rows in self._held:
            early = sequence < self._next
            if early.all():
                ready.append((sequence, rows))
            elif not early.any():
                held.append((sequence, rows))
            else:
                ready.append((sequence[early], rows.filter(pa.array(early))))
                held.append((sequence[~early], rows.filter(pa.array(~early))))
        self._held = held
        self._held_bytes = sum(rows.nbytes + sequence.nbytes for sequence, rows in held)
        if not ready:
            return np.zeros(0, np.int64), like.slice(0, 0)
        sequence = np.concatenate([numbers for numbers, _ in ready])
        order = np.argsort(sequence, kind="stable")
        return sequence[order], pa.concat_batches([rows for _, rows in ready]).take(pa.array(order))

    def _check(self) -> None:
        if self._held_bytes > self._limit:
            needed = self._join.bytes_used + 2 * self._held_bytes
            raise BudgetError(
                f"rows that wait for their turn take {format_bytes(self._held_bytes)}, {format_bytes(self._limit)} at most: "
                f"give memory={2 * needed} or more, or leave ordered= out",
                2 * needed,
            )
