"""One byte budget for a whole join. Every array is handed out by name, and the total cannot pass the limit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from millrace.core.errors import BudgetError, ParameterError

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MOST_BYTES = 1 << 50
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*", re.IGNORECASE)


def parse_bytes(size: int | str) -> int:
    """Bytes of a size such as `268435456`, `"256m"`, `"1.5 GiB"`; units are powers of 1024, as in Spark's settings.

    >>> parse_bytes("256m"), parse_bytes("1.5 GiB"), parse_bytes(4096)
    (268435456, 1610612736, 4096)
    """
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise ParameterError(f"a size is a number of bytes or a text such as '256m'; got {size!r}")
    if isinstance(size, int):
        count = size
    else:
        found = _SIZE.fullmatch(size)
        if not found:
            raise ParameterError(f"can't read {size!r} as a size; write a number of bytes or a text such as '256m'")
        count = int(float(found[1]) * _UNITS[found[2].lower()])
    if count <= 0:
        raise ParameterError(f"a size must be more than zero bytes; got {size!r}")
    if count > _MOST_BYTES:
        raise ParameterError(f"a size must be {format_bytes(_MOST_BYTES)} at most; got {size!r}")
    return count


def format_bytes(count: int) -> str:
    """A size as people write it.

    >>> format_bytes(268435456), format_bytes(1000)
    ('256.0 MiB', '1000 B')
    """
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


class Budget:
    """Bytes that one join may hold, reserved by name.

    >>> budget = Budget("1k")
    >>> codes = budget.array("window codes", 64, np.int64)
    >>> budget.used_bytes, budget.free_bytes
    (512, 512)
    """

    def __init__(self, memory_bytes: int | str) -> None:
        self.memory_bytes = parse_bytes(memory_bytes)
        self.peak_bytes = 0
        self._reserved: dict[str, int] = {}

    @property
    def used_bytes(self) -> int:
        return sum(self._reserved.values())

    @property
    def free_bytes(self) -> int:
        return self.memory_bytes - self.used_bytes

    def reserve(self, name: str, count: int) -> None:
        """Set what `name` holds to `count` bytes. If the budget is too small, the error says what is needed."""
        others = self.used_bytes - self._reserved.get(name, 0)
        if others + count > self.memory_bytes:
            needed = others + count
            raise BudgetError(
                f"the memory budget of {format_bytes(self.memory_bytes)} is too small: {name} needs "
                f"{format_bytes(count)} beside {format_bytes(others)} in use; give memory={needed} or more",
                needed,
            )
        self._reserved[name] = count
        self.peak_bytes = max(self.peak_bytes, others + count)

    def reserve_all(self, counts: Mapping[str, int]) -> None:
        """Set what several names hold. If one does not fit, all stay as they were."""
        before = dict(self._reserved)
        try:
            for name, count in counts.items():
                self.reserve(name, count)
        except BudgetError:
            self._reserved = before
            raise

    def release(self, name: str) -> None:
        self._reserved.pop(name, None)

    def array(self, name: str, length: int, dtype: Any) -> np.ndarray[Any, Any]:
        """A zeroed array that counts against the budget until `release(name)`."""
        self.reserve(name, length * np.dtype(dtype).itemsize)
        return np.zeros(length, dtype)

    def holdings(self) -> dict[str, int]:
        """Bytes by name, largest first."""
        return dict(sorted(self._reserved.items(), key=lambda item: -item[1]))
