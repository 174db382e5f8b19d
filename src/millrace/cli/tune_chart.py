"""The picture of `millrace tune --plot`: the expected rate over each size, one panel for each parameter.

The setting that is chosen is a dot; its neighbours, the closest that were tried, are rings. A line that is flat round its dot
says that the exact size does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from millrace.core.errors import MillraceError, ParameterError
from millrace.tuning.tuners import Point, Tuned

FORMATS = (".png", ".svg", ".pdf")
_PANELS = {
    "buffer_pages": "pages of the disk buffer",
    "pinned_pages": "pinned pages",
    "cache_share": "share of the memory for the cache",
}
_PANEL_INCHES = 6.4, 5.0
_FEW_PAGES = 10  # from here on the axis is logarithmic
_DOTS_PER_INCH = 120


def check_plotting(path: Path) -> None:
    """An error before anything is computed, if no picture can be drawn there."""
    if path.suffix.lower() not in FORMATS:
        raise ParameterError(f"--plot must name a file that ends in {', '.join(FORMATS)}; got {path}")
    if not path.absolute().parent.is_dir():
        raise ParameterError(f"there is no folder {path.absolute().parent} for the picture")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise MillraceError("--plot needs matplotlib, which is not installed: pip install 'millrace-spark[plot]'") from None


def draw_tuning(tuned: Sequence[Tuned], path: Path, title: str) -> None:
    """Every curve of every join, by parameter."""
    from matplotlib.figure import Figure

    panels = [name for name in _PANELS if any(_drawn(one, name) for one in tuned)]
    if not panels:
        raise ParameterError("there is no curve to draw: the joins named have no size that is a number")
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width * len(panels), height), dpi=_DOTS_PER_INCH, layout="constrained")
    figure.suptitle(f"Expected rate for {title} (dot: chosen, rings: its neighbours)")
    colours = {one.strategy: f"C{number % 10}" for number, one in enumerate(tuned)}
    for axes, name in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _panel(axes, name, [one for one in tuned if _drawn(one, name)], colours)
    figure.savefig(path)


def _drawn(one: Tuned, name: str) -> bool:
    return len(one.curves.get(name, ())) > 1


def _panel(axes: Any, name: str, tuned: Sequence[Tuned], colours: Mapping[str, str]) -> None:
    for one in tuned:
        curve, chosen, colour = one.curves[name], _chosen(one, name), colours[one.strategy]
        axes.plot(*zip(*curve, strict=True), linewidth=1.6, color=colour)
        for point in _neighbours(curve, chosen.value):
            axes.plot(*point, "o", color=colour, markerfacecolor="white", markersize=5)
        axes.plot(*chosen, "o", color=colour, markersize=8, label=f"{one.strategy}: {_number(chosen.value)}")
    if name != "cache_share" and max(point.value for one in tuned for point in one.curves[name]) > _FEW_PAGES:
        axes.set_xscale("symlog", linthresh=1, base=2)
        axes.xaxis.set_major_formatter(lambda value, _: _number(value))
    axes.set_xlabel(_PANELS[name])
    axes.set_ylabel("rows per second")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False, fontsize=9)


def _chosen(one: Tuned, name: str) -> Point:
    """What is chosen, whether or not it is one of the settings that were tried."""
    found = one.chosen.expected.settings.get(name, one.parameters.get(name))
    if found is None:
        return max(one.curves[name], key=lambda point: point.tuples_per_second)
    return Point(float(found), one.chosen.tuples_per_second)


def _neighbours(curve: Sequence[Point], value: float) -> list[Point]:
    below, above = [point for point in curve if point.value < value], [point for point in curve if point.value > value]
    return below[-1:] + above[:1]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:.2f}"
