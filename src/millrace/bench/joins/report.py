"""Results of `bench joins` for people."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table

from millrace.bench.joins.joins import OK, JoinProgress
from millrace.core.wording import counted

_HEADINGS = (
    "device", "rows", "memory", "Zipf", "join", "tuples/s", "x inlj", "x pool", "x plain (bound)", "in front (ideal)",
    "pages/1k", "seeks/1k", "processing p50/p95/p99", "waiting p50/p95/p99", "used", "CPU ns", "kernels ns",
)  # fmt: skip


@contextmanager
def joins_progress(console: Console) -> Iterator[JoinProgress]:
    """A line that says what runs now, or several where it can't be changed, and one line for each result."""

    def say(text: str) -> None:
        if console.is_terminal:
            status.update(text)
        else:
            console.print(f"... {text}", highlight=False)

    with console.status("starting", refresh_per_second=2) as status:

        def finished(result: dict[str, Any]) -> None:
            cell = f"{result['device']}, {result['rows']:,} rows, {result['memory']}, Zipf {result['zipf']:g}"
            outcome = f"{result['tuples_per_second']:,.0f} tuples/s" if result["status"] == OK else result["status"]
            console.print(f"{cell}, {result['join']}: {outcome}", highlight=False)

        yield JoinProgress(say=say, finished=finished)


def joins_table(report: dict[str, Any]) -> Table:
    options = report["options"]
    table = Table(
        title=f"Rows of {options['row_bytes']} bytes in pages of {options['page_bytes'] >> 10} KiB, "
        f"hot keys {options['hot_keys']}, {options['overlap']} reads on simulated devices",
        caption=_caption(report),
    )
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading in ("device", "join") else "right")
    last = None
    for result in report["results"]:
        cell = [result["device"], f"{result['rows']:,}", result["memory"], f"{result['zipf']:g}"]
        if last is not None and cell != last:
            table.add_section()
        table.add_row(*cell, result["join"], *_cells(result))
        last = cell
    return table


def _cells(result: dict[str, Any]) -> list[str]:
    if result["status"] != OK:
        return [result["status"]]
    return [
        f"{result['tuples_per_second']:,.0f}",
        _ratio(result["ratio_to_inlj"]),
        _ratio(result["ratio_to_inlj_pool"]),
        *_front(result),
        f"{result['pages_per_tuple'] * 1000:,.1f}",
        f"{result['seeks_per_tuple'] * 1000:,.2f}",
        _times(result["processing_seconds"]),
        _times(result["paced"]["waiting_seconds"]),
        f"{result['peak_bytes'] / result['memory_bytes']:.0%}",
        f"{result['cpu_ns_per_tuple']:,.0f}",
        f"{result['kernel_ns_per_tuple']:,.0f}" if "kernel_ns_per_tuple" in result else "",
    ]


def _front(result: dict[str, Any]) -> tuple[str, str]:
    """A cached join beside its plain form, and what is answered in front; in brackets what an ideal front stage would do."""
    plain, front = _ratio(result["ratio_to_plain"]), result["front"]
    if front is None:
        return plain, ""
    bound = front["ideal_ratio_to_plain"]
    if plain and bound is not None:
        plain = f"{plain} ({bound:,.1f})"
    return plain, f"{front['answered_share']:.0%} ({front['ideal_answered_share']:.0%})"


def _caption(report: dict[str, Any]) -> str:
    rows = "every tuple came out once, with its row" if report["rows_agree"] else "ROWS ARE WRONG"
    swept = [cell["sweepjoin_to_the_better"] for cell in report["cells"] if cell["sweepjoin_to_the_better"] is not None]
    least = (
        f" sweepjoin: at least {min(swept):.2f}x the better of meshjoin and hybridjoin in {counted(len(swept), 'cell')}."
        if swept
        else ""
    )
    return (
        f"{rows}. pages, seeks: per 1,000 tuples; processing: entry to leaving, at full speed; waiting: arrival to entry, at "
        f"{report['options']['load']:.0%} of it; used: of the budget; CPU, kernels: per tuple, beside reading; x plain: to the "
        "join without its front stage, beside what an ideal front stage of this size could give; in front: share of the "
        f"stream.{least}"
    )


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def _times(seconds: dict[str, float] | None) -> str:
    if seconds is None:
        return ""
    scale, unit = (1.0, "s") if seconds["p99"] >= 1 else (1e3, "ms")
    return "/".join(f"{seconds[name] * scale:.3g}" for name in ("p50", "p95", "p99")) + f" {unit}"
