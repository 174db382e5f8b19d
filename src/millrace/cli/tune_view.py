"""What `millrace tune` prints: one line for each join, in columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from millrace.core.budget import format_bytes
from millrace.core.wording import counted
from millrace.tuning.page_size import best_page
from millrace.tuning.tuners import Enough

if TYPE_CHECKING:
    from millrace.cli.tune import Line, Tuning

_LEAST_SHOWN = 0.005  # share of the memory
_ALIKE = 0.95  # of the best rate: sizes of pages that differ less are as good


def print_tuning(found: Tuning, console: Console) -> None:
    relation, arrivals = found.relation, found.options.arrivals
    _say(
        console,
        f"table {found.options.table}: {counted(relation.rows, 'row')} on {counted(relation.pages, 'page')} of at most "
        f"{format_bytes(relation.page_bytes)}",
    )
    _say(console, f"device {found.options.device}, memory {format_bytes(found.memory_bytes)} for each join; {found.skew}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name, justify in (("join", "left"), ("rows/s", "right"), ("sizes", "left"), ("to set", "left"), ("memory", "left")):
        table.add_column(name, justify=justify, no_wrap=name in ("join", "rows/s"))  # type: ignore[arg-type]
    table.add_column("pages per\n1,000 rows", justify="right")
    table.add_column("limited by")
    if arrivals is not None:
        for name in ("keeps\nup", "head-room", "least\nmemory"):
            table.add_column(name, justify="right", no_wrap=True)
    for line in found.lines:
        table.add_row(*_cells(line, arrivals))
    console.print(table)
    for name, reason in found.refused:
        _say(console, f"{name}: {reason}")
    _verdict(found, console)
    _say(console, "rates are those of one task whose window is always full; on Spark, millrace explain tells what auto takes")
    for note in found.notes:
        _say(console, f"note: {note}")


def _cells(line: Line, arrivals: float | None) -> list[str]:
    tuned, chosen = line.tuned, line.tuned.chosen
    cells = [
        tuned.strategy,
        f"{chosen.tuples_per_second:,.0f}",
        _settings(chosen.expected.settings),
        "\n".join(f"{name}={_plain(value)}" for name, value in tuned.chosen_parameters.items()) or "nothing",
        _split(chosen.expected.memory),
        _count(chosen.pages_per_1000_tuples),
        line.limited_by,
    ]
    if arrivals is not None:
        keeps_up = chosen.tuples_per_second >= arrivals
        least = format_bytes(line.enough.memory_bytes) if isinstance(line.enough, Enough) else "none"
        cells += ["yes" if keeps_up else "no", f"{chosen.tuples_per_second / arrivals:.2f}x", least]
    return cells


def _settings(settings: Mapping[str, float]) -> str:
    """The sizes that are numbers of something: a line for each."""
    return "\n".join(f"{name}={_plain(value)}" for name, value in settings.items() if value)


def _plain(value: object) -> str:
    if value is None:
        return "None (as many as fit)"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _count(value: float) -> str:
    """A number of pages.

    >>> _count(1012.6), _count(0.0312)
    ('1,013', '0.0312')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _split(memory: Mapping[str, int]) -> str:
    """Shares of the memory, the largest first."""
    whole = max(1, sum(memory.values()))
    shown = sorted(((part, held / whole) for part, held in memory.items()), key=lambda item: -item[1])
    return "\n".join(f"{part} {share:.0%}".replace("%", " %") for part, share in shown if share >= _LEAST_SHOWN)


def _verdict(found: Tuning, console: Console) -> None:
    best, arrivals = found.best.tuned, found.options.arrivals
    rate = best.chosen.tuples_per_second
    if arrivals is None:
        _say(console, f"fastest: {best.strategy}, about {rate:,.0f} rows a second in one task")
        return
    able = [line for line in found.lines if isinstance(line.enough, Enough)]
    if rate >= arrivals:
        _say(
            console,
            f"keeps up: {best.strategy} takes {rate / arrivals:.2f} times the {arrivals:,.0f} rows that arrive a second",
        )
    else:
        _say(console, f"does not keep up: {best.strategy} takes {rate:,.0f} of {arrivals:,.0f} rows that arrive a second")
    if able:
        least = min(able, key=lambda line: line.enough.memory_bytes if isinstance(line.enough, Enough) else 0)
        assert isinstance(least.enough, Enough)
        _say(console, f"least memory that keeps up: {format_bytes(least.enough.memory_bytes)}, with {least.tuned.strategy}")
    else:
        _say(console, f"no memory is enough: {found.best.enough}")


def print_page_sizes(found: Tuning, console: Console) -> None:
    best = best_page(found.pages)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("page", "rows/s", "of the best", "pages per 1,000 rows"):
        table.add_column(name, justify="right")
    top = best.forecast.tuples_per_second if best.forecast is not None else 1.0
    for one in found.pages:
        if one.forecast is None:
            table.add_row(format_bytes(one.page_bytes), one.why_not)
            continue
        rate = one.forecast.tuples_per_second
        pages = _count(one.forecast.pages_per_1000_tuples)
        table.add_row(format_bytes(one.page_bytes), f"{rate:,.0f}", f"{rate / top:.0%}".replace("%", " %"), pages)
    _say(console, f"sizes of pages for {found.best.tuned.strategy}:")
    console.print(table)
    rates = [one.forecast.tuples_per_second for one in found.pages if one.forecast is not None]
    if min(rates, default=top) >= _ALIKE * top:
        _say(console, "all of these sizes are about as good: keep the one you have")
    else:
        _say(console, f"best: {format_bytes(best.page_bytes)}; build the table anew with --page-bytes {best.page_bytes >> 10}k")


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
