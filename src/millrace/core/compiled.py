"""The decorators for compiled kernels, typed so that callers stay checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile to machine code on first use, keep the result on disk, and release the interpreter lock while running."""
    return cast(Function, numba.njit(cache=True, nogil=True)(function))


def inlined(function: Function) -> Function:
    """A helper that is copied into each kernel that uses it. A call per tuple that passes arrays would cost more."""
    return cast(Function, numba.njit(cache=True, nogil=True, inline="always")(function))
