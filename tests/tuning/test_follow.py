"""A join whose settings follow the stream: nothing is lost when they change, and they change when it pays."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties.cases import Case, cases

from millrace.catalog import ALGORITHMS
from millrace.checks import LAWS, check_join
from millrace.checks.reference import same_rows
from millrace.checks.run import expected, run_join, tightest
from millrace.core.budget import Budget
from millrace.core.errors import BudgetError, ParameterError
from millrace.core.host import Host
from millrace.core.protocols import HOWS, How, JoinSpec, Relation
from millrace.core.step import StepCounts
from millrace.core.unitcosts import UnitCosts
from millrace.joins.shedding.overloaded import Overloaded
from millrace.relations.generated import GeneratedRelation
from millrace.relations.memory import MemoryRelation
from millrace.tuning.choose import make_best_join
from millrace.tuning.follow import FollowingJoin
from millrace.tuning.judge import Judge, Wanted
from millrace.tuning.settings import Setting, Tuner
from millrace.tuning.skew import Skew
from millrace.tuning.watch import Seen, Watch

NAMES = [row.name for row in ALGORITHMS]
MANY_CHANGES = ["hybridjoin", "cmeshjoin", "csweepjoin", "xhybridjoin", "chybridjoin", "meshjoin", "inlj", "cinlj", "rmeshjoin",
                "sweepjoin", "ssij", "partitionjoin"]  # fmt: skip
FAST_FOR_ALL = ("exact", "duplicates", "ledger", "entry_steps", "bounded_waits", "withdrawn", "bounded_memory")
CELLS = [
    pytest.param(law.name, how, marks=[] if how == "left" or law.name in FAST_FOR_ALL else [pytest.mark.slow])
    for law in LAWS
    for how in HOWS
]


class InTurn:
    """Changes the join at each look."""

    def __init__(self, names: Sequence[str] = MANY_CHANGES) -> None:
        self._names = names
        self._turn = 0

    def __call__(self, now: Setting, seen: Seen) -> Wanted:
        self._turn += 1
        return Wanted(Setting(self._names[self._turn % len(self._names)]), "it is its turn")


def changing(relation: Relation, spec: JoinSpec, budget: Budget) -> FollowingJoin:
    return FollowingJoin(relation, spec, budget, decide=InTurn(), look_tuples=7)


def rows_of(count: int) -> pa.Table:
    return pa.table({"id": np.arange(count), "price": 3 * np.arange(count)})


def spec_of(*, how: How = "inner", returnable: bool = False) -> JoinSpec:
    return JoinSpec(pa.schema([("key", pa.int64())]), (("key", "id"),), how, (), ("price",), returnable=returnable)


def batch(keys: Any) -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array(keys, pa.int64())})


# --- nothing is lost


def test_all_joins_take_their_turn() -> None:
    assert sorted(MANY_CHANGES) == sorted(NAMES)


@pytest.mark.parametrize(("law", "how"), CELLS)
def test_a_join_that_changes_at_every_look_keeps_the_law(law: str, how: How) -> None:
    check_join(changing, law=law, how=how)


@given(case=cases(most_rows=120), names=st.lists(st.sampled_from(NAMES), min_size=2, max_size=4), look=st.integers(1, 20))
@settings(max_examples=25)
def test_any_changes_give_the_rows_of_the_reference(case: Case, names: list[str], look: int) -> None:
    made: list[FollowingJoin] = []

    def make(relation: Relation, spec: JoinSpec, budget: Budget) -> FollowingJoin:
        made.append(FollowingJoin(relation, spec, budget, decide=InTurn(names), look_tuples=look))
        return made[-1]

    relation = case.pages()
    memory = tightest(make, relation, case.spec) + case.extra_bytes
    run = run_join(make, relation, case.spec, case.batches(), memory=memory, steps_per_batch=case.steps_per_batch)
    assert same_rows(run.numbered, expected(case.stream, case.relation, case.spec))
    assert (run.ledger.rows_in, run.ledger.waiting) == (case.stream.num_rows, 0)


def test_entry_steps_and_numbers_go_on_over_a_change() -> None:
    join = FollowingJoin(MemoryRelation(rows_of(64), "id", 4), spec_of(), Budget("64k"), decide=InTurn(), look_tuples=64)
    host, numbers = Host(join), []
    for part in range(12):
        before = host.ledger.steps
        for step in [*host.feed(batch(np.arange(64))), *host.drain()]:
            numbers += step.left.tolist()
            assert (step.entered >= before).all()
            assert (step.entered < host.ledger.steps).all()
        assert sorted(numbers) == list(range(64 * (part + 1)))
    assert len(join.changes) > 8
    assert [change.step for change in join.changes] == sorted(change.step for change in join.changes)
    assert "it is its turn" in str(join.changes[0])


def test_the_join_before_lets_its_memory_go_before_the_next_is_made() -> None:
    memory = 8 << 20
    spec, relation = spec_of(), MemoryRelation(rows_of(4_000), "id", 16)
    join = FollowingJoin(relation, spec, Budget(memory), decide=InTurn(), look_tuples=500)
    host, keys = Host(join), np.random.default_rng(1).zipf(1.2, 9_000) % 4_000
    list(host.feed(batch(keys)))  # compiled now, so that this is not counted
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        old = weakref.ref(join.held)
        for part in np.array_split(keys, 18):
            for _ in (*host.feed(batch(part)), *host.drain()):
                assert join.bytes_used <= memory
            assert old() is None or old() is join.held
            old = weakref.ref(join.held)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert len(join.changes) >= len(MANY_CHANGES)
    assert memory // 4 < peak < memory + (1 << 20)  # and what a step works with


def test_hot_rows_go_on_from_one_front_stage_to_the_next() -> None:
    relation, wanted = MemoryRelation(rows_of(4_000), "id", 16), ["chybridjoin"]

    def decide(now: Setting, seen: Seen) -> Wanted | None:
        return Wanted(Setting(wanted[0]), "it is wanted") if now.strategy != wanted[0] else None

    join = FollowingJoin(relation, spec_of(), Budget("400k"), "chybridjoin", decide=decide, look_tuples=1_000)
    host, keys = Host(join), np.random.default_rng(1).zipf(1.3, 60_000) % 4_000
    for part in np.array_split(keys, 60):
        list(host.feed(batch(part)))
    wanted[0] = "csweepjoin"
    while not join.changes:
        list(host.feed(batch(keys[:500])))
    before = host.ledger.totals
    list(host.feed(batch(keys[:2_000])))
    hits = host.ledger.totals.front_hits - before.front_hits
    assert join.setting.strategy == "csweepjoin"
    assert hits > 0.5 * 2_000


def test_a_change_that_does_not_fit_is_not_made() -> None:
    relation, spec = MemoryRelation(rows_of(200), "id", 4), spec_of()
    smallest = tightest(lambda r, s, b: FollowingJoin(r, s, b, "meshjoin"), relation, spec)
    join = FollowingJoin(relation, spec, Budget(smallest), "meshjoin", decide=InTurn(["csweepjoin"]), look_tuples=5)
    host = Host(join)
    assert sum(step.output.num_rows for step in [*host.feed(batch(range(60))), *host.drain()]) == 60
    assert (join.changes, join.setting.strategy) == ([], "meshjoin")


@pytest.mark.parametrize("policy", ["keep", "sample"])
def test_a_join_that_sheds_may_hold_one_that_follows(policy: str) -> None:
    names = ["hybridjoin", "chybridjoin", "sweepjoin"]
    relation, spec = MemoryRelation(rows_of(2_000), "id", 8), spec_of(returnable=True)
    join = FollowingJoin(relation, spec, Budget("64k"), "hybridjoin", decide=InTurn(names), look_tuples=500)
    with Overloaded(join, policy=policy, memory="200k") as shedding:
        host, prices = Host(shedding), []
        for part in range(6):
            for step in host.feed(batch((np.arange(3_000) + part) % 2_000)):
                prices += step.output.column("price").to_pylist()
            prices += host.step().output.column("price").to_pylist()
        for step in host.drain():
            prices += step.output.column("price").to_pylist()
    assert join.changes
    assert sum(prices) == sum(int(((np.arange(3_000) + part) % 2_000).sum()) * 3 for part in range(6))
    assert len(prices) == 18_000


def test_bad_input_is_refused() -> None:
    relation = MemoryRelation(rows_of(20), "id", 4)
    with pytest.raises(ParameterError, match='name the strategy that takes buffer_pages, instead of "auto"'):
        FollowingJoin(relation, spec_of(), Budget("1m"), buffer_pages=2)
    with pytest.raises(ParameterError, match="look_tuples must be at least 1; got 0"):
        FollowingJoin(relation, spec_of(), Budget("1m"), look_tuples=0)
    with pytest.raises(BudgetError, match="give memory=") as small:
        FollowingJoin(relation, spec_of(), Budget(100), "hybridjoin")
    FollowingJoin(relation, spec_of(), Budget(small.value.needed_bytes), "hybridjoin")


def test_given_parameters_stay_as_they_are() -> None:
    join = make_best_join(
        "hybridjoin", MemoryRelation(rows_of(400), "id", 4), spec_of(), Budget("1m"), follow=True, buffer_pages=3
    )
    assert isinstance(join, FollowingJoin)
    assert (join.setting.parameters, join.held.buffer_pages) == ({}, 3)


# --- what is seen


def watched(keys: Any, relation: Relation | None = None, counters: int = 64) -> Watch:
    watch = Watch(relation or MemoryRelation(rows_of(1_000), "id", 10), spec_of(), counters)
    watch.begin(len(keys))
    for part in np.array_split(keys, 20):
        watch.took(batch(part))
    return watch


def test_shares_of_hot_keys_are_seen_and_absent_keys_left_out() -> None:
    random = np.random.default_rng(2)
    keys = random.choice([5, 7, 2_000, 11], 20_000, p=[0.4, 0.2, 0.2, 0.2])
    watch = watched(keys)
    watch.stepped(StepCounts(removed=20_000, matched=16_000, matches=16_000, absent_keys=4_000), refused=True)
    watch.stepped(StepCounts(), refused=False)
    seen = watch.look()
    assert seen.skew.shares == pytest.approx((0.5, 0.25, 0.25), abs=0.05)
    assert (seen.absent, seen.sigma, seen.full) == (pytest.approx(0.2), 1.0, 0.5)


def test_keys_that_come_alike_show_no_hot_keys() -> None:
    seen = watched(np.random.default_rng(2).integers(0, 1_000, 50_000)).look()
    assert seen.skew.shares == ()
    assert seen.stream().popularity.share(100) == pytest.approx(0.1)


def test_each_look_speaks_of_what_came_since_the_one_before() -> None:
    watch = watched(np.repeat(3, 5_000))
    first = watch.look()
    watch.begin(5_000)
    watch.took(batch(np.random.default_rng(2).integers(0, 1_000, 5_000)))
    assert (first.skew.shares, watch.look().skew.shares) == ((1.0,), ())


def test_a_table_whose_hot_rows_come_first_is_noticed() -> None:
    ranks = np.random.default_rng(2).zipf(1.5, 50_000)
    first, anywhere = watched(ranks[ranks < 1_000] - 1).look(), watched(ranks * 7_919 % 1_000).look()
    assert (first.order, anywhere.order) == ("sorted", "scattered")
    assert not first.like(anywhere)


# --- when settings change

FAST, SLOW, OTHER = Setting("sweepjoin", {}, 300.0), Setting("meshjoin", {}, 100.0), Setting("hybridjoin", {}, 115.0)


class Forecasts:
    """Settings with the rates that a test says."""

    def __init__(self, best: Setting, rates: dict[str, float], rows: int = 1_000) -> None:
        self.relation = MemoryRelation(rows_of(rows), "id", 10)
        self.found, self.rates, self.asked = best, rates, 0

    def best(self, stream: Any) -> Setting:
        self.asked += 1
        return replace(self.found, tuples_per_second=self.rates[self.found.strategy])

    def rate(self, setting: Setting, stream: Any) -> float:
        return self.rates[setting.strategy]

    def costs(self, strategy: str) -> UnitCosts:
        return UnitCosts(seek=1.0, read_byte=0.0, expire=0.0, take=0.0, add=0.0, probe=0.0, output=0.0)


def judge_of(best: Setting, rates: dict[str, float], **given: Any) -> Judge:
    return Judge(Forecasts(best, rates), **given)  # type: ignore[arg-type]


def seen_of(*shares: float, rate: float = 100.0, full: float = 1.0, rows: int = 1_000) -> Seen:
    """A look at a stream with these hot keys, in which the join served so many tuples in a second."""
    counts = StepCounts(removed=1_000_000, seeks=int(1_000_000 / rate))
    return Seen(Skew.counted(shares, "told"), "scattered", 0.0, 1.0, full, rows, 1_000_000, counts, 10)


def looks(judge: Judge, now: Setting, seen: Seen, count: int) -> list[Wanted | None]:
    return [judge(now, seen) for _ in range(count)]


def test_much_better_settings_are_taken_once_the_join_is_in_its_stride() -> None:
    found = looks(judge_of(FAST, {"sweepjoin": 300.0, "meshjoin": 100.0}), SLOW, seen_of(), 2)
    assert found[0] is None
    assert found[1] is not None
    assert found[1].setting.strategy == "sweepjoin"
    assert "3.00x" in found[1].why


def test_a_small_gain_needs_two_looks_unless_the_join_has_little_to_do() -> None:
    rates = {"hybridjoin": 120.0, "meshjoin": 100.0}
    assert [one is not None for one in looks(judge_of(OTHER, rates), SLOW, seen_of(), 4)][:3] == [False, False, True]
    assert [one is not None for one in looks(judge_of(OTHER, rates), SLOW, seen_of(full=0.0), 2)] == [False, True]


def test_a_gain_within_the_error_of_forecasts_changes_nothing() -> None:
    assert not any(looks(judge_of(OTHER, {"hybridjoin": 109.0, "meshjoin": 100.0}), SLOW, seen_of(), 20))
    assert not any(looks(judge_of(FAST, {"sweepjoin": 300.0, "meshjoin": 100.0}), SLOW, seen_of(rate=290.0), 20))


def test_a_join_that_keeps_up_is_left_alone_until_more_tuples_come() -> None:
    judge = judge_of(FAST, {"sweepjoin": 300.0, "meshjoin": 100.0}, arrivals_per_second=70.0)
    assert not any(looks(judge, SLOW, seen_of(), 5))
    judge.arrivals_per_second = 95.0
    assert any(looks(judge, SLOW, seen_of(), 2))


def test_settings_that_give_less_than_promised_are_given_up_for_good() -> None:
    judge = judge_of(FAST, {"sweepjoin": 300.0, "meshjoin": 100.0})
    now, changes = SLOW, 0
    for _ in range(60):
        wanted = judge(now, seen_of(rate=100.0 if now is SLOW else 40.0))
        if wanted is not None:
            now = SLOW if wanted.setting.strategy == "meshjoin" else FAST
            changes += 1
    assert changes == 2
    assert now is SLOW


def test_a_stream_that_goes_to_and_fro_does_not_make_the_join_do_so() -> None:
    judge = judge_of(FAST, {"sweepjoin": 300.0, "meshjoin": 100.0})
    forecasts: Any = judge._tuner
    now, changes = SLOW, 0
    for turn in range(64):
        skewed = turn % 2 == 0
        forecasts.found = FAST if skewed else SLOW
        forecasts.rates = {"sweepjoin": 300.0, "meshjoin": 100.0} if skewed else {"sweepjoin": 100.0, "meshjoin": 300.0}
        rate = forecasts.rates[now.strategy]
        wanted = judge(now, seen_of(0.5, rate=rate) if skewed else seen_of(rate=rate))
        if wanted is not None:
            now, changes = wanted.setting, changes + 1
    assert 0 < changes <= 14


def test_the_forecast_is_not_made_again_while_the_stream_stays_the_same() -> None:
    judge = judge_of(OTHER, {"hybridjoin": 105.0, "meshjoin": 100.0})
    looks(judge, SLOW, seen_of(0.2, 0.1), 9)
    looks(judge, SLOW, seen_of(0.21, 0.1), 9)
    forecasts: Any = judge._tuner
    assert forecasts.asked == 1
    looks(judge, SLOW, seen_of(0.6, 0.1), 9)
    assert forecasts.asked == 2


def test_a_table_that_has_grown_gets_new_settings() -> None:
    relation = GeneratedRelation(2_000, page_bytes=2_048)
    spec = JoinSpec(pa.schema([("key", pa.int64())]), (("key", "key"),), "inner", (), ("surrogate_key",))
    join = FollowingJoin(relation, spec, Budget("100k"), "meshjoin", look_tuples=2_000)
    host, keys = Host(join), np.random.default_rng(1).integers(1, 2_000, 2_000)
    list(host.feed(batch(keys)))
    assert not join.changes
    relation.grow(4_000)
    for _ in range(4):
        list(host.feed(batch(keys)))
    assert [change.why for change in join.changes] == ["the table has 4,000 rows, and had 2,000"]


def test_the_tuner_finds_a_disk_buffer_that_is_better_than_the_usual_one() -> None:
    relation = GeneratedRelation(200_000, row_bytes=120, page_bytes=4_096)
    spec = JoinSpec(pa.schema([("key", pa.int64())]), (("key", "key"),), "inner", (), ("surrogate_key",))
    tuner = Tuner(relation, spec, 2 << 20, ("xhybridjoin",))
    sorted_, even = Skew.zipf(1.2).stream(200_000, "sorted"), Skew.zipf(0.0).stream(200_000)
    assert tuner.best(sorted_).parameters["pinned_pages"] > 0
    assert tuner.best(even).parameters["pinned_pages"] == 0
    assert tuner.rate(tuner.best(sorted_), sorted_) > 1.1 * tuner.rate(tuner.best(even), sorted_)
