"""Ctrl-C and SIGTERM end a run the same way."""

from __future__ import annotations

import signal
from types import FrameType


def treat_sigterm_as_interrupt() -> None:
    """SIGINT too: a shell makes its background jobs ignore it, and Python then does not listen."""
    signal.signal(signal.SIGTERM, _as_interrupt)
    signal.signal(signal.SIGINT, _as_interrupt)


def _as_interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt
