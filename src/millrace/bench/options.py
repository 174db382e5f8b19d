"""Options of the benchmarks. Each option, its default and its help text stand here, once.

A command of `millrace bench` has the options of one of these classes (see `commands`). Fields without a help text are
for tests and for other benchmarks. Values are checked before any data is made.
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
"""The same, for contenders that are close to each other. The JVM compiles beside a query for some seconds and takes processor
time; between close contenders that decides."""

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
"""In the order in which they run. Floors run next to what is compared with them. `millrace` is one contender per strategy."""

HOWS = ("left", "inner")

REAL_DISK = "disk"
"""Device of `bench joins`: the disk of the data folder, read past the page cache. All other devices are simulated."""

HOT_KEYS = ("scattered", "sorted")
OVERLAPS = ("synchronous", "overlapped")
SHEDDING_POLICIES = ("drop", "sample", "keep", "considering", "selective")
COVERAGE_PARTS = ("engine", "model")


_BATCH_ROWS = "Rows of a micro-batch. Separate several sizes by commas."
MEMORY_OF_MILLRACE = "Memory of millrace for each worker, such as 256m."
_DATA = "Folder that keeps generated data and built tables for the next run. Default: a temporary folder."
_HOW = "Kind of join: left or inner."
_MEMORY = "Memory of millrace, and of RocksDB's cache, in each worker, such as 256m."
_REBUILD = "Build millrace's tables again, even if the data folder holds them."
_SEED = "Seed of the generated data: the same seed gives the same data."
_STRATEGIES = f"Strategies of millrace to compare, with commas: some of {', '.join(STRATEGIES)}."
_TABLE_ROWS = "Rows of the table, 120 bytes each."
_WARM_BATCHES = "Micro-batches that are measured, at least 5."
_ZIPF = "Skew of the stream's keys (Zipf exponent). 0: all keys equally often."


def option(default: Any, text: str, *, flag: str | None = None) -> Any:
    """A field that is also an option of a command. `flag`: the name of the option, if the field has another name."""
    return field(default=default, metadata={"help": text, "flag": flag})


def _online_joins() -> tuple[str, ...]:
    from millrace.bench.online.online import JOINS  # late: `millrace bench --help` has no use for it

    return tuple(JOINS)


@dataclass(frozen=True)
class EnrichOptions:
    """Options of `bench enrich`.

    `data`: where tables are kept for the next run; None means a temporary folder. No contenders means all contenders.
    A left join leaves out `spark-defaults`: Spark can't broadcast the stream's side, so its default is the sort-merge join.
    """

    rows: int = option(10_000_000, _TABLE_ROWS)
    batch_rows: tuple[int, ...] = option((200_000, 1_000_000), _BATCH_ROWS)
    wide: bool = option(False, "Give the stream 20 more columns.")
    zipf: float = option(1.0, _ZIPF)
    cold_batches: int = option(COLD_BATCHES, "Micro-batches at the start that are not measured.")
    warm_batches: int = option(7, _WARM_BATCHES)
    repeats: int = option(3, "Runs of millrace-auto, and of the floors, in turn. Others run once.")
    contenders: tuple[str, ...] = option((), f"Who takes part, with commas. Empty: all of {', '.join(CONTENDERS)}.")
    strategies: tuple[str, ...] = option(STRATEGIES, _STRATEGIES)
    columns: tuple[str, ...] = option(MASTER_COLUMNS, "Columns of the table that are added, with commas.")
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
        parse_bytes(self.memory)
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

    Tables of more than `broadcast_rows` are not broadcast: all contenders share one driver, which must hold a broadcast table.
    """

    rows: tuple[int, ...] = option(
        (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000), "Rows of the tables, one table for each size, with commas."
    )
    batch_rows: int = option(200_000, "Rows of a micro-batch.")
    warm_batches: int = option(7, _WARM_BATCHES)
    repeats: int = option(3, "Runs of each contender at every size, taken in turn.")
    broadcast_rows: int = option(3_000_000, "Rows of the largest table that Spark also broadcasts. 0: no broadcast join.")
    contenders: tuple[str, ...] = ("spark-defaults", "spark-broadcast", "millrace")
    strategies: tuple[str, ...] = option(("auto",), _STRATEGIES)
    zipf: float = option(1.0, _ZIPF)
    how: str = option("left", _HOW)
    memory: str = option("256m", MEMORY_OF_MILLRACE)
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
    repeats: int = option(7, "Runs of every way to read, taken in turn.")
    zipf: float = option(1.0, _ZIPF)
    memory: str = option("256m", MEMORY_OF_MILLRACE)
    seed: int = option(1, _SEED)
    data: Path | None = option(None, _DATA)
    rebuild: bool = option(False, _REBUILD)

    def __post_init__(self) -> None:
        _at_least("rows", self.rows, 1)
        _at_least("repeats", self.repeats, 1)
        parse_bytes(self.memory)
        _some("batch_rows", self.batch_rows)
        for size in self.batch_rows:
            _at_least("batch_rows", size, 2)

    def to_json(self) -> dict[str, Any]:
        return _without_folder(self)


@dataclass(frozen=True)
class JoinOptions:
    """Options of `bench joins`: every size x budget x exponent x device is a cell, in which all joins run.

    `memory` is bytes (`"50m"`) or a share of the table (`"10%"`). `joins` are names of the catalog, or `inlj-pool` for `inlj`
    with a pool; none means all. On the disk a join is measured for `seconds`. On a simulated device a join is measured for
    `windows` times the tuples that fit its window, `tuples` at least, so that every machine gives the same result. Before
    that, as many tuples run as warm-up.
    """

    rows: tuple[int, ...] = option((2_000_000,), "Rows of the table. Several sizes, with commas, make a grid.")
    row_bytes: int = option(120, "Bytes of a row.")
    page_bytes: int = option(64 << 10, "Bytes of a page.")
    memory: tuple[str, ...] = option(
        ("10%",), "Memory of a join: bytes such as 50m, or a share of the table such as 10%. Several with commas."
    )
    zipf: tuple[float, ...] = option(
        (1.0,), "Skew of the stream's keys (Zipf exponents, with commas). 0: all keys equally often."
    )
    hot_keys: str = option(HOT_KEYS[0], f"Where frequent keys lie in the table: {' or '.join(HOT_KEYS)}.")
    intervals: int = option(
        1, "Cut the keys into so many intervals; the stream has keys of one for a while, then of the next. 1: of all, always."
    )
    interval_tuples: int = option(2_000_000, "Stream rows of an interval.")
    cache_share: tuple[str, ...] = option(
        ("auto",),
        "Share of the memory of a cached join that its front stage has: auto, or 0 to less than 1. Several with commas.",
    )
    threshold: tuple[str, ...] = option(
        ("auto",), "Tuples that must wait for a key to get it into the front stage: auto, or a number. Several with commas."
    )
    doubling: bool = option(False, "Let the table grow to twice its rows, and measure again. Simulated devices only.")
    devices: tuple[str, ...] = option(
        (REAL_DISK, "hdd2008", "ssd", "object-store"),
        f"Some of {', '.join((REAL_DISK, *DEVICES))}; all but disk are simulated.",
    )
    overlap: str = option(OVERLAPS[0], f"Reads of simulated devices, beside the join's work: {' or '.join(OVERLAPS)}.")
    joins: tuple[str, ...] = option((), "Joins to compare, with commas. Empty: all.", flag="--algorithms")
    columns: tuple[str, ...] = option(
        ("surrogate_key", "price", "supplier_id"), "Columns of the table that are added, with commas."
    )
    carry: bool = option(False, "Keep the 20 bytes of a stream row in the join, beside its key.")
    load: float = option(0.5, "For waiting times: rows that arrive, as a share of the join's full speed, such as 0.5.")
    tune: bool = option(False, "Try several sizes of the disk buffer first, and take the fastest.")
    repeats: int = option(1, "Runs on the disk, taken in turn. The median is reported.")
    seconds: float = option(3.0, "Seconds that a join is measured on the disk.")
    windows: float = option(2.0, "How long a join is measured on simulated devices, in windows full of tuples.")
    tuples: int = option(20_000, "Least number of tuples measured on simulated devices.")
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
        _at_least("intervals", self.intervals, 1)
        _at_least("interval_tuples", self.interval_tuples, 1)
        if self.intervals > min(self.rows):
            raise ParameterError(f"intervals is {self.intervals}; give {min(self.rows)} at most, the rows of the table.")
        if self.doubling and REAL_DISK in self.devices:
            raise ParameterError(f"doubling is for simulated devices; give --devices without {REAL_DISK}.")
        _check_front(self.cache_share, self.threshold)

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
class SheddingOptions:
    """Options of `bench shedding`: every size x device x budget x place of hot keys x join is a cell for all policies.

    For the full run: `--rows 10000000 --memory 1%,10%`.
    """

    rows: tuple[int, ...] = option((200_000,), "Rows of the table. Several sizes, with commas, make a grid.")
    row_bytes: int = option(120, "Bytes of a row.")
    page_bytes: int = option(16 << 10, "Bytes of a page.")
    memory: tuple[str, ...] = option(
        ("2%",), "Memory of a join: bytes such as 50m, or a share of the table such as 10%. Several with commas."
    )
    zipf: float = option(1.0, _ZIPF)
    hot_keys: tuple[str, ...] = option(HOT_KEYS, f"Where frequent keys lie in the table, with commas: {', '.join(HOT_KEYS)}.")
    devices: tuple[str, ...] = option(("hdd2008",), f"Some of {', '.join((REAL_DISK, *DEVICES))}; all but disk are simulated.")
    overlap: str = option(OVERLAPS[0], f"Reads of simulated devices, beside the join's work: {' or '.join(OVERLAPS)}.")
    joins: tuple[str, ...] = option(
        ("inlj", "meshjoin", "hybridjoin", "sweepjoin"), "Joins, with commas: any of the catalogue."
    )
    policies: tuple[str, ...] = option(SHEDDING_POLICIES, f"Policies, with commas: some of {', '.join(SHEDDING_POLICIES)}.")
    overload: float = option(2.0, "Tuples that arrive, as a multiple of the join's full speed.")
    position: float = option(
        0.15, "For considering: the place of HYBRIDJOIN's queue that is read next. 0: the oldest, 1: the newest."
    )
    age_limit: int = option(0, "Steps after which a tuple that was shed comes back. 0: 16 times the longest wait of the join.")
    seconds: float = option(3.0, "Seconds of full speed, and half of the seconds of overload, on the disk.")
    windows: float = option(6.0, "How long a join is measured on simulated devices, in windows full of tuples.")
    tuples: int = option(10_000, "Least number of tuples measured.")
    seed: int = option(1, _SEED)
    data: Path | None = option(None, _DATA)

    def __post_init__(self) -> None:
        if not self.overload > 0:
            raise ParameterError(f"overload is {self.overload}; give more than 0.")
        if not 0 <= self.position <= 1:
            raise ParameterError(f"position is {self.position}; give 0 (the oldest) to 1 (the newest).")
        if self.zipf < 0:
            raise ParameterError(f"zipf is {self.zipf}; give 0 (uniform) or more.")
        _at_least("age_limit", self.age_limit, 0)
        _some("joins", self.joins)
        _known("hot_keys", self.hot_keys, HOT_KEYS)
        _known("policy", self.policies, SHEDDING_POLICIES)
        _ = self.table  # checks what is shared with `bench joins`

    @property
    def table(self) -> JoinOptions:
        """The options of `bench joins` for the same table."""
        shared = (
            "rows",
            "row_bytes",
            "page_bytes",
            "memory",
            "devices",
            "overlap",
            "seconds",
            "windows",
            "tuples",
            "seed",
            "data",
        )
        return JoinOptions(**{name: getattr(self, name) for name in shared})

    def to_json(self) -> dict[str, Any]:
        return _without_folder(self)


@dataclass(frozen=True)
class FollowOptions:
    """Options of `bench follow`: every device x strategy runs through all phases."""

    rows: int = option(200_000, "Rows of the table.")
    row_bytes: int = option(120, "Bytes of a row.")
    page_bytes: int = option(8 << 10, "Bytes of a page.")
    memory: str = option("4%", "Memory of the join: bytes such as 50m, or a share of the table such as 10%.")
    zipf: tuple[float, ...] = option(
        (0.0, 1.2, 1.2, 0.0), "Skew of each phase (Zipf exponents, with commas). Each phase has hot keys of its own."
    )
    hot_keys: str = option(HOT_KEYS[0], f"Where frequent keys lie in the table: {' or '.join(HOT_KEYS)}.")
    devices: tuple[str, ...] = option(("hdd2008",), f"Some of {', '.join((REAL_DISK, *DEVICES))}; all but disk are simulated.")
    overlap: str = option(OVERLAPS[0], f"Reads of simulated devices, beside the join's work: {' or '.join(OVERLAPS)}.")
    strategies: tuple[str, ...] = option(("auto",), "Joins that follow, with commas. auto: any of them, as it pays.")
    seconds: float = option(3.0, "Seconds that a rate is measured at most, by the clock of the device.")
    windows: float = option(2.0, "How long a rate is measured, in windows full of tuples.")
    tuples: int = option(20_000, "Least number of tuples measured.")
    seed: int = option(1, _SEED)
    data: Path | None = option(None, _DATA)

    def __post_init__(self) -> None:
        _some("zipf", self.zipf)
        _some("strategies", self.strategies)
        _known("strategy", self.strategies, ("auto", *(row.name for row in ALGORITHMS)))
        _ = self.table  # checks what is shared with `bench joins`

    @property
    def table(self) -> JoinOptions:
        """The options of `bench joins` for the same table."""
        shared = (
            "row_bytes",
            "page_bytes",
            "zipf",
            "hot_keys",
            "devices",
            "overlap",
            "seconds",
            "windows",
            "tuples",
            "seed",
            "data",
        )
        return JoinOptions(rows=(self.rows,), memory=(self.memory,), **{name: getattr(self, name) for name in shared})

    def to_json(self) -> dict[str, Any]:
        return _without_folder(self)


@dataclass(frozen=True)
class EstimateOptions:
    """Options of `bench estimate`."""

    rows: int = option(100_000_000, "Rows of each table, 16 bytes each.")
    memory: str = option("500m", "Memory of DuckDB, and of millrace, such as 500m.")
    threads: int = option(2, "Threads of DuckDB, and of millrace: 1 or 2.")
    row_group_rows: int = option(1 << 20, "Rows in a row group of the Parquet files.")
    shape: str = option("foreign-key", f"Tables and question: {', '.join(SHAPES)}.")
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
    """Options of `bench coverage`. No populations means all."""

    reshuffles: int = option(2000, "How often the rows of each population are shuffled and estimated again.")
    engine_reshuffles: int | None = option(None, "The same for the part engine. Default: as many as --reshuffles.")
    populations: tuple[str, ...] = option((), "Test tables, with commas. Empty: all.")
    parts: tuple[str, ...] = option(
        COVERAGE_PARTS, "engine: runs the join itself; model: computes estimates from sums alone. Both with a comma."
    )
    seed: int = option(17, "Seed of the shuffles: the same seed gives the same result.")

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
    """Options of `bench online`. `rows` of each input are really joined. Each row stands for many, so that the sizes are those
    of the paper. `stream_rows`: the same for each finite stream."""

    rows: int = option(500_000, "Rows of each input that are really joined. Each row stands for many.")
    gammas: tuple[float, ...] = option(
        (0.5, 1.0, 2.0, 4.0), "Values of gamma, with commas. A smaller gamma reports more often and reads more temporary data."
    )
    stream_rows: int = option(1_000_000, "Rows of each finite stream that are really joined.")
    streams: tuple[str, ...] = option(
        ("slow", "fast", "unreliable"), "Finite streams, with commas: slow, fast, five-fold, reverse, unreliable. Empty: none."
    )
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


def auto_or_number(text: str) -> Any:
    """`"auto"`, or the number that the text is; other texts as they are."""
    try:
        return float(text)
    except ValueError:
        return text


def _check_front(shares: tuple[str, ...], thresholds: tuple[str, ...]) -> None:
    from millrace.joins.cache_share import check_share, check_threshold  # late: `millrace bench --help` has no use for it

    _some("cache_share", shares)
    _some("threshold", thresholds)
    for share in shares:
        check_share(auto_or_number(share))
    for threshold in thresholds:
        check_threshold(auto_or_number(threshold))


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
