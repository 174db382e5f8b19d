"""Several tables in one pass: a chain of joins with the interface of one join.

Polyzotis et al. (MESHJOIN, ICDE 2007) name this as future work: one stream against many relations in one operator. The output
of one join is offered to the next; all joins share one budget.

    stream --> [ join with R1 ] --> rows --> [ join with R2 ] --> rows --> ... --> out
                    ^ pages of R1                 ^ pages of R2

A join steps only when the next join has taken all of its last output. So between two joins waits at most the output of one
step. A tuple has left when no row that came from it is inside any more. It counts as matched if one of its rows was put out.
`ledgers`, one for each table, say which table had no row for it.

A join waits until the next join has taken the rows of one step. If these rows fill the next window several times, the join
waits as many times as long as tuples wait there. So no tuple waits for ever, but waits multiply.

A host that drains the joins after every group of rows can let them work *by turns*. One join makes a step at a time: the last
join that has no room for the rows in front of it, or else the first join that holds tuples. So windows of later joins fill up
before they read, and a page that is read serves more tuples. A tuple may then wait until the host drains.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.errors import ParameterError
from millrace.core.host import Host
from millrace.core.ledger import Ledger
from millrace.core.protocols import SemiStreamJoin, Withdrawn
from millrace.core.step import Step, StepCounts

_NONE = np.zeros(0, np.int64)
_OWN = ("tuples_in", "removed", "matched", "absent_keys", "null_keys", "condition_false", "matches", "deferred")


class Several:
    """A chain of joins. The stream of each join but the first has the output schema of the join before.

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

    def __init__(
        self, joins: Sequence[SemiStreamJoin], *, ledgers: Sequence[Ledger] | None = None,
        schemas: Sequence[pa.Schema] | None = None, by_turns: bool = False,
    ) -> None:  # fmt: skip
        """`schemas`: the stream of each join, where the join before it names its columns otherwise."""
        if not joins:
            raise ParameterError("give at least one join")
        self.ledgers = [Ledger() for _ in joins] if ledgers is None else list(ledgers)
        streams = [None] * len(joins) if schemas is None else schemas
        self._stages = [_Stage(*one) for one in zip(joins, self.ledgers, streams, strict=True)]
        self._nothing: pa.RecordBatch | None = None  # an output without rows, once there was one of the last join
        self._by_turns = by_turns
        self._inside = _Inside()
        self._offered = self._steps = self._arrived = 0

    @property
    def pending(self) -> int:
        return self._inside.tuples

    @property
    def longest_wait(self) -> int:
        """The most steps, and so reads, for which a tuple stays inside, if outputs stay as long as they were so far."""
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
        self._inside.enter(taken, self._steps)
        self._stages[0].enter(np.arange(self._offered, self._offered + taken))
        self._offered += taken
        self._arrived += taken
        return taken

    def step(self) -> Step:
        """Each join makes a step, the last join first, unless the next join is not ready for more. By turns: only one join."""
        if self._by_turns:
            stepped = [self._step_of(self._turn())]
        else:
            places = reversed(range(len(self._stages)))
            stepped = [self._step_of(place) for place in places if self._ready(place)]
        counts = reduce(StepCounts.__add__, (step.counts for step, _ in stepped)).as_dict()
        output, sequence = self._put_out(stepped[0])
        left, entered, matched = self._inside.take_done()
        own = StepCounts(**{name: count for name, count in counts.items() if name not in _OWN})
        own += StepCounts(
            tuples_in=self._arrived, removed=len(left), matched=matched, absent_keys=len(left) - matched, matches=len(sequence)
        )
        self._arrived = 0
        self._steps += 1
        return Step(own, output, sequence, entered, left)

    def withdraw(self, numbers: Int64Array) -> Withdrawn:
        """Refused: rows of a tuple may be in several joins."""
        raise ParameterError("tuples of a join with several tables can't be given back: withdraw from a join of one table")

    def _ready(self, place: int) -> bool:
        """Whether a join may step: the next join has taken all rows that waited for it."""
        self._stages[place].take_in()
        return place + 1 == len(self._stages) or not self._stages[place + 1].waiting_rows

    def _turn(self) -> int:
        """The last join that has no room for the rows in front of it; else the first join that holds tuples."""
        for place in reversed(range(len(self._stages))):
            self._stages[place].take_in()
            if self._stages[place].waiting_rows:
                return place
        return next((place for place, stage in enumerate(self._stages) if stage.join.pending), len(self._stages) - 1)

    def _step_of(self, place: int) -> tuple[Step, Int64Array | None]:
        """A step of one join, and from which tuples its rows come if they have left all joins."""
        stage = self._stages[place]
        step = stage.step()
        origins, left = stage.origins(step.sequence), stage.leave(step.left)
        if place + 1 < len(self._stages):
            self._stages[place + 1].hand_over(step.output, origins)
            self._inside.change(origins, 1)
            self._inside.change(left, -1)
            return step, None
        self._inside.came_out(origins)
        self._inside.change(left, -1)
        return step, origins

    def _put_out(self, stepped: tuple[Step, Int64Array | None]) -> tuple[pa.RecordBatch, Int64Array]:
        """The rows of the last join. Where it was not its turn, there are none."""
        step, origins = stepped
        if origins is not None:
            self._nothing = step.output.slice(0, 0)
            return step.output, origins
        if self._nothing is None:
            self._nothing = self._stages[-1].join.step().output  # of a join that holds no tuple yet: it reads nothing
        return self._nothing, _NONE


class _Stage:
    """One join, the rows still to be offered to it, and the stream tuple that each of its own tuples comes from."""

    def __init__(self, join: SemiStreamJoin, ledger: Ledger, schema: pa.Schema | None) -> None:
        self.join = join
        self._host = Host(join, ledger)
        self._schema = schema
        self._rest: pa.RecordBatch | None = None
        self._rest_origins = _NONE
        self._origins = _ByNumber(np.int64)  # by the number of a tuple of this join
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
        return self.join.bytes_used + waiting + self._rest_origins.nbytes + self._origins.nbytes

    def hand_over(self, rows: pa.RecordBatch, origins: Int64Array) -> None:
        if len(origins):
            if self._schema is not None:
                rows = pa.RecordBatch.from_arrays(rows.columns, schema=self._schema)
            self._rest, self._rest_origins = rows, origins

    def take_in(self) -> None:
        """Offer the rows in front of the join, as far as there is room."""
        if self._rest is None:
            return
        taken = self.join.offer(self._rest)
        self.enter(self._rest_origins[:taken])
        self._rest, self._rest_origins = self._rest.slice(taken), self._rest_origins[taken:]
        if not len(self._rest_origins):
            self._rest = None

    def enter(self, origins: Int64Array) -> None:
        """The join took tuples that come from these."""
        self._origins.append(origins)

    def step(self) -> Step:
        step = self._host.step()
        self._steps = 1 if step.counts.pages_read or not self.join.pending else self._steps + 1
        self.most_steps = max(self.most_steps, self._steps)
        self.most_rows = max(self.most_rows, len(step.sequence))
        return step

    def origins(self, numbers: Int64Array) -> Int64Array:
        return self._origins.at(numbers)

    def leave(self, numbers: Int64Array) -> Int64Array:
        """These tuples of the join have left; returns from where they came."""
        return self._origins.remove(numbers)


class _ByNumber:
    """A value for each tuple inside, found by the number of the tuple. Numbers count from 0 in the order in which tuples come.

    The values lie in an array from the oldest tuple on, so that a step costs only what it changes. Values before the oldest
    tuple are dropped when the array has to grow.
    """

    def __init__(self, dtype: Any) -> None:
        self._values = np.zeros(0, dtype)
        self._inside = np.zeros(0, np.bool_)
        self._first = self._end = 0  # numbers: of the first place of the arrays, and behind the newest tuple

    @property
    def nbytes(self) -> int:
        return self._values.nbytes + self._inside.nbytes

    def append(self, values: Any) -> None:
        begin, end = self._end - self._first, self._end - self._first + len(values)
        if end > len(self._values):
            self._make_room(len(values))
            begin, end = self._end - self._first, self._end - self._first + len(values)
        self._values[begin:end] = values
        self._inside[begin:end] = True
        self._end += len(values)

    def at(self, numbers: Int64Array) -> Any:
        return self._values[numbers - self._first]

    def put(self, numbers: Int64Array, value: Any) -> None:
        self._values[numbers - self._first] = value

    def add(self, numbers: Int64Array, by: int) -> None:
        np.add.at(self._values, numbers - self._first, by)

    def remove(self, numbers: Int64Array) -> Any:
        """The values of tuples that leave."""
        places = numbers - self._first
        self._inside[places] = False
        return self._values[places]

    def _make_room(self, more: int) -> None:
        used = self._inside[: self._end - self._first]
        stay = int(np.argmax(used)) if used.any() else len(used)
        kept = len(used) - stay
        length = kept + max(more, kept // 4, 64)
        self._values = np.concatenate((self._values[stay : len(used)], np.zeros(length - kept, self._values.dtype)))
        self._inside = np.concatenate((self._inside[stay : len(used)], np.zeros(length - kept, np.bool_)))
        self._first += stay


class _Inside:
    """Stream tuples that are inside: how many parts of each, when it entered, and whether a row of it was put out."""

    def __init__(self) -> None:
        self._parts, self._entered, self._out = _ByNumber(np.int64), _ByNumber(np.int64), _ByNumber(np.bool_)
        self._changed: list[Int64Array] = []  # tuples that a part of left since the last `take_done`
        self.tuples = 0

    @property
    def bytes_used(self) -> int:
        return self._parts.nbytes + self._entered.nbytes + self._out.nbytes

    def enter(self, count: int, step: int) -> None:
        self._parts.append(np.ones(count, np.int64))
        self._entered.append(np.full(count, step, np.int64))
        self._out.append(np.zeros(count, np.bool_))
        self.tuples += count

    def change(self, numbers: Int64Array, by: int) -> None:
        self._parts.add(numbers, by)
        if by < 0 and len(numbers):
            self._changed.append(numbers)

    def came_out(self, numbers: Int64Array) -> None:
        self._out.put(numbers, True)

    def take_done(self) -> tuple[Int64Array, Int64Array, int]:
        """Tuples of which nothing is inside any more: their numbers, when they entered, and how many had a row."""
        changed = np.unique(np.concatenate(self._changed)) if self._changed else _NONE
        self._changed = []
        done = changed[self._parts.at(changed) == 0]
        self._parts.remove(done)
        entered, out = self._entered.remove(done), self._out.remove(done)
        self.tuples -= len(done)
        return done, entered, int(np.count_nonzero(out))
