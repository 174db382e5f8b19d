"""What the demo shows: a line when a stage is done, a line per micro-batch, and a table at the end.

The lines are the same in a terminal and in a file; only the spinner needs a terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from millrace.core.step import StepCounts
from millrace.core.wording import format_seconds

_HEADER = f"{'batch':>7} {'sales':>9} {'Spark join':>12} {'millrace':>12}   {'Spark / millrace':<16}"


@dataclass(frozen=True)
class Batch:
    """One micro-batch, taken by both."""

    number: int
    sales: int
    spark_seconds: float
    seconds: float
    counts: StepCounts
    memory_bytes: int
    disk_reads: int
    disk_bytes: int
    warming_up: bool

    @property
    def ratio(self) -> float:
        return self.spark_seconds / self.seconds if self.seconds else 0.0


@dataclass
class Totals:
    """The micro-batches so far. Times leave out the warm-up, unless there are no other micro-batches."""

    batches: list[Batch] = field(default_factory=list)

    @property
    def counted(self) -> list[Batch]:
        return [batch for batch in self.batches if not batch.warming_up] or self.batches

    @property
    def counts(self) -> StepCounts:
        return sum((batch.counts for batch in self.batches), StepCounts())

    @property
    def seconds(self) -> float:
        return sum(batch.seconds for batch in self.counted)

    @property
    def spark_seconds(self) -> float:
        return sum(batch.spark_seconds for batch in self.counted)

    @property
    def ratio(self) -> float:
        """How many times as long Spark's own join took."""
        return self.spark_seconds / self.seconds if self.seconds else 0.0

    @property
    def sales(self) -> int:
        return sum(batch.sales for batch in self.counted)

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
        """A stage of the demo. The text given to the callable is shown behind the stage's time at its end."""
        told = [doing]
        before = time.monotonic()
        with self.waiting(doing):
            yield told.append
        self.say(f"[green]done[/green] {time.monotonic() - before:5.1f} s  {told[-1]}")

    @contextmanager
    def waiting(self, doing: str) -> Iterator[None]:
        """A spinner, in a terminal."""
        if self._console.is_terminal:
            with self._console.status(f"{doing} ..."):
                yield
        else:
            yield

    def header(self) -> None:
        self.say(f"[bold]{_HEADER}[/bold]")

    def batch(self, batch: Batch) -> None:
        ratio = "warming up" if batch.warming_up else f"{batch.ratio:.1f} x"
        self.say(
            f"{batch.number:>7} {batch.sales:>9,} {format_seconds(batch.spark_seconds):>12} "
            f"{format_seconds(batch.seconds):>12}   {ratio}"
        )

    def table(self, title: str, rows: list[tuple[str, str]]) -> None:
        table = Table(title=title, title_justify="left", show_header=False, min_width=60)
        table.add_column(style="bold")
        table.add_column()
        for name, value in rows:
            table.add_row(name, value)
        self._console.print(table)
