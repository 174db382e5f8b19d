"""The one decorator for compiled kernels, typed so that callers stay checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile to machine code on first use, keep the result on disk, and release the interpreter lock while running."""
    return cast(Function, numba.njit(cache=True, nogil=True)(function))
