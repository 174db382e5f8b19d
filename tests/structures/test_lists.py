"""Lists of slots that are emptied as a whole."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from millrace.core.budget import Budget
from millrace.structures.lists import Lists


def test_lists_are_kept_apart_and_taken_together() -> None:
    lists = Lists("page", heads=4, capacity=8, budget=Budget("1k"))
    lists.add(np.array([3, 0, 3, 1]), np.array([7, 6, 5, 4]))
    assert lists.take(2, 2).tolist() == []
    assert sorted(lists.take(3, 3).tolist()) == [5, 7]
    assert sorted(lists.take(0, 3).tolist()) == [4, 6]
    assert lists.take(0, 3).tolist() == []


@pytest.mark.parametrize(("heads", "capacity"), [(1, 1), (1, 50), (3, 200), (40, 20), (40, 400)])
def test_they_behave_like_a_dictionary_of_sets_and_use_blocks_again(heads: int, capacity: int) -> None:
    random = np.random.default_rng(heads)
    lists, model = Lists("page", heads, capacity, Budget("64k")), defaultdict(set)
    free = set(range(capacity))
    for _ in range(200):
        arriving = [free.pop() for _ in range(int(random.integers(0, len(free) + 1)))]
        places = random.integers(0, heads, len(arriving))
        lists.add(places, np.array(arriving, np.int64))
        for place, slot in zip(places.tolist(), arriving, strict=True):
            model[place].add(slot)
        first = int(random.integers(0, heads))
        last = int(random.integers(first, heads))
        taken = lists.take(first, last).tolist()
        assert len(taken) == len(set(taken))
        assert set(taken) == set().union(*(model.pop(place, set()) for place in range(first, last + 1)))
        free.update(taken)


@pytest.mark.parametrize(("heads", "capacity"), [(1, 1), (5, 7), (2, 700), (700, 3)])
def test_they_take_no_more_bytes_than_planned(heads: int, capacity: int) -> None:
    budget = Budget("1m")
    Lists("page", heads, capacity, budget)
    assert budget.used_bytes <= heads * Lists.bytes_per_head + capacity * Lists.bytes_per_slot + Lists.fixed_bytes
