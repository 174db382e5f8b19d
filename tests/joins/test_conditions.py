"""Joins by a condition: against nested loops over Python values, which share nothing with the matchers."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Sequence
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Indel, JaroWinkler, Levenshtein
from tests.joins.examples import HOWS, cut, joined, put_out, rows_of

import millrace as mr
from millrace.catalog import make_join
from millrace.core.budget import Budget
from millrace.core.conditions import Condition
from millrace.core.errors import BudgetError, ParameterError, SchemaError, StrategyError
from millrace.core.protocols import How, JoinSpec
from millrace.core.step import Step
from millrace.relations.memory import MemoryRelation

SCANS = ("meshjoin", "rmeshjoin")
Holds = Callable[[dict[str, Any], dict[str, Any]], bool]


def run(
    condition: Condition, stream: pa.Table, table: pa.Table, how: How = "inner", *,
    algorithm: str = "rmeshjoin", memory: int | str = "1m", rows_per_page: int = 3, batch: int = 4,
) -> list[Step]:  # fmt: skip
    """Rows (event, row), both numbered from 0."""
    rows = table.append_column("row", pa.array(range(table.num_rows), pa.int64()))
    events = stream.append_column("event", pa.array(range(stream.num_rows), pa.int64()))
    relation = MemoryRelation(rows, "row", rows_per_page, indexed=False)
    columns = ("row",) if how in ("inner", "left") else ()
    spec = JoinSpec(events.schema, (), how, ("event",), columns, condition)
    join = make_join(algorithm, relation, spec, Budget(memory))
    whole = events.combine_chunks().to_batches()
    return joined(join, cut(whole[0], batch) if whole else [])


def looped(stream: pa.Table, table: pa.Table, how: How, holds: Holds) -> list[tuple[Any, ...]]:
    others = table.to_pylist()
    matches = [[row for row, theirs in enumerate(others) if holds(mine, theirs)] for mine in stream.to_pylist()]
    return sorted(put_out(matches, how), key=lambda row: tuple((value is not None, value) for value in row))


def check(condition: Condition, stream: pa.Table, table: pa.Table, holds: Holds, **options: Any) -> None:
    for algorithm in SCANS:
        for how in HOWS:
            wanted = looped(stream, table, how, holds)
            assert rows_of(run(condition, stream, table, how, algorithm=algorithm, **options)) == wanted, (algorithm, how)


def ordered(value: Any) -> tuple[bool, Any]:
    """NaN above everything."""
    return (True, 0) if value != value else (False, value)


def is_between(closed: str = "both", *, open_ended: bool = False, on: Sequence[str] = ()) -> Holds:
    def holds(mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
        value, low, high = mine["x"], theirs["low"], theirs["high"]
        if value is None or any(mine[key] is None or mine[key] != theirs[key] for key in on):
            return False
        if (low is None or high is None) and not open_ended:
            return False
        above = (
            low is None or (ordered(low) < ordered(value)) or (closed in ("both", "left") and ordered(low) == ordered(value))
        )
        below = (
            high is None
            or (ordered(value) < ordered(high))
            or (closed in ("both", "right") and ordered(value) == ordered(high))
        )
        return above and below

    return holds


NUMBERS = st.none() | st.integers(-3, 12)
EXTREMES = st.sampled_from([-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1, None])
FLOATS = st.sampled_from([None, float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 5e-324, -5e-324, 0.1, 0.3, 1e308, -1.5])


@given(
    values=st.lists(st.tuples(NUMBERS, st.none() | st.integers(0, 2)), max_size=12),
    ranges=st.lists(st.tuples(NUMBERS, NUMBERS, st.none() | st.integers(0, 2)), max_size=12),
    closed=st.sampled_from(["both", "left", "right", "neither"]),
    open_ended=st.booleans(),
    keyed=st.sampled_from([(), ("k",), ("k", "t")]),
    rows_per_page=st.integers(1, 5),
)
def test_between_whole_numbers(
    values: list[Any], ranges: list[Any], closed: str, open_ended: bool, keyed: tuple[str, ...], rows_per_page: int
) -> None:
    """With no key, a key of whole numbers, and one that is hashed."""
    stream = pa.table({
        "x": pa.array([v[0] for v in values], pa.int32()),
        "k": pa.array([v[1] for v in values], pa.int64()),
        "t": pa.array([None if v[1] is None else f"t{v[1] % 2}" for v in values], pa.string()),
    })  # fmt: skip
    table = pa.table({
        "low": pa.array([r[0] for r in ranges], pa.int64()),
        "high": pa.array([r[1] for r in ranges], pa.int16()),
        "k": pa.array([r[2] for r in ranges], pa.int64()),
        "t": pa.array([None if r[2] is None else f"t{r[2] % 2}" for r in ranges], pa.string()),
    })  # fmt: skip
    condition = mr.between("x", "low", "high", on=list(keyed) or None, closed=closed, open_ended=open_ended)
    check(condition, stream, table, is_between(closed, open_ended=open_ended, on=keyed), rows_per_page=rows_per_page)


@pytest.mark.parametrize("values", [EXTREMES, FLOATS], ids=["extremes", "floats"])
@given(data=st.data(), closed=st.sampled_from(["both", "left", "right", "neither"]), open_ended=st.booleans())
def test_between_at_the_ends_of_the_type(values: Any, data: Any, closed: str, open_ended: bool) -> None:
    kind = pa.int64() if values is EXTREMES else pa.float64()
    stream = pa.table({"x": pa.array(data.draw(st.lists(values, max_size=8)), kind)})
    ends = data.draw(st.lists(st.tuples(values, values), max_size=8))
    table = pa.table({"low": pa.array([low for low, _ in ends], kind), "high": pa.array([high for _, high in ends], kind)})
    check(
        mr.between("x", "low", "high", closed=closed, open_ended=open_ended),
        stream,
        table,
        is_between(closed, open_ended=open_ended),
    )


NOON = dt.datetime(2024, 5, 1, 12)


@pytest.mark.parametrize(
    ("mine", "theirs", "value"),
    [
        (pa.date32(), pa.date32(), lambda i: dt.date(2024, 5, 1) + dt.timedelta(days=i)),
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC"), lambda i: NOON + dt.timedelta(seconds=i)),
        (pa.timestamp("s"), pa.timestamp("us"), lambda i: NOON + dt.timedelta(seconds=i)),
        (pa.decimal128(9, 2), pa.decimal128(12, 5), lambda i: decimal.Decimal(i) / 4),
        (pa.float32(), pa.float64(), lambda i: i / 4),
        (pa.uint32(), pa.int64(), lambda i: abs(i)),
    ],
    ids=lambda value: str(value) if isinstance(value, pa.DataType) else "",
)
def test_between_of_every_type(mine: pa.DataType, theirs: pa.DataType, value: Callable[[int], Any]) -> None:
    stream = pa.table({"x": pa.array([value(i) for i in range(-3, 14)], mine)})
    ends = [(0, 4), (4, 4), (7, 3), (-9, 99), (10, 11)]
    table = pa.table(
        {"low": pa.array([value(a) for a, _ in ends], theirs), "high": pa.array([value(b) for _, b in ends], theirs)}
    )
    utc = mine == pa.timestamp("us", "UTC")
    check(mr.between("x", "low", "high"), stream, table, is_between())
    assert utc or rows_of(run(mr.between("x", "low", "high"), stream, table))


@given(
    values=st.lists(NUMBERS, max_size=12),
    others=st.lists(NUMBERS, max_size=12),
    width=st.sampled_from([0, 1, 2.9, 100]),
)
def test_near_whole_numbers(values: list[Any], others: list[Any], width: float) -> None:
    stream, table = pa.table({"x": pa.array(values, pa.int64())}), pa.table({"y": pa.array(others, pa.int32())})
    holds: Holds = lambda mine, theirs: None not in (mine["x"], theirs["y"]) and abs(mine["x"] - theirs["y"]) <= width  # noqa: E731
    check(mr.near("x", "y", width), stream, table, holds)


@given(
    values=st.lists(FLOATS | st.floats(-1, 1), max_size=10),
    others=st.lists(FLOATS | st.floats(-1, 1), max_size=10),
    width=st.sampled_from([0.0, 0.1, 0.2, 0.30000000000000004, 1e-300, 1e308]),
)
def test_near_floats_are_measured_in_doubles(values: list[Any], others: list[Any], width: float) -> None:
    stream, table = pa.table({"x": pa.array(values, pa.float64())}), pa.table({"y": pa.array(others, pa.float64())})
    holds: Holds = lambda mine, theirs: None not in (mine["x"], theirs["y"]) and abs(mine["x"] - theirs["y"]) <= width  # noqa: E731
    check(mr.near("x", "y", width), stream, table, holds)


def test_near_at_the_ends_of_64_bits() -> None:
    values = [-(2**63), -(2**63) + 5, 0, 2**63 - 5, 2**63 - 1]
    stream, table = pa.table({"x": pa.array(values)}), pa.table({"y": pa.array(values)})
    for width in (0, 4, 5, 2**63 - 1, 2**64):
        check(mr.near("x", "y", width), stream, table, lambda mine, theirs, w=width: abs(mine["x"] - theirs["y"]) <= w)  # type: ignore[misc]


def test_near_times_with_equal_keys() -> None:
    stream = pa.table(
        {"x": pa.array([NOON + dt.timedelta(seconds=i) for i in range(9)], pa.timestamp("us")), "k": [0, 1, 2] * 3}
    )
    table = pa.table(
        {"y": pa.array([NOON + dt.timedelta(seconds=3.5 * i) for i in range(4)], pa.timestamp("us")), "id": [0, 1, 2, 0]}
    )
    width = dt.timedelta(seconds=2)
    holds: Holds = lambda mine, theirs: mine["k"] == theirs["id"] and abs(mine["x"] - theirs["y"]) <= width  # noqa: E731
    check(mr.near("x", "y", width, on={"k": "id"}), stream, table, holds)


@pytest.mark.parametrize(
    ("mine", "theirs", "width"),
    [
        (pa.array([-3, 0, 1, 2, None], pa.int32()), pa.array([decimal.Decimal(n) / 4 for n in range(-9, 9)]), 1.25),
        (pa.array([decimal.Decimal(n) / 4 for n in range(-9, 9)]), pa.array([-3, 0, 1, 2, None], pa.int32()), 1),
        (pa.array([-3, 0, 1, 2, None], pa.int64()), pa.array([n / 4 for n in range(-9, 9)]), 0.5),
        (pa.array([n / 4 for n in range(-9, 9)]), pa.array([decimal.Decimal("0.10"), decimal.Decimal("-1.35")]), 0.4),
    ],
    ids=["integer and decimal", "decimal and integer", "integer and float", "float and decimal"],
)
def test_near_numbers_of_different_types(mine: pa.Array, theirs: pa.Array, width: float) -> None:
    real = pa.types.is_floating(mine.type) or pa.types.is_floating(theirs.type)
    as_compared = float if real else decimal.Decimal

    def holds(one: dict[str, Any], other: dict[str, Any]) -> bool:
        if one["x"] is None or other["y"] is None:
            return False
        return bool(abs(as_compared(one["x"]) - as_compared(other["y"])) <= as_compared(width))

    assert rows_of(run(mr.near("x", "y", width), pa.table({"x": mine}), pa.table({"y": theirs})))
    check(mr.near("x", "y", width), pa.table({"x": mine}), pa.table({"y": theirs}), holds)


def test_near_a_day_is_near_its_midnight_in_the_zone_of_the_session() -> None:
    days = [dt.date(2024, 3, 9), dt.date(2024, 3, 10), dt.date(2024, 3, 11)]
    start = dt.datetime(2024, 3, 9, tzinfo=dt.UTC)
    stream = pa.table({"x": pa.array([start + dt.timedelta(hours=n) for n in range(72)], pa.timestamp("us", "UTC"))})
    table = pa.table({"y": pa.array(days)})
    zone, width = ZoneInfo("America/Los_Angeles"), dt.timedelta(hours=2)

    def holds(mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
        midnight = dt.datetime.combine(theirs["y"], dt.time(), zone).astimezone(dt.UTC)
        return bool(abs(mine["x"] - midnight) <= width)

    check(mr.near("x", "y", width).in_zone("America/Los_Angeles"), stream, table, holds)


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        (mr.expr("cast(t as int) > low"), "Could not convert string 'a' to INT32"),
        (mr.expr(pc.divide_checked(pc.field("stream.x"), pc.field("master.low")) > 1), "divide by zero"),
    ],
    ids=["sql", "arrow"],
)
def test_an_expression_that_fails_for_some_rows_says_so(condition: Condition, reason: str) -> None:
    stream, table = pa.table({"x": [1], "t": ["a"]}), pa.table({"low": [0]})
    with pytest.raises(ParameterError, match=f"the expression .* fails for some rows: .*{reason}") as failed:
        run(condition, stream, table, memory="64m")
    assert "__millrace" not in str(failed.value)


def test_dates_and_times_in_an_expression_are_compared_in_the_zone_of_the_session() -> None:
    stream = pa.table({"x": pa.array([dt.datetime(2024, 1, 2, 6)], pa.timestamp("us", "UTC"))})
    table = pa.table({"day": pa.array([dt.date(2024, 1, 2)])})
    for zone, rows in (("UTC", 1), ("America/Los_Angeles", 0), ("-05:30", 1), ("-06:30", 0)):
        steps = run(mr.expr("x >= day").in_zone(zone), stream, table, memory="64m")
        assert len(rows_of(steps)) == rows, zone


WORDS = st.none() | st.text("abé", max_size=6)


@given(
    words=st.lists(WORDS, max_size=10),
    others=st.lists(WORDS, max_size=10),
    threshold=st.sampled_from([0.0, 0.3, 0.5, 2 / 3, 0.9, 1.0]),
    method=st.sampled_from(["levenshtein", "indel", "jaro_winkler"]),
)
def test_similar_texts(words: list[Any], others: list[Any], threshold: float, method: str) -> None:
    score = {"levenshtein": Levenshtein, "indel": Indel, "jaro_winkler": JaroWinkler}[method].normalized_similarity
    stream, table = pa.table({"a": pa.array(words, pa.string())}), pa.table({"b": pa.array(others, pa.string())})

    def holds(mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
        return None not in (mine["a"], theirs["b"]) and score(mine["a"], theirs["b"]) >= threshold - 1e-12

    check(mr.similar("a", "b", threshold, method=method), stream, table, holds)


def test_similar_texts_whose_score_equals_the_threshold() -> None:
    """Whatever RapidFuzz's rounding and its own cut-off make of the last bit."""
    texts = ["", "a", "aa", "ab", "aab", "abé", "baab", "bbééa", "abéab"]
    table = pa.table({"a": texts})
    for method, home in (("levenshtein", Levenshtein), ("indel", Indel), ("jaro_winkler", JaroWinkler)):
        scores = np.array([[home.normalized_similarity(one, other) for other in texts] for one in texts])
        for threshold in np.unique(scores):
            wanted = np.argwhere(scores >= threshold - 1e-12)
            steps = run(mr.similar("a", "a", float(threshold), method=method), table, table)  # type: ignore[arg-type]
            assert rows_of(steps) == [tuple(pair) for pair in wanted.tolist()], (method, threshold)


def test_similar_texts_in_blocks_and_portions() -> None:
    """More texts than one block of scores holds, and more pairs than one step puts out."""
    words = [f"w{i % 40:03d}" for i in range(500)]
    stream, table = pa.table({"a": words}), pa.table({"b": words})
    steps = run(mr.similar("a", "b", 1.0), stream, table, memory="120k", rows_per_page=100, batch=100)
    assert max(step.output.num_rows for step in steps) < 500
    assert sum(step.output.num_rows for step in steps) == sum(words.count(word) for word in words)


@pytest.mark.parametrize("sql", [True, False])
@pytest.mark.parametrize("how", HOWS)
def test_an_expression_over_both_sides(how: How, sql: bool) -> None:
    stream = pa.table({"x": pa.array([1, 2, None, 4, 5, 6, 7]), "c": ["a", "b", "a", None, "b", "a", "b"]})
    table = pa.table({"x": pa.array([3, 5, None, 1]), "c": ["a", "b", "b", "a"]})
    condition = mr.expr("stream.x * 2 > master.x + 3 and stream.c = master.c")
    if not sql:
        bigger = pc.field("stream.x") * 2 > pc.field("master.x") + 3
        condition = mr.expr(bigger & (pc.field("stream.c") == pc.field("master.c")))

    def holds(mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
        if None in (mine["x"], theirs["x"], mine["c"], theirs["c"]):
            return False
        return mine["x"] * 2 > theirs["x"] + 3 and mine["c"] == theirs["c"]

    for algorithm in SCANS:
        steps = run(condition, stream, table, how, memory="64m", algorithm=algorithm)
        assert rows_of(steps) == looped(stream, table, how, holds)


@pytest.mark.parametrize("sql", [True, False])
def test_an_expression_may_be_true_for_nulls(sql: bool) -> None:
    stream, table = pa.table({"x": pa.array([1, None])}), pa.table({"y": pa.array([None, 7, 1])})
    missing = pc.field("stream.x").is_null() & pc.field("master.y").is_null()
    condition = mr.expr("x is null and y is null" if sql else missing)
    assert rows_of(run(condition, stream, table, memory="64m")) == [(1, 0)]


def test_an_expression_may_name_one_side_or_none() -> None:
    stream, table = pa.table({"x": [1, 2]}), pa.table({"y": [1, 2, 3]})
    assert rows_of(run(mr.expr("stream.x > 1"), stream, table, memory="64m")) == [(1, 0), (1, 1), (1, 2)]
    assert rows_of(run(mr.expr("master.y = 3"), stream, table, memory="64m")) == [(0, 2), (1, 2)]
    assert len(rows_of(run(mr.expr("true"), stream, table, memory="64m"))) == 6
    assert rows_of(run(mr.expr("false"), stream, table, "left", memory="64m")) == [(0, None), (1, None)]


def test_an_expression_with_many_matches_puts_them_out_in_portions() -> None:
    stream, table = pa.table({"x": range(700)}), pa.table({"y": range(700)})
    for condition in (mr.expr("stream.x <= master.y"), mr.expr(pc.field("stream.x") <= pc.field("master.y"))):
        steps = run(condition, stream, table, memory="52m", rows_per_page=700, batch=700)
        assert sum(step.output.num_rows for step in steps) == 700 * 701 // 2
        assert len(steps) > 3


def test_ranges_that_end_before_they_begin_are_counted_once() -> None:
    stream = pa.table({"x": [1, 5]})
    table = pa.table({"low": pa.array([0, 9, 4, 7, None]), "high": pa.array([3, 8, 6, 1, 0])})
    rows = table.append_column("row", pa.array(range(5)))
    relation = MemoryRelation(rows, "row", 2, indexed=False)
    spec = JoinSpec(stream.schema, (), "inner", ("x",), ("row",), mr.between("x", "low", "high"))
    join = make_join("rmeshjoin", relation, spec, Budget("1m"))
    for _ in range(3):
        steps = joined(join, stream.to_batches())
        assert rows_of(steps) == [(1, 0), (5, 2)]
        assert join.reversed_ranges == 2  # type: ignore[attr-defined]


def test_unmatched_tuples_say_why() -> None:
    stream, table = pa.table({"x": pa.array([1, None, 50])}), pa.table({"low": [0], "high": [9]})
    steps = run(mr.between("x", "low", "high"), stream, table, "left")
    counts = [step.counts for step in steps]
    assert sum(c.matched for c in counts) == 1
    assert sum(c.null_keys for c in counts) == 1
    assert sum(c.condition_false for c in counts) == 1
    assert sum(c.absent_keys for c in counts) == 0


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (mr.between("t", "low", "high"), "column 't' is string.*mr.expr"),
        (mr.between("x", "low", "day"), "'x' .*int64.*'day' .*date32.*cast one of them"),
        (mr.between("x", "low", "hi"), "the table has no column 'hi'; it has low, high, day, t, row"),
        (mr.between("y", "low", "high"), "the stream has no column 'y'"),
        (mr.between("x", "low", "high", on={"x": "t"}), "column 'x' is int64 and the table's key is string"),
        (mr.near("x", "t", 1), "column 't' is string"),
        (mr.near("x", "low", dt.timedelta(1)), "must be a number for int64"),
        (mr.similar("x", "t", 0.5), "similar compares texts; column 'x' is int64"),
        (mr.expr("stream.x < master.nowhere"), "nowhere.*stream has x, t, event; master has low, high, day, t, row"),
        (mr.expr("stream.x <"), "can't evaluate the expression"),
        (mr.expr(pc.field("stream.x") < pc.field("master.nowhere")), "nowhere.*master has low"),
        (mr.expr("stream.x < master.day"), "can't evaluate the expression"),
        (mr.expr("stream.x + master.low"), "it is BIGINT, and a condition must be true or false; stream has x"),
    ],
)
def test_what_cannot_be_compared_is_said_before_anything_is_read(condition: Condition, message: str) -> None:
    stream = pa.table({"x": [1], "t": ["a"]})
    table = pa.table({"low": [0], "high": [9], "day": pa.array([dt.date(2024, 1, 1)]), "t": ["a"]})
    with pytest.raises((SchemaError, ParameterError), match=message):
        run(condition, stream, table, memory="64m")


def test_arguments_are_checked_when_a_condition_is_made() -> None:
    with pytest.raises(ParameterError, match=r"between 0 and 1; got 1\.2"):
        mr.similar("a", "b", 1.2)
    with pytest.raises(ParameterError, match="between 0 and 1; got nan"):
        mr.similar("a", "b", float("nan"))
    with pytest.raises(ParameterError, match="method of similar must be one of levenshtein"):
        mr.similar("a", "b", 0.5, method="soundex")
    for width in (-1, float("nan"), float("inf"), dt.timedelta(-1), "far"):
        with pytest.raises(ParameterError, match="width of near must be"):
            mr.near("x", "y", width)
    with pytest.raises(ParameterError, match="closed must be one of both"):
        mr.between("x", "a", "b", closed="open")
    with pytest.raises(ParameterError, match="empty text"):
        mr.expr("  ")
    with pytest.raises(ParameterError, match="SQL text or an Arrow expression; got int"):
        mr.expr(3)  # type: ignore[arg-type]


def test_a_strategy_that_looks_keys_up_names_those_that_scan() -> None:
    table = MemoryRelation(pa.table({"low": [1], "high": [2]}), "low")
    stream = pa.table({"x": [1]})
    spec = JoinSpec(stream.schema, (), "inner", ("x",), (), mr.between("x", "low", "high"))
    for name in ("inlj", "hybridjoin", "sweepjoin"):
        with pytest.raises(StrategyError, match=f"strategy '{name}' does not serve 'between'; use meshjoin, rmeshjoin"):
            make_join(name, table, spec, Budget("1m"))


@pytest.mark.parametrize(
    "condition",
    [mr.between("x", "low", "high"), mr.similar("t", "t", 0.9), mr.expr("stream.x < master.low")],
    ids=lambda c: c.kind,
)
@pytest.mark.parametrize("algorithm", SCANS)
def test_the_budget_it_asks_for_is_enough(condition: Condition, algorithm: str) -> None:
    stream = pa.table({"x": list(range(30)), "t": [f"t{i}" for i in range(30)]})
    table = pa.table({"low": list(range(40)), "high": list(range(40)), "t": [f"t{i}" for i in range(40)]})
    asked = [1]
    while True:
        try:
            steps = run(condition, stream, table, memory=asked[-1], algorithm=algorithm)
            break
        except BudgetError as small:
            asked.append(small.needed_bytes)
    assert asked == sorted(set(asked))
    assert 1 < len(asked) < 20
    assert sum(step.output.num_rows for step in steps) > 0
