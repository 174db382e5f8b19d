"""`millrace demo`: the same micro-batches of sales are joined with a product table by Spark's own join and by millrace.

The example of Naeem, Dobbie, Weber and Bajwa's X-HYBRIDJOIN paper: a sale has a product id, a quantity and a time. On its way
into the warehouse the surrogate key replaces the product id, and supplier and total are added.

    burst -> landing/spark    -> stream JOIN products            -> warehouse/spark    |
          -> landing/millrace -> enrich(stream, table)           -> warehouse/millrace | == ?

Both are streaming queries of one session, with the same settings. They take each burst in turn, so that neither query works
while the other is measured. The query that goes first changes from burst to burst.

A sale whose product id is unknown or missing is kept (`how="left"`): its surrogate key, supplier and total are null, and
the ledger counts it under its reason.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from rich.console import Console
from rich.markup import escape

from millrace.cli.demo_data import SALES_SCHEMA, land, sales_bursts, write_products
from millrace.cli.demo_view import Batch, DemoView, Totals
from millrace.cli.session import local_session, require_spark, uninterrupted
from millrace.core.budget import format_bytes, parse_bytes
from millrace.core.errors import MillraceError, ParameterError
from millrace.core.wording import counted, format_seconds

_ADDED = ["surrogate_key", "supplier_id", "sale_price"]
_GROUP = "pmod(hash(sale_id), 1024)"
_POLL_SECONDS = 0.02
_STALL_SECONDS = 180.0
_WARM_UP = 2  # micro-batches that are not counted: both have code to compile, and files to see for the first time
_TRIGGER = "100 milliseconds"  # how often a query looks for files; not part of what is measured

Side = Literal["spark", "millrace"]
_SIDES: tuple[Side, Side] = ("spark", "millrace")


@dataclass(frozen=True)
class DemoOptions:
    """Options of `millrace demo`."""

    rows: int = 4_000_000
    sales: int = 1_000_000
    memory: str = "16m"
    zipf: float = 1.0
    seed: int = 1
    folder: Path | None = None
    keep: bool = False

    def __post_init__(self) -> None:
        for name in ("rows", "sales"):
            if getattr(self, name) < 1:
                raise ParameterError(f"--{name} must be at least 1; got {getattr(self, name)}")
        if self.zipf < 0 or self.seed < 0:
            raise ParameterError(f"--zipf and --seed must be 0 or more; got {self.zipf:g} and {self.seed}")
        parse_bytes(self.memory)


@dataclass(frozen=True)
class Folders:
    """Where the demo's data lies."""

    root: Path

    @property
    def products(self) -> Path:
        return self.root / "products"

    @property
    def table(self) -> Path:
        return self.root / "table"

    def landing(self, side: Side) -> Path:
        return self.root / "landing" / side

    def warehouse(self, side: Side) -> Path:
        return self.root / "warehouse" / side

    def checkpoint(self, side: Side) -> Path:
        return self.root / "checkpoint" / side


@dataclass(frozen=True)
class Check:
    """The two warehouses beside each other."""

    rows: int
    spark_rows: int
    checksum: int  # of all rows that millrace wrote, whatever their order
    spark_checksum: int
    differing: int  # different rows, or rows that occur more often on one side

    @property
    def agrees(self) -> bool:
        return self.differing == 0 and self.rows == self.spark_rows and self.checksum == self.spark_checksum


def run_demo(options: DemoOptions, console: Console) -> bool:
    """Run the whole demo; returns whether both warehouses hold the same rows, one row for every sale."""
    require_spark()
    view = DemoView(console)
    started = time.monotonic()
    with _folders(options, view) as folders, _scratch() as scratch, ExitStack() as session:
        with view.stage("start Spark") as done:
            spark = session.enter_context(local_session(scratch))
            done(f"started Spark {spark.version} on {counted(spark.sparkContext.defaultParallelism, 'core')}")
        return _run(options, folders, spark, view, started)


def _run(options: DemoOptions, folders: Folders, spark: Any, view: DemoView, started: float) -> bool:
    from millrace.spark.master import MasterTable

    with view.stage("make products") as done:
        size = write_products(folders.products, options.rows, options.seed)
        done(f"made {counted(options.rows, 'product')}, {format_bytes(size)} of Parquet")
    with view.stage("build the table") as done:
        data = spark.read.parquet(str(folders.products))
        table = MasterTable.build(data, key="product_id", path=folders.table, progress=False)
        version = table.latest
        done(f"built the table: {counted(version.pages, 'page')}, {format_bytes(version.bytes)} on disk; this is done once")
    view.say("")
    view.say(f"{counted(options.sales, 'sale')} come in bursts; both joins take each burst in turn; Ctrl-C stops")
    totals = _stream(options, folders, spark, table, view)
    view.say("")
    with view.stage("compare all rows") as done:
        check = compare(spark, folders)
        done(f"compared {counted(check.rows, 'row')} of millrace with {counted(check.spark_rows, 'row')} of Spark's join")
    view.table("what happened", _summary(options, version, totals, check, time.monotonic() - started))
    complete = check.agrees and check.rows == totals.counts.tuples_in == options.sales
    if not complete:
        view.say(f"[red]the ledger saw {totals.counts.tuples_in:,} of {options.sales:,} sales[/red]")
    _say_verdict(totals, check, view)
    return complete


def _stream(options: DemoOptions, folders: Folders, spark: Any, table: Any, view: DemoView) -> Totals:
    """Let the bursts land one by one; each is taken by one query, and then by the other."""
    queries: dict[Side, Any] = {}
    totals = Totals()
    for side in _SIDES:
        folders.landing(side).mkdir(parents=True)
    try:
        for side in _SIDES:
            queries[side] = start_query(spark, folders, table, options.memory, side)
        view.header()
        bursts = sales_bursts(options.rows, options.sales, options.zipf, options.seed)
        for number, burst in enumerate(burst for burst in bursts if burst.num_rows):
            with view.waiting(f"both take burst {number}"):
                batch = _take(queries, folders, burst, number)
            totals.batches.append(batch)
            view.batch(batch)
    finally:
        with uninterrupted():
            for query in queries.values():
                query.stop()
    return totals


def _take(queries: dict[Side, Any], folders: Folders, burst: pa.Table, number: int) -> Batch:
    """Put a burst through both queries, one behind the other."""
    from millrace.spark.reports import reports

    name = f"sales-{number:05d}.parquet"
    whole = folders.root / name
    land(burst, whole)
    progress: dict[Side, Any] = {}
    for side in _SIDES if number % 2 else reversed(_SIDES):
        os.link(whole, folders.landing(side) / name)  # the same file for both
        progress[side] = _wait(queries[side], number)
    whole.unlink()
    (report,) = reports(progress["millrace"])
    return Batch(
        number=number,
        sales=burst.num_rows,
        spark_seconds=_seconds(progress["spark"]),
        seconds=_seconds(progress["millrace"]),
        counts=report.counts,
        memory_bytes=report.memory_bytes,
        disk_reads=report.disk_reads,
        disk_bytes=report.disk_bytes,
        warming_up=number < _WARM_UP,
    )


def _wait(query: Any, number: int) -> Any:
    """The progress of micro-batch `number`, once it is through."""
    end = time.monotonic() + _STALL_SECONDS
    while time.monotonic() < end:
        progress = query.lastProgress
        if progress is not None and progress.batchId == number and progress.numInputRows:
            return progress
        if not query.isActive:
            raise MillraceError(f"the query failed: {_reason(query)}")
        time.sleep(_POLL_SECONDS)
    raise MillraceError(f"no micro-batch finished for {_STALL_SECONDS:.0f} s; run `millrace doctor`")


def _seconds(progress: Any) -> float:
    """Seconds of the whole micro-batch: plan, join, write and commit."""
    return float(progress.durationMs["triggerExecution"]) / 1000


def start_query(spark: Any, folders: Folders, table: Any, memory: str, side: Side) -> Any:
    """A streaming query: what a user of Spark writes, or what a user of millrace writes."""
    from millrace.spark.enrich import enrich

    sales = spark.readStream.schema(SALES_SCHEMA).parquet(str(folders.landing(side)))
    if side == "spark":
        joined = sales.join(spark.read.parquet(str(folders.products)), "product_id", "left")
    else:
        joined = enrich(sales, table, on="product_id", how="left", columns=_ADDED, memory=memory, name="demo")
    return (
        _facts(joined)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folders.checkpoint(side)))
        .trigger(processingTime=_TRIGGER)
        .start(str(folders.warehouse(side)))
    )


def _facts(enriched: Any) -> Any:
    """A row of the warehouse: the surrogate key instead of the product id, supplier and total added."""
    total = "quantity * sale_price AS total"
    return enriched.selectExpr("sale_id", "surrogate_key", "supplier_id", "quantity", total, "sale_time")


def _reason(query: Any) -> str:
    """The line of the failure that says what happened: the error of millrace, if there is one."""
    lines = [line.strip() for line in str(query.exception() or "it was stopped").splitlines() if line.strip()]
    ours = [line for line in lines if "millrace.core.errors." in line]
    return (ours or lines)[-1 if ours else 0]


def compare(spark: Any, folders: Folders) -> Check:
    """Compare the two warehouses as multisets of rows.

    Rows are grouped by sale. For each group the number of rows and the sums of their 64-bit hashes are compared. Rows of groups
    that differ are then compared one by one.
    """
    millrace, theirs = (spark.read.parquet(str(folders.warehouse(side))) for side in ("millrace", "spark"))
    millrace = millrace.select(theirs.columns)
    ours, other = _fingerprints(millrace), _fingerprints(theirs)
    suspect = [group for group in ours.keys() | other.keys() if ours.get(group) != other.get(group)]
    differing = 0
    if suspect:
        millrace, theirs = (side.where(f"{_GROUP} IN ({','.join(map(str, suspect))})") for side in (millrace, theirs))
        differing = millrace.exceptAll(theirs).count() + theirs.exceptAll(millrace).count()
    return Check(_rows(ours), _rows(other), _checksum(ours), _checksum(other), differing)


def _fingerprints(facts: Any) -> dict[int, tuple[int, int, int]]:
    """Of each group of rows: how many there are, and the sums of the halves of their hashes."""
    from pyspark.sql.functions import expr

    sums = ["count(*)", "sum(hash & 4294967295)", "sum(shiftrightunsigned(hash, 32))"]
    hashed = facts.selectExpr(f"{_GROUP} AS part", f"xxhash64({', '.join(facts.columns)}) AS hash")
    rows = hashed.groupBy("part").agg(*[expr(text) for text in sums]).collect()
    return {row[0]: (row[1], row[2], row[3]) for row in rows}


def _rows(fingerprints: dict[int, tuple[int, int, int]]) -> int:
    return sum(count for count, _, _ in fingerprints.values())


def _checksum(fingerprints: dict[int, tuple[int, int, int]]) -> int:
    """The sum of the hashes of all rows, in 64 bits."""
    return sum(low + (high << 32) for _, low, high in fingerprints.values()) % (1 << 64)


def _summary(options: DemoOptions, version: Any, totals: Totals, check: Check, seconds: float) -> list[tuple[str, str]]:
    counts, budget = totals.counts, parse_bytes(options.memory)
    disk_bytes = sum(batch.disk_bytes for batch in totals.batches)
    verdict = f"[green]equal: {check.rows:,} rows each, checksum {check.checksum:016x}[/green]"
    if not check.agrees:
        verdict = f"[red]{check.differing:,} rows differ ({check.rows:,} of millrace, {check.spark_rows:,} of Spark)[/red]"
    return [
        ("sales", f"{counts.tuples_in:,} in {counted(len(totals.batches), 'micro-batch', 'micro-batches')}"),
        ("joined", f"{counts.matched:,}"),
        ("unknown product", f"{counts.absent_keys:,} (kept, no surrogate key)"),
        ("no product id", f"{counts.null_keys:,} (kept, no surrogate key)"),
        ("table", f"{version.rows:,} rows, {format_bytes(version.bytes)}, {version.bytes / budget:.1f} x the budget of a task"),
        ("memory of a task", f"{format_bytes(totals.memory_bytes)} of a budget of {format_bytes(budget)}"),
        ("millrace read", f"{format_bytes(disk_bytes)} of the table in {sum(b.disk_reads for b in totals.batches):,} reads"),
        ("the two results", verdict),
        ("the whole demo", format_seconds(seconds)),
    ]


def _say_verdict(totals: Totals, check: Check, view: DemoView) -> None:
    """Print the ratio, what it compares, and what to do next."""
    batches = totals.counted
    view.say("")
    for name, seconds in (("Spark's join", totals.spark_seconds), ("millrace", totals.seconds)):
        each, rate = format_seconds(seconds / len(batches)), totals.sales / seconds if seconds else 0.0
        view.say(f"  {name:<13} {each:>8} a micro-batch   {rate:>9,.0f} sales/s")
    low, high = min(batch.ratio for batch in batches), max(batch.ratio for batch in batches)
    spread = f"({low:.1f} x to {high:.1f} x from batch to batch)"
    if totals.ratio >= 1:
        view.say(f"[bold green]millrace was {totals.ratio:.1f} x as fast as Spark's own join[/bold green] {spread}")
    else:
        view.say(f"[bold]millrace took {1 / max(totals.ratio, 1e-9):.1f} x as long as Spark's own join[/bold] {spread}")
        view.say("a table this small is read again in no time; try more with --rows")
    if check.agrees:
        view.say("and the two results are the same rows.")
    view.say("")
    view.say("next, with a Parquet file of your own:")
    view.say("  millrace build FILE_OR_FOLDER my-table --key COLUMN")


@contextmanager
def _folders(options: DemoOptions, view: DemoView) -> Iterator[Folders]:
    """The demo's folder. A temporary folder is removed at the end, unless it is to be kept; a given folder stays."""
    if options.folder is None and not options.keep:
        with _temporary("millrace-demo-") as root:
            yield Folders(root)
        return
    if options.folder is None:
        root = Path(tempfile.mkdtemp(prefix="millrace-demo-"))
    else:
        root = options.folder.absolute()
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise ParameterError(f"{root} is not an empty folder; give another one, or remove it first")
        root.mkdir(parents=True, exist_ok=True)
    try:
        yield Folders(root)
    finally:
        view.say(f"kept in {escape(str(root))}: products, table, landing, warehouse")


@contextmanager
def _scratch() -> Iterator[Path]:
    with _temporary("millrace-spark-") as root:
        yield root


@contextmanager
def _temporary(prefix: str) -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield root
    finally:
        with uninterrupted():
            remove(root)


def remove(folder: Path, attempts: int = 20) -> None:
    """Remove a folder into which a worker on its way out may still write."""
    for _ in range(attempts):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)
