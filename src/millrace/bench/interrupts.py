"""Ctrl-C and SIGTERM end a run the same way, and are told from failures."""

from __future__ import annotations

import signal
from types import FrameType


def interrupted(error: BaseException | None) -> bool:
    """Whether this is Ctrl-C in disguise: cleaning up after it fails too when the JVM has heard the signal as well."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def treat_sigterm_as_interrupt() -> None:
    """SIGINT too: a shell makes its background jobs ignore it, and Python then does not listen."""
    signal.signal(signal.SIGTERM, _as_interrupt)
    signal.signal(signal.SIGINT, _as_interrupt)


def _as_interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt
