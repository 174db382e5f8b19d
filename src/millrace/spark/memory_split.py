"""How one task divides the memory of a join, and how many rows it joins at a time. Pure functions only.

keys travel   [ join ............ | rows being put in order ]     one budget; a look-up needs the second part only
rows travel   [ join ............................................ ]
in order      [ join ............ ]  [ rows being put in order ]  half each
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from millrace.core.instant_lookup import SCRATCH_BYTES

Shape = Literal["flag", "row", "array", "rows"]
Access = Literal["join", "key look-up", "range look-up", "broadcast"]

COPIES = 2.5  # what a row of the output takes while it is put in stream order: both orders, and a slice under way
SPARE_TEXT = 2  # room for texts is made before they are known
LOOKED_UP_ROWS = 1 << 14  # of one batch that are looked up at once, at most
_SPARE_ROWS = 1.2  # groups are planned smaller by this factor: rows differ, and a group that takes too much is joined again
_ORDERING_SHARE = 2  # half of the budget for rows being put in order
_KEY_SHARE = 16
_MAX_GROUP_ROWS = 1 << 20
_RESIDENT_GROUP_ROWS = 1 << 16  # where a page costs no read, more rows at a time only miss the processor's caches
_LEAST_LOOKED_UP = 64  # rows: with fewer at a time, all the time goes into calls
_NUMBERS_BYTES = 40  # of a row in a group: where it comes from, and where it goes


@dataclass(frozen=True)
class RowSizes:
    """Bytes of rows, on average."""

    stream: int  # what a join keeps of a row of the stream
    found: int  # a match
    matches: int  # of one row, at most, that travel beside it


@dataclass(frozen=True)
class MemorySplit:
    """Where the memory of one join in one task goes."""

    given_bytes: int  # to this join
    join_bytes: int  # its budget
    ordering_bytes: int  # for rows that are put in the order of the stream: a part of the budget, or beside it (whole rows)
    limit_bytes: int  # that found rows may take before they are put in order
    key_bytes: int  # that keys, or rows of the stream, may take while a group is gathered


@dataclass(frozen=True)
class GroupRows:
    """Rows joined at a time (a group). Too many matches make the next group smaller, few make it larger."""

    start: int
    least: int
    most: int


def divide(
    memory_bytes: int, shape: Shape, access: Access, sizes: RowSizes, *, in_order: bool, resident: bool
) -> tuple[MemorySplit, GroupRows]:
    """How `memory_bytes` are used. `in_order`: whole rows are put in stream order. Other shapes always keep stream order."""
    key_bytes = memory_bytes // _KEY_SHARE
    if shape == "rows":
        join_bytes = max(1, memory_bytes // 2) if in_order else memory_bytes
        beside = memory_bytes - join_bytes
        rows = GroupRows(_MAX_GROUP_ROWS, 1, _MAX_GROUP_ROWS)
        return MemorySplit(memory_bytes, join_bytes, beside, int((beside - key_bytes) / COPIES), key_bytes), rows
    share = memory_bytes // _ORDERING_SHARE
    if access == "join":
        each = int(_SPARE_ROWS * COPIES * sizes.found * sizes.matches) + 2 * sizes.stream + _NUMBERS_BYTES
        most = max(1, min(share // each, _RESIDENT_GROUP_ROWS if resident else _MAX_GROUP_ROWS))
        ordering = max(most * each, share) if resident else most * each
        split = MemorySplit(memory_bytes, memory_bytes, ordering, int(ordering / COPIES), key_bytes)
        return split, GroupRows(most, 1, most)
    each = SPARE_TEXT * sizes.found + sizes.stream + SCRATCH_BYTES
    most = max(_LEAST_LOOKED_UP, min(share // each, LOOKED_UP_ROWS))
    ordering = most * each  # found rows may take more: a look-up leaves the rest of the budget free
    split = MemorySplit(memory_bytes, memory_bytes, ordering, max(ordering, share) // SPARE_TEXT, key_bytes)
    return split, GroupRows(most, _LEAST_LOOKED_UP, most)
