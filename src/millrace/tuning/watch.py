"""What is seen of a stream while it is joined: how unevenly its keys come, and whether the join keeps up with it.

A part of the keys is counted, some hundred rows at a time, so that watching costs little. Each look begins anew: what is seen
is what came since the look before, so that it follows a stream that changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.heavy_hitters import HeavyHitters
from millrace.core.protocols import JoinSpec, Relation
from millrace.core.step import StepCounts
from millrace.core.unitcosts import UnitCosts
from millrace.cost.expected import StreamShape
from millrace.cost.pages import Order
from millrace.joins.reading import disk_index, has_index
from millrace.tuning.skew import Skew

_SAMPLED_EACH, _LEAST_SAMPLED = 16, 2048  # rows for each counter, and in all, in the time between two looks
_AT_ONCE = 64  # rows at least: fewer would cost more in calls than in counting
_MOST_AT_ONCE = 4096
_SURE = 8  # a key that was counted less often may be there by chance
_FIRST_PAGES = 0.1  # where hot keys lie if the table is sorted by how often they are wanted
_ALIKE = 0.03  # of the stream: streams whose shares differ by less are taken for the same
_RANKS = 1, 4, 16, 64, 256
_GROWN = 1.1  # times the rows
_FULL = 0.5  # of the steps: the join is what takes the time, not the stream


@dataclass(frozen=True)
class Seen:
    """What was seen between two looks.

    `skew`: of the keys that the table has. `full`: share of the steps before which the join refused tuples. `counts`: of all of
    these steps together.
    """

    skew: Skew
    order: Order
    absent: float
    sigma: float
    full: float
    rows: int  # of the table
    sampled: int  # rows of which keys were counted
    counts: StepCounts
    steps: int

    def stream(self) -> StreamShape:
        """The stream for forecasts."""
        return self.skew.stream(self.rows, self.order, self.sigma)

    @property
    def join_bound(self) -> bool:
        """Whether tuples had to wait for the join, so that it shows how fast the join can be."""
        return self.full >= _FULL

    def rate(self, costs: UnitCosts) -> float:
        """Tuples a second, by what the steps did."""
        seconds = seconds_of(self.counts, self.steps, costs)
        return self.counts.removed / seconds if seconds > 0 else float("inf")

    def like(self, other: Seen) -> bool:
        """Whether the streams, and the table, are about the same: forecasts would be, too."""
        if self.grown_from(other.rows) or self.order != other.order or abs(self.absent - other.absent) > _ALIKE:
            return False
        if max(self.sigma, other.sigma) > _GROWN * min(self.sigma, other.sigma) + _ALIKE:
            return False
        chance = 1.5 / np.sqrt(max(1, min(self.sampled, other.sampled)))  # three times what shares differ by in samples
        differ = np.abs(np.subtract(_upto(self.skew.shares), _upto(other.skew.shares)))
        return bool(np.all(differ < _ALIKE + chance))

    def grown_from(self, rows: int) -> bool:
        """Whether the table has clearly more rows than that, or fewer."""
        return max(self.rows, rows) > _GROWN * min(self.rows, rows)


def seconds_of(counts: StepCounts, steps: int, costs: UnitCosts) -> float:
    """What so many steps take that did this."""
    reads = (
        counts.seeks * (costs.seek + costs.request)
        + counts.bytes_read * costs.read_byte
        + counts.index_reads * costs.index_read
    )
    return reads + costs.work(counts, steps)


def _upto(shares: tuple[float, ...]) -> list[float]:
    """Shares of the most frequent keys together."""
    sums = np.concatenate(([0.0], np.cumsum(shares)))
    return [float(sums[min(rank, len(shares))]) for rank in _RANKS]


class Watch:
    """Counts what comes. `counters`: for keys; 0: keys are not counted, and count as wanted alike.

    >>> from millrace.relations.memory import MemoryRelation
    >>> products = MemoryRelation(pa.table({"id": np.arange(100), "price": np.arange(100)}), "id")
    >>> sales = pa.record_batch({"product": [3, 3, 3, 5] * 100})
    >>> watch = Watch(products, JoinSpec(sales.schema, (("product", "id"),), "inner", (), ("price",)), counters=8)
    >>> watch.begin(tuples=400)
    >>> watch.took(sales)
    >>> [round(share, 2) for share in watch.look().skew.shares]
    [0.75, 0.25]
    """

    def __init__(self, relation: Relation, spec: JoinSpec, counters: int, order: Order = "scattered") -> None:
        self._relation, self._order = relation, order
        self._names = [name for name, _ in spec.on]
        self._whole = spec.how in ("semi", "anti")
        self._counters = counters if self._names else 0
        self._hitters = HeavyHitters(self._counters) if self._counters else None
        self.begin(0)

    @staticmethod
    def bytes_for(counters: int) -> int:
        return HeavyHitters.bytes_for(counters) if counters else 0

    def begin(self, tuples: int) -> None:
        """Begin anew. So many tuples are expected until the next look."""
        if self._hitters is not None:
            self._hitters = None  # before there is another
            self._hitters = HeavyHitters(self._counters)
        self._every = max(1, tuples // max(_LEAST_SAMPLED, _SAMPLED_EACH * self._counters))
        self._due = 0
        self._counts = StepCounts()
        self._steps = self._full = 0

    def took(self, rows: pa.RecordBatch) -> None:
        """The join took these rows."""
        if self._hitters is None:
            return
        self._due += rows.num_rows
        wanted = min(self._due // self._every, _MOST_AT_ONCE)
        if wanted < min(_AT_ONCE, rows.num_rows):
            return
        some = rows.slice(0, wanted)
        self._due -= some.num_rows * self._every
        found = self._relation.codec.encode([some.column(name) for name in self._names])
        self._hitters.add(found.codes, found.valid)

    def stepped(self, counts: StepCounts, *, refused: bool) -> None:
        """The join made a step. `refused`: before it, the join had no room for all that came."""
        self._counts = self._counts + counts
        self._steps += 1
        self._full += refused

    def look(self) -> Seen:
        """What was seen since `begin`."""
        counts, removed = self._counts, max(1, self._counts.removed)
        absent = (counts.absent_keys + counts.null_keys) / removed
        sigma = 1.0 if self._whole or not counts.matched else counts.matches / counts.matched
        skew, order = self._skew(absent)
        sampled = self._hitters.rows if self._hitters is not None else 0
        full = self._full / max(1, self._steps)
        return Seen(skew, order, absent, sigma, full, self._relation.rows, sampled, counts, self._steps)

    def _skew(self, absent: float) -> tuple[Skew, Order]:
        hitters = self._hitters
        if hitters is None or not hitters.rows:
            return Skew(absent=absent), self._order
        slots = hitters.largest(self._counters)
        sure = hitters.counts[slots] - hitters.errors[slots]
        mean = hitters.rows / max(1, self._relation.rows)
        often = sure >= max(_SURE, mean + 4 * np.sqrt(mean) + 1)
        codes, shares = hitters.codes[slots[often]], sure[often] / hitters.rows
        order = self._order
        if has_index(self._relation) and disk_index(self._relation) is None and len(codes):
            first, last = self._relation.locate(codes)  # type: ignore[attr-defined]
            here = last >= first
            codes, shares = codes[here], shares[here]
            order = self._order_of(first[here], shares)
        shares = shares / max(1e-9, 1 - absent)
        total = float(shares.sum())
        if not len(codes):
            return Skew(exponent=0.0, absent=absent, source="no key comes much more often than others"), order
        if total > 1:  # absent keys among them that are not known to be absent
            shares = shares / total
        source = f"{len(codes):,} hot keys of {hitters.rows:,} rows that were counted"
        return Skew.counted([float(share) for share in shares], source, absent), order

    def _order_of(self, pages: Int64Array, shares: np.ndarray) -> Order:
        """Where hot keys lie, if there are enough to tell."""
        if len(pages) < _SURE:
            return self._order
        first = pages < max(1.0, _FIRST_PAGES * self._relation.pages)
        most = float(shares[first].sum()) > 0.5 * float(shares.sum()) and np.count_nonzero(first) > len(pages) // 2
        return "sorted" if most and self._relation.pages > 1 else "scattered"
