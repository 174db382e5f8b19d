"""The share of the front stage, and what it learns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from millrace.core.budget import Budget
from millrace.core.errors import BudgetError
from millrace.core.host import Host
from millrace.core.protocols import JoinSpec
from millrace.joins.cache_share import LEAST_SHARE, best_drained_share, best_share
from millrace.joins.chybridjoin import CHybridJoin
from millrace.joins.cinlj import CachedIndexNestedLoopJoin
from millrace.joins.cmeshjoin import CMeshJoin
from millrace.joins.csweepjoin import CSweepJoin
from millrace.relations.generated import GeneratedRelation
from millrace.relations.memory import MemoryRelation

ROWS = 20_000
SPEC = JoinSpec(pa.schema([("key", pa.int64())]), (("key", "key"),), "inner", (), ("surrogate_key",))


def driven(join: CHybridJoin | CMeshJoin, keys: np.ndarray) -> tuple[float, int]:
    """The share of the last quarter that was answered in front, and the sum of what came out."""
    host, sums, quarter = Host(join), 0, None
    for number, part in enumerate(np.array_split(keys, 100)):
        quarter = host.ledger.totals if number == 75 else quarter
        for step in host.feed(pa.record_batch({"key": part})):
            sums += int(pa.compute.sum(step.output["surrogate_key"]).as_py() or 0)
    assert quarter is not None
    counts = host.ledger.totals
    share = (counts.front_hits - quarter.front_hits) / max(1, counts.front_lookups - quarter.front_lookups)
    for step in host.drain():
        sums += int(pa.compute.sum(step.output["surrogate_key"]).as_py() or 0)
    return share, sums - 500_000_000_000 * len(keys)


def zipf(count: int, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    ranks = np.cumsum(1 / np.arange(1, ROWS + 1))
    return rng.permutation(ROWS)[np.searchsorted(ranks / ranks[-1], rng.random(count))] + 1


@pytest.mark.parametrize("make", [CHybridJoin, CMeshJoin])
def test_the_front_stage_comes_near_to_an_ideal_cache(make: type[CHybridJoin]) -> None:
    join = make(GeneratedRelation(ROWS, page_bytes=2_048), SPEC, Budget("400k"), cache_share=0.3)
    keys = zipf(300_000)
    share, sums = driven(join, keys)
    assert sums == int(keys.sum())
    assert join.front is not None
    ranks = np.cumsum(1 / np.arange(1, ROWS + 1))
    assert share > 0.9 * ranks[join.front.hot.keys - 1] / ranks[-1]


def test_even_keys_take_the_memory_of_the_front_stage_away() -> None:
    join = CHybridJoin(GeneratedRelation(ROWS * 20, page_bytes=8_192), SPEC, Budget("2m"))
    assert join.cache_share == pytest.approx(0.15, abs=0.01)
    keys = np.random.default_rng(1).integers(1, 20 * ROWS, 200_000)
    _, sums = driven(join, keys)
    assert sums == int(keys.sum())
    assert join.cache_share < 0.05


def test_the_best_share_weighs_what_is_answered_against_what_is_taken() -> None:
    even, zipfian = np.ones(10_000), 1 / np.arange(1, 10_001)
    assert best_share(0.15, 0.02, even) == LEAST_SHARE
    assert best_share(0.15, 0.75, zipfian) >= 0.15
    assert best_share(LEAST_SHARE, 0.5, zipfian) > 0.05
    assert best_share(0.15, 0.0, np.zeros(0)) == LEAST_SHARE


def test_keys_that_come_together_push_out_keys_that_came_before() -> None:
    """Temporal locality: the hot keys change, and the front stage follows."""
    join = CHybridJoin(GeneratedRelation(ROWS, page_bytes=2_048), SPEC, Budget("300k"), cache_share=0.2)
    rng = np.random.default_rng(4)
    old, new = rng.integers(1, ROWS // 2, 300), rng.integers(ROWS // 2, ROWS, 300)
    before, _ = driven(join, rng.choice(old, 60_000))
    after, _ = driven(join, rng.choice(new, 200_000))
    assert before > 0.95
    assert after > 0.9


def test_nested_columns_are_joined_without_a_front_stage() -> None:
    rows = pa.table({"id": [1, 2], "tags": [["a"], ["b", "c"]]})
    spec = JoinSpec(pa.schema([("key", pa.int64())]), (("key", "id"),), "inner", ("key",), ("tags",))
    join = CHybridJoin(MemoryRelation(rows, "id"), spec, Budget("1m"))
    assert join.front is None
    host = Host(join)
    list(host.feed(pa.record_batch({"key": [2, 1, 2]})))
    assert sum(step.output.num_rows for step in host.drain()) == 3


def test_long_rows_are_left_to_the_back_stage() -> None:
    rows = pa.table({"id": [1, 2, 3], "text": ["a", "b" * 100_000, "c"]})
    spec = JoinSpec(pa.schema([("key", pa.int64()), ("note", pa.string())]), (("key", "id"),), "left", ("note",), ("text",))
    join = CHybridJoin(MemoryRelation(rows, "id", rows_per_page=1), spec, Budget("64m"), threshold=1)
    host, out = Host(join), []
    for _ in range(4):
        batch = pa.record_batch({"key": [1, 2, 3, 4], "note": ["x", "y", "z" * 200_000, "w"]})
        for step in [*host.feed(batch), *host.drain()]:
            out += [(len(row["note"]), len(row["text"] or "")) for row in step.output.to_pylist()]
    assert sorted(out) == sorted([(1, 1), (1, 100_000), (200_000, 1), (1, 0)] * 4)
    assert host.ledger.totals.front_hits > 0


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
@pytest.mark.parametrize("make", [CachedIndexNestedLoopJoin, CMeshJoin, CHybridJoin, CSweepJoin])
def test_long_keys_are_left_to_the_back_stage(make: type[CHybridJoin], how: str) -> None:
    """Also where the join puts out no text: a tuple waits with its key in the front stage too."""
    keys = [*(f"key {n}" for n in range(40)), "x" * 5_000, "x" * 4_999 + "y"]
    asked = [*keys[:10], *keys[40:], "x" * 5_001, "key 41"] * 40
    columns = () if how in ("semi", "anti") else ("price",)
    spec = JoinSpec(pa.schema([("key", pa.string())]), (("key", "id"),), how, (), columns)
    rows = MemoryRelation(pa.table({"id": keys, "price": np.arange(42)}), "id", rows_per_page=4)
    join = make(rows, spec, Budget("1m"), cache_share=0.3, threshold=1)
    host = Host(join)
    for start in range(0, len(asked), 70):
        for _ in host.feed(pa.record_batch({"key": asked[start : start + 70]})):
            pass
    for _ in host.drain():
        pass
    counts = host.ledger.totals
    assert (counts.tuples_in, counts.matched, counts.absent_keys) == (14 * 40, 12 * 40, 2 * 40)
    assert counts.front_hits > 0


@pytest.mark.parametrize("share", ["auto", 0.9])
def test_an_error_about_a_long_row_names_memory_that_is_enough(share: float | str) -> None:
    rows = MemoryRelation(pa.table({"id": np.arange(200), "price": np.arange(200)}), "id", rows_per_page=4)
    spec = JoinSpec(pa.schema([("key", pa.int64()), ("note", pa.string())]), (("key", "id"),), "inner", ("note",), ("price",))
    batch = pa.record_batch({"key": np.arange(4), "note": ["x" * 4_000] * 4})

    def joined(memory: int) -> int | BudgetError:
        host = Host(CHybridJoin(rows, spec, Budget(memory), cache_share=share))  # type: ignore[arg-type]
        try:
            return sum(step.output.num_rows for step in [*host.feed(batch), *host.drain()])
        except BudgetError as small:
            return small

    memory = 60_000 if share == "auto" else 400_000
    found = joined(memory)
    assert isinstance(found, BudgetError)
    for _ in range(4):  # the back stage's part of more memory is more in other respects too
        if isinstance(found, BudgetError):
            assert "the front stage has" in str(found)
            assert found.needed_bytes > memory
            memory = found.needed_bytes
            found = joined(memory)
    assert found == 4


def test_rows_of_an_earlier_front_stage_go_on_in_one_of_another_size() -> None:
    relation = GeneratedRelation(ROWS, page_bytes=2_048)
    first = CHybridJoin(relation, SPEC, Budget("400k"), cache_share=0.15)
    driven(first, zipf(100_000))
    assert first.front is not None
    for share in (0.4, 0.1, 0.15):
        join = CHybridJoin(relation, SPEC, Budget("400k"), cache_share=share, hot=first.front.hot)
        assert join.front is not None
        assert join.cache_share == pytest.approx(share, abs=0.01)
        assert (join.front.hot is first.front.hot) == (share == 0.15)
        assert join.front.hot.keys == pytest.approx(min(join.front.hot.capacity, first.front.hot.keys), rel=0.1)
        assert join.bytes_used <= 400 * 1024


def test_what_a_front_stage_found_out_goes_on_with_its_rows() -> None:
    """On Spark each group of rows has a join of its own: the threshold must not begin anew with each."""
    relation, hot, shares = GeneratedRelation(ROWS, page_bytes=2_048), None, []
    for part in np.array_split(zipf(40_000), 40):
        join = CSweepJoin(relation, SPEC, Budget("2m"), cache_share=0.5, fill_first=True, hot=hot)
        host = Host(join)
        for _ in (*host.feed(pa.record_batch({"key": part})), *host.drain()):
            pass
        assert join.front is not None
        hot = join.front.hot
        shares.append(host.ledger.totals.front_hits / host.ledger.totals.front_lookups)
    assert join.front is not None
    assert join.front.threshold == 1  # there is room
    assert np.mean(shares[-5:]) > 0.75  # keys that came once are kept, too; of keys that come twice at once, half as many


@pytest.mark.parametrize("rows_each", [1, 2])
def test_a_front_stage_without_hits_rests_until_the_stream_has_hot_keys_again(rows_each: int) -> None:
    keys = 20_000
    rows = pa.table({"id": np.repeat(np.arange(keys), rows_each), "price": np.arange(keys * rows_each)})
    spec = JoinSpec(pa.schema([("key", pa.int64())]), (("key", "id"),), "inner", (), ("price",))
    join = CHybridJoin(MemoryRelation(rows, "id", 32), spec, Budget("100k"))
    host, random = Host(join), np.random.default_rng(3)

    def run(stream: np.ndarray) -> tuple[float, float]:
        """Feed it; the share of the tuples that was looked up, and the share that was answered in front."""
        before = host.ledger.totals
        for part in np.array_split(stream, 20):
            for step in host.feed(pa.record_batch({"key": part})):
                prices.append(step.output.column("price").to_numpy())
        after = host.ledger.totals
        looked, hits = after.front_lookups - before.front_lookups, after.front_hits - before.front_hits
        return looked / len(stream), hits / len(stream)

    prices: list[np.ndarray] = []
    even, hot = random.integers(0, keys, 100_000), random.zipf(1.5, 100_000) % keys
    run(even)
    assert join.resting
    looked, _ = run(even)
    assert 0 < looked < 0.25
    run(hot)
    assert not join.resting
    looked, hits = run(hot)
    assert looked == pytest.approx(1.0, abs=0.1)
    assert hits > 0.3
    prices += [step.output.column("price").to_numpy() for step in host.drain()]
    counted = np.bincount(np.concatenate(prices) // rows_each, minlength=keys)
    assert np.array_equal(counted, rows_each * np.bincount(np.concatenate((even, even, hot, hot)), minlength=keys))


def test_a_drained_back_stage_keeps_what_the_misses_of_a_group_need() -> None:
    scores = 1_000.0 / np.arange(1, 1_001)
    few, many = 100.0, 100_000.0  # rows of a group
    assert best_drained_share(0.5, 0.6, scores, 1_000, few, 10_000) == 0.8
    assert best_drained_share(0.5, 0.6, scores, 1_000, many, 10_000) < 0.5
    assert best_drained_share(0.5, 0.6, scores, 4_000, few, 10_000) == 0.5  # there is room for more keys already
    assert best_drained_share(0.5, 0.0, np.zeros(0), 1_000, few, 10_000) == 0.5


def test_a_front_stage_takes_no_more_memory_than_the_relation_and_a_gigabyte_need() -> None:
    division = CHybridJoin.divide(GeneratedRelation(ROWS), SPEC, Budget("900g"), cache_share=0.5)
    assert division.front is not None
    assert division.front.memory_bytes == 1 << 30
    assert division.back_bytes == (900 << 30) - (1 << 30)
