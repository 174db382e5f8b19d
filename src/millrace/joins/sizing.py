"""How a join divides its budget: window slots, disk buffer, and the output of one step. Used by every join.

    budget  [ window slots ................................... | disk buffer | output of a step | index ]
              capacity x (window + hash table, queue, ...)       pages         output_rows        hot_keys

First the output takes an eighth of the spare memory. Then the disk buffer takes another eighth, up to `BUFFER_BYTES`, unless
its pages are given. The window takes the rest. If the relation's index lies on disk, a sixteenth of the spare memory holds the
keys that are wanted most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget, format_bytes
from millrace.core.errors import BudgetError, ParameterError
from millrace.core.protocols import JoinSpec, KeyLookup, Relation
from millrace.core.unitcosts import UnitCosts
from millrace.joins.emit import LONG_ROW_SHARE, LONG_ROWS_FROM, OUTPUT_ROWS, long_row_bytes, output_row_bytes
from millrace.joins.reading import disk_index
from millrace.structures.window import Window

MIN_OUTPUT_ROWS = 256  # fewer rows a step would cost more in calls than they save in memory
MAX_SLOTS = 1 << 30  # links are 32-bit
BUFFER_BYTES = 512 * 1024  # a read this long costs about as much as the seek before it, on old and new disks
_STEP_SECONDS = 1e-4  # of calls, whatever a step does
_SPARE_SHARE = 8
_CHOICES = 96
_INDEX_SHARE = 16


@dataclass(frozen=True)
class Sizing:
    """What a join may use: tuples that wait, pages read at once, rows put out in one step."""

    capacity: int
    buffer_pages: int
    output_rows: int
    hot_keys: int = 0  # of an index on disk

    def bytes_of(self, relation: Relation, spec: JoinSpec, memory_bytes: int, extra_bytes_per_slot: int) -> int:
        """What all of it takes of `memory_bytes`."""
        prices, index = Prices.of(relation, spec, memory_bytes, extra_bytes_per_slot), disk_index(relation)
        pages, output = self.buffer_pages * prices.page_bytes, prices.output_bytes(self.output_rows)
        held = index.least_bytes + self.hot_keys * index.hot_key_bytes if index is not None else 0
        return self.capacity * prices.slot_bytes + pages + output + held


@dataclass(frozen=True)
class Prices:
    """Bytes of one slot, one page in the disk buffer, one row of a step's output, and one that is as long as rows get."""

    slot_bytes: int
    page_bytes: int
    output_row_bytes: int
    long_row_bytes: int = 0

    @classmethod
    def of(
        cls, relation: Relation, spec: JoinSpec, memory_bytes: int, extra_bytes_per_slot: int = 0, extra_bytes_per_page: int = 0
    ) -> Prices:
        spec.check_against(relation)
        slot_bytes = Window.bytes_per_tuple(relation, spec) + extra_bytes_per_slot
        page_bytes = extra_bytes_per_page + (0 if relation.resident else relation.page_bytes)
        return cls(slot_bytes, page_bytes, output_row_bytes(relation, spec), long_row_bytes(relation, spec, memory_bytes))

    @property
    def least_output_bytes(self) -> int:
        return self.output_bytes(MIN_OUTPUT_ROWS)

    def output_bytes(self, rows: int) -> int:
        """What a step takes that puts out so many rows, or one long row more."""
        return rows * self.output_row_bytes + self.long_row_bytes

    def output_rows(self, spare_bytes: int) -> int:
        """Rows of a step's output, if `spare_bytes` are left after every part, the output included, has its least."""
        return min(MIN_OUTPUT_ROWS + max(0, spare_bytes) // _SPARE_SHARE // self.output_row_bytes, OUTPUT_ROWS)


def memory_parts(relation: Relation, spec: JoinSpec, sizing: Sizing, memory_bytes: int, slot_bytes: int) -> dict[str, int]:
    """Bytes of window, disk buffer and output, for people and for predictions. `slot_bytes`: beside the window."""
    prices, index = Prices.of(relation, spec, memory_bytes, slot_bytes), disk_index(relation)
    parts = {
        "window": sizing.capacity * prices.slot_bytes,
        "disk buffer": sizing.buffer_pages * prices.page_bytes,
        "output": prices.output_bytes(sizing.output_rows),
    }
    if index is not None:
        parts["index"] = index.least_bytes + sizing.hot_keys * index.hot_key_bytes
    return parts


def plan_window(
    relation: Relation,
    spec: JoinSpec,
    budget: Budget,
    *,
    extra_bytes_per_slot: int,
    buffer_pages: int | None = None,
    extra_bytes_per_page: int = 0,
    fixed_bytes: int = 0,
    min_slots: int = 1,
    max_slots: int = MAX_SLOTS,
) -> Sizing:
    """Divide what is free in `budget`. If this is too little, the error says how much is enough.

    `extra_bytes_per_slot`: what the join's own structures take for each slot beside the window. `extra_bytes_per_page`: what
    they take beside a page in the disk buffer. `fixed_bytes`: what they take once. An index on disk gets its share. Nothing is
    reserved here: see `reserve`.
    """
    check_at_least_one("buffer_pages", buffer_pages)
    prices = Prices.of(relation, spec, budget.memory_bytes, extra_bytes_per_slot, extra_bytes_per_page)
    least_pages = min(buffer_pages or 1, max(1, relation.pages))
    index = disk_index(relation)
    if index is not None:
        fixed_bytes += index.least_bytes
    least = fixed_bytes + prices.least_output_bytes + least_pages * prices.page_bytes + min_slots * prices.slot_bytes
    check_budget(budget, least)
    spare = budget.free_bytes - least
    output_rows = prices.output_rows(spare)
    pages = least_pages
    if buffer_pages is None:
        more = min(spare // _SPARE_SHARE, BUFFER_BYTES) // max(1, relation.page_bytes)
        pages = min(least_pages + more, max(1, relation.pages))
    hot_keys = 0
    if index is not None:
        hot_keys = min(spare // _INDEX_SHARE // index.hot_key_bytes, index.hot_keys)
        fixed_bytes += hot_keys * index.hot_key_bytes
    left = budget.free_bytes - fixed_bytes - prices.output_bytes(output_rows) - pages * prices.page_bytes
    return Sizing(min(left // prices.slot_bytes, max_slots, MAX_SLOTS), pages, output_rows, hot_keys)


def rows_per_page(relation: Relation) -> int:
    """Rows of a page; of the longest page, if pages differ by much."""
    return max(-(-relation.rows // max(1, relation.pages)), getattr(relation, "longest_page_rows", 0))


def code_bytes_per_page(relation: Relation) -> int:
    """Bytes of the key codes of one page, which joins that probe with every row of a page copy out."""
    return 8 * rows_per_page(relation)


def bits_between_codes(relation: Relation) -> int:
    """Bits between the codes of neighbouring rows. Hashes fill the whole range of codes; numbers often follow one another."""
    return 0 if relation.codec.exact else 64 - max(1, relation.rows).bit_length()


def reserve(relation: Relation, spec: JoinSpec, budget: Budget, sizing: Sizing, extra_bytes_per_page: int = 0) -> None:
    """Take the disk buffer and the output from the budget; the window and its structures take their own."""
    if not relation.resident:
        budget.reserve("disk buffer", sizing.buffer_pages * relation.page_bytes)
    if extra_bytes_per_page:
        budget.reserve("page codes", sizing.buffer_pages * extra_bytes_per_page)
    prices = Prices.of(relation, spec, budget.memory_bytes)
    budget.reserve("output", prices.output_bytes(sizing.output_rows))


def open_index(relation: Relation, budget: Budget, hot_keys: int) -> KeyLookup | None:
    """The index of a relation that has it on disk, with so many keys in memory."""
    index = disk_index(relation)
    return index.lookup(budget, hot_keys) if index is not None else None


def costs_with_calls(costs: UnitCosts | None) -> UnitCosts:
    """Unit costs to choose sizes by. Where nobody has measured what a step takes, it takes a little: a window of a few tuples
    is no window."""
    costs = costs or UnitCosts()
    return replace(costs, step=costs.step or _STEP_SECONDS)


def letters(relation: Relation) -> dict[str, int]:
    """R_t, N_R and v_P: what the equations in `cost` call rows, pages and the bytes of a page."""
    return {"R_t": relation.rows, "N_R": max(1, relation.pages), "v_P": relation.page_bytes}


def some_sizes(pages: int, wanted: int | None = None, least: int = 1) -> Int64Array:
    """Sizes to choose from: the given size, or some from least to all, close together where they are small."""
    if wanted is not None:
        return np.array([min(wanted, pages)])
    return np.unique(np.append(np.geomspace(1, max(1, pages), _CHOICES).round().astype(np.int64), least))[: pages + 1]


def check_budget(budget: Budget, least_bytes: int) -> None:
    """At least `least_bytes` are free."""
    if least_bytes > budget.free_bytes:
        needed = budget.used_bytes + least_bytes
        needed += -(-max(0, needed - LONG_ROWS_FROM) // (LONG_ROW_SHARE - 1))  # a part of what is given goes to long rows
        raise BudgetError(
            f"the memory budget of {format_bytes(budget.memory_bytes)} is too small: the join needs at least "
            f"{format_bytes(least_bytes)} beside {format_bytes(budget.used_bytes)} in use; "
            f"give memory={needed} or more",
            needed,
        )


def check_at_least_one(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ParameterError(f"{name} must be at least 1; got {value}")
