"""`millrace demo`: a bursty stream of sales is enriched from a product table on disk, and the result is checked.

The example of Naeem, Dobbie, Weber and Bajwa's X-HYBRIDJOIN paper: a sale has a product id, a quantity and a time; on its way
into the warehouse the surrogate key replaces the product id, and the supplier and the total are added.

    landing/*.parquet -> Structured Streaming -> enrich(table/) -> warehouse/*.parquet       == landing JOIN products ?

A sale whose product id is unknown or missing is kept (`how="left"`): its surrogate key, supplier and total are null, and
the ledger counts it under its reason.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from millrace.cli.demo_data import SALES_SCHEMA, SalesWriter, sales_bursts, write_products
from millrace.cli.demo_view import Batch, DemoView, FlowView, Totals
from millrace.cli.session import local_session, require_spark, uninterrupted
from millrace.core.budget import format_bytes, parse_bytes
from millrace.core.errors import MillraceError, ParameterError

_ADDED = ["surrogate_key", "supplier_id", "sale_price"]
_FILES_PER_BATCH = 2
_GROUP = "pmod(hash(sale_id), 1024)"
_POLL_SECONDS = 0.2
_STALL_SECONDS = 120.0


@dataclass(frozen=True)
class DemoOptions:
    """What `millrace demo` was asked for."""

    rows: int = 1_000_000
    sales: int = 1_200_000
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

    @property
    def landing(self) -> Path:
        return self.root / "landing"

    @property
    def warehouse(self) -> Path:
        return self.root / "warehouse"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"


@dataclass(frozen=True)
class Check:
    """The warehouse beside Spark's own batch join of the same files."""

    rows: int
    expected_rows: int
    differing: int  # different rows, or rows that occur more often on one side

    @property
    def agrees(self) -> bool:
        return self.differing == 0 and self.rows == self.expected_rows


def run_demo(options: DemoOptions, console: Console) -> bool:
    """Run the whole demo; returns whether the warehouse holds exactly what Spark's own join gives."""
    require_spark()
    view = DemoView(console)
    started = time.monotonic()
    with _folders(options, view) as folders, _scratch() as scratch, ExitStack() as session:
        with view.stage("start Spark") as done:
            spark = session.enter_context(local_session(scratch, brief=True))
            done(f"started Spark {spark.version} on {spark.sparkContext.defaultParallelism} cores")
        return _run(options, folders, spark, view, started)


def _run(options: DemoOptions, folders: Folders, spark: Any, view: DemoView, started: float) -> bool:
    from millrace.spark.master import MasterTable

    with view.stage("make products") as done:
        size = write_products(folders.products, options.rows, options.seed)
        done(f"made {options.rows:,} products, {format_bytes(size)} of Parquet")
    with view.stage("build the table") as done:
        table = MasterTable.build(spark.read.parquet(str(folders.products)), key="product_id", path=folders.table)
        version = table.latest
        done(f"built the table: {version.pages:,} pages, {format_bytes(version.bytes)} on disk")
    view.say(f"enriching {options.sales:,} sales, in bursts, with {options.memory} of memory per task; Ctrl-C stops")
    totals, stream_seconds = _stream(options, folders, spark, table, view)
    with view.stage("compare with Spark's own batch join") as done:
        check = compare(spark, folders)
        done(f"compared the warehouse with Spark's own batch join of {check.expected_rows:,} rows")
    view.table("millrace demo", _summary(options, version, totals, stream_seconds, check, time.monotonic() - started))
    balanced = totals.counts.tuples_in == options.sales
    if not balanced:
        view.say(f"[red]the ledger saw {totals.counts.tuples_in:,} of {options.sales:,} sales[/red]")
    return check.agrees and balanced


def _stream(options: DemoOptions, folders: Folders, spark: Any, table: Any, view: DemoView) -> tuple[Totals, float]:
    """Let the sales land while the query runs, until all of them are in the warehouse."""
    folders.landing.mkdir()
    writer = SalesWriter(folders.landing, sales_bursts(options.rows, options.sales, options.zipf, options.seed))
    query = start_query(spark, folders, table, options.memory)
    totals = Totals()
    before = time.monotonic()
    try:
        with view.stream(options.sales) as flow:
            writer.start()
            _follow(query, writer, options.sales, totals, flow)
    finally:
        with uninterrupted():
            writer.stop()
            query.stop()
    return totals, time.monotonic() - before


def start_query(spark: Any, folders: Folders, table: Any, memory: str) -> Any:
    """The streaming query: what a user of millrace writes."""
    from millrace.spark.enrich import enrich

    sales = spark.readStream.schema(SALES_SCHEMA).option("maxFilesPerTrigger", _FILES_PER_BATCH).parquet(str(folders.landing))
    enriched = enrich(sales, table, on="product_id", how="left", columns=_ADDED, memory=memory, name="demo")
    return (
        _facts(enriched)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folders.checkpoint))
        .start(str(folders.warehouse))
    )


def _facts(enriched: Any) -> Any:
    """A row of the warehouse: the surrogate key instead of the product id, supplier and total added."""
    total = "quantity * sale_price AS total"
    return enriched.selectExpr("sale_id", "surrogate_key", "supplier_id", "quantity", total, "sale_time")


def _follow(query: Any, writer: SalesWriter, sales: int, totals: Totals, flow: FlowView) -> None:
    """Show each micro-batch when it is done, until `sales` rows are through."""
    seen, through, last_news = -1, 0, time.monotonic()
    while through < sales:
        if writer.failure is not None:
            raise MillraceError(f"the sales could not be written: {writer.failure}") from writer.failure
        for progress in query.recentProgress:
            if progress.batchId > seen and progress.numInputRows:
                seen, last_news = progress.batchId, time.monotonic()
                through += progress.numInputRows
                totals.batches.append(_batch(progress))
                flow.batch(totals.batches[-1])
        flow.flow(through, writer.written)
        if not query.isActive:
            raise MillraceError(f"the query failed: {_reason(query)}")
        if time.monotonic() - last_news > _STALL_SECONDS:
            raise MillraceError(f"no micro-batch finished for {_STALL_SECONDS:.0f} s; run `millrace doctor`")
        time.sleep(_POLL_SECONDS)


def _batch(progress: Any) -> Batch:
    from millrace.spark.reports import reports

    (report,) = reports(progress)
    return Batch(
        number=progress.batchId,
        seconds=progress.durationMs.get("addBatch", 0) / 1000,
        counts=report.counts,
        waiting=report.waiting,
        memory_bytes=report.memory_bytes,
        disk_reads=report.disk_reads,
        disk_bytes=report.disk_bytes,
    )


def _reason(query: Any) -> str:
    """The line of the failure that says what happened: ours if there is one."""
    lines = [line.strip() for line in str(query.exception() or "it was stopped").splitlines() if line.strip()]
    ours = [line for line in lines if "millrace.core.errors." in line]
    return (ours or lines)[-1 if ours else 0]


def compare(spark: Any, folders: Folders) -> Check:
    """Compare the warehouse, as a multiset of rows, with a plain batch join of the landed sales and the products.

    Rows are put into groups by their sale, and of each group the number and the sums of 64-bit hashes of whole rows are
    compared; the rows of groups that differ are then compared one by one.
    """
    sales = spark.read.schema(SALES_SCHEMA).parquet(str(folders.landing))
    products = spark.read.parquet(str(folders.products))
    expected = _facts(sales.join(products, "product_id", "left"))
    written = spark.read.parquet(str(folders.warehouse)).select(expected.columns)
    ours, theirs = _fingerprints(written), _fingerprints(expected)
    suspect = [group for group in ours.keys() | theirs.keys() if ours.get(group) != theirs.get(group)]
    differing = 0
    if suspect:
        written, expected = (side.where(f"{_GROUP} IN ({','.join(map(str, suspect))})") for side in (written, expected))
        differing = written.exceptAll(expected).count() + expected.exceptAll(written).count()
    return Check(_rows(ours), _rows(theirs), differing)


def _fingerprints(facts: Any) -> dict[int, tuple[int, int, int]]:
    """Of each group of rows: how many there are, and the sums of the halves of their hashes."""
    from pyspark.sql.functions import expr

    sums = ["count(*)", "sum(hash & 4294967295)", "sum(shiftrightunsigned(hash, 32))"]
    hashed = facts.selectExpr(f"{_GROUP} AS part", f"xxhash64({', '.join(facts.columns)}) AS hash")
    rows = hashed.groupBy("part").agg(*[expr(text) for text in sums]).collect()
    return {row[0]: (row[1], row[2], row[3]) for row in rows}


def _rows(fingerprints: dict[int, tuple[int, int, int]]) -> int:
    return sum(count for count, _, _ in fingerprints.values())


def _summary(
    options: DemoOptions, version: Any, totals: Totals, stream_seconds: float, check: Check, seconds: float
) -> list[tuple[str, str]]:
    counts, budget = totals.counts, parse_bytes(options.memory)
    disk_bytes = sum(batch.disk_bytes for batch in totals.batches)
    verdict = f"[green]equal: all {check.rows:,} rows[/green]"
    if not check.agrees:
        verdict = f"[red]{check.differing:,} rows differ ({check.rows:,} written, {check.expected_rows:,} expected)[/red]"
    return [
        ("sales in", f"{counts.tuples_in:,} in {len(totals.batches)} micro-batches, {stream_seconds:.1f} s"),
        ("joined", f"{counts.matched:,}"),
        ("unmatched: unknown product", f"{counts.absent_keys:,} (kept, no surrogate key)"),
        ("unmatched: no product id", f"{counts.null_keys:,} (kept, no surrogate key)"),
        ("rate while a batch runs", f"{counts.tuples_in / totals.seconds if totals.seconds else 0:,.0f} rows/s"),
        ("page reads", f"{counts.pages_read:,}, each for {counts.matched / max(1, counts.pages_read):,.0f} sales on average"),
        ("read from its files", f"{format_bytes(disk_bytes)} in {sum(b.disk_reads for b in totals.batches):,} reads"),
        ("memory of a task", f"{format_bytes(totals.memory_bytes)} of a budget of {format_bytes(budget)}"),
        ("table", f"{version.rows:,} rows, {format_bytes(version.bytes)}, {version.bytes / budget:.1f} x the budget"),
        ("against Spark's batch join", verdict),
        ("the whole demo took", f"{seconds:.1f} s"),
    ]


@contextmanager
def _folders(options: DemoOptions, view: DemoView) -> Iterator[Folders]:
    """The demo's folder: a temporary one goes at the end, unless it is to be kept; a given one stays."""
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
