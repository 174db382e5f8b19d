"""Dates of the Julian calendar become the Gregorian dates of the same name. Spark's own: tests/spark/test_parquet_lakes.py."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

from millrace.core.errors import SchemaError
from millrace.relations.calendar import GREGORIAN_DAYS, Calendars, gregorian_days, rebased

EPOCH = dt.date(1970, 1, 1).toordinal()


def test_every_julian_day_of_the_common_era_becomes_the_day_of_its_name() -> None:
    days, expected = [], []
    day = -719_164  # 1 January of the year 1, Julian
    for year in range(1, 1583):
        lengths = [31, 29 if year % 4 == 0 else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
        for month, length in enumerate(lengths, 1):
            first = dt.date(year, month, 1).toordinal() - EPOCH
            days += range(day, day + length)
            expected += range(first, first + length)  # 29 February of a year without one is 1 March
            day += length
    days, expected = ([n for n, old in zip(some, days, strict=True) if old < GREGORIAN_DAYS] for some in (days, expected))
    assert days[-1] == GREGORIAN_DAYS - 1
    assert gregorian_days(np.array(days)).tolist() == expected


def test_only_old_dates_move_and_nulls_stay() -> None:
    column = pa.array([GREGORIAN_DAYS - 1, None, GREGORIAN_DAYS, 0], pa.int32()).view(pa.date32())
    dates = [dt.date(1582, 10, 4), None, dt.date(1582, 10, 15), dt.date(1970, 1, 1)]
    assert rebased(column, "LEGACY", "x").to_pylist() == dates
    assert rebased(column.slice(1), "LEGACY", "x").to_pylist() == dates[1:]
    assert rebased(column, "CORRECTED", "x") is column


@pytest.mark.parametrize(
    ("footer", "expected"),
    [
        (None, ("EXCEPTION", "EXCEPTION")),
        ({b"other": b""}, ("EXCEPTION", "EXCEPTION")),
        ({b"org.apache.spark.version": b"2.4.8"}, ("LEGACY", "LEGACY")),
        ({b"org.apache.spark.version": b"3.0.1"}, ("CORRECTED", "LEGACY")),
        ({b"org.apache.spark.version": b"3.5.1"}, ("CORRECTED", "CORRECTED")),
        ({b"org.apache.spark.version": b"4.0.0", b"org.apache.spark.legacyDateTime": b""}, ("LEGACY", "CORRECTED")),
        ({b"org.apache.spark.version": b"4.0.0", b"org.apache.spark.legacyINT96": b""}, ("CORRECTED", "LEGACY")),
    ],
)
def test_a_footer_says_by_which_calendar_a_file_counts(footer: dict[bytes, bytes] | None, expected: tuple[str, str]) -> None:
    found = Calendars("EXCEPTION", "EXCEPTION").of_file(footer)
    assert (found.datetimes, found.int96) == expected


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_only_values_that_are_old_are_refused_however_deep(unit: str) -> None:
    new, old = dt.datetime(1900, 1, 1), dt.datetime(1899, 12, 31, 23, 59, 59)
    plain = pa.timestamp(unit)
    for kind, wrap in (
        (plain, lambda value: value),
        (pa.list_(plain), lambda value: [None, value]),
        (pa.struct([("x", pa.list_(plain))]), lambda value: {"x": [value]}),
        (pa.map_(pa.string(), plain), lambda value: [("k", value)]),
    ):
        column = pa.array([wrap(new), None], kind)
        assert rebased(column, "LEGACY", "x") is column
        for mode in ("LEGACY", "EXCEPTION"):
            with pytest.raises(SchemaError, match="file, column 'c': "):
                rebased(pa.array([wrap(old), None], kind), mode, "file, column 'c'")  # type: ignore[arg-type]
