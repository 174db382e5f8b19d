"""The interfaces between joins, relations and hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import pyarrow as pa

from millrace.core.arrays import BoolArray, Int64Array
from millrace.core.budget import Budget
from millrace.core.conditions import Condition
from millrace.core.errors import ParameterError, SchemaError
from millrace.core.keys import KeyCodec
from millrace.core.step import Step, StepCounts

How = Literal["inner", "left", "semi", "anti"]
HOWS: tuple[How, ...] = ("inner", "left", "semi", "anti")


class PageRuns(NamedTuple):
    """Where keys live: key i is on pages `first[i]` to `last[i]`, and on no page if `last[i] < first[i]`."""

    first: Int64Array
    last: Int64Array


class PageRun(Protocol):
    """Pages of a relation held in memory, from one read.

    Rows are numbered from 0 in the order of the pages. A run is valid until the next `read` of its relation.
    """

    pages: Int64Array  # the page numbers, ascending
    rows: int

    @property
    def codes(self) -> Int64Array:
        """The key code of every row."""

    def match(self, codes: Int64Array, pages: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For each wanted code on a page of this run (an absolute page number): the first row with this code, and how many
        rows follow on the same page. Only for indexed relations, whose pages are sorted by code."""

    def take(self, rows: Int64Array, columns: Sequence[str], limit_bytes: int | None = None) -> pa.RecordBatch:
        """The given rows, copied out. With `limit_bytes`, only the first rows that take no more than this limit, but at
        least one row."""


class Zones(NamedTuple):
    """Pages in zones: page p is in zone `of_page[p]`, and no row of zone z has a code outside `lows[z]` to `highs[z]`.

    A relation without an index may have `zones`, so that a scan can skip pages that no tuple waits for.
    """

    of_page: Int64Array
    lows: Int64Array
    highs: Int64Array


class Relation(Protocol):
    """Master data, page by page."""

    schema: pa.Schema
    key: tuple[str, ...]
    codec: KeyCodec
    rows: int
    pages: int
    page_bytes: int  # what one page needs in a buffer, at most
    resident: bool  # pages can be used in place: a read costs no buffer

    def read(self, first: int, count: int) -> PageRun: ...


class PageFrames(Protocol):
    """Places in memory for pages. A page stays until another page takes its place, whatever else is read."""

    def load(self, pages: Int64Array, frames: Int64Array, *, each: bool = False) -> None:
        """Read page `pages[i]` into frame `frames[i]`. All frames differ.

        Pages ascend, and neighbours come in one read. With `each`, pages may come in any order and more than once, and
        every page is a read of its own. After an error the frames hold nothing that may be used.
        """

    def run(self, pages: Int64Array, frames: Int64Array) -> PageRun:
        """The given pages, ascending, where page i lies in frame `frames[i]`."""


class IndexedRelation(Relation, Protocol):
    """A relation that knows where a key lives. Rows are sorted by key code inside every page, and rows with the same code
    lie on pages next to each other."""

    unique: bool  # no two rows have the same code

    def locate(self, codes: Int64Array) -> PageRuns: ...

    def read_many(self, firsts: Int64Array, counts: Int64Array) -> PageRun:
        """Several reads at once, each of `counts[i]` pages from `firsts[i]`, ascending and apart."""

    def frames(self, count: int) -> PageFrames:
        """Room for so many pages, of `page_bytes` each unless pages are used in place."""


class KeyLookup(Protocol):
    """An index on disk, as one join uses it: a part of the index is in memory."""

    def locate(self, codes: Int64Array) -> PageRuns: ...

    def known(self, codes: Int64Array) -> BoolArray:
        """Which of the keys cost no read."""

    def counts(self) -> StepCounts:
        """What was read since the last call."""


class DiskIndex(Protocol):
    """An index on disk of every key. A relation has a `disk_index` if its rows are not sorted by code.

    The keys that are wanted most come first. A join holds as many of these keys in memory as it likes; they cost no read.
    """

    least_bytes: int  # what any look-up needs in memory
    hot_key_bytes: int  # and what each key held in memory needs
    hot_keys: int  # keys that can be held in memory

    def lookup(self, budget: Budget, hot_keys: int) -> KeyLookup: ...


class ResidentRelation(IndexedRelation, Protocol):
    """An indexed relation whose pages are used in place, at no cost in buffers."""

    def whole(self) -> PageRun:
        """All pages. A page must be `touch`ed before it is used."""

    def touch(self, pages: Int64Array) -> None:
        """Make sure that these pages are what was written."""


@dataclass(frozen=True)
class JoinSpec:
    """What to join and what to put out.

    `on` pairs stream columns with the relation's key columns, in the order of the relation's key. `carry` names the stream
    columns of the output, `columns` the relation columns of the output. Semi and anti joins have no relation columns. With a
    `condition`, `on` is empty.
    """

    stream_schema: pa.Schema
    on: tuple[tuple[str, str], ...]
    how: How = "inner"
    carry: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    condition: Condition | None = None  # instead of `on`
    returnable: bool = False  # waiting tuples can be given back (`withdraw`): the window keeps their key columns too

    def __post_init__(self) -> None:
        if self.how not in HOWS:
            raise ParameterError(f"how must be one of {', '.join(HOWS)}; got {self.how!r}")
        if bool(self.on) == (self.condition is not None):
            raise ParameterError("give the key columns that must be equal, at least one, or a condition")
        for name in [pair[0] for pair in self.on] + list(self.carry):
            if name not in self.stream_schema.names:
                raise SchemaError(f"the stream has no column {name!r}; it has {', '.join(self.stream_schema.names)}")
        if self.how in ("semi", "anti") and self.columns:
            raise ParameterError(f"a {self.how} join puts out stream columns only; leave columns empty")

    def check_against(self, relation: Relation) -> None:
        """Raise an error if a named column is not in the relation, or if the keys can't be compared."""
        if self.condition is not None:
            self.condition.check(self.stream_schema, relation.schema)
        elif tuple(pair[1] for pair in self.on) != relation.key:
            raise SchemaError(f"on must name the table's key columns {list(relation.key)} in that order; got {list(self.on)}")
        for name in self.columns:
            if name not in relation.schema.names:
                raise SchemaError(f"the table has no column {name!r}; it has {', '.join(relation.schema.names)}")
        if self.condition is None:
            relation.codec.check([(name, self.stream_schema.field(name).type) for name, _ in self.on])

    def output_schema(self, relation: Relation) -> pa.Schema:
        fields = [self.stream_schema.field(name) for name in self.carry]
        for name in self.columns:
            field = relation.schema.field(name)
            fields.append(field.with_nullable(True) if self.how == "left" else field)
        return pa.schema(fields)


class Withdrawn(NamedTuple):
    """Tuples that were given back: their numbers, and their rows with the columns that are put out and the key columns."""

    numbers: Int64Array
    rows: pa.RecordBatch


class Waiting(NamedTuple):
    """Tuples that could be given back now: their numbers, and for which place each waits. Tuples of one place are served
    by the same read. `NO_PLACE`: not known yet."""

    numbers: Int64Array
    places: Int64Array


NO_PLACE = -1


class SemiStreamJoin(Protocol):
    """A join of a stream with a relation. A join reads no clock and never waits; its host does."""

    @property
    def pending(self) -> int:
        """Stream tuples inside that have not left yet."""

    @property
    def longest_wait(self) -> int:
        """The most reads for which a tuple stays inside, whatever else comes. A step without a read does not count: such a step
        puts out the rest of what was found. The number may grow with the relation, and with the pages of one key."""

    def offer(self, batch: pa.RecordBatch) -> int:
        """Take rows from the front of `batch`; returns how many. Fewer than all means: step, then offer the rest."""

    def step(self) -> Step:
        """One pass of the algorithm's loop. With nothing waiting it reads nothing."""

    def withdraw(self, numbers: Int64Array) -> Withdrawn:
        """Give waiting tuples back, by their sequence numbers. The spec must be `returnable`.

        A tuple of which a row may have been put out stays, and so does one that is just read for or about to leave. Numbers
        of tuples that are not inside are passed over. The next step counts what was given back as `deferred`. A tuple that
        is offered again is a new tuple to the join."""

    @property
    def bytes_used(self) -> int: ...
