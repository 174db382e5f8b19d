"""The relation in memory: pages, the index over them, and the list of reads."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from millrace.core.errors import ParameterError, SchemaError
from millrace.core.keys import KeyCodec
from millrace.relations.memory import MemoryRelation

ROWS = pa.table({"id": [3, 1, 2, 2, 5, 2, None, 9], "name": list("cabBeb-i")})  # sorted: 1 2 2 2 3 5 9


def codes(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_rows_are_sorted_by_key_and_cut_into_pages_and_null_keys_are_left_out() -> None:
    relation = MemoryRelation(ROWS, "id", rows_per_page=3)
    assert (relation.rows, relation.pages, relation.unique) == (7, 3, False)
    assert relation.read(0, 3).codes.tolist() == [1, 2, 2, 2, 3, 5, 9]
    assert relation.read(0, 1).codes.tolist() == [1, 2, 2]
    assert relation.read(2, 1).codes.tolist() == [9]
    assert relation.read(2, 1).rows == 1


def test_without_an_index_rows_stay_as_they_were() -> None:
    relation = MemoryRelation(ROWS, "id", rows_per_page=3, indexed=False)
    assert relation.read(0, 3).codes.tolist() == [3, 1, 2, 2, 5, 2, 9]


def test_the_index_says_on_which_pages_a_key_lives_and_when_on_none() -> None:
    relation = MemoryRelation(ROWS, "id", rows_per_page=3)
    first, last = relation.locate(codes(1, 2, 3, 5, 9))
    assert first.tolist() == [0, 0, 1, 1, 2]
    assert last.tolist() == [0, 1, 1, 1, 2]
    first, last = relation.locate(codes(0, 6, 10))
    assert (last < first).all()


def test_a_key_between_two_keys_of_one_page_may_be_looked_for_there_and_is_not_found() -> None:
    relation = MemoryRelation(ROWS, "id", rows_per_page=3)
    first, last = relation.locate(codes(4))
    assert (first.tolist(), last.tolist()) == ([1], [1])
    assert relation.read(1, 1).match(codes(4), codes(1))[1].tolist() == [0]


def test_rows_of_a_key_are_found_on_each_page_of_a_run() -> None:
    relation = MemoryRelation(ROWS, "id", rows_per_page=3)
    run = relation.read_many(codes(0, 2), codes(1, 1))
    assert run.pages.tolist() == [0, 2]
    assert run.codes.tolist() == [1, 2, 2, 9]
    first, counts = run.match(codes(2, 9, 1), codes(0, 2, 0))
    assert (first.tolist(), counts.tolist()) == ([1, 3, 0], [2, 1, 1])
    assert run.take(codes(3, 0), ["name"]).to_pydict() == {"name": ["i", "a"]}


def test_every_read_is_written_down() -> None:
    relation = MemoryRelation(ROWS, "id", rows_per_page=2)
    relation.read(1, 2)
    relation.read_many(codes(0, 3), codes(2, 1))
    assert relation.reads == [(1, 2), (0, 2), (3, 1)]


def test_pages_that_do_not_exist_can_not_be_read() -> None:
    relation = MemoryRelation(ROWS, "id", rows_per_page=3)
    for first, count in ((-1, 1), (0, 0), (3, 1), (2, 2)):
        with pytest.raises(ParameterError, match="the relation has 3 pages"):
            relation.read(first, count)
    assert relation.reads == []


def test_an_empty_relation_has_no_pages_and_no_key() -> None:
    relation = MemoryRelation(ROWS.slice(0, 0), "id")
    assert (relation.rows, relation.pages, relation.unique) == (0, 0, True)
    first, last = relation.locate(codes(0, 1))
    assert (last < first).all()
    assert relation.page_bytes > 0


def test_a_key_of_several_columns_is_located_by_its_hash() -> None:
    relation = MemoryRelation(ROWS, ("id", "name"), rows_per_page=1)
    wanted = relation.codec.encode([pa.array([2, 2, 2]), pa.array(["b", "B", "x"])]).codes
    first, last = relation.locate(wanted)
    assert (last >= first).tolist() == [True, True, False]
    assert relation.read(int(first[1]), 1).take(codes(0), ["name"]).to_pydict() == {"name": ["B"]}


def test_another_codec_gives_another_order() -> None:
    mixed = MemoryRelation(ROWS, "id", rows_per_page=1, codec=KeyCodec((pa.int64(),), mixed=True))
    found = mixed.locate(mixed.codec.encode([pa.array([9])]).codes).first
    assert mixed.read(int(found[0]), 1).take(codes(0), ["name"]).to_pydict() == {"name": ["i"]}


def test_a_page_needs_room_for_its_rows() -> None:
    relation = MemoryRelation(ROWS, "id", rows_per_page=4)
    assert relation.page_bytes * relation.pages >= relation.batch.nbytes


def test_a_missing_key_column_or_a_page_without_rows_is_an_error() -> None:
    with pytest.raises(SchemaError, match="no column 'key'; it has id, name"):
        MemoryRelation(ROWS, "key")
    with pytest.raises(ParameterError, match="rows_per_page must be at least 1; got 0"):
        MemoryRelation(ROWS, "id", 0)
