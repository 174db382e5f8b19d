"""Reading two inputs at speeds in proportion to their sizes, and counting what was read."""

from __future__ import annotations

from millrace.core.arrays import Int64Array
from millrace.online.protocol import A, B, Counters, Input


class Readers:
    """The two inputs of a join."""

    def __init__(self, inputs: tuple[Input, Input], counters: Counters) -> None:
        self._inputs, self._counters = inputs, counters
        self.read = [0, 0]  # rows so far

    @property
    def ended(self) -> bool:
        return self._inputs[A].ended and self._inputs[B].ended

    def ended_side(self, side: int) -> bool:
        return self._inputs[side].ended

    @property
    def total(self) -> int:
        """Rows of both, as far as known: at least what has been read."""
        return sum(self.total_of(side) for side in (A, B))

    def total_of(self, side: int) -> int:
        return self.read[side] if self._inputs[side].ended else max(self._inputs[side].rows, self.read[side] + 1)

    def shares(self) -> tuple[float, float]:
        a, b = (self.read[side] / max(1, self.total_of(side)) for side in (A, B))
        return a, b

    def portion(self, side: int, rows: int) -> int:
        """How much of the smaller input to read while `rows` are read of the larger: so that both stay in step."""
        totals = self.total_of(A), self.total_of(B)
        return max(1, -(-rows * totals[side] // max(1, *totals)))

    def next(self, rows: int, most_of_b: int | None = None) -> tuple[int, Int64Array] | None:
        """Records of the input that is behind, or of the other if that one has nothing now; None: neither has."""
        a, b = self.shares()
        first = A if a <= b else B
        for side in (first, 1 - first):
            portion = self.portion(side, rows)
            taken = self.take(side, portion if side == A or most_of_b is None else min(portion, most_of_b))
            if taken is not None:
                return side, taken
        return None

    def take(self, side: int, rows: int) -> Int64Array | None:
        """Records of one side; None: it has nothing now."""
        if self._inputs[side].ended or rows < 1:
            return None
        batch = self._inputs[side].read(rows)
        if not batch.rows:
            return None
        self.read[side] += batch.rows
        counters = self._counters
        counters.rows_a, counters.rows_b = self.read
        if side == A:
            counters.bytes_a += batch.bytes
        else:
            counters.bytes_b += batch.bytes
        return batch.words
