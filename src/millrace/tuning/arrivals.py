"""How fast rows arrive, as people state it."""

from __future__ import annotations

from typing import Any

from millrace.core.errors import ParameterError

MOST_ARRIVALS = 1e12


def checked_arrivals(given: Any, *, name: str = "arrivals_per_second", none_arrive: bool = True) -> float:
    """Rows a second; an error for what can't be meant. `none_arrive`: whether that may be 0.

    >>> checked_arrivals(50_000)
    50000.0
    """
    number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not number or not 0 <= given <= MOST_ARRIVALS or (given == 0 and not none_arrive):
        least = "0 or more" if none_arrive else "above 0"
        most = f", {MOST_ARRIVALS:,.0f} at most" if number and given > MOST_ARRIVALS else ""
        raise ParameterError(f"{name} must be a number of rows a second, {least}{most}; got {given!r}")
    return float(given)
