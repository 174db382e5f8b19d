"""The window of waiting stream tuples: slots as arrays, handed out from a free stack.

    slot      0     1     2     3   ...
    code    [ .. | .. | .. | .. ]      key code
    sequence[ .. | .. | .. | .. ]      position in the stream
    entered [ .. | .. | .. | .. ]      step in which the tuple came in
    matched [ .. | .. | .. | .. ]      has met a row with its key
    rows      the stream columns that are still needed, see `RowStore`

How tuples are found again (hash table, queue, buckets by page) is the business of structures beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from millrace.core.arrays import BoolArray, Int64Array
from millrace.core.budget import Budget
from millrace.core.errors import BudgetError, ParameterError
from millrace.core.keys import Codes
from millrace.core.protocols import JoinSpec, Relation, Waiting, Withdrawn
from millrace.core.rowbytes import fitting
from millrace.structures.numbers import NOBODY, slots_of
from millrace.structures.rows import RowStore, type_bytes

_SLOT_BYTES = 8 + 8 + 8 + 1 + 4  # code, sequence, entered, matched, free stack
_MARK_BYTES = 1  # where tuples can be given back


class Window:
    """Slots for `capacity` waiting tuples. Null and impossible keys get a slot too, and leave in the next step.

    `code`: where codes are kept, if that is not the window's own.
    """

    def __init__(
        self, relation: Relation, spec: JoinSpec, budget: Budget, capacity: int, code: Int64Array | None = None
    ) -> None:
        self.capacity = capacity
        self.pending = 0
        self.steps = 0
        self.budget = budget
        self.encode: Callable[[pa.RecordBatch], Codes] = partial(_key_codes, relation, [name for name, _ in spec.on])
        self.code = budget.array("window codes", capacity, np.int64) if code is None else code
        self.sequence = budget.array("window sequence", capacity, np.int64)
        self.entered = budget.array("window entry steps", capacity, np.int64)
        self.matched = budget.array("window match flags", capacity, np.bool_)
        self._free = budget.array("window free slots", capacity, np.int32)
        self._marks: BoolArray | None = budget.array("window marks", capacity, np.bool_) if spec.returnable else None
        self._returned = 0  # slots in the stack of free ones
        self._fresh = 0  # from here on, slots have never been used: nothing of a large window is touched before it is needed
        self.rows: RowStore | None = None
        kept = _kept_columns(relation, spec)
        if kept:
            schema = pa.schema([spec.stream_schema.field(name) for name in kept])
            self._row_limit = capacity * RowStore.bytes_per_slot(schema)
            budget.reserve("window rows", self._row_limit)
            self.rows = RowStore(schema, capacity)
        self._offered = 0
        self.given: Int64Array | None = None  # numbers of the tuples that come next; None: they are counted here
        self.arrived = 0  # since the last step
        self.given_back = 0  # since the last step
        self.null_slots = np.zeros(0, np.int64)
        self.impossible_slots = np.zeros(0, np.int64)

    @staticmethod
    def bytes_per_tuple(relation: Relation, spec: JoinSpec) -> int:
        """Budget bytes that one slot takes, its row included."""
        kept = _kept_columns(relation, spec)
        if not kept:
            return _SLOT_BYTES
        marks = _MARK_BYTES if spec.returnable else 0
        return _SLOT_BYTES + marks + RowStore.bytes_per_slot(pa.schema([spec.stream_schema.field(name) for name in kept]))

    @property
    def free_slots(self) -> int:
        return self.capacity - self.pending

    def admit(self, batch: pa.RecordBatch, limit: int) -> tuple[int, Int64Array]:
        """Take up to `limit` rows from the front of `batch`: how many came in, and the slots of those that can match."""
        count = min(batch.num_rows, limit, self.free_slots, self._room_or_more(batch))
        if count == 0:
            return 0, np.zeros(0, np.int64)
        batch = batch.slice(0, count)
        encoded = self.encode(batch)
        slots = self._enter(encoded.codes)
        if self.rows is not None:
            self.rows.add(batch, slots)
        if encoded.valid.all():
            return count, slots
        self.null_slots = np.concatenate((self.null_slots, slots[encoded.nulls]))
        impossible = ~encoded.valid & ~encoded.nulls
        self.impossible_slots = np.concatenate((self.impossible_slots, slots[impossible]))
        return count, slots[encoded.valid]

    def admit_codes(self, codes: Int64Array) -> Int64Array:
        """Take tuples of which nothing but the code is kept; there is room for all. Their slots."""
        assert self.rows is None
        return self._enter(codes)

    def _enter(self, codes: Int64Array) -> Int64Array:
        count = len(codes)
        slots = self._take_free(count)
        self.code[slots] = codes
        self.sequence[slots] = np.arange(self._offered, self._offered + count) if self.given is None else self.given[:count]
        self.entered[slots] = self.steps
        self.matched[slots] = False
        self._offered += count
        self.arrived += count
        self.pending += count
        return slots

    def release(self, slots: Int64Array) -> None:
        """These tuples have left."""
        if self.rows is not None:
            self.rows.drop(slots)
        if self._marks is not None:
            self.sequence[slots] = NOBODY
        self._free[self._returned : self._returned + len(slots)] = slots
        self._returned += len(slots)
        self.pending -= len(slots)

    def find(self, numbers: Int64Array) -> Int64Array:
        """The slots of tuples with these numbers that have met no row yet; an error if the spec is not `returnable`."""
        if self._marks is None:
            raise ParameterError("tuples of this join can't be given back: make its JoinSpec with returnable=True")
        slots = slots_of(self.sequence[: self._fresh], numbers)
        return slots[~self.matched[slots]]

    def marked(self, slots: Int64Array) -> BoolArray:
        """Marks by slot, set for these. They are the window's own, and valid until the next call."""
        assert self._marks is not None
        self._marks[:] = False
        self._marks[slots] = True
        return self._marks

    def waiting(self, slots: Int64Array, places: Int64Array) -> Waiting:
        """Of these tuples, which wait for these places, those that have met no row yet."""
        free = ~self.matched[slots]
        return Waiting(self.sequence[slots[free]], places[free])

    def give_back(self, slots: Int64Array) -> Withdrawn:
        """These tuples, which nothing else knows of any more, leave with their rows."""
        assert self.rows is not None
        given = Withdrawn(self.sequence[slots], self.rows.take(slots))
        self.release(slots)
        self.given_back += len(slots)
        return given

    def _take_free(self, count: int) -> Int64Array:
        """Slots that were given back, the last ones first, and then fresh ones."""
        again = min(count, self._returned)
        used = self._free[self._returned - again : self._returned][::-1].astype(np.int64)
        fresh = np.arange(self._fresh, self._fresh + count - again)
        self._returned -= again
        self._fresh += count - again
        return np.concatenate((used, fresh))

    @property
    def row_bytes_at_most(self) -> int:
        """Bytes of a row that can wait beside no other, without more memory."""
        return self._row_limit // 3 - 1 if self.rows is not None else 1 << 62

    def row_room(self, batch: pa.RecordBatch) -> int:
        """Rows of `batch` that the row store can take without passing its bytes."""
        if self.rows is None or batch.num_rows == 0:
            return batch.num_rows
        spare = self._row_limit // 3 - self.rows.bytes_held
        if sum(batch.column(name).nbytes for name in self.rows.schema.names) <= spare:
            return batch.num_rows
        return fitting(self.rows.sizes(batch), spare)

    def _room_or_more(self, batch: pa.RecordBatch) -> int:
        """`row_room`, and memory for the first row if it is longer than planned and nothing else waits."""
        room = self.row_room(batch)
        if room < 1 and self.pending == 0 and batch.num_rows and self.rows is not None:
            self._make_room(int(self.rows.sizes(batch.slice(0, 1))[0]) + 1)
            return 1
        return room

    def _make_room(self, row_bytes: int) -> None:
        """A row longer than planned is to wait alone: take what it needs from what is free in the budget."""
        budget, wanted = self.budget, 3 * row_bytes
        short = wanted - self._row_limit - budget.free_bytes
        if short > 0:
            # enough if more memory stays free (three quarters of it do), and if it goes to the slots in their proportion
            in_proportion = budget.memory_bytes * (wanted - self._row_limit) // self._row_limit
            needed = budget.memory_bytes + max(-(-short * 4 // 3), in_proportion)
            raise BudgetError(
                f"the memory budget of {budget.memory_bytes} bytes is too small for stream rows of {row_bytes} bytes; "
                f"give memory={needed} or more",
                needed,
            )
        self._row_limit = wanted
        budget.reserve("window rows", wanted)


class Windowed:
    """What every join with a window says of itself."""

    _window: Window
    _budget: Budget

    def offer(self, batch: pa.RecordBatch) -> int:
        raise NotImplementedError

    def offer_numbered(self, batch: pa.RecordBatch, numbers: Int64Array, step: int) -> int:
        """`offer`, for whoever holds this join and counts tuples and steps himself: the tuples have these numbers, and enter in
        this step."""
        self._window.given, self._window.steps = numbers, step
        try:
            return self.offer(batch)
        finally:
            self._window.given = None

    def withdraw(self, numbers: Int64Array) -> Withdrawn:
        """Give waiting tuples back; see `SemiStreamJoin`. Takes one pass over the window, however few are asked for."""
        return self._window.give_back(self._let_go(self._window.find(numbers)))

    def _let_go(self, slots: Int64Array) -> Int64Array:
        """Forget tuples that have met no row yet, and return those. Others stay: what is read or put out at this moment."""
        raise NotImplementedError

    @property
    def returned_schema(self) -> pa.Schema:
        """The columns of tuples that are given back, which are enough to offer them again."""
        self._window.find(np.zeros(0, np.int64))
        assert self._window.rows is not None
        return self._window.rows.schema

    @property
    def capacity(self) -> int:
        """Tuples that can wait at once."""
        return self._window.capacity

    @property
    def bytes_used(self) -> int:
        return self._budget.used_bytes


def _kept_columns(relation: Relation, spec: JoinSpec) -> list[str]:
    """Stream columns a waiting tuple must keep: those of the output, and what is compared where its code is not all of it."""
    kept = list(spec.carry)
    if spec.returnable:
        kept += [name for name, _ in spec.on if name not in kept]
    if spec.condition is not None:
        condition = spec.condition
        compared = condition.stream_columns(spec.stream_schema)
        if condition.kind in ("between", "near") and not spec.returnable:
            compared = tuple(mine for mine, _ in condition.on)
        kept += [name for name in compared if name not in kept]
    elif not relation.codec.exact:
        kept += [name for name, _ in spec.on if name not in kept]
    return kept


def _key_codes(relation: Relation, names: Sequence[str], batch: pa.RecordBatch) -> Codes:
    return relation.codec.encode([batch.column(name) for name in names])


def row_bytes(schema: pa.Schema) -> int:
    """Bytes to plan for one row of `schema`."""
    return sum(type_bytes(field.type) for field in schema)
