"""Hash partitions of two inputs, partly in memory and partly in the temporary file: what GRACE, PR-Join and Hash Ripple share.

    row --hash--> bucket --map--> partition --> its list of pages; no page free: the partition with the most pages
                                                sends an extent (the oldest pages of its larger side) to the temporary file

Rows of a partition come back in the order of their arrival: extents first, then pages.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.online.protocol import A, B
from millrace.online.statistics.totals import Sums
from millrace.online.storage.memory_plan import Plan
from millrace.online.storage.pages import Pages, buckets_of
from millrace.online.storage.rectangles import Chunk, Rectangle, join_all, make_rectangle
from millrace.online.storage.sizing import Shape
from millrace.online.storage.spill import Fetch, Spill

# pages by 2 partition + side, and how many pages a list needs to have a full extent: which lists (partition, side) give one up
Victims = Callable[[Int64Array, int], list[tuple[int, int]]]
_CHANCE = 4.0  # standard deviations of a count that hash partitions of even keys stay within


def largest_partition(pages: Int64Array, least: int) -> list[tuple[int, int]]:
    """The larger side of the partition with the most pages."""
    partition = int(np.argmax(pages[0::2] + pages[1::2]))
    return [(partition, A if pages[2 * partition] >= pages[2 * partition + 1] else B)]


class Partitions:
    """Rows go in by `add`; `join` gives the sums over all pairs that a partition holds by now."""

    def __init__(
        self, shape: Shape, plan: Plan, budget: Budget, spill: Spill, *, threads: int = 1, tables_later: bool = False
    ) -> None:
        """`plan`: of `divide_partitions`. `threads`: how many may call `join` at a time, each with a `slot` of its own. With
        `tables_later`, call `make_tables` before the first join."""
        widths = shape.widths
        self.plan, self.widths, self.count = plan, widths, plan.partitions
        self._spill = spill
        spill.open(plan.extent_bytes, budget)
        self._functions, self._budget, self._threads = shape.functions, budget, threads
        self._rectangles: list[Rectangle] = []
        if not tables_later:
            self.make_tables()
        extent_words = plan.extent_pages * plan.page_words
        self._gathered = [budget.array(f"gathered rows {i}", extent_words, np.int64) for i in range(threads)]
        self._mapping = budget.array("bucket map", plan.buckets, np.int32)
        self._mapping[:] = np.arange(plan.buckets) * plan.partitions // plan.buckets
        self._histogram: Int64Array = budget.array("bucket counts", plan.buckets, np.int64)
        self._shift = 64 - (plan.buckets.bit_length() - 1)
        self._pages = Pages(plan.partitions, widths, plan.page_words, plan.pool_pages, budget)
        self._extents = [array("q") for _ in range(2 * plan.partitions)]
        self._extent_rows = tuple(plan.extent_pages * rows for rows in self._pages.rows_per_page)
        self._spilled = np.zeros((plan.partitions, 2), np.int64)
        self._ahead: dict[tuple[int, int], Fetch] = {}  # what is being read for the next join
        self.choose_victims: Victims = largest_partition
        self.before_spill: Callable[[int], None] | None = None  # told which partition is about to lose pages

    def make_tables(self) -> None:
        """What partitions are joined in."""
        for i in range(self._threads):
            self._rectangles.append(
                make_rectangle(self._functions, self.widths, self.plan.table_rows, self._budget, f"join {i}")
            )

    @property
    def rectangle(self) -> Rectangle:
        """To bring rows of a partition together, for joins that do so themselves."""
        return self._rectangles[0]

    def extent_rows(self, side: int) -> int:
        return self._extent_rows[side]

    @property
    def spilled(self) -> bool:
        """Whether anything is in the temporary file."""
        return bool(self._spilled.any())

    def spilled_rows(self, partition: int, side: int) -> int:
        return int(self._spilled[partition, side])

    def spilled_by_side(self, side: int) -> Int64Array:
        """Of each partition."""
        return self._spilled[:, side]

    @property
    def share_free(self) -> float:
        return self._pages.free_pages / self._pages.count

    def rows(self, side: int) -> Int64Array:
        """Rows of each partition, wherever they are."""
        counts: Int64Array = self._spilled[:, side] + self._pages.rows_by_side(side)
        return counts

    def rows_of(self, partition: int) -> tuple[int, int]:
        a, b = (int(self._spilled[partition, side]) + self._pages.rows_of(2 * partition + side) for side in (A, B))
        return a, b

    def partition_of(self, codes: Int64Array) -> Int64Array:
        """The partition of each code, as buckets are mapped now."""
        found: Int64Array = self._mapping[buckets_of(codes, np.uint64(self._shift))].astype(np.int64)
        return found

    def add(self, side: int, words: Int64Array) -> None:
        """Rows of one side; extents are spilled as needed."""
        done = self._pages.add(side, words, 0, self._mapping, self._shift, self._histogram)
        while done < len(words):
            self._make_room()
            done = self._pages.add(side, words, done, self._mapping, self._shift, self._histogram)

    def _make_room(self) -> None:
        """The pool is so large that some list has a full extent when no page is free."""
        pages = self._pages.pages_of()
        for partition, side in self.choose_victims(pages, self.plan.extent_pages + 1):
            if self.before_spill is not None:
                self.before_spill(partition)
            place, view = self._spill.room(self.plan.extent_pages * self._pages.rows_per_page[side] * self.widths[side])
            self._pages.take(2 * partition + side, self.plan.extent_pages, view)
            self._extents[2 * partition + side].append(place)
            self._spilled[partition, side] += self._extent_rows[side]

    def start(self, partition: int) -> None:
        """Begin to read what a partition has in the temporary file. One partition at a time."""
        self._drop()
        for side in (A, B):
            if self._spilled[partition, side]:
                self._ahead[partition, side] = self._read(partition, side)

    @property
    def waiting(self) -> bool:
        """What was started has not been read yet."""
        return not all(fetch.ready for fetch in self._ahead.values())

    def _read(self, partition: int, side: int, first: int = 0) -> Fetch:
        places = self._extents[2 * partition + side][first:]
        return self._spill.fetch(places, [self._extent_rows[side] * self.widths[side]] * len(places))

    def _drop(self) -> None:
        for fetch in self._ahead.values():
            fetch.close()
        self._ahead.clear()

    def flush(self) -> None:
        """Before another thread joins a partition: what was spilled can be read by it."""
        self._spill.flush()

    def join(self, partition: int, old: tuple[int, int] = (0, 0), rows: tuple[int, int] | None = None, slot: int = 0) -> Sums:
        """The sums over all pairs. Pairs of the first `old` rows of A with the first `old` rows of B have been put out before.

        Another thread may `add` meanwhile, if `rows` says how many the partition had and it loses no pages (`before_spill`).
        """
        counts = rows or self.rows_of(partition)

        def source(side: int) -> Iterator[Chunk]:
            left = old[side]
            for words in self._rows(partition, side, counts[side], slot):
                yield words, min(left, len(words))
                left = max(0, left - len(words))

        sums = join_all(self._rectangles[slot], source, counts)
        if slot == 0:
            self._drop()
        return sums

    def _rows(self, partition: int, side: int, rows: int, slot: int = 0) -> Iterator[Int64Array]:
        """Its extents, those that are being read already first; what was spilled since then; then its pages."""
        done, number = 0, 2 * partition + side
        while done < len(self._extents[number]):
            fetch = self._ahead.pop((partition, side), None) or self._read(partition, side, done)
            try:
                for flat in fetch:
                    yield flat.reshape(-1, self.widths[side])
                    done += 1
            finally:
                fetch.close()
        yield from self._pages.chunks(number, rows - done * self._extent_rows[side], self._gathered[slot])

    def scan(self, side: int) -> Iterator[tuple[int, Int64Array]]:
        """All rows of a side, partition by partition, in the order of their arrival."""
        for partition in range(self.count):
            for words in self._rows(partition, side, self.rows_of(partition)[side]):
                yield partition, words

    def rows_between(self, partition: int, side: int, low: int, high: int) -> Iterator[Int64Array]:
        """Rows of one side of a partition, numbered in the order of their arrival; reads no extent that has none of them."""
        each, spilled = self._extent_rows[side], int(self._spilled[partition, side])
        if low < spilled:
            first = low // each
            places = self._extents[2 * partition + side][first : -(-min(high, spilled) // each)]
            fetch = self._spill.fetch(places, [each * self.widths[side]] * len(places))
            try:
                for number, flat in enumerate(fetch, first):
                    yield flat.reshape(-1, self.widths[side])[max(0, low - number * each) : high - number * each]
            finally:
                fetch.close()
        start = spilled
        number = 2 * partition + side
        for words in self._pages.chunks(number, self._pages.rows_of(number), self._gathered[0]):
            if start < high and start + len(words) > low:
                yield words[max(0, low - start) : high - start]
            start += len(words)

    def forget(self, partition: int) -> None:
        """A partition that is done gives its pages back."""
        for side in (A, B):
            self._pages.clear(2 * partition + side)

    @property
    def can_remap(self) -> bool:
        return not self.spilled and self._pages.free_pages > 2 * self.count

    def imbalance(self) -> float:
        """Rows of the largest partition over the mean, less what chance alone makes of so few rows."""
        rows = self.rows(A) + self.rows(B)
        mean = max(1.0, float(rows.mean()))
        return float(rows.max() - _CHANCE * np.sqrt(mean)) / mean

    def remap(self) -> None:
        """Give each partition about the same rows, by the counts of their buckets, and move what is in memory.

        Only while nothing is spilled and half of the pages are free. Largest bucket first, to the partition with the least. A
        bucket without a row so far is taken to have half as many as others: it will have some.
        """
        assert not self.spilled
        load = np.zeros(self.count)
        expected = self._histogram + 0.5 * self._histogram.mean()
        for bucket in np.argsort(-self._histogram, kind="stable"):
            least = int(np.argmin(load))
            self._mapping[bucket] = least
            load[least] += expected[bucket]
        self._histogram[:] = 0
        for number, (page, rows) in enumerate(self._pages.detach().tolist()):
            for words in self._pages.drain(number, page, rows):
                self.add(number & 1, words)

    def close(self) -> None:
        self._drop()
        self._spill.close()
