"""The hash table of waiting tuples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import pytest

from millrace.core.budget import Budget
from millrace.structures.hashtable import START, Cursor, HashTable, _bucket_of, codes_in, slot_records


class Table(HashTable):
    """With records of its own."""

    def __init__(self, capacity: int, budget: Budget, *, apart: int = 0) -> None:
        records = slot_records(capacity, budget)
        self.codes = codes_in(records)
        super().__init__(records, budget, apart=apart)


def table_with(codes: list[int], capacity: int = 64) -> Table:
    table = empty_table(capacity)
    add(table, codes, range(len(codes)))
    return table


def empty_table(capacity: int) -> Table:
    return Table(capacity, Budget("64k"))


def add(table: Table, codes: Iterable[int], slots: Iterable[int]) -> list[bool]:
    places = np.array([*slots], np.int64)
    table.codes[places] = [*codes]
    return table.add(places).tolist()


def all_pairs(table: HashTable, codes: list[int], limit: int) -> list[tuple[int, int]]:
    """Probe in pieces of `limit` until the end."""
    found: list[tuple[int, int]] = []
    cursor: Cursor | None = START
    while cursor is not None:
        slots, rows, cursor = table.probe(np.array(codes, np.int64), cursor, limit)
        assert len(slots) == len(rows) <= limit
        found += zip(slots.tolist(), rows.tolist(), strict=True)
    return found


def test_tuples_with_the_same_key_are_all_found() -> None:
    assert sorted(all_pairs(table_with([5, 7, 5, 5]), [5], limit=10)) == [(0, 0), (2, 0), (3, 0)]


def test_every_relation_row_meets_every_tuple_with_its_key() -> None:
    pairs = all_pairs(table_with([5, 7, 5]), [7, 5, 5, 6], limit=10)
    assert sorted(pairs) == [(0, 1), (0, 2), (1, 0), (2, 1), (2, 2)]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 7, 1000])
def test_a_probe_goes_on_in_the_middle_of_a_chain(limit: int) -> None:
    table = table_with([9] * 10 + [3] * 4)
    pairs = all_pairs(table, [9, 9, 4, 3], limit)
    assert len(pairs) == len(set(pairs)) == 24
    assert set(pairs) == {(slot, row) for slot in range(10) for row in (0, 1)} | {(slot, 3) for slot in range(10, 14)}


def test_a_probe_that_may_return_nothing_does_not_lose_its_place() -> None:
    table = table_with([1, 1])
    stopped = table.probe(np.array([1]), START, limit=0)
    assert len(stopped.slots) == 0
    assert stopped.cursor is not None
    assert len(table.probe(np.array([1]), stopped.cursor, limit=2).slots) == 2


def test_a_probe_without_rows_is_done_at_once() -> None:
    assert table_with([1]).probe(np.zeros(0, np.int64), START, limit=4).cursor is None


@pytest.mark.parametrize("gone", [[0], [1], [2], [3], [0, 3], [1, 2], [0, 1, 2, 3]])
def test_any_tuple_of_a_chain_can_be_removed(gone: list[int]) -> None:
    table = table_with([8, 8, 8, 8])
    table.remove(np.array(gone))
    assert {slot for slot, _ in all_pairs(table, [8], limit=10)} == {0, 1, 2, 3} - set(gone)


def test_removing_a_tuple_twice_does_no_harm() -> None:
    table = table_with([8, 8])
    table.remove(np.array([0, 0]))
    table.remove(np.array([0]))
    assert all_pairs(table, [8], limit=10) == [(1, 0)]


def test_all_tuples_of_a_key_can_be_taken_by_the_first_of_them() -> None:
    table = empty_table(200)
    assert np.flatnonzero(add(table, (slot % 3 for slot in range(200)), range(200))).tolist() == [0, 1, 2]
    assert sorted(table.take(np.array([1, 0])).tolist()) == [slot for slot in range(200) if slot % 3 != 2]
    assert {row for _, row in all_pairs(table, [0, 1, 2], limit=1000)} == {2}
    table.remove(np.array([4]))  # gone already
    assert add(table, [0, 1, 1], [0, 1, 4]) == [True, True, False]
    assert len(all_pairs(table, [0, 1, 2], limit=1000)) == 66 + 3


def test_slots_that_a_probe_has_found_need_not_be_looked_for_again() -> None:
    table = table_with([5, 7, 5, 9, 9, 7])
    found = table.probe(np.array([7, 5]), START, limit=9).slots
    assert sorted(table.take(np.array([0, 1, 3]), found).tolist()) == [0, 1, 2, 3, 4, 5]
    assert all_pairs(table, [5, 7, 9], limit=10) == []
    assert add(table, [9, 5, 9], [0, 1, 2]) == [True, True, False]
    assert sorted(all_pairs(table, [5, 7, 9], limit=10)) == [(0, 2), (1, 0), (2, 2)]


def test_a_slot_can_be_used_again_with_another_key() -> None:
    table = table_with([8, 8])
    table.remove(np.array([0]))
    add(table, [-4], [0])
    assert all_pairs(table, [8, -4], limit=10) == [(1, 0), (0, 1)]


@pytest.mark.parametrize("step", [1, 3, 64, 1000, 1 << 20, (1 << 40) + 1, None])
def test_codes_at_any_distance_are_spread_over_the_buckets(step: int | None) -> None:
    """With a code to every second bucket, a code shares its bucket with half of another if they are spread at random."""
    hashes = np.random.default_rng(1).integers(-(1 << 63), (1 << 63) - 1, 1 << 12)
    codes = hashes if step is None else np.arange(1 << 12, dtype=np.int64) * step
    apart, buckets = np.uint64(64 - 13 if step is None else 0), np.uint64((1 << 13) - 1)
    held = np.bincount([int(_bucket_of(code, apart, buckets)) for code in codes], minlength=1 << 13)
    assert (held * (held - 1)).sum() / len(codes) < 1


def test_a_table_of_one_slot_works() -> None:
    table = table_with([-(1 << 63)], capacity=1)
    assert all_pairs(table, [-(1 << 63), (1 << 63) - 1], limit=10) == [(0, 0)]


@pytest.mark.parametrize("capacity", [1, 2, 3, 4, 5, 1000, 1024, 1025])
def test_a_slot_takes_no_more_bytes_than_planned(capacity: int) -> None:
    budget = Budget("1m")
    Table(capacity, budget)
    assert budget.used_bytes <= capacity * (8 + HashTable.bytes_per_slot)  # codes are the window's


@pytest.mark.parametrize(
    ("apart", "spacing", "capacity"),
    [(0, 1 << 40, 200), (13, 1 << 40, 200), (40, 1 << 40, 200), (63, 1 << 40, 200), (0, 1, 200), (0, 64, 8), (0, 64, 3)],
)
def test_it_behaves_like_a_dictionary_of_lists(apart: int, spacing: int, capacity: int) -> None:
    """In the smallest ones, several codes share a bucket and leave it one by one."""
    random = np.random.default_rng(7)
    table = Table(capacity, Budget("64k"), apart=apart)
    model, code_of = defaultdict(set), {}
    free = list(range(capacity))
    for _ in range(60):
        arriving = [free.pop() for _ in range(min(len(free), int(random.integers(0, 40))))]
        codes = random.integers(-6, 6, len(arriving)) * spacing
        add(table, codes, arriving)
        for slot, code in zip(arriving, codes.tolist(), strict=True):
            model[code].add(slot)
            code_of[slot] = code
        leaving = [slot for slot in sorted(code_of) if random.random() < 0.3]
        table.remove(np.array(leaving, np.int64))
        for slot in leaving:
            model[code_of.pop(slot)].discard(slot)
        free += leaving
        probed = (random.integers(-7, 7, 9) * spacing).tolist()
        expected = sorted((slot, row) for row, code in enumerate(probed) for slot in model[code])
        assert sorted(all_pairs(table, probed, limit=int(random.integers(1, 50)))) == expected
