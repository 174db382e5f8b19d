"""Any schedule, any parameters, any data: the same multiset of rows as the reference, and as every other algorithm.

Both kinds of check: against an oracle (the reference recomputes the join), and differential (the algorithms agree with
each other, on longer streams than the reference is comfortable with).
"""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties.cases import Case, cases

from millrace.catalog import ALGORITHMS, make_join
from millrace.checks import CollidingCodec
from millrace.checks.reference import same_rows
from millrace.checks.run import Run, expected, run_join, tightest
from millrace.relations.memory import MemoryRelation

NAMES = [row.name for row in ALGORITHMS]


def run(algorithm: str, case: Case, relation: MemoryRelation | None = None) -> Run:
    relation = case.pages() if relation is None else relation
    make = partial(make_join, algorithm, **case.parameters(algorithm))
    memory = tightest(make, relation, case.spec) + case.extra_bytes
    return run_join(make, relation, case.spec, case.batches(), memory=memory, steps_per_batch=case.steps_per_batch)


@pytest.mark.parametrize("algorithm", NAMES)
@given(case=cases())
def test_the_rows_are_those_of_the_reference(algorithm: str, case: Case) -> None:
    found = run(algorithm, case)
    comparison = same_rows(found.numbered, expected(case.stream, case.relation, case.spec))
    assert comparison, str(comparison)
    assert found.ledger.rows_in == case.stream.num_rows
    assert found.ledger.waiting == 0


@pytest.mark.parametrize("algorithm", NAMES)
@given(case=cases(), bits=st.integers(0, 3))
@settings(max_examples=20)
def test_the_rows_are_the_same_when_codes_collide(algorithm: str, case: Case, bits: int) -> None:
    key = [pair[1] for pair in case.spec.on]
    codec = CollidingCodec(tuple(case.relation.schema.field(name).type for name in key), bits=bits)
    found = run(algorithm, case, MemoryRelation(case.relation, key, case.rows_per_page, codec=codec, counts=case.counts))
    comparison = same_rows(found.numbered, expected(case.stream, case.relation, case.spec))
    assert comparison, str(comparison)


@given(case=cases(most_rows=250))
@settings(max_examples=40)
def test_all_algorithms_agree(case: Case) -> None:
    first = run(NAMES[0], case)
    for algorithm in NAMES[1:]:
        other = run(algorithm, case)
        comparison = same_rows(first.numbered, other.numbered)
        assert comparison, f"{NAMES[0]} (left) and {algorithm} (right): {comparison}"
        for name in ("tuples_in", "removed", "matched", "absent_keys", "null_keys"):
            assert getattr(first.totals, name) == getattr(other.totals, name), name
