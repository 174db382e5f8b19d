"""X-HYBRIDJOIN: what only it promises."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.joins.examples import HOWS, cut, drained, expected, joined, relation_of, rows_of, spec_of, stream_of
from tests.relations.stored_tables import stored

from millrace.checks import InPlace
from millrace.core.budget import Budget
from millrace.core.drive import total
from millrace.core.errors import BudgetError, ParameterError, StrategyError
from millrace.core.protocols import How, JoinSpec
from millrace.core.unitcosts import UnitCosts
from millrace.joins.hybridjoin import HybridJoin
from millrace.joins.xhybridjoin import XHybridJoin
from millrace.relations.memory import MemoryRelation

EVEN = [2 * i for i in range(12)]  # unique; pages of 2: 0 2 | 4 6 | 8 10 | 12 14 | 16 18 | 20 22
RUNS = [0, 1, 1, 1, 1, 1, 2, 3, 4, 4, 4, 5]  # pages of 2: 0 1 | 1 1 | 1 1 | 2 3 | 4 4 | 4 5


def by_counts(keys: Sequence[int], counts: Sequence[int], rows_per_page: int = 2) -> MemoryRelation:
    rows = pa.table({"id": pa.array(keys, pa.int64()), "row": pa.array(range(len(keys)), pa.int64())})
    return MemoryRelation(rows, "id", rows_per_page, counts=counts)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("pinned_pages", [None, 0, 1, 2, 3, 5, 100])
@pytest.mark.parametrize("buffer_pages", [None, 1, 2, 5])
@pytest.mark.parametrize("keys", [EVEN, RUNS, [1] * 12])
def test_it_joins_exactly(how: How, pinned_pages: int | None, buffer_pages: int | None, keys: list[int]) -> None:
    tuples = [4, None, 1, 1, 99, 5, 0, 3, 22, -7, 2, 1, 4]
    for relation in (relation_of(keys), by_counts(keys, [(5 * key) % 7 for key in keys])):
        join = XHybridJoin(relation, spec_of(how), Budget("64k"), buffer_pages=buffer_pages, pinned_pages=pinned_pages)
        assert rows_of(joined(join, cut(stream_of(tuples), 4))) == expected(tuples, keys, how)
        assert join.pending == 0


def test_tuples_of_pinned_pages_are_answered_at_once_and_the_others_by_a_read() -> None:
    relation = relation_of(EVEN)
    join = XHybridJoin(relation, spec_of(), Budget("64k"), buffer_pages=1, pinned_pages=2)
    join.offer(stream_of([22, 0, 6, 0, 12]))
    first = join.step()
    assert first.sequence.tolist() == [1, 2, 3, 0]
    assert (first.counts.pinned_matches, first.counts.matches, first.counts.pages_read) == (3, 4, 3)
    assert join.step().sequence.tolist() == [4]
    assert relation.reads == [(0, 2), (5, 1), (3, 1)]
    join.offer(stream_of([4, 2]))
    step = join.step()
    assert (step.counts.pinned_matches, step.counts.pages_read, join.pending) == (2, 0, 0)


def test_nothing_is_read_before_a_tuple_comes() -> None:
    relation = relation_of(EVEN)
    join = XHybridJoin(relation, spec_of(), Budget("64k"), pinned_pages=2)
    join.step()
    join.offer(stream_of([None]))
    join.step()
    assert relation.reads == []


def test_the_rows_that_are_wanted_most_are_the_ones_that_are_pinned() -> None:
    relation = by_counts(EVEN, [9 if key in (6, 20) else 0 for key in EVEN])
    join = XHybridJoin(relation, spec_of(), Budget("64k"), pinned_pages=1, buffer_pages=1)
    join.offer(stream_of([20, 6, 20, 6]))
    step = join.step()
    assert (step.counts.pinned_matches, step.counts.pages_read) == (4, 1)
    assert relation.reads == [(0, 1)]


def test_a_key_that_goes_on_behind_the_pinned_pages_is_read_from_there_on() -> None:
    relation = relation_of(RUNS)  # key 1 is on pages 0, 1 and 2
    join = XHybridJoin(relation, spec_of(), Budget("64k"), buffer_pages=1, pinned_pages=2)
    join.offer(stream_of([1, 0]))
    step = join.step()
    assert (step.counts.pinned_matches, step.counts.matches, step.counts.removed) == (4, 6, 2)
    assert relation.reads == [(0, 2), (2, 1)]


@pytest.mark.parametrize("seed", range(4))
def test_no_pinned_page_is_read_again_and_reads_are_partitions_behind_them(seed: int) -> None:
    random = np.random.default_rng(seed)
    keys = random.integers(0, 60, 90).tolist()
    relation = by_counts(keys, random.integers(0, 9, 90).tolist(), 3)
    join = XHybridJoin(relation, spec_of(), Budget("32k"), buffer_pages=4, pinned_pages=7)
    tuples = random.integers(-5, 70, 400).tolist()
    assert rows_of(joined(join, cut(stream_of(tuples), 33))) == expected(tuples, keys, "inner")
    assert relation.reads[0] == (0, 7)
    assert all(first >= 7 for first, _ in relation.reads[1:])


@pytest.mark.parametrize("seed", range(4))
def test_there_are_no_more_reads_than_tuples_that_are_not_on_pinned_pages(seed: int) -> None:
    random = np.random.default_rng(seed)
    relation = relation_of(EVEN)
    tuples = random.integers(-2, 26, 50).tolist()
    joined(XHybridJoin(relation, spec_of(), Budget("64k"), buffer_pages=1, pinned_pages=3), cut(stream_of(tuples), 3))
    assert len(relation.reads) <= 1 + sum(key >= 12 for key in tuples)


@pytest.mark.parametrize("how", HOWS)
def test_without_pinned_pages_it_is_hybridjoin(how: How) -> None:
    tuples = [4, None, 1, 1, 99, 5, 0, 3, 22, -7, 2, 1, 4]
    counts, reads = [], []
    for make in (XHybridJoin, HybridJoin):
        relation = relation_of(RUNS)
        extra = {"pinned_pages": 0} if make is XHybridJoin else {}
        join = make(relation, spec_of(how), Budget("64k"), buffer_pages=2, **extra)
        counts.append(total(joined(join, cut(stream_of(tuples), 4))))
        reads.append(relation.reads)
    assert counts[0] == counts[1]
    assert reads[0] == reads[1]


@pytest.mark.parametrize("how", HOWS)
def test_more_pinned_matches_than_a_step_puts_out_go_on_in_the_next(how: How) -> None:
    keys, tuples = [1] * 100 + [2], [1] * 30 + [3, 0, 2]
    relation = relation_of(keys, rows_per_page=200)
    with pytest.raises(BudgetError) as error:
        XHybridJoin(relation, spec_of(how), Budget(1), pinned_pages=1)
    join = XHybridJoin(relation, spec_of(how), Budget(error.value.needed_bytes + 40 * 200), pinned_pages=1)
    steps = joined(join, [stream_of(tuples)])
    assert total(steps).pinned_matches == total(steps).matches == 3001
    assert rows_of(steps) == expected(tuples, keys, how)
    assert relation.reads == [(0, 1)]
    if how in ("inner", "left"):
        assert max(step.output.num_rows for step in steps) < 1000


@pytest.mark.parametrize("buffer_pages", [None, 1, 4, 99])
@pytest.mark.parametrize("pinned_pages", [None, 0, 3, 99])
@pytest.mark.parametrize("resident", [False, True])
def test_the_budget_it_asks_for_is_enough_and_no_more(
    buffer_pages: int | None, pinned_pages: int | None, resident: bool
) -> None:
    rows = pa.table({"id": pa.array(RUNS * 9, pa.int64()), "row": pa.array(range(12 * 9), pa.int64())})
    relation = InPlace(rows, "id", 3) if resident else MemoryRelation(rows, "id", 3)
    parameters = {"buffer_pages": buffer_pages, "pinned_pages": pinned_pages}
    with pytest.raises(BudgetError, match="give memory=") as error:
        XHybridJoin(relation, spec_of(), Budget("1k"), **parameters)
    needed = error.value.needed_bytes
    join = XHybridJoin(relation, spec_of(), Budget(needed), **parameters)
    assert join.bytes_used <= needed
    tuples = [4, 1, 99, 4]
    assert rows_of(joined(join, [stream_of(tuples)])) == expected(tuples, RUNS * 9, "inner")
    assert join.bytes_used <= needed
    with pytest.raises(BudgetError):
        XHybridJoin(relation, spec_of(), Budget(needed - 1), **parameters)


def test_the_split_follows_the_skew_it_is_tuned_for() -> None:
    relation = relation_of(list(range(4000)), rows_per_page=10)
    memory = relation.page_bytes * 150  # of 400 pages
    flat, skewed = (XHybridJoin(relation, spec_of(), Budget(memory), zipf_exponent=e) for e in (0.0, 1.0))
    assert skewed.pinned_pages > flat.pinned_pages
    assert skewed.pinned_pages < 150
    assert flat.capacity > skewed.capacity


def test_a_relation_that_fits_is_pinned_whole() -> None:
    relation = relation_of(list(range(400)), rows_per_page=10)
    join = XHybridJoin(relation, spec_of(), Budget("1m"))
    assert join.pinned_pages == relation.pages
    tuples = [5, 399, 7, 1000, 5]
    assert rows_of(joined(join, [stream_of(tuples)])) == expected(tuples, list(range(400)), "inner")
    assert relation.reads == [(0, 40)]


def test_slower_seeks_make_longer_reads() -> None:
    relation = relation_of(list(range(40_000)), rows_per_page=10)
    buffers = [
        XHybridJoin(relation, spec_of(), Budget("400k"), costs=UnitCosts(seek=seek)).buffer_pages for seek in (0.0, 8e-3)
    ]
    assert buffers[0] < buffers[1]


@pytest.mark.parametrize("mode", ["direct", "buffered", "mmap"])
@pytest.mark.parametrize("copies", [1, 70])
def test_a_stored_table_in_the_order_of_counts_is_served_by_its_index(tmp_path: Path, mode: str, copies: int) -> None:
    keys = [key for key in range(3000) for _ in range(copies if key % 100 == 0 else 1)]
    table = pa.table({"id": keys, "row": range(len(keys)), "text": ["t" * (n % 30) for n in range(len(keys))]})
    counts = pa.table({"id": range(3000), "count": [1e9 / (1 + (key * 7) % 3000) for key in range(3000)]})
    relation = stored(tmp_path, table, mode=mode, layout="frequency", counts=counts, shards=3)  # type: ignore[arg-type]
    spec = JoinSpec(stream_of([]).schema, (("key", "id"),), "left", ("event",), ("row",))
    join = XHybridJoin(relation, spec, Budget("400k"), pinned_pages=10, buffer_pages=3)
    ranks = (np.random.default_rng(1).zipf(1.3, 2000) - 1) % 3500
    inverse = pow(7, -1, 3000)
    tuples = [int(rank * inverse % 3000) if rank < 3000 else int(rank) for rank in ranks]
    steps = joined(join, cut(stream_of(tuples), 500))
    assert rows_of(steps) == expected(tuples, keys, "left")
    counted = total(steps)
    assert counted.pinned_matches > counted.matches // 4
    assert counted.index_reads > 0
    join.offer(stream_of(relation.read(0, 10).codes[:50].tolist()))
    assert total(drained(join)).index_reads == 0, "keys of pinned pages are held in memory"


def test_parameters_are_checked() -> None:
    with pytest.raises(ParameterError, match="buffer_pages must be at least 1; got 0"):
        XHybridJoin(relation_of(EVEN), spec_of(), Budget("64k"), buffer_pages=0)
    with pytest.raises(ParameterError, match="pinned_pages must be 0 or more; got -1"):
        XHybridJoin(relation_of(EVEN), spec_of(), Budget("64k"), pinned_pages=-1)
    with pytest.raises(ParameterError, match="zipf_exponent must be 0"):
        XHybridJoin(relation_of(EVEN), spec_of(), Budget("64k"), zipf_exponent=-0.5)
    with pytest.raises(StrategyError, match="needs an index"):
        XHybridJoin(relation_of(EVEN, indexed=False), spec_of(), Budget("64k"))
