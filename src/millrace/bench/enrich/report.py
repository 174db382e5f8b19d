"""Results for people (a table) and for machines (a JSON file)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table

from millrace.bench.enrich.measure import Progress
from millrace.bench.enrich.results import OK, Result

_MIB = 1 << 20
_WIDEST = 400


@contextmanager
def live_progress(console: Console) -> Iterator[Progress]:
    """A line that says what runs now, and one line for each result."""
    with console.status("starting", refresh_per_second=2) as status:

        def finished(result: Result) -> None:
            seconds = result.median_seconds
            outcome = f"{seconds:.3f} s a batch" if seconds is not None else result.status
            console.print(f"{result.contender}, {result.batch_rows:,} rows a batch: {outcome}", highlight=False)

        yield Progress(say=status.update, finished=finished)


def write_json(report: dict[str, Any], path: Path) -> None:
    write_text(json.dumps(report, indent=2) + "\n", path)


def write_text(text: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def print_whole(what: RenderableType, console: Console) -> None:
    """In a file or a narrow terminal, long lines beat figures that are cut off."""
    wanted = Measurement.get(console, console.options.update(max_width=_WIDEST), what).maximum
    console.width = max(console.width, wanted)
    console.print(what)


def enrich_table(report: dict[str, Any]) -> Table:
    options = report["options"]
    columns = 23 if options["wide"] else 3
    table = Table(
        title=f"R = {options['rows']:,} rows, Zipf {options['zipf']:g}, {columns} stream columns, "
        f"{options['how']} join, memory {options['memory']}",
        caption=_caption(report),
    )
    for heading in ("batch", "contender", "seconds", "x identity", "x millrace", "worker MiB", "JVM MiB"):
        table.add_column(heading, justify="left" if heading == "contender" else "right", no_wrap=heading == "contender")
    for batch_rows in options["batch_rows"]:
        for result in report["results"]:
            if result["batch_rows"] == batch_rows:
                table.add_row(f"{batch_rows:,}", *_cells(result))
        table.add_section()
    return table


def lookups_table(report: dict[str, Any]) -> Table:
    table = enrich_table(report)
    ratios = report["one_pass_to_chained"]
    shares = [f"{_number(ratio)}x with {int(rows):,} rows a batch" for rows, ratio in ratios["millrace"].items()]
    floors = [f"{_number(ratio)}x" for ratio in ratios["identity"].values()]
    table.caption = (
        f"{_caption(report)} One call takes {', '.join(shares)} of the time of two; functions that look nothing up "
        f"{', '.join(floors)}."
    )
    return table


def growth_table(report: dict[str, Any]) -> Table:
    options = report["options"]
    table = Table(
        title=f"{options['batch_rows']:,} rows a batch, Zipf {options['zipf']:g}, table in the page cache",
        caption=_caption(report),
    )
    for heading in ("rows of R", "contender", "seconds", "growth", "x millrace", "worker MiB"):
        table.add_column(heading, justify="left" if heading == "contender" else "right", no_wrap=heading == "contender")
    for result in report["results"]:
        grown = report["growth"].get(result["contender"], {}).get(str(result["rows"]))
        name, seconds, _, ratio, worker, _ = _cells(result)
        table.add_row(f"{result['rows']:,}", name, seconds, _number(grown), ratio, worker)
    return table


def reads_table(report: dict[str, Any]) -> Table:
    data, costs = report["data"], report["unit_costs"]
    table = Table(
        title=f"R = {report['options']['rows']:,} rows in {data['pages']:,} pages of {data['page_bytes'] >> 10} KiB, "
        f"direct I/O; a seek {costs['seek_ms']} ms, sequential {costs['sequential_mb_per_second']:,} MB/s",
        caption="Median milliseconds that one task spends reading; x: times the cheaper of the two plain ways.",
    )
    headings = ("batch", "wanted pages", "sweep reads", "sweep ms", "one read a page ms", "sequential pass ms", "x cheaper")
    for heading in headings:
        table.add_column(heading, justify="right")
    for result in report["results"]:
        milliseconds = [f"{result['median_seconds'][way] * 1e3:,.1f}" for way in ("sweep", "random", "sequential")]
        wanted, reads = f"{result['wanted_pages']:,}", f"{result['reads']['sweep']:,}"
        table.add_row(f"{result['batch_rows']:,}", wanted, reads, *milliseconds, _number(result["ratio_to_the_cheaper"]))
    return table


def _cells(result: dict[str, Any]) -> tuple[str, str, str, str, str, str]:
    seconds = result["median_seconds"]
    return (
        result["contender"],
        f"{seconds:.3f}" if seconds is not None else _short(result["status"]),
        _number(result["ratio_to_identity_map"]),
        _number(result["ratio_to_millrace"]),
        _mebibytes(result["peak_worker_anon_bytes"]),
        _mebibytes(result["peak_jvm_rss_bytes"]),
    )


def _caption(report: dict[str, Any]) -> str:
    rows = "all row counts agree" if report["rows_agree"] else "ROW COUNTS DIFFER"
    sums = "all checksums agree" if report["checksums_agree"] else "CHECKSUMS DIFFER"
    return (
        f"{rows}, {sums}. Median seconds of warm micro-batches ({report['clock']}); x: times the median of identity "
        "mapInArrow or of millrace; worker: peak own memory (RssAnon) of one Python worker."
    )


def succeeded(report: dict[str, Any]) -> bool:
    """Whether the times may be believed: everyone gave the same rows and nobody failed."""
    failed = any(result["status"].startswith("failed") for result in report["results"])
    return bool(report["rows_agree"] and report["checksums_agree"] and not failed)


def _short(status: str) -> str:
    return status if status == OK or len(status) <= 40 else status[:39] + "…"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _mebibytes(value: int | None) -> str:
    return "" if value is None else f"{value / _MIB:,.0f}"
