"""A profile of compiled kernels: the processor time that each takes when Python calls it.

What a kernel calls in turn is compiled into it, and its own. Kernels must have been called before: while they are timed,
one that has to be compiled would find timers in place of the kernels it calls.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from types import ModuleType
from typing import Any

from numba.extending import is_jitted


class KernelTimes:
    """Seconds by kernel. Nothing counts as long as `left_out` says so."""

    def __init__(self, left_out: Callable[[], bool]) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._left_out = left_out

    def timed(self, kernel: Any) -> Callable[..., Any]:
        function = kernel.py_func
        name = f"{function.__module__.removeprefix('millrace.')}.{function.__name__}"

        def call(*arguments: Any) -> Any:
            before = time.thread_time()
            result = kernel(*arguments)
            if not self._left_out():
                self.seconds[name] += time.thread_time() - before
            return result

        return update_wrapper(call, function)


@contextmanager
def kernels_timed(left_out: Callable[[], bool]) -> Iterator[KernelTimes]:
    """Time every kernel of millrace that has been called so far."""
    times = KernelTimes(left_out)
    kernels = [(module, name, value) for module in _modules() for name, value in vars(module).items() if _was_called(value)]
    for module, name, value in kernels:
        setattr(module, name, times.timed(value))
    try:
        yield times
    finally:
        for module, name, value in kernels:
            setattr(module, name, value)


def _modules() -> list[ModuleType]:
    return [module for name, module in sys.modules.items() if name.startswith("millrace.")]


def _was_called(value: Any) -> bool:
    return is_jitted(value) and bool(value.signatures)
