"""PR-Join, the partitioned expanding ripple join: hash partitions, each joined again whenever the input has grown by 1 + gamma.

Chen, Gibbons, Nath: PR-Join: A Non-Blocking Join Achieving Higher Early Result Rate with Statistical Guarantees, SIGMOD 2010.

The loop, over n partitions:
    1. if a partition is due (`invocation`): begin to read what it has in the temporary file;
    2. read the next rows of the input that is behind, put each into its partition; when memory is full, an extent (the oldest
       pages of the larger side of the largest partition) goes to the temporary file;
    3. once the due partition's extents are here: join all of its rows, and report;
    4. if neither input gives rows now: join the partition that was joined longest ago;
    5. at half of the memory, once: if partitions differ in size, give buckets to partitions anew by their counts;
    6. when both inputs have ended: join every partition that has new rows. Each is exact then.

Memory:

    pages  [ A0 A0 B0 | A1 B1 B1 | A2 B2 | ... ]   small pages that all partitions and both sides share
    table  [ keys of one partition ]               made for each join, kept for none
    buffers of the temporary file

Needs equal keys, and inputs in random order for its estimates. Early joins read at most 1/gamma of the input again, with the
stop constraint on.

Differs from the paper:
    - No symmetric hash join in memory at first: partitions are joined there by the same rule, at powers of 1 + gamma below the
      size of the memory. This takes no tables beside the rows, so more rows fit.
    - A join works out the sums of the whole partition anew and puts them in place of the old ones, as the squares of sums over
      a row need all of its pairs. Where pairs are made, old and new rows are told apart by number, and each pair is put
      out once.
    - Partitions share all pages, not 2S each: memory goes where rows go. The largest partition has at least 2S when memory is
      full, so what is spilled is S or more, and S or more of it stay.
    - The table for one partition is set aside from the start, so that a join never spills pages of others. A partition that
      turns out larger is joined in parts by key.
    - Buckets are given anew only if the largest partition is a fifth larger than the mean; the stagger order is shuffled then.
    - Conditions look at rows read of both inputs together, never at a partition's own size, which would bias the estimate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.errors import ParameterError
from millrace.online.joins.invocation import Expanding, Invocation, Moment
from millrace.online.pair_functions import Functions, Products
from millrace.online.protocol import A, B, Counters, Input, Pieces, Progress
from millrace.online.statistics.totals import Sums
from millrace.online.storage.memory_plan import Layout, Plan, divide_with_pieces
from millrace.online.storage.paired_reading import Readers
from millrace.online.storage.partitions import Partitions
from millrace.online.storage.sizing import Shape, divided
from millrace.online.storage.spill import Spill, count_transfers

_UNEVEN = 1.2
_FEW_ROWS = 1 << 14  # of a partition: joining it takes less than handing it to another thread
_AT_ONCE = 4  # partitions joined by two threads in the end, for each report


class PRJoin:
    """Joins two inputs. `gamma` and `stop` are those of the usual condition; give `invocation` for another one.

    `threads=2` joins partitions beside reading, in another thread (fast path only): the same answer and the same sums for the
    same rows, but which rows a join meets then depends on the speed of the machine.
    """

    def __init__(
        self, a: Input, b: Input, functions: Functions, budget: Budget, spill: Spill, *, gamma: float = 1.0, stop: bool = True,
        remap: bool = True, invocation: Invocation | None = None, layout: Layout | None = None, seed: int = 0, threads: int = 1,
    ) -> None:  # fmt: skip
        if threads not in (1, 2):
            raise ParameterError(f"a join runs in 1 or 2 threads; got {threads}")
        threads = threads if isinstance(functions, Products) else 1  # a function of pairs is called by one thread
        shape = Shape.of(a, b, functions, spill)
        plan = divided(partial(self.divide, shape, layout=layout, threads=threads), shape, budget)
        self.counters = Counters()
        self._readers = Readers((a, b), self.counters)
        self._partitions = Partitions(shape, plan, budget, spill, threads=threads)
        self.pieces = Pieces("partitions", self._partitions.count, functions.functions, functions.groups, budget)
        self._spill = spill
        self._random = np.random.default_rng(seed)
        self._invocation = invocation or Expanding(gamma, stop=stop)
        self.memory_rows = plan.pool_pages * (plan.page_words // max(a.width, b.width))
        self._invocation.begin(self._partitions.count, self.memory_rows, np.arange(self._partitions.count))
        self._may_remap = remap
        self._begun = False  # every partition has been joined at least once
        self._lock = Lock()  # of the counters
        self._due: int | None = None  # a partition whose extents are being read
        self._beside = Beside(self._partitions) if threads == 2 else None

    @staticmethod
    def divide(shape: Shape, budget: Budget, *, layout: Layout | None = None, threads: int = 1) -> Plan:
        """Set aside what the join takes."""
        return divide_with_pieces(shape, budget, layout, threads=threads if isinstance(shape.functions, Products) else 1)

    @property
    def partitions(self) -> int:
        return self._partitions.count

    def partition_of(self, codes: Int64Array) -> Int64Array:
        return self._partitions.partition_of(codes)

    def step(self) -> Progress:
        if self._readers.ended:
            return self._end()  # step 6
        if self._due is not None and not self._partitions.waiting:
            return self._join_due()  # step 3
        if self._due is None and self._begun:
            early = self._begin_due()  # step 1
            if early is not None:
                return early
        taken = self._readers.next(self._partitions.plan.batch_rows)  # step 2
        if taken is None:
            return self._stalled()
        self._partitions.add(*taken)
        return self._grown()

    def _begin_due(self) -> Progress | None:
        """Begin the joins that are due, if any are; what came of it, if they are done already."""
        beside = self._beside
        if beside is None:
            self._due = self._invocation.due(self._moment())
            if self._due is None:
                return None
            self._partitions.start(self._due)
            return None if self._partitions.waiting else self._join_due()  # it is all in memory
        if beside.partition is not None and beside.done:
            return self._commit_beside()
        due = self._all_due()
        if not due:
            return None
        if len(due) == 1 and beside.partition is None:  # reading goes on meanwhile
            rows = self._partitions.rows_of(due[0])
            beside.begin(due[0], rows, (self._readers.read[A], self._readers.read[B]))
            return None
        self._join_many(due)  # reading waits, or partitions would be joined ever later
        return self._progress(reported=True)

    def _all_due(self) -> list[int]:
        moment, found = self._moment(), list[int]()
        while (due := self._invocation.due(moment)) is not None and due not in found:
            found.append(due)
            self._invocation.joined(due, moment)
        return found

    def _commit_beside(self) -> Progress:
        assert self._beside is not None
        partition, rows, read, sums = self._beside.take()
        self._put(partition, sums, rows, read)
        return self._progress(reported=True)

    def _grown(self) -> Progress:
        """Rows have come in: see whether that calls for all partitions."""
        if self._may_remap and self._partitions.share_free <= 0.5:
            self._may_remap = False
            if self._partitions.can_remap and self._partitions.imbalance() > _UNEVEN:
                return self._remap()
        if not self._begun and self._invocation.first(self._moment()):
            return self._join_every()
        return self._progress()

    def _stalled(self) -> Progress:
        if self._readers.ended:
            return self._progress()
        if self._beside is not None and self._beside.partition is not None:
            return self._commit_beside()
        if self._due is not None:
            return self._join_due()
        oldest = self._oldest()  # step 4
        if oldest is None:
            return self._progress(stalled=True)
        return self._join_every() if not self._begun else self._joined(oldest)

    def _oldest(self) -> int | None:
        """The partition that was joined longest ago, of those with new rows.

        By rows read, never by its own: partitions that have grown most would be joined when they hold more than their share.
        Those before it in the order that have no new rows need no join: their sums are those of all that has been read.
        """
        pieces, read = self.pieces, self._readers.read
        new = (self._partitions.rows(A) != pieces.own_a) | (self._partitions.rows(B) != pieces.own_b)
        if not new.any():
            return None
        order = np.argsort(pieces.rows_a + pieces.rows_b, kind="stable")
        place = int(np.argmax(new[order]))
        if self._begun:
            pieces.rows_a[order[:place]], pieces.rows_b[order[:place]] = read
        return int(order[place])

    def _moment(self) -> Moment:
        return Moment(sum(self._readers.read), self._readers.total, self._partitions.spilled)

    def _join_due(self) -> Progress:
        partition, self._due = self._due, None
        assert partition is not None
        return self._joined(partition)

    def _joined(self, partition: int) -> Progress:
        self._join(partition)
        self._invocation.joined(partition, self._moment())
        return self._progress(reported=True)

    def _join(self, partition: int, slot: int = 0) -> None:
        rows = self._partitions.rows_of(partition)
        sums = self._partitions.join(partition, self._old(partition), rows, slot)
        self._put(partition, sums, rows, (self._readers.read[A], self._readers.read[B]))

    def _old(self, partition: int) -> tuple[int, int]:
        return int(self.pieces.own_a[partition]), int(self.pieces.own_b[partition])

    def _put(self, partition: int, sums: Sums, rows: tuple[int, int], read: tuple[int, int]) -> None:
        """A partition was joined when it had `rows`, and the inputs had given `read`."""
        pieces = self.pieces
        before = int(pieces.pairs[partition].sum())
        pieces.put(partition, sums)
        pieces.own_a[partition], pieces.own_b[partition] = rows
        pieces.rows_a[partition], pieces.rows_b[partition] = read
        with self._lock:
            self.counters.joins += 1
            self.counters.results += int(pieces.pairs[partition].sum()) - before

    def _join_many(self, partitions: list[int]) -> None:
        """Join some partitions while nothing is read, in both threads if there are two."""
        beside = self._beside
        if beside is None:
            self._join_in_turn(deque(partitions), 0)
            return
        if beside.partition is not None:
            self._commit_beside()
        rows = sum(sum(self._partitions.rows_of(partition)) for partition in partitions)
        if rows < _FEW_ROWS * len(partitions):
            self._join_in_turn(deque(partitions), 0)
            return
        left = deque(partitions)
        other = beside.submit(self._join_in_turn, left, 1)
        try:
            self._join_in_turn(left, 0)
        finally:
            left.clear()
            other.result()

    def _join_in_turn(self, left: deque[int], slot: int) -> None:
        """Join what is left to join; another thread may take from it, too."""
        while left:
            try:
                partition = left.popleft()
            except IndexError:
                return
            self._join(partition, slot)

    def _join_every(self) -> Progress:
        moment = self._moment()
        self._join_many(list(range(self._partitions.count)))
        for partition in range(self._partitions.count):
            self._invocation.joined(partition, moment)
        self._begun = True
        return self._progress(reported=True)

    def _remap(self) -> Progress:  # step 5
        """All is in memory. Pairs found so far are of rows that are old from now on, in whatever partition they are."""
        self._due = None
        self._join_every()
        self._partitions.remap()
        pieces, results = self.pieces, self.counters.results
        pieces.own_a[:], pieces.own_b[:] = self._partitions.rows(A), self._partitions.rows(B)
        self._invocation.begin(self._partitions.count, self.memory_rows, self._random.permutation(self._partitions.count))
        self._join_every()
        self.counters.results = results
        return self._progress(reported=True)

    def _end(self) -> Progress:
        if self._due is not None:
            return self._join_due()
        if self._beside is not None and self._beside.partition is not None:
            return self._commit_beside()
        if not self._begun:
            self._join_every()
        pieces = self.pieces
        pieces.total_a[:], pieces.total_b[:] = self._partitions.rows(A), self._partitions.rows(B)
        left = np.flatnonzero((pieces.own_a != pieces.total_a) | (pieces.own_b != pieces.total_b))
        now = left[: 1 if self._beside is None else _AT_ONCE]
        self._join_many(now.tolist())
        pieces.exact[:] = True
        pieces.exact[left[len(now) :]] = False
        return self._progress(reported=True, done=len(left) == len(now))

    def _progress(self, *, reported: bool = False, stalled: bool = False, done: bool = False) -> Progress:
        count_transfers(self.counters, self._spill)
        ended = self._readers.ended
        if reported or ended:
            self.pieces.total_a[:], self.pieces.total_b[:] = self._partitions.rows(A), self._partitions.rows(B)
        return Progress(self.counters, self.pieces, reported and self._begun, stalled, ended, done)

    def close(self) -> None:
        if self._beside is not None:
            self._beside.close()
        self._partitions.close()


class Beside:
    """One join at a time in another thread. Its partition keeps its pages until it is done."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._thread = ThreadPoolExecutor(1, "millrace-join")
        self._running: Future[Sums] | None = None
        self.partition: int | None = None
        self._rows = self._read = (0, 0)
        partitions.before_spill = self._wait_for

    def begin(self, partition: int, rows: tuple[int, int], read: tuple[int, int]) -> None:
        self._partitions.flush()
        self.partition, self._rows, self._read = partition, rows, read
        self._running = self._thread.submit(self._partitions.join, partition, (0, 0), rows, 1)

    def submit(self, work: Callable[..., None], *given: Any) -> Future[None]:
        """Other work for the thread, while no join is under way."""
        self._partitions.flush()
        return self._thread.submit(work, *given)

    @property
    def done(self) -> bool:
        return self._running is not None and self._running.done()

    def _wait_for(self, partition: int) -> None:
        if partition == self.partition and self._running is not None:
            self._running.result()

    def take(self) -> tuple[int, tuple[int, int], tuple[int, int], Sums]:
        """Partition, its rows and the rows read when it began, and the sums; waits for it."""
        assert self.partition is not None
        assert self._running is not None
        partition, self.partition = self.partition, None
        return partition, self._rows, self._read, self._running.result()

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
