"""What a check of `millrace doctor` finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "note", "warn", "fail"]  # a note: not in the way of anything on this machine


@dataclass(frozen=True)
class Finding:
    """One line: `found` says what was found, `advice` what to do, `values` the numbers."""

    name: str
    status: Status
    found: str
    advice: str = ""
    values: dict[str, Any] = field(default_factory=dict)
