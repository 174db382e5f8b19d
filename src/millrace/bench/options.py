"""What a benchmark run is given. Checked once, here, before any data is made."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from millrace.core.budget import parse_bytes
from millrace.core.devices import DEVICES
from millrace.core.errors import ParameterError

COLD_BATCHES = 2
"""Micro-batches left out at the start of every query: workers start, caches fill."""

COMPILING_BATCHES = 15
"""The same, where contenders are so close that it matters when the JVM's compiler, which works beside a query for its first
seconds, takes its share of the processors."""

MIN_WARM_BATCHES = 5

MASTER_COLUMNS = ("surrogate_key", "product_name", "price", "supplier_id", "category", "description")

STRATEGIES = ("auto", "sweepjoin", "xhybridjoin", "hybridjoin", "rmeshjoin", "meshjoin", "inlj")

CONTENDERS = (
    "read-only",
    "spark-defaults",
    "spark-sort-merge",
    "spark-persisted",
    "spark-persisted-bucketed",
    "rocksdb",
    "redis",
    "identity-map",
    "identity-udf",
    "millrace",
    "spark-broadcast",
)
"""In the order they run, the floors next to what is compared with them; `millrace` is one contender per strategy."""

HOWS = ("left", "inner")

REAL_DISK = "disk"
"""Among the devices of `bench joins`: the disk that the data folder is on, read directly. The others are simulated."""

HOT_KEYS = ("scattered", "sorted")
OVERLAPS = ("synchronous", "overlapped")


@dataclass(frozen=True)
class EnrichOptions:
    """Options of `bench enrich`.

    `data` is where tables are kept for the next run; None means a temporary folder. No contenders means all of them,
    without `spark-defaults` for a left join: there Spark's own choice is the sort-merge join, as it can't broadcast
    the stream's side.
    """

    rows: int = 10_000_000
    batch_rows: tuple[int, ...] = (200_000, 1_000_000)
    wide: bool = False
    zipf: float = 1.0
    cold_batches: int = COLD_BATCHES
    warm_batches: int = 7
    repeats: int = 3
    contenders: tuple[str, ...] = ()
    strategies: tuple[str, ...] = STRATEGIES
    columns: tuple[str, ...] = MASTER_COLUMNS
    how: str = "left"
    memory: str = "256m"
    seed: int = 1
    data: Path | None = None
    rebuild: bool = False
    driver_memory: str = "6g"
    broadcast_timeout_seconds: float = 600.0

    def __post_init__(self) -> None:
        if not self.contenders:
            object.__setattr__(self, "contenders", default_contenders(self.how))
        _at_least("rows", self.rows, 1)
        _at_least("repeats", self.repeats, 1)
        _at_least("cold_batches", self.cold_batches, COLD_BATCHES)
        _at_least("warm_batches", self.warm_batches, MIN_WARM_BATCHES)
        _some("batch_rows", self.batch_rows)
        for size in self.batch_rows:
            _at_least("batch_rows", size, 2)
            if size % 2:
                raise ParameterError(f"batch_rows is {size}; give an even number: a micro-batch is two equal files.")
        _known("contender", self.contenders, CONTENDERS)
        _known("strategy", self.strategies, STRATEGIES)
        _known("column", self.columns, MASTER_COLUMNS)
        _known("how", (self.how,), HOWS)
        if self.zipf < 0:
            raise ParameterError(f"zipf is {self.zipf}; give 0 (uniform) or more.")

    @property
    def batches(self) -> int:
        return self.cold_batches + self.warm_batches

    def to_json(self) -> dict[str, Any]:
        """Plain values; the data folder is left out, as it says nothing about the measurement."""
        plain = asdict(self)
        plain.pop("data")
        return plain

    @classmethod
    def from_json(cls, plain: dict[str, Any], data: Path) -> EnrichOptions:
        known = {field.name for field in fields(cls)}
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
        if unknown := set(values) - known:
            raise ParameterError(f"unknown options {sorted(unknown)}; known: {sorted(known)}.")
        return cls(**values, data=data)


@dataclass(frozen=True)
class GrowthOptions:
    """Options of `bench enrich-growth`: the same stream against ever larger tables, all in the page cache.

    Tables of more than `broadcast_rows` are not broadcast: all contenders share a driver, which it must fit.
    """

    rows: tuple[int, ...] = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
    batch_rows: int = 200_000
    warm_batches: int = 7
    repeats: int = 3
    broadcast_rows: int = 3_000_000
    contenders: tuple[str, ...] = ("spark-defaults", "spark-broadcast", "millrace")
    strategies: tuple[str, ...] = ("auto",)
    zipf: float = 1.0
    how: str = "left"
    memory: str = "256m"
    seed: int = 1
    data: Path | None = None
    rebuild: bool = False
    driver_memory: str = "6g"

    def __post_init__(self) -> None:
        _some("rows", self.rows)
        for rows in self.rows:
            self.at(rows)

    def at(self, rows: int) -> EnrichOptions:
        """The options of one table size."""
        own = ("rows", "batch_rows", "broadcast_rows", "contenders")
        shared = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in own}
        left_out = ("spark-broadcast",) if rows > self.broadcast_rows else ()
        chosen = tuple(name for name in self.contenders if name not in left_out)
        return EnrichOptions(rows=rows, batch_rows=(self.batch_rows,), contenders=chosen, **shared)

    def to_json(self) -> dict[str, Any]:
        plain = asdict(self)
        plain.pop("data")
        return plain


@dataclass(frozen=True)
class ReadOptions:
    """Options of `bench enrich-io`: what the read planner reads with direct I/O, at several batch sizes."""

    rows: int = 10_000_000
    batch_rows: tuple[int, ...] = (1_000, 20_000, 200_000, 1_000_000)
    repeats: int = 7
    zipf: float = 1.0
    memory: str = "256m"
    seed: int = 1
    data: Path | None = None
    rebuild: bool = False

    def __post_init__(self) -> None:
        _at_least("rows", self.rows, 1)
        _at_least("repeats", self.repeats, 1)
        _some("batch_rows", self.batch_rows)
        for size in self.batch_rows:
            _at_least("batch_rows", size, 2)

    def to_json(self) -> dict[str, Any]:
        plain = asdict(self)
        plain.pop("data")
        return plain


@dataclass(frozen=True)
class JoinOptions:
    """Options of `bench joins`: every size x budget x exponent x device is a cell, in which all joins run.

    `memory` is bytes (`"50m"`) or a share of the table (`"10%"`). `joins` are names of the catalog, `inlj-pool` for `inlj`
    with a pool, or none for all. On the disk, a join is measured for `seconds`; on a simulated device, where seconds cost
    nothing, for `windows` times the tuples that fit its window, `tuples` at least, so that the same comes out on every
    machine. Both after as many tuples that don't count.
    """

    rows: tuple[int, ...] = (2_000_000,)
    row_bytes: int = 120
    page_bytes: int = 64 << 10
    memory: tuple[str, ...] = ("10%",)
    zipf: tuple[float, ...] = (1.0,)
    hot_keys: str = "scattered"
    devices: tuple[str, ...] = (REAL_DISK, "hdd2008", "ssd", "object-store")
    overlap: str = "synchronous"
    joins: tuple[str, ...] = ()
    columns: tuple[str, ...] = ("surrogate_key", "price", "supplier_id")
    carry: bool = False
    load: float = 0.5
    tune: bool = False
    repeats: int = 1
    seconds: float = 3.0
    windows: float = 2.0
    tuples: int = 20_000
    seed: int = 1
    data: Path | None = None

    def __post_init__(self) -> None:
        _some("rows", self.rows)
        for rows in self.rows:
            _at_least("rows", rows, 1)
        _at_least("tuples", self.tuples, 1)
        _at_least("repeats", self.repeats, 1)
        _some("zipf", self.zipf)
        if min(self.zipf) < 0:
            raise ParameterError(f"zipf is {min(self.zipf)}; give 0 (uniform) or more.")
        if not self.seconds > 0 or not self.windows > 0:
            raise ParameterError(f"seconds is {self.seconds} and windows {self.windows}; give more than 0.")
        if not 0 < self.load < 1:
            raise ParameterError(f"load is {self.load}; give a share of a join's own rate above 0 and below 1.")
        _known("hot_keys", (self.hot_keys,), HOT_KEYS)
        _known("overlap", (self.overlap,), OVERLAPS)
        _known("device", self.devices, (REAL_DISK, *DEVICES))
        _some("memory", self.memory)
        for memory in self.memory:
            self.memory_bytes(memory, 1_000_000)

    def memory_bytes(self, memory: str, rows: int) -> int:
        """Bytes of a budget beside a table of so many rows."""
        if not memory.endswith("%"):
            return parse_bytes(memory)
        try:
            share = float(memory[:-1]) / 100
        except ValueError:
            share = 0.0
        if not share > 0:
            raise ParameterError(f"memory is {memory!r}; give bytes such as 50m, or a share of the table such as 10%.")
        return max(1, int(share * rows * self.row_bytes))

    def to_json(self) -> dict[str, Any]:
        plain = asdict(self)
        plain.pop("data")
        return plain


def default_contenders(how: str) -> tuple[str, ...]:
    return CONTENDERS if how == "inner" else tuple(name for name in CONTENDERS if name != "spark-defaults")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ParameterError(f"{name} is {value}; give at least {least}.")


def _some(name: str, values: tuple[Any, ...]) -> None:
    if not values:
        raise ParameterError(f"{name} is empty; give at least one.")


def _known(what: str, given: tuple[str, ...], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise ParameterError(f"unknown {what} {name!r}; choose from {', '.join(known)}.")
    if len(set(given)) != len(given):
        raise ParameterError(f"a {what} is named twice in {', '.join(given)}.")
    if not given:
        raise ParameterError(f"no {what} given; choose from {', '.join(known)}.")
