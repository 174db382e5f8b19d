"""Checks of generator parameters: each says what is wrong, the value, and what would do."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

from millrace.core.errors import ParameterError

# Above this, float64 positions in the domain lose whole keys, and absent keys (domain + key) still fit int64 easily.
LARGEST_DOMAIN = 1 << 48


def check_whole(name: str, value: int, least: int, most: int | None = None) -> None:
    """`value` is a whole number from `least` to `most`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ParameterError(f"{name} must be a whole number; got {value!r}") from None
    if isinstance(value, bool):
        raise ParameterError(f"{name} must be a whole number; got {value!r}")
    if number < least or (most is not None and number > most):
        span = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ParameterError(f"{name} must be {span}; got {value!r}")


def check_number(name: str, value: float, least: float, most: float = math.inf, *, open_below: bool = False) -> None:
    """`value` is finite and lies from `least` (excluded when `open_below`) to `most`."""
    try:
        finite = math.isfinite(value) and not isinstance(value, bool)
    except TypeError:
        finite = False
    if not finite:
        raise ParameterError(f"{name} must be a finite number; got {value!r}")
    if value < least or value > most or (open_below and value == least):
        low = f"more than {least:g}" if open_below else f"at least {least:g}"
        high = "" if most == math.inf else f" and at most {most:g}"
        raise ParameterError(f"{name} must be {low}{high}; got {value!r}")


def check_name(name: str, value: object, taken: Sequence[str]) -> None:
    """`value` is a column name that is not taken."""
    if not isinstance(value, str) or value in ("", *taken):
        raise ParameterError(f"{name} must be a name other than {', '.join(taken)}; got {value!r}")


def check_domain(domain: int, least: int = 1) -> None:
    check_whole("domain", domain, least, LARGEST_DOMAIN)


def check_seed(seed: int) -> None:
    check_whole("seed", seed, 0)
