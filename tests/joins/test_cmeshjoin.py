"""CMESHJOIN: what only it promises."""

from __future__ import annotations

import pyarrow as pa
from tests.joins.cached import check_bad_input, check_exact_with_hits, check_share
from tests.joins.examples import joined, relation_of, spec_of, stream_of

from millrace.core.budget import Budget
from millrace.core.drive import total
from millrace.joins.cmeshjoin import CMeshJoin


def test_it_joins_exactly_and_answers_hot_keys_in_front() -> None:
    check_exact_with_hits(CMeshJoin)


def test_bad_shares_thresholds_and_budgets_are_refused() -> None:
    check_bad_input(CMeshJoin)


def test_a_share_is_kept() -> None:
    check_share(CMeshJoin)


def test_rows_that_are_appended_empty_the_front_stage() -> None:
    relation = relation_of([1, 2, 3, 4], indexed=False)
    join = CMeshJoin(relation, spec_of("left"), Budget("256k"), threshold=1)
    before = [step for keys in ([1, 9], [1, 9]) for step in joined(join, [stream_of(keys)])]
    assert total(before).front_hits == 2
    relation.append(pa.record_batch({"id": [1, 9], "row": [4, 5]}))
    after = joined(join, [stream_of([1, 9, 2])])
    assert total(after).front_hits == 0
    assert sorted(row["row"] for step in after for row in step.output.to_pylist()) == [0, 1, 4, 5]
    assert total(joined(join, [stream_of([1, 9])])).front_hits == 2


def test_a_key_on_several_pages_is_collected_over_a_pass() -> None:
    keys = [5, 1, 5, 2, 5, 3]
    join = CMeshJoin(relation_of(keys, 1, indexed=False), spec_of(), Budget("256k"), buffer_pages=1, threshold=1)
    first = joined(join, [stream_of([5])])
    second = joined(join, [stream_of([5])])
    assert total(first).matches == total(second).matches == 3
    assert (total(second).front_hits, total(second).pages_read) == (1, 0)


def test_an_absent_key_waits_for_a_pass_once() -> None:
    relation = relation_of([*range(10)], 1)
    join = CMeshJoin(relation, spec_of("anti"), Budget("256k"), buffer_pages=1, threshold=1)
    assert [total(joined(join, [stream_of([99])])).pages_read for _ in range(3)] == [10, 0, 0]
