"""Dates and times of long ago, as Spark reads them from files of older versions.

Spark up to 2.4, Hive and newer Spark in LEGACY mode count days before 1582-10-15 by the Julian calendar; Arrow and Spark from
3.0 on count all days by the Gregorian. The footer of a file that Spark wrote says which it is; for files of other writers the
session says (`spark.sql.parquet.datetimeRebaseModeInRead`). Dates are moved to the day of the same name. Timestamps before 1900
depend on the history of a time zone as Java knew it too: a file that has such ones is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.arrays import Int64Array
from millrace.core.errors import ParameterError, SchemaError

Mode = Literal["CORRECTED", "LEGACY", "EXCEPTION"]

GREGORIAN_DAYS = -141_427  # 1582-10-15: from here on both calendars agree
MODERN_SECONDS = -2_208_988_800  # 1900-01-01 in UTC: from here on no timestamp is moved
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_VERSION, _DATES, _INT96 = (b"org.apache.spark." + name for name in (b"version", b"legacyDateTime", b"legacyINT96"))


@dataclass(frozen=True)
class Calendars:
    """How old dates and times are meant: where a file does not say, as the session says."""

    datetimes: Mode = "CORRECTED"
    int96: Mode = "CORRECTED"

    def __post_init__(self) -> None:
        for mode in (self.datetimes, self.int96):
            if mode not in ("CORRECTED", "LEGACY", "EXCEPTION"):
                raise ParameterError(f"a rebase mode is CORRECTED, LEGACY or EXCEPTION; got {mode!r}")

    def of_file(self, footer: Mapping[bytes, bytes] | None) -> Calendars:
        """Those of a file, by the key-value metadata of its footer."""
        version = (footer or {}).get(_VERSION)
        if version is None or footer is None:
            return self
        return Calendars(*(_mode(version < since or key in footer) for since, key in ((b"3.0.0", _DATES), (b"3.1.0", _INT96))))


def _mode(legacy: bool) -> Mode:
    return "LEGACY" if legacy else "CORRECTED"


def rebased(column: pa.Array, mode: Mode, where: str) -> pa.Array:
    """The column with old dates moved; an error that starts with `where` if there are old values that can't be."""
    if mode == "CORRECTED" or not _holds_old(column):
        return column
    if mode == "EXCEPTION":
        raise SchemaError(
            f"{where}: dates before 1582-10-15 or times before 1900, and neither file nor session says by which calendar; "
            "set spark.sql.parquet.datetimeRebaseModeInRead and int96RebaseModeInRead to CORRECTED or LEGACY"
        )
    if not pa.types.is_date32(column.type):
        raise SchemaError(
            f"{where}: {column.type} before 1900 (or dates before 1582-10-15 inside it) in the calendar of Spark 2.4 (LEGACY), "
            "which is not converted here; read the files with Spark and build a MasterTable, or leave the column out"
        )
    days = column.view(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    moved = np.where(days < GREGORIAN_DAYS, gregorian_days(np.minimum(days, GREGORIAN_DAYS)), days).astype(np.int32)
    missing = column.is_null().to_numpy(zero_copy_only=False)
    return pa.array(moved, pa.int32(), mask=missing).view(pa.date32())


def gregorian_days(days: Int64Array) -> Int64Array:
    """Days since 1970 of the Gregorian dates that are called as the Julian dates of these days are.

    Years are counted from March, so that the day that leap years have more is their last.
    """
    since = days + 719_470  # days since 0000-03-01, Julian
    cycle, day = np.divmod(since, 1_461)  # four years
    year = np.minimum(day // 365, 3)
    day = day - year * 365
    year = year + 4 * cycle
    century, rest = np.divmod(year, 100)
    # the Gregorian day of the same year, month and day: 29 February of a year that has none becomes 1 March, one day on
    quarter, odd = np.divmod(century, 4)
    found: Int64Array = quarter * 146_097 + odd * 36_524 + (rest // 4) * 1_461 + (rest % 4) * 365 + day - 719_468
    return found


def is_old(stored: int, kind: pa.DataType) -> bool:
    """Whether calendars differ about a date or a timestamp, given as it is stored."""
    if pa.types.is_date32(kind):
        return stored < GREGORIAN_DAYS
    return bool(pa.types.is_timestamp(kind)) and stored < MODERN_SECONDS * _PER_SECOND[kind.unit]


def has_times(kind: pa.DataType) -> bool:
    """Whether there are dates or timestamps in a column of this type, however deep inside."""
    if pa.types.is_dictionary(kind):
        return has_times(kind.value_type)
    if pa.types.is_nested(kind):
        return any(has_times(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_date32(kind) or pa.types.is_timestamp(kind))


def _holds_old(column: pa.Array) -> bool:
    kind = column.type
    if pa.types.is_struct(kind):
        return any(_holds_old(part) for part in column.flatten())
    if pa.types.is_map(kind):
        return _holds_old(column.keys) or _holds_old(column.items)
    if pa.types.is_nested(kind):
        return _holds_old(column.flatten())
    if not has_times(kind):
        return False
    oldest = pc.min(column.view(pa.int32() if pa.types.is_date32(kind) else pa.int64())).as_py()
    return oldest is not None and is_old(oldest, kind)
