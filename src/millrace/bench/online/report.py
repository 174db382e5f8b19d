"""Results of `bench online` for people."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table


def online_tables(report: dict[str, Any]) -> Group:
    return Group(
        _ends("10 GB x 10 GB, 500 MB, temporary data on a disk", report["disk"]),
        _ends("the same, temporary data on an SSD", report["ssd"]),
        _rates(report["rates"]),
        _models(report["models"]),
        *(_stream(found) for found in report["streams"]),
        _checks(report["checks"]),
    )


def _table(title: str, headings: str, caption: str | None = None) -> Table:
    table = Table(title=title, caption=caption)
    for number, heading in enumerate(headings.split(" | ")):
        table.add_column(heading, justify="right" if number else "left")
    return table


def _ends(title: str, rows: list[dict[str, Any]]) -> Table:
    table = _table(title, "join | seconds | x GRACE | x PR-Join | written | read again | first report | reports",
                   "Virtual seconds; written and read again: temporary data over the input.")  # fmt: skip
    for row in rows:
        table.add_row(
            row["join"], f"{row['seconds']:,.0f}", f"{row['x_grace']:.2f}", f"{row['x_prjoin']:.2f}",
            f"{row['temporary_written_share']:.2f}", f"{row['temporary_read_share']:.2f}",
            f"{row['first_report_seconds']:,.1f}", f"{row['reports']:,}",
        )  # fmt: skip
    return table


def _rates(rates: list[dict[str, Any]]) -> Table:
    table = _table(
        "PR-Join's results per second while the input is read", "device | stop | j | x c | at least | x Ripple",
        "j: while the input read grows from 2^j to 2^(j+1) times what memory holds. x Ripple: in the same seconds.",
    )  # fmt: skip
    for found in rates:
        for row in found["windows"]:
            c, bound = (f"{row[name]:.1f}" if name in row else "" for name in ("x_c", "bound"))
            table.add_row(found["device"], "on" if found["stop"] else "off", str(row["j"]), c, bound, f"{row['x_ripple']:.1f}")
    return table


def _models(rows: list[dict[str, Any]]) -> Table:
    table = _table(
        "Beside the equations, without overlap", "join | device | F | seconds | model | off | pages read | model | off"
    )
    for row in rows:
        cells = [
            text
            for what in ("seconds", "read_pages")
            for text in (f"{row[what]:,.0f}", f"{row['model_' + what]:,.0f}", f"{row[what + '_error']:+.1%}")
        ]
        table.add_row(row["join"], row["device"], f"{row['fudge_factor']:.2f}", *cells)
    return table


def _stream(found: dict[str, Any]) -> Table:
    shares = [f"{share:.0%}" for share in found["shares_of_that_time"]]
    table = _table(
        f"{found['streams']} streams of {found['end_of_streams_seconds']:,.0f} s", " | ".join(["join", *shares, "end"]),
        "Share of all results by so much of that time; seconds to the end.",
    )  # fmt: skip
    for name, run in found["joins"].items():
        table.add_row(name, *(f"{at / max(1, run['results']):.1%}" for at in run["results_at"]), f"{run['seconds']:,.1f}")
    return table


def _checks(checks: list[dict[str, Any]]) -> Table:
    table = _table("Checks", "claim | figure | at | bound | holds")
    for row in checks:
        table.add_row(
            row["claim"], f"{row['figure']:.3f}", row["at"], f"{row['bound']:.3f}", "yes" if row["holds"] else "[red]no[/red]"
        )
    return table
