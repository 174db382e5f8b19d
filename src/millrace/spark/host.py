"""The tables of one task: opened, joined by the plan, and counted.

    TaskTable    the table at the version of the batch, the plan as this machine follows it, its ledger and its counts
    LookupHost   keys that are answered at once
    GroupHost    keys that are joined in groups, so that their matches can be put in the order of the stream
    RowsHost     whole rows, through one join or several joins in turn, in any order or in stream order

All three hosts run the join by `core.host.Host`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.catalog import algorithm
from millrace.core.arrays import Int64Array
from millrace.core.budget import format_bytes
from millrace.core.errors import BudgetError
from millrace.core.host import Host
from millrace.core.ledger import Ledger
from millrace.core.protocols import SemiStreamJoin
from millrace.core.rowbytes import sizes_of
from millrace.core.step import Step, StepCounts
from millrace.core.unitcosts import UnitCosts
from millrace.joins.cache_share import best_drained_share
from millrace.joins.cached import CachedJoin
from millrace.joins.hot_rows import HotRows
from millrace.joins.several import Several
from millrace.relations.stored import StoredRelation
from millrace.spark.front_stages import FrontRows, TaskSettings
from millrace.spark.group_order import Gathered, in_stream_order, no_rows
from millrace.spark.key_sketch import KeySketch
from millrace.spark.memory_split import LOOKED_UP_ROWS, SPARE_TEXT, GroupRows
from millrace.spark.plan import JoinPlan
from millrace.spark.registry import unit_costs
from millrace.tuning.watch import seconds_of

EMIT_ROWS = 8_192
EMIT_BYTES = 8 << 20  # that go back at a time, but for a single row
_READ_COUNTS = ("pages_read", "bytes_read", "seeks", "index_reads", "probes")


@dataclass(frozen=True)
class Joined:
    """Joined rows of a group. `columns(start, end)` gives what goes back for a range of these rows, in stream order."""

    rows: int
    columns: Callable[[int, int], list[pa.Array]]
    sizes: Int64Array | None  # bytes of what goes back for each row; None where all of it is little


class TaskTable:
    """A table in one task."""

    def __init__(self, plan: JoinPlan, timestamp_us: int) -> None:
        self.relation = plan.asked.table.open_in_task(timestamp_us, plan.asked.table_columns)
        self.plan = plan.on_host(self.relation)
        self.ledger = Ledger()
        self.peak_bytes = 0
        self.groups = 0
        self.reversed_ranges: Callable[[], int] = lambda: 0
        self._changes = int(self.plan is not plan)
        self._group_rows: tuple[int, int] | None = None  # the smallest and the largest group so far
        self._largest_group = 0  # of the whole task
        self._budget = self.plan.budget()
        self._reported = self._before = StepCounts()
        self._front: FrontRows | None = None
        if algorithm(self.plan.asked.strategy).cached and isinstance(self.relation, StoredRelation):
            self._front = FrontRows.of(self.relation, self.plan.asked.spec)
        self._cached: CachedJoin | None = None  # the join of this task, if it has a front stage
        self._warm = False  # whether the front stage had rows when the task began
        self.settings = TaskSettings.of(self.plan, self.relation)
        asked = self.plan.asked
        self._sketch = KeySketch(asked.hot_keys, asked.key_types) if asked.hot_keys else None

    @property
    def free_bytes(self) -> int:
        return self._budget.free_bytes

    def new_join(self) -> SemiStreamJoin:
        """The join, with nothing in it, in a new budget."""
        self.peak_bytes = max(self.peak_bytes, self._budget.peak_bytes)
        hot, first = self._hot_rows(), self._cached is None
        join = self._made(hot)
        self._cached = join if isinstance(join, CachedJoin) and join.front is not None else None
        if self._cached is not None and self._front is not None:
            self._front.warm(self._cached)
        if first and self._cached is not None and self._cached.front is not None:
            self._warm = self._cached.front.hot.keys > 0
        self.reversed_ranges = lambda: getattr(join, "reversed_ranges", 0)
        return join

    def _made(self, hot: HotRows | None) -> SemiStreamJoin:
        """The join with the settings that did well in tasks before, if the memory does for them."""
        more: dict[str, Any] = {"hot": hot} if hot is not None else {}
        self._budget = self.plan.budget()
        if self.settings.cache_share is not None:
            try:
                known = {**self._known(), **more, "cache_share": self.settings.cache_share}
                return self.plan.join(self.relation, self._budget, **known)
            except BudgetError:
                self.settings.cache_share = None
                self._budget = self.plan.budget()
        return self.plan.join(self.relation, self._budget, **self._known(), **more)

    def _hot_rows(self) -> HotRows | None:
        """Rows that the front stage begins with: of the join before in this task, or of a task before."""
        if self._cached is not None and self._cached.front is not None:
            return self._cached.front.hot
        return self._front.take() if self._front is not None else None

    @property
    def front(self) -> str | None:
        """What became of the front stage; None where the strategy has none."""
        if not algorithm(self.plan.asked.strategy).cached:
            return None
        return "used" if self._cached is not None and self._cached.front is not None else "bypassed"

    def _known(self) -> dict[str, Any]:
        """What this machine can tell a join: the unit costs of its disk, unless the plan has them."""
        if self.plan.costs is not None:
            return {"costs": self.plan.costs}
        if "costs" not in algorithm(self.plan.asked.strategy).told or self.relation.resident:
            return {}
        return {"costs": unit_costs(self.relation)} if isinstance(self.relation, StoredRelation) else {}

    def begin_group(self) -> None:
        self._before = self.ledger.totals

    def give_up_group(self) -> None:
        """Forget the join and the counts of this group, but keep the counts of reads."""
        self.reversed_ranges = lambda: 0
        counts, before = self.ledger.totals.as_dict(), self._before.as_dict()
        reads = StepCounts(**{name: counts[name] - before[name] for name in _READ_COUNTS})
        self.ledger = Ledger(self._before + reads)

    def count_keys(self, keys: Sequence[pa.Array]) -> None:
        """Count the keys of rows that have come, if hot keys are wanted. Each row is given once, however often it is joined."""
        if self._sketch is not None:
            self._sketch.add(keys)

    def note_group(self, rows: int) -> None:
        """So many rows were joined at a time."""
        self.groups += 1
        least, most = self._group_rows or (rows, rows)
        self._group_rows = min(least, rows), max(most, rows)
        self._largest_group = max(self._largest_group, rows)

    def note_bytes(self, more: int) -> None:
        """So many bytes were in use beside those of the budget."""
        self.peak_bytes = max(self.peak_bytes, self._budget.used_bytes + max(0, more))

    def too_long(self, found_bytes: int, limit_bytes: int) -> BudgetError:
        """The error for a key whose matches do not fit into memory."""
        given = self.plan.asked.given_bytes
        needed = given * found_bytes // max(1, limit_bytes) + (1 << 20)
        return BudgetError(
            f"the memory budget of {format_bytes(given)} is too small for a key whose rows take {format_bytes(found_bytes)}; "
            f"give memory={needed} or more, or fewer columns with columns=",
            needed,
        )

    def stats(self, *, last: bool = True) -> str:
        """Counts since the last call, as JSON, and the values of the plan that were used. Hot keys are told once, at last."""
        totals, before = self.ledger.totals.as_dict(), self._reported.as_dict()
        self._reported = self.ledger.totals
        counts: dict[str, Any] = {name: totals[name] - before[name] for name in totals}
        version = getattr(self.relation, "version", None)
        counts |= {
            "groups": max(1, self.groups),  # rows that are not put in order are one
            "waiting": self.ledger.waiting,
            "memory_bytes": max(self.peak_bytes, self._budget.peak_bytes),
            "table_version": version.number if version is not None else None,
            "strategy": self.plan.asked.strategy,
            "access": self.plan.access,
            "read": self.plan.read,
            "group_rows": self._group_rows,
            "plan_changes": self._changes,
            "reversed_ranges": self.reversed_ranges(),
            "front": self.front,
            "cache_bytes": self._cached.front.hot.nbytes if self._cached is not None and self._cached.front is not None else 0,
        }
        if self._sketch is not None and last:
            counts["hot_keys"] = self._sketch.as_json()
        self.groups = self._changes = 0
        self._group_rows = None
        take = getattr(self.relation, "take_io_counts", None)
        return json.dumps(counts | (take() if take is not None else {}))

    def _follow(self) -> None:
        """Find the share of the memory that the front stage should have in the next task, unless the call says it."""
        join, counts = self._cached, self.ledger.totals
        if join is None or join.front is None or not self._warm or "cache_share" in dict(self.plan.asked.front):
            return
        hot, share = join.front.hot, join.cache_share
        if not 0 < share < 1 or counts.front_lookups < hot.capacity:
            return
        rows = self._largest_group or counts.front_lookups
        hits = counts.front_hits / counts.front_lookups
        best = best_drained_share(share, hits, np.sort(hot.scores())[::-1], hot.capacity, rows, join.capacity)
        costs = self._known().get("costs", UnitCosts())
        self.settings.follow(share, best, seconds_of(counts, self.ledger.steps, costs) / max(1, counts.tuples_in))

    def close(self) -> None:
        self._follow()
        if self._front is not None and self._cached is not None and self._cached.front is not None:
            self._front.give_back(self._cached.front.hot)
        if self.plan.counters is not None:
            self.plan.counters.send(self.stats())


class LookupHost:
    """Keys looked up at once, where the rows lie in memory."""

    emit_rows = LOOKED_UP_ROWS
    holds_rows = 0  # keys that are gathered for a group: none

    def __init__(self, table: TaskTable) -> None:
        self.table = table
        self._lookup = table.plan.lookup(table.relation)
        self._rows = table.plan.group.start
        table.reversed_ranges = lambda: self._lookup.reversed_ranges

    def join(self, keys: Sequence[pa.Array]) -> Joined:
        """Look up the first keys: as many as there is memory for, but at least one."""
        table, memory, group = self.table, self.table.plan.memory, self.table.plan.group
        size = min(self._rows, len(keys[0]))
        answer = self._lookup.look_up([column.slice(0, size) for column in keys], memory.limit_bytes)
        rows = len(answer.found)
        self._rows = group.most if rows == size else max(group.least, 4 * rows)
        table.note_group(rows)
        table.ledger.post(answer.counts, waiting=0)
        found_bytes = sum(column.nbytes for column in answer.columns)
        more = SPARE_TEXT * found_bytes - memory.ordering_bytes
        if found_bytes > memory.limit_bytes and more > table.free_bytes:
            raise table.too_long(found_bytes, memory.limit_bytes)
        table.note_bytes(more)
        everything = [*([pa.array(answer.found)] if table.plan.asked.flagged else []), *answer.columns]
        sizes = sizes_of(answer.columns, rows) if found_bytes > EMIT_BYTES else None
        return Joined(rows, lambda start, end: [column.slice(start, end - start) for column in everything], sizes)


class GroupHost:
    """Keys joined in groups."""

    emit_rows = EMIT_ROWS

    def __init__(self, table: TaskTable) -> None:
        self.table = table
        self.holds_rows = table.plan.group.most
        self._groups = _Groups([table])

    def join(self, keys: Sequence[pa.Array]) -> Joined:
        """Join the first keys: as many as there is memory for, but at least one."""
        asked = self.table.plan.asked
        while True:
            first = [column.slice(0, self._groups.rows) for column in keys]
            batch = pa.RecordBatch.from_arrays(first, schema=asked.spec.stream_schema)
            found = self._groups.join(batch)
            if found is not None:
                return Joined(batch.num_rows, *in_stream_order(asked, batch.num_rows, *found, EMIT_BYTES))


def keys_host(plan: JoinPlan, timestamp_us: int) -> LookupHost | GroupHost:
    """The host of a table that keys travel to."""
    table = TaskTable(plan, timestamp_us)
    return GroupHost(table) if table.plan.access == "join" else LookupHost(table)


class RowsHost:
    """Whole rows on their way through the joins of a task, one behind the other."""

    def __init__(self, plans: Sequence[JoinPlan], timestamp_us: int) -> None:
        self.tables = [TaskTable(plan, timestamp_us) for plan in plans]
        self._in_order = plans[0].asked.in_order
        self._groups = _Groups(self.tables)
        self._key_bytes = sum(table.plan.memory.key_bytes for table in self.tables)
        self._held: list[pa.RecordBatch] = []  # rows that wait to be joined in order

    @property
    def output_schema(self) -> pa.Schema:
        return self._groups.output_schema

    def feed(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take all rows of a batch; yields the output so far."""
        if not self._in_order:
            yield from _outputs(self._groups.fed(batch))
            return
        self._held.append(batch)
        rows, held_bytes = sum(part.num_rows for part in self._held), sum(part.nbytes for part in self._held)
        if rows >= self._groups.most_rows or held_bytes >= self._key_bytes:
            yield from self._joined_in_order()

    def count_keys(self, batch: pa.RecordBatch) -> None:
        """Count the keys of rows as they come, before any of the joins."""
        for table in self.tables:
            table.count_keys([batch.column(mine) for mine, _ in table.plan.asked.spec.on])

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Step until no row waits; yields the output."""
        yield from self._joined_in_order() if self._in_order else _outputs(self._groups.drained())

    def _joined_in_order(self) -> Iterator[pa.RecordBatch]:
        """Join the rows that are held, and put out their matches in the order of these rows."""
        held, self._held = self._held, []
        rows = pa.concat_batches(held) if held else no_rows(self.tables[0].plan.asked.spec.stream_schema)
        while rows.num_rows:
            group = rows.slice(0, self._groups.rows)
            if group.num_rows == 1:  # nothing to put in order, and so nothing to hold
                yield from self._groups.join_one(group)
            else:
                found = self._groups.join(group)
                if found is None:
                    continue
                sequence, output = found
                yield output.take(pa.array(np.argsort(sequence, kind="stable")))
            rows = rows.slice(group.num_rows)


class _Groups:
    """Groups of rows, each joined to its end.

    The size of the found rows is not known beforehand. If they take more memory than was set aside, the group is given up and
    joined again with fewer rows at a time. Later groups may be larger again.
    """

    def __init__(self, tables: Sequence[TaskTable]) -> None:
        self._tables = tables
        self._limit_bytes = sum(table.plan.memory.limit_bytes for table in tables)
        self._bounds = _narrowest([table.plan.group for table in tables])
        self.most_rows = self._bounds.most
        fitted = [table.settings.group_rows for table in tables]
        self.rows = min([self._bounds.start, *(rows for rows in fitted if rows is not None)])  # of the next group
        self.output_schema = tables[-1].plan.asked.spec.output_schema(tables[-1].relation)
        self._begin()

    def _begin(self) -> None:
        """Make the joins, with nothing in them."""
        joins = [table.new_join() for table in self._tables]
        ledgers = [table.ledger for table in self._tables]
        if len(joins) == 1:
            self._host = Host(joins[0], ledgers[0])
        else:
            schemas = [table.plan.asked.spec.stream_schema for table in self._tables]
            self._host = Host(Several(joins, ledgers=ledgers, schemas=schemas, by_turns=True))
        self._offered = 0

    def fed(self, batch: pa.RecordBatch) -> Iterator[Step]:
        return self._said(self._host.feed(batch))

    def drained(self) -> Iterator[Step]:
        return self._said(self._host.drain())

    def join(self, batch: pa.RecordBatch) -> tuple[Int64Array, pa.RecordBatch] | None:
        """The matches of all rows of a batch, with the number of the stream row for each row of the output. None if the matches
        take too much memory: the next group is smaller."""
        for table in self._tables:
            table.begin_group()
        removed = self._host.ledger.totals.removed
        gathered = self._gathered(batch)
        if gathered.bytes > self._limit_bytes:
            left, found_bytes = self._host.ledger.totals.removed - removed, gathered.bytes
            del gathered
            self._give_up(batch.num_rows, left, found_bytes)
            return None
        first, self._offered = self._offered, self._offered + batch.num_rows
        self._done(batch.num_rows, gathered.bytes)
        sequence, output = gathered.together()
        return sequence - first, output

    def _gathered(self, batch: pa.RecordBatch) -> Gathered:
        """The matches of the rows of a batch; stops early if they take too much memory."""
        gathered = Gathered(self.output_schema)
        for step in chain(self.fed(batch), self.drained()):
            gathered.add(step)
            if gathered.bytes > self._limit_bytes:
                break
        return gathered

    def join_one(self, row: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The matches of one row, in parts."""
        found_bytes = 0
        for output in _outputs(chain(self.fed(row), self.drained())):
            found_bytes += output.nbytes
            yield output
        self._offered += 1
        self._done(1, found_bytes)

    def _done(self, rows: int, found_bytes: int) -> None:
        """Let groups grow again, if a group of twice the size would surely fit."""
        for table in self._tables:
            table.note_group(rows)
        if 4 * found_bytes * self.rows < self._limit_bytes * rows:  # the last group of a batch may be a small one
            self.rows = min(self._bounds.most, 2 * self.rows)
        self._keep_rows()

    def _give_up(self, rows: int, left: int, found_bytes: int) -> None:
        """Forget a group, of which some tuples had left, and say how many rows the next may have."""
        if rows == 1:
            raise self._tables[0].too_long(found_bytes, self._limit_bytes)
        self.rows = max(self._bounds.least, rows // 16, min(rows // 2, left // 2))
        self._keep_rows()
        del self._host  # its joins go before new ones are made
        for table in self._tables:
            table.give_up_group()
        self._begin()

    def _keep_rows(self) -> None:
        """For the next task in this worker."""
        for table in self._tables:
            table.settings.group_rows = self.rows

    def _said(self, steps: Iterator[Step]) -> Iterator[Step]:
        """The same steps. A budget error of one join is reworded for the whole memory of the call."""
        try:
            yield from steps
        except BudgetError as small:
            raise self._tables[0].plan.in_all(small) from small


def _narrowest(bounds: Sequence[GroupRows]) -> GroupRows:
    """Rows that suit all tables."""
    return min(bounds, key=lambda rows: rows.most)


def _outputs(steps: Iterable[Step]) -> Iterator[pa.RecordBatch]:
    return (step.output for step in steps if step.output.num_rows)
