"""Flat dataclasses of numbers and texts as JSON objects, and back. An unknown or missing name is an error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

Made = TypeVar("Made")


class UnreadableError(ValueError):
    """A JSON object is not what was written."""


def from_object(made: type[Made], values: Any) -> Made:
    """A dataclass of an object that has exactly its fields.

    >>> from millrace.core.calibration import ReadCosts
    >>> from_object(ReadCosts, {"seek": 0.1, "read_byte": 1e-9, "request": 0, "together": 2.0})
    ReadCosts(seek=0.1, read_byte=1e-09, request=0, together=2.0)
    """
    names = [field.name for field in fields(made)]  # type: ignore[arg-type]
    return made(**members(values, names))


def members(values: Any, names: list[str]) -> dict[str, Any]:
    """An object that must have exactly these names."""
    values = by_name(values)
    unknown, missing = set(values) - set(names), set(names) - set(values)
    if unknown or missing:
        raise UnreadableError(f"{'unknown' if unknown else 'missing'}: {', '.join(sorted(unknown or missing))}")
    return values


def by_name(values: Any) -> dict[str, Any]:
    """An object with any names."""
    if not isinstance(values, Mapping):
        raise UnreadableError(f"an object is expected; got {values!r}")
    return dict(values)


def number(value: Any) -> float:
    """A number that is zero or more, and finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise UnreadableError(f"a number is expected that is zero or more; got {value!r}")
    return float(value)


def numbers(made: Any) -> Any:
    """The dataclass itself; an error if one of its fields is not a number, or None where None is its default."""
    for field in fields(made):
        value = getattr(made, field.name)
        if not isinstance(value, tuple) and not (value is None and field.default is None):
            number(value)
    return made
