"""The oracle itself, on cases small enough to write down, and against another engine."""

from __future__ import annotations

import datetime
import decimal

import pyarrow as pa
import pytest

from millrace.checks.reference import reference_join, reference_pairs, same_rows
from millrace.core.protocols import HOWS, How, JoinSpec

D = decimal.Decimal
NAN = float("nan")


def pairs(stream: pa.Array, relation: pa.Array, how: How = "inner") -> list[tuple[int, int | None]]:
    table = pa.table({"s": stream})
    return reference_pairs(table, pa.table({"r": relation}), JoinSpec(table.schema, (("s", "r"),), how))


def test_each_how_by_hand() -> None:
    stream, relation = pa.array([1, 2, None, 1, 3]), pa.array([1, 1, 4, None, 3])
    assert pairs(stream, relation, "inner") == [(0, 0), (0, 1), (3, 0), (3, 1), (4, 4)]
    assert pairs(stream, relation, "left") == [(0, 0), (0, 1), (1, None), (2, None), (3, 0), (3, 1), (4, 4)]
    assert pairs(stream, relation, "semi") == [(0, None), (3, None), (4, None)]
    assert pairs(stream, relation, "anti") == [(1, None), (2, None)]


@pytest.mark.parametrize(
    ("stream", "relation", "equal"),
    [
        (pa.array([NAN, 0.0, 1.5]), pa.array([NAN, -0.0, 1.5]), [True, True, True]),
        (pa.array([0.1, 0.5], pa.float32()), pa.array([0.1, 0.5]), [False, True]),
        (pa.array([1, 2], pa.int8()), pa.array([1, 3], pa.int64()), [True, False]),
        (pa.array([D("1.50"), D("1.51")]), pa.array([D("1.5"), D("1.5")]), [True, False]),
        (pa.array(["a", ""]), pa.array(["a", ""], pa.large_string()), [True, True]),
        (pa.array([1000, 1001]).cast(pa.timestamp("ns")), pa.array([1, 1]).cast(pa.timestamp("us")), [True, False]),
        (pa.array([2, 3]).cast(pa.duration("s")), pa.array([2000, 2999]).cast(pa.duration("ms")), [True, False]),
        (pa.array([datetime.date(2024, 1, 1)]), pa.array([datetime.date(2024, 1, 1)]), [True]),
        (pa.array([None, None], pa.string()), pa.array([None, ""]), [False, False]),
    ],
    ids=str,
)
def test_keys_are_equal_by_sparks_rules(stream: pa.Array, relation: pa.Array, equal: list[bool]) -> None:
    for number, wanted in enumerate(equal):
        assert bool(pairs(stream.slice(number, 1), relation.slice(number, 1))) is wanted


def test_one_null_part_of_a_composite_key_is_enough_to_match_nothing() -> None:
    stream = pa.table({"a": [1, 1, None], "b": ["x", None, "x"]})
    spec = JoinSpec(stream.schema, (("a", "a"), ("b", "b")))
    assert reference_pairs(stream, stream, spec) == [(0, 0)]


def test_the_table_has_the_columns_of_the_spec_and_nulls_where_nothing_matched() -> None:
    stream = pa.table({"k": [1, 9], "note": ["x", "y"]})
    relation = pa.table({"id": [1], "price": pa.array([2.5]), "unused": ["-"]})
    relation = relation.cast(pa.schema([f.with_nullable(False) for f in relation.schema]))
    spec = JoinSpec(stream.schema, (("k", "id"),), "left", ("note",), ("price", "id"))
    found = reference_join(stream, relation, spec)
    assert found.to_pylist() == [{"note": "x", "price": 2.5, "id": 1}, {"note": "y", "price": None, "id": None}]
    assert found.schema.field("price").nullable
    inner = reference_join(stream, relation, JoinSpec(stream.schema, (("k", "id"),), "inner", ("note",), ("price",)))
    assert not inner.schema.field("price").nullable


def test_a_stream_may_come_in_batches_and_either_side_may_be_empty() -> None:
    stream = pa.table({"k": [1, 2]})
    for how in HOWS:
        spec = JoinSpec(stream.schema, (("k", "k"),), how, ("k",))
        whole = reference_join(stream, stream.slice(1), spec)
        assert reference_join(iter(stream.to_batches(1)), stream.slice(1), spec).equals(whole)
        assert reference_join([], stream, spec).num_rows == 0
        kept = 2 if how in ("left", "anti") else 0
        assert reference_join(stream, stream.slice(0, 0), spec).num_rows == kept


@pytest.mark.parametrize("how", HOWS)
def test_another_engine_finds_the_same_rows(how: How) -> None:
    duckdb = pytest.importorskip("duckdb")
    stream = pa.table({"s": pa.array([i * 7 % 23 if i % 5 else None for i in range(200)]), "n": range(200)})
    relation = pa.table({"r": pa.array([i % 17 if i % 9 else None for i in range(60)]), "p": range(60)})
    columns = ("p",) if how in ("inner", "left") else ()
    spec = JoinSpec(stream.schema, (("s", "r"),), how, ("s", "n"), columns)
    connection = duckdb.connect()
    connection.register("stream_rows", stream)
    connection.register("relation_rows", relation)
    sql = f"SELECT {', '.join((*spec.carry, *columns))} FROM stream_rows {how.upper()} JOIN relation_rows ON s = r"
    comparison = same_rows(reference_join(stream, relation, spec), connection.sql(sql).to_arrow_table())
    assert comparison, str(comparison)


# --- comparing tables


def test_order_and_chunks_do_not_matter_but_how_often_a_row_occurs_does() -> None:
    left = pa.table({"x": [1, 2, 2], "y": ["a", "b", "b"]})
    shuffled = pa.concat_tables([left.slice(2), left.slice(0, 2)])
    assert same_rows(left, shuffled)
    assert str(same_rows(left, shuffled)) == "the same rows"
    assert not same_rows(left, left.slice(0, 2))
    assert not same_rows(left.slice(0, 2), left)


@pytest.mark.parametrize(
    ("values", "others", "same"),
    [
        (pa.array([NAN, None]), pa.array([None, NAN]), True),
        (pa.array([0.0]), pa.array([-0.0]), False),
        (pa.array([D("1.0")]), pa.array([D("1.000")]), True),
        (pa.array([[1.0, NAN], None]), pa.array([None, [1.0, NAN]]), True),
        (pa.array([[0.0]]), pa.array([[-0.0]]), False),
        (pa.array([{"a": NAN, "b": [1]}]), pa.array([{"a": NAN, "b": [1]}]), True),
        (pa.array([{"a": 1, "b": [1]}]), pa.array([{"a": 1, "b": [2]}]), False),
        (pa.array([[("k", 1.0)]], pa.map_(pa.string(), pa.float64())),
         pa.array([[("k", 1.0)]], pa.map_(pa.string(), pa.float64())), True),
        (pa.array([1, 2]).cast(pa.timestamp("ns")), pa.array([2, 1]).cast(pa.timestamp("ns")), True),
        (pa.array([1001]).cast(pa.timestamp("ns")), pa.array([1]).cast(pa.timestamp("us")), False),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["b", "a"]), True),
        (pa.array([b"a"]), pa.array([b"b"]), False),
        (pa.array([None], pa.int64()), pa.array([0]), False),
    ],
    ids=str,
)  # fmt: skip
def test_values_are_the_same_or_not(values: pa.Array, others: pa.Array, same: bool) -> None:
    assert bool(same_rows(pa.table({"x": values}), pa.table({"x": others}))) is same


def test_a_difference_says_what_is_where() -> None:
    comparison = same_rows(pa.table({"x": [1, 1, 2]}), pa.table({"x": [*range(2, 10)]}))
    assert str(comparison).splitlines() == [
        "rows of (x) that differ:", "  only left: 2", "    2 x (1,)", "  only right: 7", "    1 x (3,)", "    1 x (4,)",
        "    1 x (5,)", "    1 x (6,)", "    1 x (7,)", "    ...",
    ]  # fmt: skip
    assert repr(comparison) == str(comparison)


def test_tables_with_other_columns_are_not_compared_row_by_row() -> None:
    comparison = same_rows(pa.table({"x": [1]}), pa.table({"y": [1]}))
    assert not comparison
    assert str(comparison) == "different columns: left has ['x'], right has ['y']"
