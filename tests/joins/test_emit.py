"""What one step puts out."""

from __future__ import annotations

import numpy as np
import pytest
from tests.joins.examples import HOWS, expected, joined, relation_of, rows_of, spec_of, stream_of

from millrace.core.budget import Budget
from millrace.core.drive import total
from millrace.core.protocols import How
from millrace.core.step import StepCounts
from millrace.joins.emit import Emitter
from millrace.joins.hybridjoin import HybridJoin
from millrace.joins.meshjoin import MeshJoin
from millrace.structures.window import Window


@pytest.mark.parametrize("how", ["left", "anti"])
def test_tuples_that_leave_alone_keep_to_the_rows_of_a_step(how: How) -> None:
    relation = relation_of([1])
    window = Window(relation, spec_of(how), Budget("64k"), 100)
    emitter = Emitter(relation, spec_of(how), window, output_rows=10)
    _, slots = window.admit(stream_of([None] * 25 + [7] * 8), 100)
    emitter.begin()
    emitter.leave(slots)
    assert emitter.room == 0
    steps = [emitter.finish(StepCounts())]
    while window.pending:
        emitter.begin()
        steps.append(emitter.finish(StepCounts()))
    assert [step.output.num_rows for step in steps] == [10, 10, 10, 3]
    counts = total(steps)
    assert (counts.null_keys, counts.absent_keys, counts.removed) == (25, 8, 33)
    assert rows_of(steps) == expected([None] * 33, [1], how)


@pytest.mark.parametrize("how", ["inner", "semi"])
def test_tuples_that_leave_without_a_row_all_leave_at_once(how: How) -> None:
    relation = relation_of([1])
    window = Window(relation, spec_of(how), Budget("64k"), 100)
    emitter = Emitter(relation, spec_of(how), window, output_rows=10)
    window.admit(stream_of([None] * 25), 100)
    emitter.begin()
    assert emitter.finish(StepCounts()).counts.removed == 25


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("make", [MeshJoin, HybridJoin])
def test_a_window_full_of_absent_and_null_keys_leaves_in_pieces(make: type[MeshJoin] | type[HybridJoin], how: How) -> None:
    keys, tuples = [0, 100], ([None, 50, 200] * 400)[:1000]
    join = make(relation_of(keys, rows_per_page=2), spec_of(how), Budget("96k"))
    steps = joined(join, [stream_of(tuples)])
    assert rows_of(steps) == expected(tuples, keys, how)
    assert join.pending == 0
    if how in ("left", "anti"):
        assert max(step.output.num_rows for step in steps) < 1000
        assert len(steps) > 1
    assert np.array_equal(np.sort(np.concatenate([step.sequence for step in steps])), np.arange(1000)[: len(rows_of(steps))])
