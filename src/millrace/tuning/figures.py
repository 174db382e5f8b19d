"""The papers' figures that are drawn from equations: each a function that gives its series, and the claim that it makes.

    number   as in the list of all figures and tables of the papers
    claim    what the paper reads from its picture; tests check it

Sizes are the papers' own where they print them: relation rows of 120 bytes, keys by Zipf's law with exponent 1, a relation of 2
million rows sorted by frequency, 50 MB of memory, pages of 15,000 bytes. The disk is the virtual one of 2008. Its costs are not
the papers', so rates differ, and shapes are compared. Nothing runs and no data is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.devices import device
from millrace.core.protocols import JoinSpec
from millrace.core.unitcosts import UnitCosts
from millrace.cost import meshjoin
from millrace.cost.expected import StreamShape
from millrace.cost.pages import Order
from millrace.joins.sizing import costs_with_calls
from millrace.relations.generated import KEY, SURROGATE_KEY, GeneratedRelation
from millrace.tuning.choose import Forecast, forecast
from millrace.tuning.tuners import Point

MEGABYTE = 1_000_000
ROW_BYTES, PAGE_BYTES = 120, 15_000
SIZES = (500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000)
_SLOT_BYTES = 20 * 3 + 4  # a stream tuple in the hash table, with its overhead, and its place in the queue
_STREAM = pa.schema([(KEY, pa.int64())])
_SPEC = JoinSpec(_STREAM, ((KEY, KEY),), "inner", (), (SURROGATE_KEY,))

Series = Mapping[str, tuple[Point, ...]]


@dataclass(frozen=True)
class Figure:
    """A picture: its axes, its lines, and what the paper says of it."""

    number: int
    name: str
    title: str
    x: str
    y: str
    claim: str
    series: Series
    logarithmic: bool = False  # the axis of x


@dataclass(frozen=True)
class _World:
    """What a paper fixes."""

    rows: int = 2_000_000
    memory_bytes: int = 50 * MEGABYTE
    zipf: float = 1.0
    order: Order = "sorted"
    page_bytes: int = PAGE_BYTES

    @property
    def relation(self) -> GeneratedRelation:
        return GeneratedRelation(self.rows, row_bytes=ROW_BYTES, page_bytes=self.page_bytes)

    @property
    def stream(self) -> StreamShape:
        return StreamShape.zipf(self.zipf, self.rows, self.order)

    def asked(self, name: str, **given: Any) -> Forecast:
        return forecast(
            name, self.relation, _SPEC, self.memory_bytes, self.stream, costs_of=lambda _: disk_costs(), **given
        )  # fmt: skip

    def rate(self, name: str, **given: Any) -> float:
        return self.asked(name, **given).tuples_per_second


def disk_costs() -> UnitCosts:
    """Of the virtual disk of 2008."""
    model = device("hdd2008")
    return costs_with_calls(UnitCosts(seek=model.seek, read_byte=1 / model.read_rate))


def _each_read_seeks() -> UnitCosts:
    """As MESHJOIN's paper has it: c_IO(b) begins with a seek, though the scan goes on where it stopped."""
    return replace(disk_costs(), seek=0.0, request=device("hdd2008").seek)


def meshjoin_memory(arrivals_per_second: float = 5_000.0) -> Figure:
    """The memory for a wanted rate, over b: (1) with w from (2) and (3)."""
    table = {"N_R": 6_408, "v_P": 65_536}
    b = np.unique(np.geomspace(1, 400, 60).astype(np.int64))
    w = meshjoin.tuples_wanted(arrivals_per_second, b, **table, R_t=3_500_000, costs=_each_read_seeks())
    memory = meshjoin.memory(b, w, **table, v_S=_SLOT_BYTES) / MEGABYTE
    return Figure(
        1, "meshjoin-memory", f"Memory of MESHJOIN for {arrivals_per_second:,.0f} tuples a second", "pages of the disk buffer",
        "memory, MB", "one minimum", {"model": _points(b, memory)}, logarithmic=True,
    )  # fmt: skip


def meshjoin_rate(memory_bytes: int = 21 * MEGABYTE) -> Figure:
    """The rate with a fixed memory, over b: w from (1)."""
    table = {"N_R": 6_408, "v_P": 65_536}
    b = np.arange(1, memory_bytes // 65_536)
    w = meshjoin.tuples_per_step(memory_bytes - b * 65_536, meshjoin.chunks(6_408, b), _SLOT_BYTES)
    rate = meshjoin.rate(w, b, **table, R_t=3_500_000, costs=_each_read_seeks())
    return Figure(
        2, "meshjoin-rate", f"Rate of MESHJOIN with {memory_bytes // MEGABYTE} MB", "pages of the disk buffer",
        "tuples per second", "rises to one maximum, then falls", {"model": _points(b, rate)}, logarithmic=True,
    )  # fmt: skip


def meshjoin_predicted() -> Figure:
    """As the measured rate has it: no rise at small b, since a scan that goes on where it stopped does not seek."""
    world = _World(rows=3_500_000, memory_bytes=21 * MEGABYTE, zipf=0.5, order="scattered")
    b = _sizes(1, 1_200)
    series = {"predicted": _over(b, lambda pages: world.rate("meshjoin", buffer_pages=pages))}
    return Figure(
        3, "meshjoin-predicted", "Rate of MESHJOIN with 21 MB, by the equations of the join", "pages of the disk buffer",
        "tuples per second", "high at small b, falls fast at large b", series, logarithmic=True,
    )  # fmt: skip


def hybridjoin_buffer() -> Figure:
    """The rate of HYBRIDJOIN, and what reading takes of each tuple, over the disk buffer."""
    world, k = _World(), _sizes(1, 3_000)
    found = [world.asked("hybridjoin", buffer_pages=pages) for pages in k]
    io = [1e6 * one.expected.iteration.read_seconds(disk_costs()) / one.expected.iteration.removed for one in found]
    series = {"rate": _points(k, [one.tuples_per_second for one in found]), "reading, µs a tuple": _points(k, io)}
    return Figure(
        8, "hybridjoin-buffer", "HYBRIDJOIN with 50 MB", "pages of the disk buffer", "tuples per second, or µs",
        "the rate rises, then falls; the cost of reading falls, then rises", series, logarithmic=True,
    )  # fmt: skip


def cost_of_three() -> Figure:
    """Calculated cost of a tuple over the size of the relation."""
    return _costs(15, "cost-of-three", ("meshjoin", "inlj", "hybridjoin"), "INLJ is dearest; all grow with the relation")


def x_grid() -> Figure:
    """The rate of X-HYBRIDJOIN over the pinned part, for several swappable parts."""
    world, pinned = _World(), _sizes(1, 2_800)

    def rates(swappable: int) -> tuple[Point, ...]:
        return _over(pinned, lambda pages: world.rate("xhybridjoin", buffer_pages=swappable, pinned_pages=pages))

    series = {f"{swappable} pages swappable": rates(swappable) for swappable in (5, 20, 80, 320)}
    return Figure(
        20, "xhybridjoin-grid", "X-HYBRIDJOIN with 50 MB", "pinned pages", "tuples per second", "one maximum in each", series,
        logarithmic=True,
    )  # fmt: skip


def match_probability(partitions: int = 40) -> Figure:
    """The chance that a tuple wants a partition of the relation, along the relation."""
    world = _World()
    places = world.stream.demand(world.rows, partitions).by_page
    series = {"chance": _points(np.arange(1, partitions + 1), places)}
    return Figure(
        21, "match-probability", "Where a sorted relation is wanted", "partition", "chance", "falls partition by partition",
        series,
    )  # fmt: skip


def x_swappable() -> Figure:
    world = _World()
    pinned = int(world.asked("xhybridjoin").expected.settings["pinned_pages"])
    k = _sizes(1, 1_500)
    series = {"predicted": _over(k, lambda pages: world.rate("xhybridjoin", buffer_pages=pages, pinned_pages=pinned))}
    return Figure(
        22, "xhybridjoin-swappable", f"X-HYBRIDJOIN with {pinned} pinned pages", "swappable pages", "tuples per second",
        "one maximum", series, logarithmic=True,
    )  # fmt: skip


def x_pinned() -> Figure:
    world = _World()
    k = int(world.asked("xhybridjoin").expected.settings["buffer_pages"])
    pinned = _sizes(1, 3_000)
    series = {"predicted": _over(pinned, lambda pages: world.rate("xhybridjoin", buffer_pages=k, pinned_pages=pages))}
    return Figure(
        23, "xhybridjoin-pinned", f"X-HYBRIDJOIN with {k} swappable pages", "pinned pages", "tuples per second", "one maximum",
        series, logarithmic=True,
    )  # fmt: skip


def x_tuned_by_rows() -> Figure:
    worlds = [(rows, _World(rows=rows)) for rows in SIZES]
    return _tuned_and_not(24, "rows", worlds, "rows of the relation")


def x_tuned_by_memory() -> Figure:
    worlds = [(size, _World(memory_bytes=size * MEGABYTE)) for size in (50, 100, 150, 200)]
    return _tuned_and_not(25, "memory", worlds, "memory, MB")


def _tuned_and_not(number: int, name: str, worlds: Sequence[tuple[float, _World]], x: str) -> Figure:
    """X-HYBRIDJOIN with the parts that it chooses, and with two equal parts as long as HYBRIDJOIN's disk buffer."""

    def equal_parts(world: _World) -> float:
        pages = int(world.asked("hybridjoin").expected.settings["buffer_pages"])
        return world.rate("xhybridjoin", buffer_pages=pages, pinned_pages=pages)

    series = {
        "tuned": tuple(Point(at, world.rate("xhybridjoin")) for at, world in worlds),
        "two equal parts": tuple(Point(at, equal_parts(world)) for at, world in worlds),
    }
    return Figure(
        number, f"xhybridjoin-tuned-by-{name}", "X-HYBRIDJOIN, tuned and not", x, "tuples per second",
        "tuned is better everywhere", series,
    )  # fmt: skip


def x_cost() -> Figure:
    return _costs(26, "xhybridjoin-cost", ("xhybridjoin", "hybridjoin"), "X-HYBRIDJOIN costs less; both grow with the relation")


def cmeshjoin_buffer() -> Figure:
    """The rate of the back stage alone, over its disk buffer: 1 % of a relation of 100 million rows, not sorted."""
    world = _World(rows=100_000_000, memory_bytes=112 * MEGABYTE, order="scattered")
    back = replace(world, memory_bytes=int(0.85 * world.memory_bytes))
    b = _sizes(1, 5_200)
    series = {"back stage": _over(b, lambda pages: back.rate("meshjoin", buffer_pages=pages))}
    return Figure(
        40, "cmeshjoin-buffer", "Back stage of CMESHJOIN with 1 % of the relation", "pages of the disk buffer",
        "tuples per second", "rises, then falls", series, logarithmic=True,
    )  # fmt: skip


def cost_of_cached() -> Figure:
    """Calculated cost of a tuple for each cached join and for its back stage alone, by the share of the memory."""
    shares = (0.01, 0.02, 0.05, 0.1)
    world = _World(rows=100_000_000, order="scattered")
    worlds = [(100 * share, replace(world, memory_bytes=int(share * world.rows * ROW_BYTES))) for share in shares]
    names = ("meshjoin", "cmeshjoin", "hybridjoin", "chybridjoin", "sweepjoin", "csweepjoin")
    series = {name: tuple(Point(at, 1e6 / one.rate(name)) for at, one in worlds) for name in names}
    return Figure(
        43, "cost-of-cached", "Cost of a tuple, with and without a front stage", "memory, % of the relation", "µs",
        "with a front stage a tuple costs less at every memory", series,
    )  # fmt: skip


def _costs(number: int, name: str, joins: Sequence[str], claim: str) -> Figure:
    series = {join: tuple(Point(rows, 1e6 / _World(rows=rows).rate(join)) for rows in SIZES) for join in joins}
    return Figure(
        number, name, "Calculated cost of a tuple with 50 MB", "rows of the relation", "µs", claim, series, logarithmic=True
    )


def _sizes(least: int, most: int) -> list[int]:
    return sorted({int(size) for size in np.geomspace(least, most, 28)})


def _points(x: Any, y: Any) -> tuple[Point, ...]:
    return tuple(Point(float(at), float(value)) for at, value in zip(x, y, strict=True))


def _over(x: Sequence[int], rate: Callable[[int], float]) -> tuple[Point, ...]:
    return tuple(Point(float(at), rate(at)) for at in x)


FIGURES: Mapping[int, Callable[[], Figure]] = {
    1: meshjoin_memory,
    2: meshjoin_rate,
    3: meshjoin_predicted,
    8: hybridjoin_buffer,
    15: cost_of_three,
    20: x_grid,
    21: match_probability,
    22: x_swappable,
    23: x_pinned,
    24: x_tuned_by_rows,
    25: x_tuned_by_memory,
    26: x_cost,
    40: cmeshjoin_buffer,
    43: cost_of_cached,
}
"""By their numbers."""
