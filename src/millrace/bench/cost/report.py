"""Results of `bench cost` for people: a table of all cells, and a picture of expected rates over measured ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from millrace.bench.joins.joins import OK
from millrace.bench.options import REAL_DISK
from millrace.core.errors import MillraceError, ParameterError

_HEADINGS = (
    "device", "rows", "memory", "Zipf", "join", "auto", "expected/s", "measured/s", "error", "at speed", "pages/1k", "seeks/1k",
    "in front",
)  # fmt: skip
_BANDS = ((0.1, "10 %"), (0.25, "25 %"))
_FORMATS = (".png", ".svg", ".pdf")


def cost_table(report: dict[str, Any]) -> Table:
    """Every cell, and below the errors by join."""
    table = Table(
        title="Expected and measured rates; counts: expected / measured; auto: what it takes, by the time of the best join",
        caption=_caption(report),
    )
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading in ("device", "join") else "right")
    last = None
    taken = {tuple(one[name] for name in ("device", "rows", "memory", "zipf")): one for one in report["choices"]}
    for result in report["results"]:
        cell = [result["device"], f"{result['rows']:,}", result["memory"], f"{result['zipf']:g}"]
        if last is not None and cell != last:
            table.add_section()
        choice = taken.get((result["device"], result["rows"], result["memory"], result["zipf"]))
        mark = f"{choice['ratio']:.2f}x" if choice is not None and choice["auto"] == result["join"] else ""
        table.add_row(*cell, result["join"], mark, *_cells(result))
        last = cell
    return table


def _cells(result: dict[str, Any]) -> list[str]:
    if result["status"] != OK:
        return [result["status"]]
    expected, measured = result["expected_each"], result["each"]
    front = (result["expected_answered_share"], result["answered_share"])
    return [
        f"{result['expected_tuples_per_second']:,.0f}",
        f"{result['tuples_per_second']:,.0f}",
        f"{result['expected_tuples_per_second'] / result['tuples_per_second'] - 1:+.1%}"
        if result["in_stride"]
        else "still learning",
        f"{result['expected_at_speed'] / result['tuples_per_second'] - 1:+.1%}" if result["read_seconds_each"] else "",
        *(f"{1000 * expected[term]:,.2f} / {1000 * measured[term]:,.2f}" for term in ("pages_read", "seeks")),
        f"{front[0]:.0%} / {front[1]:.0%}" if any(front) else "",
    ]


def _caption(report: dict[str, Any]) -> str:
    rows = "every tuple came out once, with its row" if report["rows_agree"] else "ROWS ARE WRONG"
    lines = [f"{rows}. Error of the rate, median and worst, by device and join:"]
    for one in report["errors"]:
        at_speed = f"; at speed {one['median_at_speed']:.1%}, {one['worst_at_speed']:.1%}" if one["device"] == REAL_DISK else ""
        lines.append(
            f"{one['device']}, {one['join']}: {one['median']:.1%}, {one['worst']:.1%}{at_speed} ({one['cells']} cells)"
        )
    if report["choices"]:
        worst = max(report["choices"], key=lambda one: float(one["ratio"]))
        lines.append(
            f"auto takes at worst {worst['ratio']:.2f}x the time of the best join, in {len(report['choices'])} cells: "
            f"{worst['auto']} for {worst['best']} ({worst['device']}, {worst['rows']:,} rows, {worst['memory']}, "
            f"Zipf {worst['zipf']:g})"
        )
    return "\n".join(lines)


def check_picture(path: Path | None) -> None:
    """An error before the run, if no picture can be drawn there."""
    if path is None:
        return
    if path.suffix.lower() not in _FORMATS:
        raise ParameterError(f"--plot must name a file that ends in {', '.join(_FORMATS)}; got {path}")
    if not path.absolute().parent.is_dir():
        raise ParameterError(f"there is no folder {path.absolute().parent} for the picture")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise MillraceError("--plot needs matplotlib, which is not installed: pip install 'millrace-spark[plot]'") from None


def draw_costs(report: dict[str, Any], path: Path) -> None:
    """One panel for each device: a dot for each cell, with bands of 10 and 25 %."""
    from matplotlib.figure import Figure

    devices = [table["device"] for table in report["tables"]]
    devices = list(dict.fromkeys(devices))
    figure = Figure(figsize=(6.6 * len(devices), 6.0), dpi=120, layout="constrained")
    for axes, device in zip(figure.subplots(1, len(devices), squeeze=False)[0], devices, strict=True):
        found = [one for one in report["results"] if one["status"] == OK and one["device"] == device]
        _panel(axes, device, found)
    figure.savefig(path)


def _panel(axes: Any, device: str, found: list[dict[str, Any]]) -> None:
    axes.set(xscale="log", yscale="log", xlabel="measured tuples a second", ylabel="expected tuples a second", title=device)
    if not found:
        return
    measured = [one["tuples_per_second"] for one in found]
    ends = [min(measured) / 1.5, max(measured) * 1.5]
    axes.plot(ends, ends, color="0.4", linewidth=1)
    for share, name in reversed(_BANDS):
        axes.fill_between(ends, [end * (1 - share) for end in ends], [end * (1 + share) for end in ends],
                          color="0.6", alpha=0.25, linewidth=0, label=f"within {name}")  # fmt: skip
    joins = list(dict.fromkeys(one["join"] for one in found))
    markers = "osD^v<>Ph*X8p"
    for number, join in enumerate(joins):
        cells = [one for one in found if one["join"] == join]
        axes.plot(
            [one["tuples_per_second"] for one in cells], [one["expected_tuples_per_second"] for one in cells], linestyle="",
            marker=markers[number % len(markers)], markersize=5, alpha=0.8, color=f"C{number % 10}", label=join,
        )  # fmt: skip
    axes.legend(fontsize="small", ncols=2)
