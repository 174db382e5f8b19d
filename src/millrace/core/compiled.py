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
    """A part of kernels that is copied into each of them: for what runs per tuple and takes arrays, a call costs more."""
    return cast(Function, numba.njit(cache=True, nogil=True, inline="always")(function))
