"""Results of `bench shedding` for people."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table

from millrace.bench.joins.joins import OK, JoinProgress

_HEADINGS = (
    "device", "rows", "memory", "hot keys", "join", "policy", "served/s", "x keep", "x full speed", "shed", "written", "read",
    "longest age",
)  # fmt: skip


@contextmanager
def shedding_progress(console: Console) -> Iterator[JoinProgress]:
    """A line for each result."""

    def finished(result: dict[str, Any]) -> None:
        outcome = f"{result['tuples_per_second']:,.0f} tuples/s" if result["status"] == OK else result["status"]
        where = f"{result['device']}, {result['memory']}, hot keys {result['hot_keys']}, {result['join']}"
        console.print(f"{where}, {result['policy']}: {outcome}", highlight=False)

    yield JoinProgress(finished=finished)


def shedding_table(report: dict[str, Any]) -> Table:
    options = report["options"]
    title = f"Tuples arrive at {options['overload']:g}x the full speed of each join, Zipf {options['zipf']:g}"
    table = Table(title=title, caption=_caption(report))
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading in ("device", "hot keys", "join", "policy") else "right")
    last = None
    for result in report["results"]:
        cell = [result["device"], f"{result['rows']:,}", result["memory"], result["hot_keys"], result["join"]]
        if last is not None and cell != last:
            table.add_section()
        table.add_row(*cell, result["policy"], *_columns(result))
        last = cell
    return table


def _columns(result: dict[str, Any]) -> list[str]:
    if result["status"] != OK:
        return [result["status"]]
    ratio = result["ratio_to_keep"]
    return [
        f"{result['tuples_per_second']:,.0f}",
        "" if ratio is None else f"{ratio:.2f}",
        f"{result['tuples_per_second'] / result['full_speed']:.2f}",
        f"{result['share_shed']:.0%}",
        f"{result['written_bytes'] / 1e6:,.1f} MB",
        f"{result['read_bytes'] / 1e6:,.1f} MB",
        f"{result['longest_age_seconds']:,.3g} s",
    ]


def _caption(report: dict[str, Any]) -> str:
    rows = "every tuple was joined once, with its row" if report["rows_agree"] else "ROWS ARE WRONG"
    if not report["cells_with_ours"]:
        return f"{rows}."
    return (
        f"{rows}, those of drop at most once. x full speed: to the join when it is offered all it takes; a policy that "
        "picks rich pages serves more. shed: of the arrivals of the measured time, below 0 if more came back; written, read: "
        "of what was shed, over the whole run; longest age: from arrival to leaving. "
        f"selective: median {report['ours_to_best_median']:.2f}x the best other policy that loses nothing, at least 0.95x in "
        f"{report['ours_at_least_0_95']} of {report['cells_with_ours']} cells."
    )
