"""Arrival order of waiting tuples."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.core.budget import Budget
from millrace.structures.queue import Queue, Ring


def test_the_oldest_is_the_first_that_came() -> None:
    queue = Queue(8, Budget("1k"))
    assert queue.oldest is None
    queue.append(np.array([5, 2]))
    queue.append(np.array([7]))
    assert queue.oldest == 5
    assert queue.items().tolist() == [5, 2, 7]


@pytest.mark.parametrize(("gone", "left"), [([5], [2, 7]), ([2], [5, 7]), ([7], [5, 2]), ([2, 7], [5]), ([7, 5, 2], [])])
def test_a_tuple_may_leave_from_anywhere(gone: list[int], left: list[int]) -> None:
    queue = Queue(8, Budget("1k"))
    queue.append(np.array([5, 2, 7]))
    queue.remove(np.array(gone))
    assert queue.items().tolist() == left
    assert queue.oldest == (left[0] if left else None)


def test_a_slot_that_left_can_come_again() -> None:
    queue = Queue(3, Budget("1k"))
    queue.append(np.array([0, 1, 2]))
    queue.remove(np.array([0]))
    queue.append(np.array([0]))
    assert queue.items().tolist() == [1, 2, 0]


def test_it_behaves_like_a_list() -> None:
    random = np.random.default_rng(3)
    queue, model = Queue(50, Budget("1k")), []
    for _ in range(80):
        free = sorted(set(range(50)) - set(model))
        arriving = random.permutation(free)[: int(random.integers(0, 12))].astype(np.int64)
        queue.append(arriving)
        model += arriving.tolist()
        leaving = [slot for slot in model if random.random() < 0.2]
        queue.remove(random.permutation(np.array(leaving, np.int64)))
        model = [slot for slot in model if slot not in leaving]
        assert queue.items().tolist() == model


def test_a_queue_takes_the_bytes_planned() -> None:
    budget = Budget("1k")
    Queue(10, budget)
    assert budget.used_bytes == 10 * Queue.bytes_each + Queue.fixed_bytes


def test_a_ring_goes_round() -> None:
    ring = Ring(4, Budget("1k"))
    ring.append(np.array([3, 1, 2]))
    assert ring.take(2).tolist() == [3, 1]
    ring.append(np.array([0, 3, 1]))
    assert len(ring) == 4
    assert ring.take(4).tolist() == [2, 0, 3, 1]
    assert ring.take(0).tolist() == []
