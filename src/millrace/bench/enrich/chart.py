"""The chart of `millrace bench enrich-growth`, as SVG: seconds of a micro-batch against rows of the table.

Both axes are logarithmic: time that grows with the table is a slope, time that does not is a flat line.
Written by hand: a chart of three lines needs no library, and the file reads well in a diff.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Any

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 216, 58, 52
TITLES = {
    "spark-defaults": ("Spark's stream-static join", "#d9480f"),
    "spark-broadcast": ("the same, broadcast hint", "#f08c00"),
    "millrace-auto": ("millrace", "#0b7285"),
}
"""Name and colour of a line, by contender. Contenders that are not listed are not drawn."""

_LABEL_STEP = 17.0
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis: values from `low` to `high` on pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return round(self.start + share * (self.end - self.start), 1)

    @property
    def decades(self) -> list[float]:
        """Powers of ten on the axis.

        >>> Axis(0.1, 20, 0, 100).decades
        [0.1, 1.0, 10.0]
        """
        first, last = ceil(log10(self.low) - 1e-9), floor(log10(self.high) + 1e-9)
        return [10.0**power for power in range(first, last + 1)]


def growth_chart(report: Mapping[str, Any]) -> str:
    """The chart of a report of `run_growth`. Contenders without times at a size have no point there."""
    lines = _lines(report["results"])
    rows = [x for points in lines.values() for x, _ in points]
    seconds = [y for points in lines.values() for _, y in points]
    across = Axis(min(rows) / 1.15, max(rows) * 1.15, LEFT, WIDTH - RIGHT)
    up = Axis(10 ** floor(log10(min(seconds))), max(seconds) * 1.5, HEIGHT - BOTTOM, TOP)
    options = report["options"]
    title = f"Time of a micro-batch of {options['batch_rows']:,} rows, by size of the table"
    below = f"medians of {_batches(report)} micro-batches, {report['machine']['cores']} cores, both axes logarithmic"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="Helvetica, Arial, sans-serif">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#ffffff"/>',
        _text(LEFT - 44, 26, title, 16, "#212529", bold=True),
        _text(LEFT - 44, 44, below, 12, "#6c757d"),
        *_grid(across, up, sorted(set(rows))),
        *(_line(name, points, across, up) for name, points in lines.items()),
        *_labels(lines, up),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _lines(results: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    found: dict[str, list[tuple[float, float]]] = {}
    for result in results:
        if result["contender"] in TITLES and result["median_seconds"] is not None:
            found.setdefault(result["contender"], []).append((float(result["rows"]), float(result["median_seconds"])))
    return {name: sorted(points) for name, points in found.items()}


def _batches(report: Mapping[str, Any]) -> int:
    """Micro-batches behind the point that has the fewest."""
    return min(len(result["seconds"]) for result in report["results"] if result["median_seconds"] is not None)


def _grid(across: Axis, up: Axis, rows: Sequence[float]) -> list[str]:
    parts = []
    for value in up.decades:
        y = up.at(value)
        parts.append(f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="#dee2e6"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{value:g} s", 12, "#495057", anchor="end"))
    for value in rows:
        parts.append(_text(across.at(value), HEIGHT - BOTTOM + 20, short(value), 12, "#495057", anchor="middle"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(_text(middle, HEIGHT - BOTTOM + 40, "rows of the table, 120 bytes each", 12, "#495057", anchor="middle"))
    return parts


def _line(name: str, points: Points, across: Axis, up: Axis) -> str:
    colour = TITLES[name][1]
    places = [(across.at(x), up.at(y)) for x, y in points]
    path = " ".join(f"{x},{y}" for x, y in places)
    dots = "".join(f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"/>' for x, y in places)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>{dots}'


def _labels(lines: Mapping[str, Points], up: Axis) -> list[str]:
    """Beside the right edge, each at the height of the last point of its line; never one on top of another."""
    parts: list[str] = []
    lowest = float("-inf")
    for name, points in sorted(lines.items(), key=lambda line: up.at(line[1][-1][1])):
        title, colour = TITLES[name]
        rows, seconds = points[-1]
        wanted = up.at(seconds) + 4
        y = max(wanted, lowest + 2 * _LABEL_STEP + 4)
        parts.append(_text(WIDTH - RIGHT + 10, y, title, 13, colour, bold=True))
        parts.append(_text(WIDTH - RIGHT + 10, y + _LABEL_STEP, f"{seconds:.2g} s at {short(rows)} rows", 12, colour))
        lowest = y
    return parts


def short(number: float) -> str:
    """A number of rows in few letters.

    >>> short(300_000), short(10_000_000), short(2_500_000), short(500)
    ('300 k', '10 M', '2.5 M', '500')
    """
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:g}{unit}"
    return f"{number:g}"


def _text(x: float, y: float, text: str, size: int, colour: str, *, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
