"""The test doubles do what they say, and the count of held bytes sees what is held."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from millrace.checks import Expiring, FailingRelation, IndexFree, InPlace, ReadFailed, colliding
from millrace.checks.held import held_bytes
from millrace.joins.reading import has_index
from millrace.relations.memory import MemoryRelation

ROWS = pa.table({"id": pa.array([4, 2, 3, 1]), "name": ["d", "b", "c", "a"]})
ONE = np.ones(1, np.int64)


def relation() -> MemoryRelation:
    return MemoryRelation(ROWS, "id", 2)


def test_a_failing_relation_fails_on_the_reads_it_was_told_to() -> None:
    failing = FailingRelation(relation(), {2, 3})
    failing.read(0, 1)
    with pytest.raises(ReadFailed, match=r"read 2 \(page 1\) failed"):
        failing.read(1, 1)
    with pytest.raises(OSError, match="read 3"):
        failing.read_many(ONE, ONE)
    assert failing.read(1, 1).codes.tolist() == [3, 4]
    assert (failing.calls, failing.failures) == (4, 2)


def test_a_relation_that_always_fails_still_knows_where_keys_are() -> None:
    failing = FailingRelation(relation(), None)
    assert failing.locate(np.array([3])).first.tolist() == [1]
    for _ in range(3):
        with pytest.raises(ReadFailed):
            failing.read(0, 1)


def test_an_index_free_relation_has_pages_and_no_index() -> None:
    free = IndexFree(relation())
    assert has_index(relation())
    assert not has_index(free)
    assert not hasattr(free, "read_many")
    assert free.read(0, 2).codes.tolist() == [1, 2, 3, 4]


def test_pages_of_an_expiring_relation_are_gone_after_the_next_read() -> None:
    expiring = Expiring(relation())
    run = expiring.read(0, 1)
    assert run.codes.tolist() == [1, 2]
    assert run.take(ONE, ["name"]).to_pydict() == {"name": ["b"]}
    expiring.read_many(ONE, ONE)
    for use in (lambda: run.codes, lambda: run.take(ONE, ["name"]), lambda: run.match(ONE, ONE)):
        with pytest.raises(AssertionError, match="pages of read 1 were used after read 2"):
            use()


def test_pages_in_place_must_be_touched_before_they_are_used() -> None:
    placed = InPlace(ROWS, "id", 2)
    run = placed.whole()
    with pytest.raises(AssertionError, match=r"pages \[1\] were used and never touched"):
        run.match(np.array([3]), ONE)
    placed.touch(ONE)
    assert run.match(np.array([3]), ONE)[1].tolist() == [1]


def test_codes_of_a_colliding_relation_collide_and_say_that_they_are_not_exact() -> None:
    few = colliding(ROWS, "id", 2, bits=1)
    assert few.codes.tolist() == [0, 0, 1, 1]
    assert few.batch.column("id").to_pylist() == [4, 2, 3, 1]
    assert not few.codec.exact
    assert not few.unique
    nulls = few.codec.encode([pa.array([None, 5])])
    assert nulls.valid.tolist() == [False, True]


def test_held_bytes_are_counted_once_wherever_they_are() -> None:
    class Holder:
        def __init__(self) -> None:
            self.array = np.zeros(100, np.int64)
            self.view = self.array[:50]
            self.nested = {"list": [np.zeros(10, np.int8), self.array], "self": self}
            self.batch = pa.record_batch({"x": pa.array([1, 2, 3])})
            self.run = relation().read(0, 1)

    holder = Holder()
    assert held_bytes(holder) == 800 + 10 + 24
    assert held_bytes(holder, without=[holder.array]) == 10 + 24
