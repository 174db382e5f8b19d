"""Which pages are read, and for whom: the theorems of the papers, and the promises of the algorithms.

All of them speak of relations with one row per key, as the papers do.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.properties.cases import Plain, plain_cases
from tests.properties.trace import Moment, traced

from millrace.catalog import make_join
from millrace.checks.run import Make, tightest
from millrace.checks.samples import cut
from millrace.core.unitcosts import UnitCosts

SEEKS_ARE_FREE = UnitCosts(seek=0.0)


def moments_of(
    make: Make, case: Plain, *, steps_per_batch: int | None = 1, sizes: tuple[int, ...] | None = None
) -> list[Moment]:
    memory = tightest(make, case.relation, case.spec) + case.extra_bytes
    stream = cut(case.stream, sizes or case.sizes)
    return traced(make, case.relation, case.spec, stream, memory=memory, steps_per_batch=steps_per_batch)


def left_in(moments: list[Moment]) -> dict[int, int]:
    """The step in which each tuple was put out: in a left join with unique keys, once."""
    return {number: moment.number for moment in moments for number in moment.step.sequence.tolist()}


def re_reads(moments: list[Moment]) -> list[tuple[int, Moment, Moment]]:
    """Every page that was read again: the page, the moment of its previous read, and this one."""
    previous: dict[int, Moment] = {}
    found = []
    for moment in moments:
        for page in moment.pages:
            if page in previous:
                found.append((page, previous[page], moment))
            previous[page] = moment
    return found


# --- INLJ


@given(case=plain_cases(absent=True), tuples_per_step=st.integers(1, 5))
def test_inlj_reads_one_page_for_every_tuple_whose_key_may_be_there(case: Plain, tuples_per_step: int) -> None:
    moments = moments_of(partial(make_join, "inlj", tuples_per_step=tuples_per_step), case)
    pages = [page for moment in moments for page in moment.pages]
    assert Counter(pages) == Counter(page for page in case.page if page is not None)


@given(case=plain_cases(absent=True), tuples_per_step=st.integers(1, 5), pool_bytes=st.sampled_from([1_000, 3_000, 30_000]))
def test_inlj_with_a_pool_reads_no_page_more_often_than_without(case: Plain, tuples_per_step: int, pool_bytes: int) -> None:
    moments = moments_of(partial(make_join, "inlj", tuples_per_step=tuples_per_step, pool_bytes=pool_bytes), case)
    wanted = Counter(page for page in case.page if page is not None)
    pages = Counter(page for moment in moments for page in moment.pages)
    assert pages <= wanted
    assert set(pages) == set(wanted)
    if pool_bytes == 30_000:  # all pages fit
        assert all(count == 1 for count in pages.values())


# --- MESHJOIN and R-MESHJOIN


@pytest.mark.parametrize("algorithm", ["meshjoin", "rmeshjoin"])
@given(case=plain_cases(absent=True), tuples_per_step=st.integers(1, 9))
def test_scans_let_each_tuple_meet_every_page_exactly_once(algorithm: str, case: Plain, tuples_per_step: int) -> None:
    make = partial(make_join, algorithm, buffer_pages=case.buffer_pages, tuples_per_step=tuples_per_step)
    moments = moments_of(make, case)
    left = left_in(moments)
    for number in range(case.stream.num_rows):
        if not case.absent[number]:
            continue  # put out when it matches, before it has met the rest
        entered = next(moment.number for moment in moments if moment.offered > number)
        met = [page for moment in moments[entered : left[number] + 1] for page in moment.pages]
        assert sorted(met) == list(range(case.relation.pages)), f"tuple {number} met pages {met}"


@pytest.mark.parametrize("algorithm", ["meshjoin", "rmeshjoin"])
@given(case=plain_cases(absent=True))
def test_scans_read_round_and_round_in_order(algorithm: str, case: Plain) -> None:
    make = partial(make_join, algorithm, buffer_pages=case.buffer_pages)
    reads = [read for moment in moments_of(make, case) for read in moment.reads]
    for (first, count), (following, _) in pairwise(reads):
        assert following == (first + count) % case.relation.pages


# --- HYBRIDJOIN


@given(case=plain_cases(absent=True))
def test_hybridjoin_reads_a_page_again_only_for_a_tuple_that_entered_after_its_previous_read(case: Plain) -> None:
    moments = moments_of(partial(make_join, "hybridjoin", buffer_pages=case.buffer_pages), case)
    for page, before, again in re_reads(moments):
        since = case.page[before.offered : again.offered]
        partitions = {wanted // case.buffer_pages for wanted in since if wanted is not None}
        assert page // case.buffer_pages in partitions


@given(case=plain_cases(absent=False, most_rows=200))
def test_hybridjoin_with_a_full_window_reads_no_page_twice_within_window_tuples_of_the_stream(case: Plain) -> None:
    """Theorem 1. The stream has more than enough, so that the window is full at every read until the stream ends."""
    make = partial(make_join, "hybridjoin", buffer_pages=case.buffer_pages)
    moments = moments_of(make, case, steps_per_batch=0, sizes=(case.stream.num_rows,))
    window_tuples = moments[0].waited
    for moment in moments:
        assert moment.waited == window_tuples or moment.offered == case.stream.num_rows
    for _, before, again in re_reads(moments):
        assert again.offered - before.offered >= again.waited
        if again.offered < case.stream.num_rows:
            assert again.offered - before.offered >= window_tuples


@given(case=plain_cases(absent=True))
def test_hybridjoin_makes_no_more_reads_than_the_stream_has_tuples(case: Plain) -> None:
    """Theorem 2."""
    moments = moments_of(partial(make_join, "hybridjoin", buffer_pages=case.buffer_pages), case)
    reads = [read for moment in moments for read in moment.reads]
    assert len(reads) <= case.stream.num_rows
    assert all(first % case.buffer_pages == 0 for first, _ in reads), "partitions do not overlap"


# --- X-HYBRIDJOIN


@given(case=plain_cases(absent=True), pinned_pages=st.integers(0, 5))
def test_xhybridjoin_reads_pinned_pages_once_and_others_as_hybridjoin_does(case: Plain, pinned_pages: int) -> None:
    make = partial(make_join, "xhybridjoin", buffer_pages=case.buffer_pages, pinned_pages=pinned_pages)
    moments = moments_of(make, case)
    pinned = min(pinned_pages, case.relation.pages)
    wanted = [page for page in case.page if page is not None]
    pages = Counter(page for moment in moments for page in moment.pages)
    read = any(key is not None for key in case.stream.column("k").to_pylist())
    assert [pages[page] for page in range(pinned)] == [int(read)] * pinned
    assert len([read for moment in moments for read in moment.reads if read[0] >= pinned]) <= len(
        [page for page in wanted if page >= pinned]
    )
    for page, before, again in re_reads(moments):
        since = case.page[before.offered : again.offered]
        partitions = {(other - pinned) // case.buffer_pages for other in since if other is not None and other >= pinned}
        assert (page - pinned) // case.buffer_pages in partitions


# --- SWEEPJOIN


def sweeps(moments: list[Moment]) -> dict[int, int]:
    """Which sweep each step that reads belongs to: a new one begins where the head goes back."""
    sweep = head = 0
    found = {}
    for moment in moments:
        for first, count in moment.reads:
            sweep += first < head
            head = first + count
        found[moment.number] = sweep
    return found


@given(case=plain_cases(absent=True), costs=st.sampled_from([SEEKS_ARE_FREE, UnitCosts()]))
def test_sweepjoin_reads_no_page_again_for_tuples_that_were_waiting(case: Plain, costs: UnitCosts) -> None:
    moments = moments_of(partial(make_join, "sweepjoin", buffer_pages=case.buffer_pages, costs=costs), case)
    left = left_in(moments)
    for page, before, again in re_reads(moments):
        waiting = [n for n, step in left.items() if n < before.offered and step >= again.number]
        late = [n for n in waiting if case.page[n] == page]
        assert not late, f"page {page} was read in steps {before.number} and {again.number}; tuples {late} saw both"


@given(case=plain_cases(absent=True))
def test_sweepjoin_reads_no_page_that_nobody_waits_for_when_seeks_are_free(case: Plain) -> None:
    moments = moments_of(partial(make_join, "sweepjoin", buffer_pages=case.buffer_pages, costs=SEEKS_ARE_FREE), case)
    left = left_in(moments)
    for moment in moments:
        wanted = {case.page[n] for n in range(moment.offered) if left[n] >= moment.number}
        assert set(moment.pages) <= wanted


@given(case=plain_cases(absent=True), costs=st.sampled_from([SEEKS_ARE_FREE, UnitCosts()]))
def test_sweepjoin_lets_a_tuple_wait_for_one_turn_of_the_head_at_most(case: Plain, costs: UnitCosts) -> None:
    moments = moments_of(partial(make_join, "sweepjoin", buffer_pages=case.buffer_pages, costs=costs), case)
    sweep, left = sweeps(moments), left_in(moments)
    for number, step in left.items():
        entered = next(moment.number for moment in moments if moment.offered > number)
        turned = sweep[step] - (sweep[entered - 1] if entered else 0)
        assert turned <= 1, f"tuple {number} waited from step {entered} to step {step}, {turned} turns"
