"""Lists that know how long they are: against plain Python lists."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.core.budget import Budget
from millrace.structures.counted_lists import CountedLists


@pytest.mark.parametrize("seed", range(5))
def test_they_hold_what_plain_lists_hold(seed: int) -> None:
    random = np.random.default_rng(seed)
    lists, plain, free = CountedLists("page", 7, 50, Budget("4k")), [set[int]() for _ in range(7)], list(range(50))
    for _ in range(200):
        slots = [free.pop() for _ in range(int(random.integers(0, len(free) + 1)))]
        places = random.integers(0, 7, len(slots))
        filled = list(dict.fromkeys(place for place in places.tolist() if not plain[place]))
        assert lists.add(places, np.array(slots, np.int64)).tolist() == filled
        for place, slot in zip(places.tolist(), slots, strict=True):
            plain[place].add(slot)
        wanted = random.choice(7, int(random.integers(0, 8)), replace=False)
        taken = lists.take(wanted).tolist()
        assert sorted(taken) == sorted(slot for place in wanted for slot in plain[place])
        for place in wanted:
            plain[place].clear()
        free += taken
        assert lists.sizes.tolist() == [len(slots) for slots in plain]
        assert lists.waiting == sum(map(len, plain))


def test_all_bytes_are_in_the_budget() -> None:
    budget = Budget("4k")
    CountedLists("page", 7, 50, budget)
    assert budget.used_bytes == 7 * CountedLists.bytes_per_list + 50 * CountedLists.bytes_per_slot
