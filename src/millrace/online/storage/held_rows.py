"""Rows of both inputs held as they came, and rows put into the temporary file in a row: for joins without partitions."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget, format_bytes
from millrace.core.errors import BudgetError
from millrace.online.protocol import A, B
from millrace.online.storage.paired_reading import Readers
from millrace.online.storage.rectangles import rectangle_bytes
from millrace.online.storage.sizing import Shape
from millrace.online.storage.spill import Spill

_FEW, _MANY = 16, 1 << 62  # blocks


class Block:
    """A block of new input: rows of A and B in the order of their arrival."""

    @staticmethod
    def sizes(widths: tuple[int, int], rows: tuple[int, int]) -> dict[str, int]:
        """Bytes of each array."""
        return {f"block {'AB'[side]}": 8 * rows[side] * widths[side] for side in (A, B)}

    def __init__(self, widths: tuple[int, int], rows: tuple[int, int], budget: Budget) -> None:
        self.rows, self.widths = rows, widths
        a, b = (
            budget.array(f"block {'AB'[side]}", rows[side] * widths[side], np.int64).reshape(rows[side], widths[side])
            for side in (A, B)
        )
        self._words: tuple[Int64Array, Int64Array] = (a, b)
        self.clear()

    def clear(self, side: int | None = None) -> None:
        """Forget the rows, of one side or both."""
        if side is None:
            self.kept, self.read = [0, 0], [0, 0]  # rows held; rows read for them, before filters
        else:
            self.kept[side] = self.read[side] = 0

    def words(self, side: int) -> Int64Array:
        return self._words[side][: self.kept[side]]

    @property
    def full(self) -> bool:
        return self.kept[A] == self.rows[A] or self.kept[B] == self.rows[B]

    def fill(self, readers: Readers, batch_rows: int, side: int | None = None) -> bool:
        """Read on, from one side or from the one that is behind; False: there is nothing now."""
        if side is None:
            a, b = readers.shares()
            first = A if a <= b else B
            return any(self.fill(readers, readers.portion(one, batch_rows), one) for one in (first, 1 - first))
        before = readers.read[side]
        words = readers.take(side, min(batch_rows, self.rows[side] - self.kept[side]))
        if words is None:
            return False
        start = self.kept[side]
        self.kept[side] = start + len(words)
        self._words[side][start : self.kept[side]] = words
        self.read[side] += readers.read[side] - before
        return True


def block_rows(
    shape: Shape, budget: Budget, *, per_block: int, per_row: int = 0, table_for: Callable[[int, int], int] = max
) -> tuple[int, int]:
    """The largest block, rows of A and B in proportion to the inputs, that fits with a table of `table_for` rows: for
    either side, if not given.

    `per_block` bytes stay behind for each block of the inputs, `per_row` are needed for each row of a block. If one input comes
    late, each block holds rows of one only: there are up to twice as many. In a memory too small for all that stays behind,
    there is room for that of a few blocks: a join must do with it.
    """
    functions, widths, rows = shape.functions, shape.widths, shape.rows
    share = max(0.01, min(0.99, rows[A] / max(1, sum(rows))))
    for most in (_MANY, _FEW):
        total = min(budget.free_bytes // 8, sum(rows) + 64)
        while total >= 16:
            a, b = int(total * share) + 1, int(total * (1 - share)) + 1
            needed = (
                8 * (a * widths[A] + b * widths[B]) + per_row * (a + b) + rectangle_bytes(functions, widths, table_for(a, b))
            )
            if needed + per_block * min(most, int(3 + 2 * sum(rows) / total)) <= budget.free_bytes:
                return a, b
            total = int(total * 0.97)
    guess = 2 * budget.memory_bytes  # the join that asked finds out (`sizing.divided`)
    raise BudgetError(
        f"the memory budget of {format_bytes(budget.memory_bytes)} is too small to hold a block of rows; try memory={guess}",
        guess,
    )


@dataclass(frozen=True)
class Blocks:
    """How a join of blocks divides its memory."""

    extent_bytes: int  # of the temporary file
    batch_rows: int
    rows: tuple[int, int]  # of a block


def divide_transfers(shape: Shape, budget: Budget, extent_bytes: int | None) -> tuple[int, int]:
    """Set aside buffers of the temporary file and batches of input: bytes of an extent, and rows of a batch."""
    extent = extent_bytes or max(8 * shape.widest, min(1 << 20, budget.memory_bytes // 128))
    budget.reserve("spill buffers", shape.buffer_bytes(extent))
    rows = max(16, min(1 << 17, budget.memory_bytes // 64 // (8 * shape.widest)))
    budget.reserve("input batches", shape.batches_bytes(rows))
    return extent, rows


class StoredRows:
    """Rows in the temporary file, in extents, to be read again in their order."""

    def __init__(self, spill: Spill, width: int, extent_bytes: int) -> None:
        self._spill, self.width = spill, width
        self._extent_rows = max(1, extent_bytes // (8 * width))
        self._places, self._counts = array("q"), array("q")
        self.rows = 0

    @property
    def largest_bytes(self) -> int:
        """Of an extent."""
        return min(self.rows, self._extent_rows) * 8 * self.width

    @property
    def extents(self) -> int:
        return len(self._places)

    def append(self, words: Int64Array, order: Int64Array | None = None) -> None:
        """Rows, or `words[order]`."""
        for start in range(0, len(words), self._extent_rows):
            count = min(self._extent_rows, len(words) - start)
            place, view = self._spill.room(count * self.width)
            target = view.reshape(count, self.width)
            if order is None:
                target[:] = words[start : start + count]
            else:
                np.take(words, order[start : start + count], axis=0, out=target)
            self._places.append(place)
            self._counts.append(count)
        self.rows += len(words)

    def chunks(self, first: int = 0, last: int | None = None) -> Iterator[Int64Array]:
        """Extents from `first` to before `last`; an array is valid until the next is asked for."""
        counts = self._counts[first:last]
        fetch = self._spill.fetch(self._places[first:last], [count * self.width for count in counts])
        try:
            for flat in fetch:
                yield flat.reshape(-1, self.width)
        finally:
            fetch.close()
