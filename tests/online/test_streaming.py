"""XJoin, HMJ and RPJ: what meets when, and that spilled rows are put to use while the inputs stall."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.online.inputs import StallingInput
from tests.online.tables import join_of, tables

from millrace.online.joins.streaming import Area, without
from millrace.online.protocol import Progress, run
from millrace.online.storage.inputs import ArrayInput

NAMES = ("xjoin", "hmj", "rpj")
areas = st.tuples(*[st.integers(0, 9)] * 4).map(lambda t: Area(*sorted(t[:2]), *sorted(t[2:])))


def cells(area: Area) -> set[tuple[int, int]]:
    return set(itertools.product(range(area.a, area.a_end), range(area.b, area.b_end)))


@given(area=areas, holes=st.lists(areas, max_size=5))
def test_what_is_left_of_an_area_is_each_cell_outside_the_holes_once(area: Area, holes: list[Area]) -> None:
    parts = without(area, np.array(holes, np.int64).reshape(-1, 4))
    left = [cell for part in parts.tolist() for cell in cells(Area(*part))]
    assert len(left) == len(set(left))
    assert set(left) == cells(area) - set().union(*(cells(hole) for hole in holes))


def paused(name: str, portions: int, rows: int = 8_000) -> tuple[list[Progress], int]:
    """Both inputs stop for good after some portions; what the join had found when it had nothing left to do."""
    data = tables("duplicates", rows=rows)
    a, b = (
        StallingInput(ArrayInput(side), itertools.chain(itertools.repeat(100, portions), itertools.repeat(0)))
        for side in (data.a, data.b)
    )
    join = join_of(name, a, b, memory=3 << 15)
    steps = []
    while not steps or not steps[-1].stalled:
        steps.append(join.step())
    join.close()
    met_a, met_b = data.a[: steps[-1].counters.rows_a, 0], data.b[: steps[-1].counters.rows_b, 0]
    counts = np.bincount(met_a, minlength=rows)
    return steps, int(counts[met_b].sum())


@pytest.mark.parametrize("name", ["rpj"])
def test_while_the_inputs_stall_everything_that_came_meets(name: str) -> None:
    steps, pairs = paused(name, 50)
    assert steps[-1].counters.temp_read_bytes > 0
    assert steps[-1].counters.results == pairs


@pytest.mark.parametrize("name", ["xjoin", "hmj"])
def test_while_the_inputs_stall_spilled_rows_find_some_of_their_pairs(name: str) -> None:
    steps, pairs = paused(name, 50)
    read = steps[-1].counters.rows_a
    before = next(step.counters.results for step in steps if step.counters.rows_a == read and step.reported)
    assert steps[-1].counters.temp_read_bytes > 0
    assert before <= steps[-1].counters.results <= pairs


@pytest.mark.parametrize("name", NAMES)
def test_counts_allow_no_estimate_and_say_so(name: str) -> None:
    data = tables("duplicates")
    kinds = {progress.pieces.kind for progress in run(join_of(name, data.a, data.b, memory=3 << 15))}
    assert kinds == {"counts"}


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_never_leave_memory_meet_before_the_inputs_end(name: str) -> None:
    data = tables("duplicates", rows=5000)
    last = [p for p in run(join_of(name, data.a, data.b, memory=1 << 22)) if not p.input_ended and p.reported]
    assert last[-1].counters.results > 0
    assert last[-1].counters.temp_written_bytes == 0
