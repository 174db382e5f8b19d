"""Values looked up in ranges that lie apart: against a look at every range, and refused where ranges overlap."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.core.conditions import CLOSED, Between
from millrace.relations.build import build_table
from millrace.relations.folder import read_versions
from millrace.relations.ranges import RangesInPlace, serves
from millrace.relations.stored import StoredRelation


def opened(folder: Path, rows: pa.Table) -> StoredRelation:
    build_table(folder, rows, "low", page_bytes=4096)
    return StoredRelation(folder, read_versions(folder)[-1], "mmap")


def table(bounds: list[tuple[int, int | None]]) -> pa.Table:
    names = [f"range {i}" for i in range(len(bounds))]
    lows, highs = pa.array([b[0] for b in bounds], pa.int64()), pa.array([b[1] for b in bounds], pa.int32())
    return pa.table({"low": lows, "high": highs, "name": names, "parts": [[i] for i in range(len(bounds))]})


def holds(value: int | None, low: int, high: int | None, condition: Between) -> bool:
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
    build_table(tmp_path / "hash", rows, "low", layout="hash")
    hashed = StoredRelation(tmp_path / "hash", read_versions(tmp_path / "hash")[-1], "mmap")
    assert not serves(hashed, mr.between("x", "low", "high"), pa.int64())
    build_table(tmp_path / "high", rows, "high")
    other = StoredRelation(tmp_path / "high", read_versions(tmp_path / "high")[-1], "mmap")
    assert not serves(other, mr.between("x", "low", "high"), pa.int64())
    read = StoredRelation(tmp_path / "high", read_versions(tmp_path / "high")[-1], "buffered")
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
