"""Ctrl-C and SIGTERM end a run the same way, wherever they come."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from types import FrameType
from typing import Any


def treat_sigterm_as_interrupt() -> None:
    """SIGINT too: a shell makes its background jobs ignore it, and Python then does not listen.

    Python drops an interrupt that comes inside a `__del__` or the callback of a weak reference. Such an interrupt is sent
    once more, a moment later.
    """
    signal.signal(signal.SIGTERM, _as_interrupt)
    signal.signal(signal.SIGINT, _as_interrupt)
    sys.unraisablehook = _not_lost


def _as_interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def _not_lost(dropped: Any) -> None:
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        again = threading.Timer(0.1, _thread.interrupt_main)  # from here it would be dropped, too
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(dropped)
