"""Values looked up in ranges that lie apart: against a look at every range, and refused where ranges overlap."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.joins.examples import joined
from tests.relations.stored_tables import newest, stored

import millrace as mr
from millrace.catalog import make_join
from millrace.core.budget import Budget
from millrace.core.conditions import CLOSED, Between
from millrace.core.errors import SchemaError
from millrace.core.protocols import JoinSpec
from millrace.relations import range_lookup as ranges_module
from millrace.relations.range_lookup import RangesInPlace, serves
from millrace.relations.stored import StoredRelation


def opened(folder: Path, rows: pa.Table) -> StoredRelation:
    return stored(folder, rows, "low")


def table(bounds: list[tuple[int, int | None]]) -> pa.Table:
    names = [f"range {i}" for i in range(len(bounds))]
    lows, highs = pa.array([b[0] for b in bounds], pa.int64()), pa.array([b[1] for b in bounds], pa.int32())
    return pa.table({"low": lows, "high": highs, "name": names, "parts": [[i] for i in range(len(bounds))]})


def holds(value: Any, low: Any, high: Any, condition: Between) -> bool:
    if value is None or (high is None and not condition.open_ended):
        return False
    above = low <= value if condition.closed in ("both", "left") else low < value
    return above and (high is None or (value <= high if condition.closed in ("both", "right") else value < high))


@given(
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 4)), max_size=12),
    closed=st.sampled_from(CLOSED),
    open_ended=st.booleans(),
    last_open=st.booleans(),
)
def test_values_are_found_where_a_look_at_every_range_finds_them(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], closed: Any, open_ended: bool, last_open: bool
) -> None:
    """Ranges one behind the other, some empty, some touching, some the wrong way round."""
    bounds: list[tuple[int, int | None]] = []
    at, apart = 0, int(closed == "both")  # ranges that are open on one side may begin where another ends
    for gap, length in steps:
        bounds.append((at + gap, at + gap + length))
        at += gap + max(length, 0) + apart
    if last_open and bounds:
        bounds[-1] = (bounds[-1][0], None)
    condition = mr.between("x", "low", "high", closed=closed, open_ended=open_ended)
    relation = opened(tmp_path_factory.mktemp("ranges"), table(bounds))
    values = [None, *range(-2, at + 4)]
    lows = [low for low, _ in bounds]
    if len(set(lows)) < len(lows):
        assert not serves(relation, condition, pa.int64())
        return
    assert serves(relation, condition, pa.int64())
    ranges = RangesInPlace(relation, ("name", "low", "high", "parts"), condition, pa.int64())
    answer = ranges.look_up([pa.array(values, pa.int64())])
    for place, value in enumerate(values):
        wanted = [i for i, (low, high) in enumerate(bounds) if holds(value, low, high, condition)]
        got = [column[place].as_py() for column in answer.columns]
        assert len(wanted) <= 1
        assert got == ([f"range {wanted[0]}", *bounds[wanted[0]], [wanted[0]]] if wanted else [None] * 4)
    assert answer.counts.null_keys == 1
    assert answer.counts.condition_false == len(values) - 1 - int(answer.found.sum())
    assert ranges.reversed_ranges == sum(high is not None and high < low for low, high in bounds)


DAY, NOON = dt.date(2024, 1, 1), dt.datetime(2024, 1, 1, 12)
KINDS: list[tuple[pa.DataType, pa.DataType, Callable[[int], Any]]] = [
    (pa.int64(), pa.int32(), lambda n: n),
    (pa.int32(), pa.int16(), lambda n: n),
    (pa.date32(), pa.date32(), lambda n: DAY + dt.timedelta(days=n)),
    (pa.timestamp("us"), pa.timestamp("us"), lambda n: NOON + dt.timedelta(seconds=n)),
    (pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC"), lambda n: (NOON + dt.timedelta(seconds=n)).astimezone()),
    (pa.decimal128(9, 2), pa.decimal128(12, 2), lambda n: Decimal(n).scaleb(-2)),
    (pa.float64(), pa.float32(), lambda n: n / 4),
]
BOUNDS = st.tuples(st.integers(0, 14), st.none() | st.integers(-1, 15))


def _in_place(relation: StoredRelation, condition: Between, values: pa.Array) -> list[list[int]]:
    answer = RangesInPlace(relation, ("row",), condition, values.type).look_up([values])
    return [[] if row is None else [row] for row in answer.columns[0].to_pylist()]


def _scanned(relation: StoredRelation, condition: Between, values: pa.Array) -> list[list[int]]:
    """Rows of each value, by a join that reads every page."""
    stream = pa.record_batch([values, pa.array(range(len(values)))], ["x", "event"])
    spec = JoinSpec(stream.schema, (), "inner", ("event",), ("row",), condition)
    found: list[list[int]] = [[] for _ in range(len(values))]
    for step in joined(make_join("rmeshjoin", relation, spec, Budget("1m")), [stream]):
        for pair in step.output.to_pylist():
            found[pair["event"]].append(pair["row"])
    return [sorted(rows) for rows in found]


@given(
    kind=st.sampled_from(KINDS),
    bounds=st.lists(BOUNDS, max_size=9),
    apart=st.booleans(),
    closed=st.sampled_from(CLOSED),
    open_ended=st.booleans(),
    chunk=st.sampled_from([1, 2, 3, 1 << 16]),
)
@example(KINDS[0], [(0, 0), (1, 1), (2, 1), (2, 5)], False, "both", False, 3)  # one beginning, on both sides of a chunk's end
@example(KINDS[0], [(0, 0), (1, 1), (2, 5), (2, None)], False, "both", False, 3)
@example(KINDS[0], [(0, 0), (1, 1), (2, 2), (2, 5)], False, "left", True, 3)
@example(KINDS[0], [(0, 0), (1, 1), (2, None), (5, 5)], False, "left", True, 3)
def test_looked_up_or_scanned_every_value_is_found_in_all_ranges_that_hold_it(
    tmp_path_factory: pytest.TempPathFactory, kind: Any, bounds: list[Any], apart: bool, closed: Any, open_ended: bool,
    chunk: int,
) -> None:  # fmt: skip
    """Any ranges: with equal beginnings, the wrong way round, empty, without an end; looked at a few at a time."""
    if apart:  # of those with the same beginning one, and none longer than to the next beginning
        lows = sorted({low for low, _ in bounds})
        highs = dict(bounds)
        ends = [*[low - int(closed == "both") for low in lows[1:]], 15]
        bounds = [
            (low, end if highs[low] is None and low != lows[-1] else min(highs[low], end) if highs[low] is not None else None)
            for low, end in zip(lows, ends, strict=False)
        ]
    low_type, high_type, value = kind
    rows = pa.table({
        "low": pa.array([value(low) for low, _ in bounds], low_type),
        "high": pa.array([None if high is None else value(high) for _, high in bounds], high_type),
        "row": pa.array(range(len(bounds)), pa.int64()),
    })  # fmt: skip
    condition = mr.between("x", "low", "high", closed=closed, open_ended=open_ended)
    numbers = [None, *range(-2, 17)]
    values = pa.array([None if n is None else value(n) for n in numbers], low_type)
    wanted = [[row for row, (low, high) in enumerate(bounds) if holds(n, low, high, condition)] for n in numbers]
    relation = opened(tmp_path_factory.mktemp("ranges"), rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges_module, "_CHUNK_ROWS", chunk)
        looked_up = serves(relation, condition, low_type)
        assert not looked_up or _in_place(relation, condition, values) == wanted
    assert looked_up or not apart or pa.types.is_floating(low_type)
    assert _scanned(relation, condition, values) == wanted
    relation.close()


def _promoted(value: Any, group: str, zone: str) -> Any:
    """A value as Spark compares it, made with nothing that the package uses."""
    if group == "decimal":
        return Decimal(value)
    if group == "float":
        return float(value)
    if type(value) is dt.date:
        value = dt.datetime.combine(value, dt.time())
    if group == "timestamp" and value.tzinfo is None:
        value = value.replace(tzinfo=ZoneInfo(zone))
    return value.astimezone(dt.UTC) if group == "timestamp" else value


_WHOLE = [-(2**63), -(10**16), -3, -1, 0, 1, 2, 7, 2**53 + 1, 10**16, 2**63 - 1]
_PARTS = [Decimal(text) for text in ("-99999999.99", "-1.01", "-1.00", "0.00", "0.99", "1.00", "6.50", "7.01", "99999999.99")]
_LONG = [Decimal(text) for text in ("-1e24", "-0.0000000001", "0.9900000001", "6.5", "7", "1e24")]
_REAL = [-1.5, -0.0, 0.99, 1.0, 6.5, 9007199254740992.0, 1e300]
_CLOCKS = [dt.datetime(2010, 11, 6, 20) + dt.timedelta(minutes=17 * n) for n in range(36)]  # clocks are put back at 00:01
_SPRING = [dt.datetime(2010, 3, 13, 22) + dt.timedelta(minutes=17 * n) for n in range(18)]  # and forward
_LOCAL = [*_CLOCKS, *_SPRING, dt.datetime(2010, 11, 7), dt.datetime(2010, 11, 8), dt.datetime(1850, 5, 5)]
_TIMES = [time.replace(tzinfo=dt.UTC) + dt.timedelta(hours=3) for time in _LOCAL]
_DAYS = [dt.date(2010, 11, day) for day in (5, 6, 7, 8, 9)] + [dt.date(2010, 3, day) for day in (13, 14, 15)]
_UTC, _NTZ, _DATE = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()
_BIG, _CENTS, _WIDE, _DOUBLE = pa.int64(), pa.decimal128(10, 2), pa.decimal128(38, 10), pa.float64()
_VALUES = {_BIG: _WHOLE, _CENTS: _PARTS, _WIDE: _LONG, _DOUBLE: _REAL, _UTC: _TIMES, _NTZ: _LOCAL, _DATE: _DAYS,
           pa.int32(): [-(2**31), -1, 0, 1, 7, 2**31 - 1]}  # fmt: skip


@pytest.mark.parametrize(
    ("mine", "low", "high", "group"),
    [
        (_BIG, _CENTS, _CENTS, "decimal"),
        (pa.int32(), pa.int32(), _CENTS, "decimal"),
        (_CENTS, _BIG, _WIDE, "decimal"),
        (_CENTS, _CENTS, _BIG, "decimal"),
        (_BIG, _DOUBLE, _DOUBLE, "float"),
        (_CENTS, _DOUBLE, _DOUBLE, "float"),
        (_DOUBLE, _BIG, _WIDE, "float"),
        (_UTC, _DATE, _DATE, "timestamp"),
        (_UTC, _DATE, _NTZ, "timestamp"),
        (_UTC, _NTZ, _UTC, "timestamp"),
        (_DATE, _UTC, _UTC, "timestamp"),
        (_DATE, _DATE, _UTC, "timestamp"),
        (_NTZ, _UTC, _UTC, "timestamp"),
        (_NTZ, _DATE, _NTZ, "local"),
        (_DATE, _NTZ, _DATE, "local"),
    ],
    ids=lambda kind: str(kind),
)
def test_values_and_ends_of_different_types_are_compared_as_spark_compares_them(
    tmp_path: Path, mine: pa.DataType, low: pa.DataType, high: pa.DataType, group: str
) -> None:
    zone = "America/St_Johns"
    lows = sorted(_VALUES[low], key=lambda value: _promoted(value, group, zone))
    bounds = [(one, other) for one in lows for other in _VALUES[high][::3]]
    rows = pa.table({"low": pa.array([b[0] for b in bounds], low), "high": pa.array([b[1] for b in bounds], high),
                     "row": range(len(bounds))})  # fmt: skip
    relation = opened(tmp_path / "all", rows)
    ends = [*lows[1:], lows[-1]]  # one behind the other: from each beginning to the next
    rows = pa.table({"low": pa.array(lows, low), "high": pa.array(ends, low), "row": range(len(lows))})
    apart = opened(tmp_path / "apart", rows)
    values = pa.array([None, *_VALUES[mine]], mine)
    compared = [None, *(_promoted(value, group, zone) for value in _VALUES[mine])]
    compared_bounds = [tuple(_promoted(end, group, zone) for end in both) for both in bounds]
    for closed in CLOSED:
        condition = mr.between("x", "low", "high", closed=closed).in_zone(zone)
        wanted = [[row for row, both in enumerate(compared_bounds) if holds(value, *both, condition)] for value in compared]
        assert _scanned(relation, condition, values) == wanted
        assert any(wanted)
        looked_up = serves(apart, condition, mine)
        if looked_up:
            assert _in_place(apart, condition, values) == _scanned(apart, condition, values)
        if (mine, low) in ((_UTC, _DATE), (_NTZ, _DATE), (_DATE, _UTC), (_BIG, _CENTS), (pa.int32(), pa.int32())):
            assert looked_up == (closed != "both")


@pytest.mark.parametrize(
    ("mine", "low", "high", "words"),
    [
        (_BIG, _BIG, _DOUBLE, "'x' .int64. would be compared with 'low' .int64. as integer and with 'high' .double. as float"),
        (_NTZ, _UTC, _DATE, "compared with 'high' .date32.day.. as timestamp_ntz and with 'low' .* as timestamp; cast one"),
        (_BIG, _BIG, _WIDE, "need 29 digits to be compared, and 18 is the most"),
        (_BIG, _DATE, _DATE, "'x' .int64. and 'low' .date32.day.. can't be compared"),
        (pa.duration("us"), _UTC, _UTC, "'x' .duration.us.. and 'low' .* can't be compared"),
    ],
)
def test_types_for_which_one_order_will_not_do_are_refused(
    mine: pa.DataType, low: pa.DataType, high: pa.DataType, words: str
) -> None:
    with pytest.raises(SchemaError, match=words):
        mr.between("x", "low", "high").check(pa.schema([("x", mine)]), pa.schema([("low", low), ("high", high)]))


def test_a_time_zone_that_nobody_knows_is_refused_where_it_matters() -> None:
    stream, table = pa.schema([("x", _UTC)]), pa.schema([("low", _DATE), ("high", _UTC)])
    with pytest.raises(SchemaError, match=r"the session's zone 'Mars/Base', and Arrow does not know it.*timeZone"):
        mr.between("x", "low", "high").in_zone("Mars/Base").check(stream, table)
    mr.between("x", "high", "high").in_zone("Mars/Base").check(stream, table)


def test_equal_beginnings_are_seen_across_chunks_of_rows(tmp_path: Path) -> None:
    """65,535 ranges, one that is the wrong way round, and one that begins there too."""
    last = (1 << 16) - 1
    relation = opened(tmp_path, table([*((low, low) for low in range(last)), (last, last - 5), (last, last + 5)]))
    assert not serves(relation, mr.between("x", "low", "high"), pa.int64())


def test_an_endless_range_is_not_looked_up_beside_one_at_the_end_of_all_numbers(tmp_path: Path) -> None:
    most = 2**63 - 1
    rows = pa.table({"low": pa.array([5, most]), "high": pa.array([None, None], pa.int64()), "name": ["a", "b"]})
    relation = opened(tmp_path, rows)
    assert not serves(relation, mr.between("x", "low", "high", closed="left", open_ended=True), pa.int64())


def test_tables_in_the_order_of_use_and_ranges_of_one_column_are_scanned(tmp_path: Path) -> None:
    rows = table([(10 * i, 10 * i + 5) for i in range(50)])
    counts = pa.table({"low": rows["low"], "count": pa.array(range(50, 0, -1))})  # the order of use is that of the keys
    by_use = stored(tmp_path / "used", rows, "low", layout="frequency", counts=counts)
    assert not serves(by_use, mr.between("x", "low", "high"), pa.int64())
    assert not serves(opened(tmp_path / "own", rows), mr.between("x", "low", "low"), pa.int64())


@pytest.mark.parametrize(
    ("bounds", "closed", "apart"),
    [
        ([(0, 5), (5, 9)], "both", False),
        ([(0, 5), (5, 9)], "left", True),
        ([(0, 6), (5, 9)], "left", False),
        ([(0, 100), (20, 10), (30, 40)], "both", False),
        ([(0, 1), (0, 0)], "both", False),
        ([(0, None), (5, 9)], "both", True),  # a null end holds nothing
    ],
)
def test_ranges_that_overlap_are_not_looked_up(tmp_path: Path, bounds: Any, closed: str, apart: bool) -> None:
    relation = opened(tmp_path, table(bounds))
    assert serves(relation, mr.between("x", "low", "high", closed=closed), pa.int64()) == apart
    assert not serves(relation, mr.between("x", "low", "high", closed=closed, on="name"), pa.int64())


def test_an_open_range_must_be_the_last(tmp_path: Path) -> None:
    relation = opened(tmp_path, table([(0, None), (5, 9)]))
    assert not serves(relation, mr.between("x", "low", "high", open_ended=True), pa.int64())


def test_only_tables_sorted_by_the_beginning_serve(tmp_path: Path) -> None:
    rows = table([(0, 1), (5, 9)])
    hashed = stored(tmp_path / "hash", rows, "low", layout="hash")
    assert not serves(hashed, mr.between("x", "low", "high"), pa.int64())
    other = stored(tmp_path / "high", rows, "high")
    assert not serves(other, mr.between("x", "low", "high"), pa.int64())
    read = newest(tmp_path / "high", "buffered")
    assert not serves(read, mr.between("x", "high", "low"), pa.int64())
    relation = opened(tmp_path / "own", rows)
    assert not serves(relation, mr.between("x", "low", "high"), pa.date32())


def test_times_and_many_pages(tmp_path: Path) -> None:
    start = dt.datetime(2024, 1, 1)
    begins = [start + dt.timedelta(hours=2 * i) for i in range(3000)]
    kind = pa.timestamp("us")
    rows = pa.table({
        "low": pa.array(begins, kind),
        "high": pa.array([at + dt.timedelta(hours=1) for at in begins], kind),
        "name": [f"n{i}" for i in range(3000)],
    })  # fmt: skip
    relation = opened(tmp_path, rows)
    assert relation.pages > 10
    condition = mr.between("x", "low", "high", closed="left")
    assert serves(relation, condition, kind)
    assert not serves(relation, condition, pa.timestamp("ns"))  # whose numbers are others
    values = pa.array([start + dt.timedelta(minutes=30 * i) for i in range(-4, 12_010)], kind)
    answer = RangesInPlace(relation, ("name",), condition, kind).look_up([values])
    wanted = [f"n{i // 4}" if 0 <= i < 12_000 and i % 4 < 2 else None for i in range(-4, 12_010)]
    assert answer.columns[0].to_pylist() == wanted
