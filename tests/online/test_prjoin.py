"""PR-Join: when it joins which partition, how much it reads again, and what it does about skew and stalls."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from tests.online.inputs import StallingInput
from tests.online.tables import COUNT_AND_SUM, Collected, all_pairs, join_of, records, tables

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.devices import VirtualClock, VirtualDevice, device
from millrace.core.errors import BudgetError, ParameterError, SpillError
from millrace.online.joins.invocation import Expanding, Invocation, Moment
from millrace.online.joins.prjoin import PRJoin
from millrace.online.pair_functions import Products
from millrace.online.protocol import Progress, finished, run
from millrace.online.storage.inputs import ArrayInput
from millrace.online.storage.memory_plan import Layout
from millrace.online.storage.spill import VirtualSpill


def prjoin(*arguments: object, **options: object) -> PRJoin:
    join = join_of("prjoin", *arguments, **options)  # type: ignore[arg-type]
    assert isinstance(join, PRJoin)
    return join


def test_partitions_are_joined_at_even_powers_of_the_rows_read_of_both_inputs() -> None:
    condition = Expanding(gamma=1.0, stop=False, first_share=0.5)
    condition.begin(4, 1000, np.arange(4))
    joined: list[list[int]] = [[], [], [], []]
    for rows in range(500, 8001):
        moment = Moment(rows, 8000, True)
        while (due := condition.due(moment)) is not None:
            joined[due].append(rows)
            condition.joined(due, moment)
    for i in range(4):
        first = 1000.0 if i == 0 else 500 * 2 ** (i / 4)
        expected = [first * 2**j for j in range(5) if first * 2**j <= 8000]
        assert joined[i] == [int(np.ceil(rows)) for rows in expected]


def test_the_stop_constraint_leaves_out_joins_whose_next_would_come_after_the_end() -> None:
    condition = Expanding(gamma=1.0, first_share=0.5)
    condition.begin(1, 1000, np.arange(1))
    assert condition.due(Moment(1000, 1999, False)) == 0  # costs no transfer
    assert condition.due(Moment(1000, 2000, True)) == 0
    assert condition.due(Moment(1000, 1999, True)) is None


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_early_joins_read_no_more_than_one_over_gamma_of_the_input_again(gamma: float) -> None:
    data = tables("one to one", rows=200_000)
    end = finished(prjoin(data.a, data.b, memory=data.bytes // 8, gamma=gamma))
    assert data.bytes * 0.5 < end.counters.temp_read_bytes <= (1 + 1 / gamma) * data.bytes
    assert end.counters.temp_written_bytes <= data.bytes


def test_without_the_stop_constraint_reports_come_until_the_input_ends() -> None:
    data = tables("one to one", rows=100_000)

    def last_share(stop: bool) -> float:
        steps = run(prjoin(data.a, data.b, memory=data.bytes // 8, stop=stop))
        reported = [p.counters.rows_a for p in steps if p.reported and not p.input_ended]
        return reported[-1] / len(data.a)

    assert last_share(stop=True) < 0.6
    assert last_share(stop=False) > 0.95


def test_reports_are_spread_evenly_over_the_powers_of_the_input() -> None:
    data = tables("one to one", rows=200_000)
    join = prjoin(data.a, data.b, memory=data.bytes // 8, stop=False)
    at = [p.counters.rows_a + p.counters.rows_b for p in run(join) if p.reported and not p.input_ended]
    late = np.array([rows for rows in at if rows > join.memory_rows])
    gaps = np.diff(np.log(late))
    assert gaps.max() < 8 * np.log(2) / join.partitions + 0.1


class NotBefore:
    """Another condition, but nothing before `share` of the input has been read: for users who don't look earlier."""

    def __init__(self, condition: Invocation, share: float) -> None:
        self._condition, self.share = condition, share

    def begin(self, partitions: int, memory_rows: int, order: Int64Array) -> None:
        self._condition.begin(partitions, memory_rows, order)

    def first(self, moment: Moment) -> bool:
        return moment.rows_read >= self.share * moment.rows_total and self._condition.first(moment)

    def due(self, moment: Moment) -> int | None:
        return self._condition.due(moment) if moment.rows_read >= self.share * moment.rows_total else None

    def joined(self, partition: int, moment: Moment) -> None:
        self._condition.joined(partition, moment)


def test_a_condition_of_the_users_own_decides_when_to_join() -> None:
    data = tables("one to one", rows=50_000)
    join = prjoin(data.a, data.b, memory=data.bytes // 4, invocation=NotBefore(Expanding(stop=False), 0.6))
    reported = [p.counters.rows_a for p in run(join) if p.reported]
    assert reported[0] >= 0.59 * len(data.a)


def skewed(rows: int = 60_000) -> tuple[np.ndarray, np.ndarray]:
    """Ten keys hold 60 % of the rows."""
    random = np.random.default_rng(8)
    heavy = np.where(random.random(rows) < 0.6, random.integers(0, 10, rows) * 987_654_321, random.integers(0, 10**9, rows))
    return records(heavy, random.integers(0, 9, rows)), records(random.permutation(heavy), random.integers(0, 9, rows))


def test_buckets_are_given_to_partitions_anew_when_they_differ_in_size() -> None:
    a, b = skewed()
    sizes = {}
    for remap in (True, False):
        join = prjoin(a, b, memory=(a.nbytes + b.nbytes) // 6, remap=remap, layout=Layout(partitions=16))
        end = finished(join)
        total = end.pieces.total_a + end.pieces.total_b
        sizes[remap] = total.max() / total.mean()
    assert sizes[True] < 0.85 * sizes[False]


def test_few_rows_that_differ_by_chance_alone_are_not_remapped() -> None:
    """Memory holds some ten rows of a partition: what their counts say about the buckets is mostly noise."""
    data = tables("one to one", rows=12_000)
    join = prjoin(data.a, data.b, memory=80_000, layout=Layout(partitions=64, extent_bytes=32, page_bytes=16))
    before = join._partitions._mapping.copy()
    while join._may_remap:
        join.step()
    np.testing.assert_array_equal(join._partitions._mapping, before)
    join.close()


def test_remapping_spreads_buckets_that_had_no_row_so_far() -> None:
    a, b = skewed()
    spill = VirtualSpill(VirtualDevice(device("ssd"), VirtualClock()))
    join = prjoin(a, b, memory=40_000, spill=spill, layout=Layout(partitions=16, extent_bytes=160, page_bytes=16))
    assert join.memory_rows // 2 * 0.4 < 2 * join._partitions.plan.buckets  # so that there are many
    end = finished(join)
    total = end.pieces.total_a + end.pieces.total_b
    assert total.max() < 1.8 * total.mean()


def test_remapping_puts_out_no_pair_twice() -> None:
    random = np.random.default_rng(9)
    a, b = (records(np.where(random.random(3000) < 0.2, 77, random.integers(0, 4000, 3000)), np.arange(3000)) for _ in "ab")
    found = Collected()
    join = prjoin(a, b, found.functions, memory=1 << 18)
    remapped = False
    for _ in run(join):
        remapped |= not join._may_remap
    assert remapped
    assert sorted(found.pairs) == sorted(all_pairs(type(tables("empty"))(a, b)).elements())


def test_stalled_inputs_let_partitions_be_joined_that_are_not_due() -> None:
    data = tables("one to one", rows=20_000)

    def with_pause(words: np.ndarray) -> Iterator[int]:
        return itertools.chain(itertools.repeat(100, 150), itertools.repeat(0, 100_000))

    a, b = (StallingInput(ArrayInput(side), with_pause(side)) for side in (data.a, data.b))
    join = prjoin(a, b, memory=3 << 15)
    last: Progress | None = None
    for _ in range(20_000):
        last = join.step()
        if last.stalled:
            break
    assert last is not None
    assert last.stalled
    assert not last.input_ended
    joined = last.pieces
    assert (joined.own_a == joined.total_a).all()  # everything that came has met
    assert (joined.own_b == joined.total_b).all()
    join.close()


def test_the_first_report_comes_when_a_small_part_of_the_memory_is_filled() -> None:
    data = tables("one to one", rows=100_000)
    join = prjoin(data.a, data.b, memory=data.bytes // 5)
    first = next(p for p in run(join) if p.reported)
    assert first.counters.rows_a + first.counters.rows_b < 0.1 * join.memory_rows


def test_a_budget_that_is_too_small_says_how_much_to_give() -> None:
    data = tables("one to one", rows=50_000)
    with pytest.raises(BudgetError, match="give memory=") as error:
        join_of("prjoin", data.a, data.b, COUNT_AND_SUM, budget=Budget(2000))
    assert error.value.needed_bytes > 2000


def test_parameters_that_make_no_sense_are_errors() -> None:
    with pytest.raises(ParameterError, match="gamma must be above 0"):
        Expanding(gamma=0)
    with pytest.raises(ParameterError, match="partitions must be 1 or more"):
        Layout(partitions=0)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("stop", [True, False])
def test_once_the_inputs_have_ended_the_totals_are_final(threads: int, stop: bool) -> None:
    data = tables("one to one", rows=20_000)
    for seed in range(3):
        portions = np.random.default_rng(seed).choice([0, 300, 2000], 60).tolist()
        a, b = (StallingInput(ArrayInput(side), iter(portions)) for side in (data.a, data.b))
        for progress in run(prjoin(a, b, memory=data.bytes // 5, threads=threads, stop=stop)):
            if progress.input_ended:
                assert progress.pieces.total_a.sum() == len(data.a)
                assert progress.pieces.total_b.sum() == len(data.b)


@pytest.mark.parametrize("kind", ["one to one", "skew", "empty", "few rows"])
def test_two_threads_come_to_the_same_answer(kind: str) -> None:
    data = tables(kind, rows=60_000)
    random = np.random.default_rng(1)
    a, b = (StallingInput(ArrayInput(side), iter(random.choice([0, 900], 20).tolist())) for side in (data.a, data.b))
    budget = Budget(300_000)
    end = finished(prjoin(a, b, budget=budget, threads=2))
    assert tuple(end.pieces.answer()[0]) == data.expected()
    assert end.pieces.exact.all()
    assert budget.peak_bytes <= budget.memory_bytes


def test_a_join_beside_reading_that_fails_ends_the_run() -> None:
    data = tables("one to one", rows=60_000)
    join = prjoin(data.a, data.b, memory=300_000, threads=2)
    while not join.step().counters.temp_written_bytes:
        pass
    join._spill.close()  # what was spilled can't be read again
    with pytest.raises((SpillError, AssertionError, RuntimeError)):
        finished(join)


def test_joins_in_two_threads_keep_up_with_reading() -> None:
    """However many partitions come due during one read, none is joined later than its power says."""
    data = tables("one to one", rows=60_000)
    join = prjoin(data.a, data.b, memory=4 * data.bytes, threads=2, layout=Layout(partitions=256))
    batch = join._partitions.plan.batch_rows
    behind = []
    for progress in run(join):
        if progress.reported and not progress.input_ended:
            read = progress.counters.rows_a + progress.counters.rows_b
            joined = np.sort(progress.pieces.rows_a + progress.pieces.rows_b)[2:]  # up to two are under way
            behind.append((read - 2 * batch) / joined[0])
    assert len(behind) > 5
    assert max(behind) <= 2


@pytest.mark.slow
def test_very_little_memory_is_cut_into_many_partitions_not_many_parts() -> None:
    """A partition that is joined in parts is read for each of them."""
    data = tables("one to one", rows=20_000)
    end = finished(prjoin(data.a, data.b, memory=data.bytes // 40))
    assert tuple(end.pieces.answer()[0]) == data.expected()
    assert end.counters.temp_read_bytes < 120 * data.bytes


class _OnlyAtFirst(Expanding):
    """One join of all, and then none but those of stalls."""

    def due(self, moment: Moment) -> int | None:
        return None


def test_joins_during_stalls_go_by_rows_read_and_not_by_how_much_a_partition_has_grown() -> None:
    """Else those are joined that hold more than their share, and the estimate is too high."""
    random = np.random.default_rng(1)
    a, b = (
        StallingInput(ArrayInput(np.ascontiguousarray(random.permutation(800)[:, None])), itertools.cycle((20, 0)))
        for _ in range(2)
    )
    condition = _OnlyAtFirst(first_share=0.01)
    join = prjoin(a, b, Products(((),), ((),)), memory=1 << 17, layout=Layout(partitions=8), invocation=condition, remap=False)
    pieces, joined = join.pieces, 0
    before = own = np.zeros(8, np.int64)
    for progress in run(join):
        if progress.input_ended:
            break
        at = pieces.rows_a + pieces.rows_b
        if progress.reported and before.any():
            (now,) = np.flatnonzero(pieces.own_a + pieces.own_b != own)
            # those that had waited longer had no new rows, and hold all that has been read
            assert (at[before < before[now]] == progress.counters.rows_a + progress.counters.rows_b).all()
            joined += 1
        before, own = at, pieces.own_a + pieces.own_b
    assert joined > 20
