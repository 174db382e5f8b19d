"""What a benchmark run is given: each option, its default and its help text stand here, once.

A command of `millrace bench` has the options of one of these classes (see `commands`). Options without a help text are for
tests and for other benchmarks. Values are checked before any data is made.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from millrace.bench.estimate.shapes import SHAPES
from millrace.catalog import ALGORITHMS
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

STRATEGIES = ("auto", *(row.name for row in reversed(ALGORITHMS) if "spark" in row.hosts))

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
COVERAGE_PARTS = ("engine", "model")


_BATCH_ROWS = "Rows of a micro-batch; several are separated by commas."
_DATA = "Folder that keeps generated data and built tables for the next run."
_HOW = "left or inner."
_MEMORY = "Memory of millrace, and of RocksDB's cache, for each worker."
_REBUILD = "Build millrace's tables again."
_SEED = "Seed of all generated data."
_STRATEGIES = f"Strategies of millrace, of {', '.join(STRATEGIES)}."
_TABLE_ROWS = "Rows of the master table, 120 bytes each."
_WARM_BATCHES = "Micro-batches that count."
_ZIPF = "Exponent of the stream's keys; 0 is uniform."


def option(default: Any, text: str, *, flag: str | None = None) -> Any:
    """A field that is an option of a command, too. `flag`: its name there, if it is not that of the field."""
    return field(default=default, metadata={"help": text, "flag": flag})


def _online_joins() -> tuple[str, ...]:
    from millrace.bench.online.online import JOINS  # late: `millrace bench --help` has no use for it

    return tuple(JOINS)


@dataclass(frozen=True)
class EnrichOptions:
    """Options of `bench enrich`.

    `data` is where tables are kept for the next run; None means a temporary folder. No contenders means all of them,
    without `spark-defaults` for a left join: there Spark's own choice is the sort-merge join, as it can't broadcast
    the stream's side.
    """

    rows: int = option(10_000_000, _TABLE_ROWS)
    batch_rows: tuple[int, ...] = option((200_000, 1_000_000), _BATCH_ROWS)
    wide: bool = option(False, "20 more columns in the stream.")
    zipf: float = option(1.0, _ZIPF)
    cold_batches: int = option(COLD_BATCHES, "Micro-batches before those that count.")
    warm_batches: int = option(7, _WARM_BATCHES)
    repeats: int = option(3, "Runs of the floors and of millrace-auto, interleaved; others run once.")
    contenders: tuple[str, ...] = option((), f"Empty for all, or some of {', '.join(CONTENDERS)}.")
    strategies: tuple[str, ...] = option(STRATEGIES, _STRATEGIES)
    columns: tuple[str, ...] = option(MASTER_COLUMNS, "Master columns that are added.")
    how: str = option("left", _HOW)
    memory: str = option("256m", _MEMORY)
    seed: int = option(1, _SEED)
    data: Path | None = option(None, _DATA)
    rebuild: bool = option(False, _REBUILD)
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
        return _without_folder(self)

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

    rows: tuple[int, ...] = option((100_000, 300_000, 1_000_000, 3_000_000, 10_000_000), "Table sizes.")
    batch_rows: int = option(200_000, "Rows of a micro-batch.")
    warm_batches: int = option(7, _WARM_BATCHES)
    repeats: int = option(3, "Runs of each at every size, interleaved.")
    broadcast_rows: int = option(3_000_000, "Largest table that is broadcast, too; 0: none.")
    contenders: tuple[str, ...] = ("spark-defaults", "spark-broadcast", "millrace")
    strategies: tuple[str, ...] = option(("auto",), _STRATEGIES)
    zipf: float = option(1.0, _ZIPF)
    how: str = option("left", _HOW)
    memory: str = option("256m", _MEMORY)
    seed: int = option(1, _SEED)
    data: Path | None = option(None, _DATA)
    rebuild: bool = option(False, _REBUILD)
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
        return _without_folder(self)


@dataclass(frozen=True)
class ReadOptions:
    """Options of `bench enrich-io`: what the read planner reads with direct I/O, at several batch sizes."""

    rows: int = option(10_000_000, _TABLE_ROWS)
    batch_rows: tuple[int, ...] = option((1_000, 20_000, 200_000, 1_000_000), _BATCH_ROWS)
    repeats: int = option(7, "Runs of every way to read, interleaved.")
    zipf: float = option(1.0, _ZIPF)
    memory: str = option("256m", _MEMORY)
    seed: int = option(1, _SEED)
    data: Path | None = option(None, _DATA)
    rebuild: bool = option(False, _REBUILD)

    def __post_init__(self) -> None:
        _at_least("rows", self.rows, 1)
        _at_least("repeats", self.repeats, 1)
        _some("batch_rows", self.batch_rows)
        for size in self.batch_rows:
            _at_least("batch_rows", size, 2)

    def to_json(self) -> dict[str, Any]:
        return _without_folder(self)


@dataclass(frozen=True)
class JoinOptions:
    """Options of `bench joins`: every size x budget x exponent x device is a cell, in which all joins run.

    `memory` is bytes (`"50m"`) or a share of the table (`"10%"`). `joins` are names of the catalog, `inlj-pool` for `inlj`
    with a pool, or none for all. On the disk, a join is measured for `seconds`; on a simulated device, where seconds cost
    nothing, for `windows` times the tuples that fit its window, `tuples` at least, so that the same comes out on every
    machine. Both after as many tuples that don't count.
    """

    rows: tuple[int, ...] = option((2_000_000,), "Rows of the table; several, with commas, make a grid.")
    row_bytes: int = option(120, "Bytes of a row.")
    page_bytes: int = option(64 << 10, "Bytes of a page.")
    memory: tuple[str, ...] = option(("10%",), "Budgets of a join: bytes such as 50m, or a share of the table.")
    zipf: tuple[float, ...] = option((1.0,), "Exponents of the stream's keys; 0 is uniform.")
    hot_keys: str = option(HOT_KEYS[0], f"How frequent keys lie in the table: {' or '.join(HOT_KEYS)}.")
    devices: tuple[str, ...] = option((REAL_DISK, "hdd2008", "ssd", "object-store"), f"Of {', '.join((REAL_DISK, *DEVICES))}.")
    overlap: str = option(OVERLAPS[0], f"Reads of simulated devices: {' or '.join(OVERLAPS)}.")
    joins: tuple[str, ...] = option((), "Empty for all in the catalog, or some of them.", flag="--algorithms")
    columns: tuple[str, ...] = option(("surrogate_key", "price", "supplier_id"), "Table columns that are put out.")
    carry: bool = option(False, "Keep the stream's own 20 bytes in the join, too.")
    load: float = option(0.5, "For waiting times: arrivals, as a share of a join's rate.")
    tune: bool = option(False, "Try disk buffers of several sizes first, and take the best.")
    repeats: int = option(1, "Runs on the disk, interleaved; the median counts.")
    seconds: float = option(3.0, "On the disk: how long a join is measured.")
    windows: float = option(2.0, "On simulated devices: for how many windows of tuples.")
    tuples: int = option(20_000, "On simulated devices: tuples at least.")
    seed: int = option(1, _SEED)
    data: Path | None = option(None, _DATA)

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
        return _without_folder(self)


@dataclass(frozen=True)
class EstimateOptions:
    """Options of `bench estimate`."""

    rows: int = option(100_000_000, "Rows of each table, 16 bytes each.")
    memory: str = option("500m", "Memory of either contender.")
    threads: int = option(2, "Threads of either contender.")
    row_group_rows: int = option(1 << 20, "Rows of a row group of the Parquet files.")
    shape: str = option("foreign-key", f"One of {', '.join(SHAPES)}.")
    seed: int = option(1, _SEED)
    data: Path | None = option(None, _DATA)

    def __post_init__(self) -> None:
        if self.rows < 1000 or self.row_group_rows < 1000:
            raise ParameterError(f"rows is {self.rows} and row_group_rows {self.row_group_rows}; give 1000 or more.")
        if self.threads not in (1, 2):
            raise ParameterError(f"threads is {self.threads}; give 1 or 2.")
        if self.shape not in SHAPES:
            raise ParameterError(f"shape is {self.shape!r}; give one of {', '.join(SHAPES)}.")
        parse_bytes(self.memory)

    def to_json(self) -> dict[str, Any]:
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class CoverageOptions:
    """Options of `bench coverage`. No populations: all."""

    reshuffles: int = option(2000, "Reshuffles of each population.")
    engine_reshuffles: int | None = option(None, "Of PR-Join itself, if not as many.")
    populations: tuple[str, ...] = option((), "Empty for all, or some, separated by commas.")
    parts: tuple[str, ...] = option(COVERAGE_PARTS, "engine: PR-Join itself; model: from accumulators alone.")
    seed: int = option(17, "Seed of all reshuffles.")

    def __post_init__(self) -> None:
        if self.reshuffles < 2 or (self.engine_reshuffles is not None and self.engine_reshuffles < 2):
            raise ParameterError(f"reshuffles is {self.reshuffles}; give 2 or more.")
        if not self.parts or set(self.parts) - set(COVERAGE_PARTS):
            raise ParameterError(f"parts is {', '.join(self.parts)}; give some of {', '.join(COVERAGE_PARTS)}.")
        from millrace.online.coverage.populations import POPULATIONS  # late: `millrace bench --help` has no use for it

        for name in self.populations:
            if name not in POPULATIONS:
                raise ParameterError(f"there is no population {name!r}; there are {', '.join(POPULATIONS)}.")


@dataclass(frozen=True)
class OnlineOptions:
    """Options of `bench online`. `rows` of each input are really joined: each stands for many, so the sizes are the paper's.
    `stream_rows`: of each finite stream, likewise."""

    rows: int = option(500_000, "Rows of each input that are really joined; each stands for many.")
    gammas: tuple[float, ...] = option((0.5, 1.0, 2.0, 4.0), "Values of gamma, for how often temporary data are read.")
    stream_rows: int = option(1_000_000, "Rows of each finite stream that are really joined.")
    streams: tuple[str, ...] = option(("slow", "fast", "unreliable"), "Kinds of finite streams; empty for none.")
    joins: tuple[str, ...] = field(default_factory=_online_joins)
    seed: int = option(1, _SEED)

    def __post_init__(self) -> None:
        if self.rows < 50_000:
            raise ParameterError(f"rows is {self.rows}; give 50000 or more: an extent has to hold some rows.")
        _at_least("stream_rows", self.stream_rows, 1000)
        if not self.gammas or min(self.gammas) <= 0:
            raise ParameterError(f"gammas are {self.gammas}; give one or more, above 0.")
        from millrace.bench.online.streams import STREAMS  # late: `millrace bench --help` has no use for it

        for what, given, known in (("stream", self.streams, tuple(STREAMS)), ("join", self.joins, _online_joins())):
            for name in given:
                if name not in known:
                    raise ParameterError(f"unknown {what} {name!r}; choose from {', '.join(known)}.")
        if missing := [name for name in ("grace", "prjoin", "ripple") if name not in self.joins]:
            raise ParameterError(f"{', '.join(missing)} can't be left out: the others are compared with them.")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _without_folder(options: Any) -> dict[str, Any]:
    """Plain values; the data folder is left out, as it says nothing about the measurement."""
    plain = asdict(options)
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
