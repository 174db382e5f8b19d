"""Lists of slots that any slot may leave."""

from __future__ import annotations

import numpy as np

from millrace.core.budget import Budget
from millrace.structures.chains import Chains


def test_lists_are_kept_apart_and_read_together() -> None:
    chains = Chains("page", heads=4, capacity=8, budget=Budget("1k"))
    chains.add(np.array([3, 0, 3, 1]), np.array([7, 6, 5, 4]))
    assert chains.members(3, 3).tolist() == [5, 7]
    assert chains.members(2, 2).tolist() == []
    assert sorted(chains.members(0, 3).tolist()) == [4, 5, 6, 7]


def test_the_first_the_last_and_the_only_one_can_leave() -> None:
    chains = Chains("page", heads=2, capacity=8, budget=Budget("1k"))
    chains.add(np.array([0, 0, 0, 1]), np.array([0, 1, 2, 3]))
    chains.remove(np.array([2, 3]))
    assert (chains.members(0, 0).tolist(), chains.members(1, 1).tolist()) == ([1, 0], [])
    chains.remove(np.array([0]))
    assert chains.members(0, 0).tolist() == [1]


def test_whole_lists_can_be_taken_and_their_slots_used_again() -> None:
    chains = Chains("page", heads=3, capacity=200, budget=Budget("4k"))
    chains.add(np.arange(200) % 2, np.arange(200))
    assert chains.take(1, 2).tolist() == list(range(199, 0, -2))
    assert (chains.members(1, 2).tolist(), len(chains.members(0, 0))) == ([], 100)
    chains.remove(np.array([1]))  # in no list any more
    chains.add(np.array([2, 2]), np.array([1, 3]))
    chains.remove(np.array([1, 0]))
    assert (chains.members(1, 2).tolist(), len(chains.members(0, 0))) == ([3], 99)


def test_it_takes_the_bytes_planned() -> None:
    budget = Budget("1k")
    Chains("page", heads=5, capacity=7, budget=budget)
    assert budget.used_bytes == 5 * Chains.bytes_per_head + 7 * Chains.bytes_per_slot
