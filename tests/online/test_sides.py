"""Rows of one side: put into random order, and made into records in memory that is used again."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa

from millrace.core.keys import KeyCodec
from millrace.online.question.recorder import Recorder, _choose, _shuffle
from millrace.online.question.sides import Side


def _side(**options: object) -> Side:
    return Side(0, KeyCodec((pa.int64(),)), ["k"], **options)  # type: ignore[arg-type]


def test_all_orders_come_alike() -> None:
    state = np.array([1], np.uint64)
    seen: Counter[tuple[int, ...]] = Counter()
    for _ in range(24_000):
        words = np.repeat(np.arange(4), 2).reshape(4, 2)
        _shuffle(words, state)
        assert (words[:, 0] == words[:, 1]).all()
        seen[tuple(words[:, 0].tolist())] += 1
    assert len(seen) == 24
    assert all(abs(count - 1000) < 5 * np.sqrt(1000) for count in seen.values())


def test_all_choices_of_places_come_alike() -> None:
    state = np.array([2], np.uint64)
    seen: Counter[tuple[int, ...]] = Counter()
    places = np.empty(2, np.int64)
    for _ in range(10_000):
        _choose(5, places, state)
        seen[tuple(places.tolist())] += 1
    assert set(seen) == {(a, b) for b in range(5) for a in range(b)}
    assert all(abs(count - 1000) < 5 * np.sqrt(1000) for count in seen.values())


def test_memory_is_used_again_but_not_that_of_the_last_batches() -> None:
    numbered = Recorder(_side(shuffle=1)).reusing(2)
    batches = [pa.record_batch({"k": np.arange(first, first + 100)}) for first in range(0, 500, 100)]
    found = [numbered(batch)[0] for batch in batches]
    for words, batch in zip(found[-2:], batches[-2:], strict=True):
        assert sorted(words[:, 0].tolist()) == batch.column("k").to_pylist()
    assert np.shares_memory(found[4], found[2])
    assert not np.shares_memory(found[4], found[3])
