"""A relation that is computed behaves like the same rows in memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from millrace.core.errors import ParameterError, SchemaError
from millrace.relations.generated import SCHEMA, GeneratedRelation, check_columns, generated_rows
from millrace.relations.memory import MemoryRelation

ROWS = 47  # the last page is short


def pair() -> tuple[GeneratedRelation, MemoryRelation]:
    generated = GeneratedRelation(ROWS, row_bytes=100, page_bytes=1050)
    rows = pa.Table.from_batches([generated_rows(np.arange(1, ROWS + 1), 100)])
    return generated, MemoryRelation(rows, "key", rows_per_page=10)


def test_a_row_has_the_bytes_that_were_asked_for() -> None:
    rows = generated_rows(np.arange(1, 1001), 120)
    assert rows.nbytes == (120 + 4) * 1000  # Arrow keeps where each text begins in four bytes more


def test_pages_and_places_are_those_of_the_same_rows_in_memory() -> None:
    generated, memory = pair()
    assert (generated.rows, generated.pages, generated.unique) == (memory.rows, memory.pages, memory.unique) == (ROWS, 5, True)
    codes = np.arange(-3, ROWS + 5)
    found, expected = generated.locate(codes), memory.locate(codes)
    present = expected.last >= expected.first
    assert np.array_equal(found.last >= found.first, present)
    assert np.array_equal(found.first[present], expected.first[present])
    assert np.array_equal(found.last[present], expected.last[present])


@pytest.mark.parametrize(("firsts", "counts"), [([0], [1]), ([4], [1]), ([1, 3], [1, 2]), ([0], [5])])
def test_a_read_gives_the_rows_of_its_pages(firsts: list[int], counts: list[int]) -> None:
    generated, memory = pair()
    run, expected = (one.read_many(np.array(firsts), np.array(counts)) for one in (generated, memory))
    assert run.rows == expected.rows
    assert run.pages.tolist() == expected.pages.tolist()
    assert run.codes.tolist() == expected.codes.tolist()
    rows = np.arange(run.rows)[::-3]
    assert run.take(rows, SCHEMA.names).equals(expected.take(rows, SCHEMA.names))
    codes = run.codes[::2]
    pages = generated.locate(codes).first
    for found, wanted in zip(run.match(codes, pages), expected.match(codes, pages), strict=True):
        assert found.tolist() == wanted.tolist()


def test_a_code_that_is_not_on_the_page_has_no_rows() -> None:
    generated, _ = pair()
    _, count = generated.read(4, 1).match(np.array([40, 41, 47, 48, 50]), np.full(5, 4))
    assert count.tolist() == [0, 1, 1, 0, 0]


def test_pages_that_stay_are_those_that_were_loaded() -> None:
    generated, _ = pair()
    frames = generated.frames(2)
    frames.load(np.array([1, 4]), np.array([0, 1]))
    assert frames.run(np.array([1, 4]), np.array([0, 1])).codes.tolist() == [*range(11, 21), *range(41, 48)]
    with pytest.raises(ParameterError, match="pages 0 to 4"):
        frames.load(np.array([5]), np.array([0]))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ParameterError, match="row_bytes must be at least 32; got 31"):
        GeneratedRelation(10, row_bytes=31)
    with pytest.raises(ParameterError, match="a page hold a row"):
        GeneratedRelation(10, row_bytes=100, page_bytes=99)
    with pytest.raises(ParameterError, match="pages 0 to 4"):
        pair()[0].read(4, 2)
    with pytest.raises(SchemaError, match="no column 'colour'; choose from key"):
        check_columns(["colour"])
