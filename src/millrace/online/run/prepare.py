"""All that is found out before a join starts, from some rows of either table.

mixing --> samples --> pilots, labels of positive sums, room --> Query --> order of rows --> heavy keys --> Prepared
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.online.pair_functions import Products
from millrace.online.protocol import A, B
from millrace.online.question.query import MOST_GROUPS, Query, Question, Room
from millrace.online.question.sides import NeedsRoom
from millrace.online.run.mixing import mixed
from millrace.online.run.options import Options
from millrace.online.sampling.heavy_keys import heavy_codes
from millrace.online.sampling.row_order import UNKNOWN, Order, agreed, check_sources
from millrace.online.sampling.samples import (
    Batches,
    Look,
    block_sizes,
    check_groups,
    never_negative,
    pilots,
    room_for,
    take_samples,
)
from millrace.online.tables.sources import Source

_OTHER_SEED = 1_000_003
Samples = tuple[Batches, Batches]


@dataclass(frozen=True)
class Prepared:
    """What a join is started from. Started again, it has more room, and all else is as it was."""

    question: Question
    sources: tuple[Source, Source]
    options: Options
    pilots: Mapping[str, float]  # guesses at means, by label
    positive: frozenset[str]  # labels of sums of which no part is below 0
    query: Query
    order: Order
    heavy_codes: Int64Array  # heaviest first

    @property
    def room(self) -> Room:
        return self.query.room

    @property
    def rows(self) -> tuple[int, int]:
        return self.sources[A].rows, self.sources[B].rows

    @property
    def threads(self) -> int:
        return self.options.threads if isinstance(self.query.functions, Products) else 1

    def with_room(self, room: Room) -> Prepared:
        return replace(self, query=make_query(self.question, self.sources, self.options, room, self.pilots))

    def with_more(self, more: NeedsRoom, seen: tuple[int, int]) -> Prepared:
        """With what a join asked for. `seen`: groups of either side so far."""
        room = more_room(self.room, more, seen)
        check_groups(*room.groups)
        return self.with_room(room)

    def with_samples(self, samples: Samples) -> Prepared:
        """With room for what other samples show, too, and their heavy keys."""
        found = self.with_room(self.room.most(room_for(self.question, samples)))
        return replace(found, heavy_codes=find_heavy(found.query, samples))


def prepare(question: Question, sources: tuple[Source, Source], options: Options) -> Prepared:
    """Look at some rows of both tables. Tables in some order inside their row groups are mixed from here on."""
    too_large = mixed(question, sources, options)
    samples = take_samples(sources, question, options.memory_bytes, options.seed)
    found, positive = pilots(question, samples), never_negative(question, samples)
    room = room_for(question, samples)
    check_groups(*room.groups)
    query = make_query(question, sources, options, room, found)
    with np.errstate(all="ignore"):
        order = OrderCheck(query, sources, options).order(samples) if too_large is None else replace(UNKNOWN, message=too_large)
    return Prepared(question, sources, options, found, positive, query, order, find_heavy(query, samples))


def make_query(
    question: Question, sources: tuple[Source, Source], options: Options, room: Room, pilots: Mapping[str, float]
) -> Query:
    a, b = (None if source.random else options.seed * 2 + side for side, source in enumerate(sources))
    return Query(question, sources, room, pilots, (a, b))


def find_heavy(query: Query, samples: Samples) -> Int64Array:
    """Codes of heavy keys, where sums per key are kept."""
    if not isinstance(query.functions, Products):
        return np.zeros(0, np.int64)
    return heavy_codes(query.sides, samples, query.functions)


@dataclass(frozen=True)
class OrderCheck:
    """Whether rows come in random order, from as many samples as it takes to tell."""

    query: Query
    sources: tuple[Source, Source]
    options: Options

    def order(self, samples: Samples) -> Order:
        """One sample in thirty may look like blocks by chance; then another, of more blocks, must, too. If both say blocks and
        not how much these add, the most blocks that fit have the last word."""
        options = self.options
        found = self._of(samples, options.seed, "first")
        if found.use == "rows" or (options.order != "auto" and found.clusters is not None):
            return found
        with suppress(NeedsRoom):  # for groups or texts that the first sample did not show: reading will ask for it, too
            found = agreed(found, self._another(options.seed + _OTHER_SEED, "more"))
            if found.use == "blocks" and found.clusters is None:
                found = agreed(found, self._another(options.seed + 2 * _OTHER_SEED, "most"))
        return found

    def _another(self, seed: int, look: Look) -> Order:
        return self._of(take_samples(self.sources, self.query.question, self.options.memory_bytes, seed, look), seed, look)

    def _of(self, samples: Samples, seed: int, look: Look) -> Order:
        query = self.query
        sizes = block_sizes(self.sources, query.question, self.options.memory_bytes, seed, look)
        return check_sources(self.sources, samples, sizes, query.sides, query.functions, self.options.order)


def more_room(room: Room, more: NeedsRoom, seen: tuple[int, int]) -> Room:
    """Room for more, with some to spare as long as there is any. `seen`: groups of either side so far."""
    groups = list(room.groups)
    if more.groups:
        other = 1 - more.side
        most = MOST_GROUPS // groups[other]
        groups[more.side] = max(more.groups, min(most, max(2 * more.groups, 4 * groups[more.side])))
        groups[other] = max(seen[other], min(groups[other], MOST_GROUPS // groups[more.side]))
    return Room((groups[A], groups[B]), max(room.text_bytes, -(-2 * more.text_bytes // 8) * 8), room.odd or more.odd)
