"""Errors of millrace: one root, a few children. Each message says what is wrong, the value, and what to do."""

from __future__ import annotations


class MillraceError(Exception):
    """Root of every error that millrace raises on purpose."""


class ParameterError(MillraceError, ValueError):
    """A parameter has a value that cannot be used."""


class BudgetError(MillraceError, MemoryError):
    """The memory budget is too small; `needed_bytes` says how much would do."""

    def __init__(self, message: str, needed_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes

    def __reduce__(self) -> tuple[type[BudgetError], tuple[str, int]]:
        return (type(self), (str(self), self.needed_bytes))


class SchemaError(MillraceError, TypeError):
    """A column is missing, or has a type that does not fit."""


class TableError(MillraceError):
    """A table folder is missing, half-written, or cannot be used."""


class DamagedTableError(TableError):
    """Bytes on disk are not what was written. Never treated as a missing key."""


class TableVersionError(TableError):
    """This version of millrace cannot read the table, or the table version that a batch needs."""


class RateError(MillraceError):
    """No setting is expected to keep up; `tuples_per_second` is the highest rate that can be had, `memory_bytes` with what."""

    def __init__(self, message: str, tuples_per_second: float, memory_bytes: int) -> None:
        super().__init__(message)
        self.tuples_per_second = tuples_per_second
        self.memory_bytes = memory_bytes

    def __reduce__(self) -> tuple[type[RateError], tuple[str, float, int]]:
        return (type(self), (str(self), self.tuples_per_second, self.memory_bytes))


class SpillError(MillraceError):
    """Temporary data could not be written or read back: the disk is full, or fails."""


class StrategyError(ParameterError):
    """The strategy is unknown, or cannot serve this join."""


def interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is the cause of an error. A call to the JVM that is cut short raises an error of its own, and so may the
    clean-up after the call."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False
