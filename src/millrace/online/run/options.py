"""What an engine is given: what was asked, and how it is to be answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.online.question.aggregations import Aggregation
from millrace.online.sampling.row_order import Chosen
from millrace.online.statistics.intervals import IntervalRule


@dataclass(frozen=True)
class Asked:
    """What was asked, as it was given; `Question` checks it against the tables."""

    left: Any
    right: Any
    on: Any
    aggregations: Mapping[str, Aggregation]
    group_by: Any = None
    where: Any = None


@dataclass(frozen=True)
class Options:
    """How it is to be answered; checked by whoever makes them."""

    memory_bytes: int
    seed: int
    rule: IntervalRule
    order: Chosen
    target: float  # relative half-width that forecasts are about
    every: float  # seconds between reports, at least
    threads: int
    spill: str | Path | None  # folder for temporary data
    spill_limit_bytes: int | None
