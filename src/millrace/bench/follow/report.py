"""Results of `bench follow` for people."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table

from millrace.bench.follow.follow import changes_of
from millrace.bench.joins.joins import OK, JoinProgress

_HEADINGS = ("device", "strategy", "phase", "Zipf", "before/s", "at first/s", "followed/s", "fresh/s", "x before", "x fresh",
             "settings")  # fmt: skip


@contextmanager
def follow_progress(console: Console) -> Iterator[JoinProgress]:
    """A line for each phase."""

    def finished(result: dict[str, Any]) -> None:
        outcome = f"{result['followed']:,.0f} tuples/s" if result["status"] == OK else result["status"]
        console.print(f"{result['device']}, {result['strategy']}, phase {result.get('phase', '')}: {outcome}", highlight=False)

    yield JoinProgress(say=lambda text: console.print(f"... {text}", highlight=False), finished=finished)


def follow_table(report: dict[str, Any]) -> Table:
    table = Table(title="Settings that follow a stream whose skew changes", caption=_caption(report))
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading in ("device", "strategy", "settings") else "right")
    for result in report["results"]:
        table.add_row(result["device"], result["strategy"], *_columns(result))
    return table


def _columns(result: dict[str, Any]) -> list[str]:
    if result["status"] != OK:
        return [result["status"]]
    rates = [f"{result[name]:,.0f}" for name in ("before", "at_first", "followed", "fresh")]
    ratios = [f"{result[name]:.2f}" for name in ("followed_to_before", "followed_to_fresh")]
    return [str(result["phase"]), f"{result['zipf']:g}", *rates, *ratios, result["settings"]]


def _caption(report: dict[str, Any]) -> str:
    rows = "every tuple was joined once, with its row" if report["rows_agree"] else "ROWS ARE WRONG"
    about = "before: best settings of the phase before, kept. fresh: a new join, told the skew of this phase"
    changes = "; ".join(changes_of(report["results"])) or "none"
    return f"{rows}. {about}. Changes: {changes}."
