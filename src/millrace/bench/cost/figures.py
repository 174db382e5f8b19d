"""`millrace bench cost-figures`: the papers' figures that follow from equations, as numbers and as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from millrace.bench.options import option
from millrace.core.errors import MillraceError, ParameterError
from millrace.tuning.figures import FIGURES, Figure

_INCHES, _DOTS_PER_INCH = (7.0, 4.6), 120
_FEW_POINTS = 10


@dataclass(frozen=True)
class CostFigureOptions:
    """Options of `bench cost-figures`."""

    figures: tuple[int, ...] = option((), "Numbers of figures, with commas. Empty: all.")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run_cost_figures(options: CostFigureOptions, plot: Path | None) -> dict[str, Any]:
    """Compute the series, and draw them into the folder `plot` if there is one."""
    if plot is not None:
        _check(plot)
    for number in options.figures:
        if number not in FIGURES:
            known = ", ".join(map(str, FIGURES))
            raise ParameterError(f"there is no figure {number} drawn from equations; choose from {known}")
    drawn = [make() for number, make in FIGURES.items() if not options.figures or number in options.figures]
    for figure in drawn if plot is not None else ():
        assert plot is not None
        draw_figure(figure, plot / f"{figure.number:02d}-{figure.name}.png")
    return {
        "benchmark": "cost-figures",
        "options": options.to_json(),
        "rows_agree": True,  # no row is joined
        "checksums_agree": True,
        "results": [{"status": "ok", **_plain(figure)} for figure in drawn],
    }


def figures_table(report: dict[str, Any]) -> Table:
    """One line for each series: where it is highest and lowest."""
    table = Table(title="figures drawn from equations", title_justify="left")
    for name in ("figure", "series", "from", "to", "highest", "at", "claim"):
        table.add_column(name, justify="left" if name in ("series", "claim", "figure") else "right")
    for figure in report["results"]:
        for name, points in figure["series"].items():
            top = max(points, key=lambda point: point[1])
            cells = (f"{points[0][1]:,.4g}", f"{points[-1][1]:,.4g}", f"{top[1]:,.4g}", f"{top[0]:,.4g}")
            table.add_row(f"{figure['number']} {figure['title']}", name, *cells, figure["claim"])
    return table


def draw_figure(figure: Figure, path: Path) -> None:
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    axes = picture.subplots()
    for name, points in figure.series.items():
        axes.plot(
            *zip(*points, strict=True), linewidth=1.6, marker="o" if len(points) <= len(figure.series) + 8 else "", label=name
        )
    if figure.logarithmic:
        axes.set_xscale("log")
    if _spread(figure) > 50:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_title(f"{figure.title}\n({figure.claim})", fontsize=10)
    axes.set_xlabel(figure.x)
    axes.set_ylabel(figure.y)
    axes.grid(alpha=0.3)
    if len(figure.series) > 1:
        axes.legend(fontsize=9)
    picture.savefig(path)


def _spread(figure: Figure) -> float:
    values: Sequence[float] = [point[1] for points in figure.series.values() for point in points]
    return max(values) / max(min(values), 1e-300)


def _check(plot: Path) -> None:
    if not plot.is_dir():
        raise ParameterError(f"there is no folder {plot} for the pictures")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise MillraceError("--plot needs matplotlib, which is not installed: pip install 'millrace-spark[plot]'") from None


def _plain(figure: Figure) -> dict[str, Any]:
    return {**asdict(figure), "series": {name: [list(point) for point in points] for name, points in figure.series.items()}}
