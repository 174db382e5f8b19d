"""The one loop round a join: rows are offered, the join steps when it has no room, and every step goes into the ledger.

    batch --> feed:  offer, step, offer, step ... until all rows are taken   --> steps
              drain: step, step ...               until no tuple waits       --> steps

A join reads no clock and never waits; the user of the host does. The in-process `drive`, the laws, the benchmarks and the tasks
on Spark all hold a `Host`. They decide what to do with the rows of a step, and when the next batch comes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.errors import MillraceError
from millrace.core.ledger import Ledger
from millrace.core.protocols import SemiStreamJoin, Withdrawn
from millrace.core.step import Step

_IDLE = 1000  # offers in a row of which an empty join takes nothing: many more than any join needs to rearrange itself


class Host:
    """A join and its ledger.

    `feed` and `drain` are iterators: the join works only while they are read. The ledger is checked after every step.

    >>> from millrace.core.budget import Budget
    >>> from millrace.core.protocols import JoinSpec
    >>> from millrace.joins.meshjoin import MeshJoin
    >>> from millrace.relations.memory import MemoryRelation
    >>> products = MemoryRelation(pa.table({"id": [1, 2], "price": [10, 20]}), "id")
    >>> sales = pa.record_batch({"product": [2, 1, 3]})
    >>> spec = JoinSpec(sales.schema, (("product", "id"),), "inner", ("product",), ("price",))
    >>> host = Host(MeshJoin(products, spec, Budget("64k")))
    >>> len(list(host.feed(sales))), host.waiting, [step.output.num_rows for step in host.drain()]
    (0, 3, [2])
    >>> host.ledger.rows_in, host.ledger.matched, host.ledger.unmatched, host.waiting
    (3, 2, 1, 0)
    """

    def __init__(self, join: SemiStreamJoin, ledger: Ledger | None = None) -> None:
        self.join = join
        self.ledger = ledger if ledger is not None else Ledger()

    @property
    def waiting(self) -> int:
        """Tuples inside the join."""
        return self.join.pending

    def offer(self, batch: pa.RecordBatch) -> int:
        """Offer rows once; returns how many the join took."""
        return self.join.offer(batch)

    def step(self) -> Step:
        """One step of the join, posted to the ledger."""
        step = self.join.step()
        self.ledger.post(step.counts, self.join.pending)
        return step

    def withdraw(self, numbers: Int64Array) -> Withdrawn:
        """Take waiting tuples back. The ledger has them as `deferred` from the next step on."""
        return self.join.withdraw(numbers)

    def feed(self, batch: pa.RecordBatch) -> Iterator[Step]:
        """Offer all rows of a batch; yields the steps that make room."""
        taken = idle = 0
        while taken < batch.num_rows:
            count = self.offer(batch.slice(taken))
            taken += count
            idle = 0 if count or self.waiting else idle + 1
            if idle > _IDLE:
                kind = type(self.join).__name__
                raise MillraceError(f"{kind} takes no rows though none wait in it: a defect of millrace; please report it")
            if taken < batch.num_rows:
                yield self.step()

    def drain(self) -> Iterator[Step]:
        """Step until no tuple waits."""
        while self.join.pending:
            yield self.step()
