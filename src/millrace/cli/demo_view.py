"""What the demo shows: a line when a stage is done, a line per micro-batch, a bar while sales flow, and a table at the end.

The lines are the same in a terminal and in a file; only spinner and bar need a terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.table import Table

from millrace.core.budget import format_bytes
from millrace.core.step import StepCounts

_HEADER = f"{'batch':>7} {'rows':>9} {'rows/s':>9} {'matched':>9} {'unmatched':>9} {'waiting':>7} {'pages':>7} {'memory':>10}"


@dataclass(frozen=True)
class Batch:
    """One micro-batch as the demo shows it."""

    number: int
    seconds: float
    counts: StepCounts
    waiting: int
    memory_bytes: int
    disk_reads: int
    disk_bytes: int

    @property
    def rows_per_second(self) -> float:
        return self.counts.tuples_in / self.seconds if self.seconds else 0.0


@dataclass
class Totals:
    """The micro-batches so far."""

    batches: list[Batch] = field(default_factory=list)

    @property
    def counts(self) -> StepCounts:
        return sum((batch.counts for batch in self.batches), StepCounts())

    @property
    def seconds(self) -> float:
        return sum(batch.seconds for batch in self.batches)

    @property
    def memory_bytes(self) -> int:
        return max((batch.memory_bytes for batch in self.batches), default=0)


class DemoView:
    """Writes to a console, line by line."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    @contextmanager
    def stage(self, doing: str) -> Iterator[Callable[[str], None]]:
        """A stage of the demo; what is given to the callable stands behind its time when it is done."""
        told = [doing]
        before = time.monotonic()
        if self._console.is_terminal:
            with self._console.status(f"{doing} ..."):
                yield told.append
        else:
            yield told.append
        self.say(f"[green]done[/green] {time.monotonic() - before:5.1f} s  {told[-1]}")

    @contextmanager
    def stream(self, sales: int) -> Iterator[FlowView]:
        """The streaming stage."""
        self.say(f"[bold]{_HEADER}[/bold]")
        bar = Progress(
            SpinnerColumn(),
            TextColumn("sales through"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[backlog]:,} not yet taken up"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        with bar:
            yield FlowView(self, bar, bar.add_task("sales", total=sales, backlog=0))

    def table(self, title: str, rows: list[tuple[str, str]]) -> None:
        table = Table(title=title, title_justify="left", show_header=False, min_width=60)
        table.add_column(style="bold")
        table.add_column()
        for name, value in rows:
            table.add_row(name, value)
        self._console.print(table)


@dataclass
class FlowView:
    """Micro-batches as they come."""

    view: DemoView
    bar: Progress
    task: TaskID

    def batch(self, batch: Batch) -> None:
        counts = batch.counts
        self.view.say(
            f"{batch.number:>7} {counts.tuples_in:>9,} {batch.rows_per_second:>9,.0f} {counts.matched:>9,} "
            f"{counts.unmatched:>9,} {batch.waiting:>7,} {counts.pages_read:>7,} {format_bytes(batch.memory_bytes):>10}"
        )

    def flow(self, through: int, landed: int) -> None:
        self.bar.update(self.task, completed=through, backlog=landed - through)
