"""Several tables in one pass: joins one behind the other, behind the interface of one.

Polyzotis et al. (MESHJOIN, ICDE 2007) name it as future work: one stream against many relations in one operator. What one join
puts out is offered to the next; all share one budget.

    stream --> [ join with R1 ] --> rows --> [ join with R2 ] --> rows --> ... --> out
                    ^ pages of R1                 ^ pages of R2

A join steps only when the one behind it has taken all that it put out before, so that between two joins no more waits than the
output of one step. A tuple has left when nothing that came from it is inside any more. Then it counts as matched if a row of it
was put out; which table had no row for it is in `ledgers`, one for each table.

A join that waits for the one behind it waits until that one has taken the rows of one step. That takes as long as tuples wait
inside it, as often as the rows of a step fill its window. So no tuple waits for ever, but waits multiply.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import pyarrow as pa

from millrace.core.errors import ParameterError
from millrace.core.ledger import Ledger
from millrace.core.protocols import SemiStreamJoin
from millrace.core.step import Int64Array, Step, StepCounts

_NONE = np.zeros(0, np.int64)
_OWN = ("tuples_in", "removed", "matched", "absent_keys", "null_keys", "condition_false", "matches", "deferred")


class Several:
    """Joins in a row. The stream of each but the first has the schema that the one before it puts out.

    >>> from millrace.core.budget import Budget
    >>> from millrace.core.protocols import JoinSpec
    >>> from millrace.joins.meshjoin import MeshJoin
    >>> from millrace.relations.memory import MemoryRelation
    >>> products = MemoryRelation(pa.table({"id": [1, 2], "price": [10, 20]}), "id")
    >>> shops = MemoryRelation(pa.table({"shop": [7], "city": ["Linz"]}), "shop")
    >>> sales = pa.record_batch({"product": [2, 1], "shop": [7, 8]})
    >>> first = JoinSpec(sales.schema, (("product", "id"),), "inner", ("product", "shop"), ("price",))
    >>> second = JoinSpec(first.output_schema(products), (("shop", "shop"),), "left", ("product", "price"), ("city",))
    >>> join = Several([MeshJoin(products, first, Budget("1m")), MeshJoin(shops, second, Budget("1m"))])
    >>> join.offer(sales), join.step().output.num_rows, sorted(join.step().output.to_pylist(), key=str)
    (2, 0, [{'product': 1, 'price': 10, 'city': None}, {'product': 2, 'price': 20, 'city': 'Linz'}])
    """

    def __init__(self, joins: Sequence[SemiStreamJoin]) -> None:
        if not joins:
            raise ParameterError("give at least one join")
        self.ledgers = [Ledger() for _ in joins]
        self._stages = [_Stage(join, ledger) for join, ledger in zip(joins, self.ledgers, strict=True)]
        self._inside = _Counted()  # per stream tuple: how much of it is inside, and whether rows of it came out
        self._offered = self._steps = self._arrived = 0

    @property
    def pending(self) -> int:
        return len(self._inside)

    @property
    def longest_wait(self) -> int:
        """Steps that a tuple stays inside at most, and so reads, with outputs as long as they were so far."""
        total = inside = 0  # steps of the joins from here on; of those, a tuple in the first of them
        window = 1
        for stage in reversed(self._stages):
            held_up = -(-stage.most_rows // window) * inside
            inside = (stage.join.longest_wait + 1) * stage.most_steps * (1 + held_up)
            total += inside + held_up
            window = stage.window
        return total

    @property
    def bytes_used(self) -> int:
        return sum(stage.bytes_used for stage in self._stages) + self._inside.bytes_used

    def offer(self, batch: pa.RecordBatch) -> int:
        taken = self._stages[0].join.offer(batch)
        numbers = np.arange(self._offered, self._offered + taken)
        self._inside.enter(numbers, self._steps)
        self._stages[0].enter(numbers)
        self._offered += taken
        self._arrived += taken
        return taken

    def step(self) -> Step:
        """Each join makes a step, the last one first, unless the one behind it is not ready for more."""
        counts: list[StepCounts] = []
        output: pa.RecordBatch | None = None
        sequence = _NONE
        for stage, behind in reversed(list(zip(self._stages, [*self._stages[1:], None], strict=True))):
            stage.take_in()
            if behind is not None and behind.waiting_rows:
                continue
            step = stage.step()
            counts.append(step.counts)
            origins, left = stage.origins(step.sequence), stage.leave(step.left)
            if behind is None:
                output, sequence = step.output, origins
                self._inside.came_out(origins)
            else:
                behind.hand_over(step.output, origins)
                self._inside.change(origins, 1)
            self._inside.change(left, -1)
        assert output is not None  # the last join always steps
        left, entered, matched = self._inside.take_done()
        summed = reduce(StepCounts.__add__, counts).as_dict()
        own = StepCounts(**{name: count for name, count in summed.items() if name not in _OWN})
        own += StepCounts(
            tuples_in=self._arrived, removed=len(left), matched=matched, absent_keys=len(left) - matched, matches=len(sequence)
        )
        self._arrived = 0
        self._steps += 1
        return Step(own, output, sequence, entered, left)


class _Stage:
    """One join, what is still to be offered to it, and from which stream tuple each of its own tuples comes."""

    def __init__(self, join: SemiStreamJoin, ledger: Ledger) -> None:
        self.join = join
        self._ledger = ledger
        self._rest: pa.RecordBatch | None = None
        self._rest_origins = _NONE
        self._numbers = _NONE  # of the tuples inside, ascending
        self._origins = _NONE
        self._next = 0
        self._steps = 1  # from the last read on
        self.most_steps = 1  # from one read to the next
        self.most_rows = 0  # put out by one step

    @property
    def window(self) -> int:
        """Tuples that the join can hold; one at least, if it does not say."""
        return max(1, getattr(self.join, "capacity", 1))

    @property
    def waiting_rows(self) -> int:
        return len(self._rest_origins)

    @property
    def bytes_used(self) -> int:
        waiting = self._rest.nbytes if self._rest is not None else 0
        return self.join.bytes_used + waiting + self._rest_origins.nbytes + self._numbers.nbytes + self._origins.nbytes

    def hand_over(self, rows: pa.RecordBatch, origins: Int64Array) -> None:
        if len(origins):
            self._rest, self._rest_origins = rows, origins

    def take_in(self) -> None:
        """Offer what waits in front of the join, as far as it goes."""
        if self._rest is None:
            return
        taken = self.join.offer(self._rest)
        self.enter(self._rest_origins[:taken])
        self._rest, self._rest_origins = self._rest.slice(taken), self._rest_origins[taken:]
        if not len(self._rest_origins):
            self._rest = None

    def enter(self, origins: Int64Array) -> None:
        """The join took tuples that come from these."""
        self._numbers = np.concatenate((self._numbers, np.arange(self._next, self._next + len(origins))))
        self._origins = np.concatenate((self._origins, origins))
        self._next += len(origins)

    def step(self) -> Step:
        step = self.join.step()
        self._ledger.post(step.counts, self.join.pending)
        self._steps = 1 if step.counts.pages_read or not self.join.pending else self._steps + 1
        self.most_steps = max(self.most_steps, self._steps)
        self.most_rows = max(self.most_rows, len(step.sequence))
        return step

    def origins(self, numbers: Int64Array) -> Int64Array:
        return self._origins[np.searchsorted(self._numbers, numbers)]

    def leave(self, numbers: Int64Array) -> Int64Array:
        """These tuples of the join have left; returns from where they came."""
        places = np.searchsorted(self._numbers, numbers)
        gone = self._origins[places]
        self._numbers, self._origins = np.delete(self._numbers, places), np.delete(self._origins, places)
        return gone


class _Counted:
    """Stream tuples that are inside: how many parts of each, when it entered, and whether a row of it was put out."""

    def __init__(self) -> None:
        self._numbers = self._parts = self._entered = _NONE
        self._out = np.zeros(0, np.bool_)

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def bytes_used(self) -> int:
        return self._numbers.nbytes + self._parts.nbytes + self._entered.nbytes + self._out.nbytes

    def enter(self, numbers: Int64Array, step: int) -> None:
        self._numbers = np.concatenate((self._numbers, numbers))
        self._parts = np.concatenate((self._parts, np.ones(len(numbers), np.int64)))
        self._entered = np.concatenate((self._entered, np.full(len(numbers), step, np.int64)))
        self._out = np.concatenate((self._out, np.zeros(len(numbers), np.bool_)))

    def change(self, numbers: Int64Array, by: int) -> None:
        np.add.at(self._parts, np.searchsorted(self._numbers, numbers), by)

    def came_out(self, numbers: Int64Array) -> None:
        self._out[np.searchsorted(self._numbers, numbers)] = True

    def take_done(self) -> tuple[Int64Array, Int64Array, int]:
        """Tuples of which nothing is inside any more: their numbers, when they entered, and how many had a row."""
        done = self._parts == 0
        numbers, entered, matched = self._numbers[done], self._entered[done], int(np.count_nonzero(self._out[done]))
        kept = ~done
        self._numbers, self._parts, self._entered = self._numbers[kept], self._parts[kept], self._entered[kept]
        self._out = self._out[kept]
        return numbers, entered, matched
