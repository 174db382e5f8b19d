"""What millrace raises: one root, a few children, each message says what, the value, and what to do."""

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
    """The table, or the version of it that a batch needs, cannot be read by this library."""


class SpillError(MillraceError):
    """Temporary data could not be written or read back: the disk is full, or fails."""


class StrategyError(ParameterError):
    """The strategy is unknown, or cannot serve this join."""
