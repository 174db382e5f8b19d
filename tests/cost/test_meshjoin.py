"""MESHJOIN's equations."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.core.unitcosts import UnitCosts
from millrace.cost.meshjoin import chunks, rate, tuples_per_step

PAGES, PAGE_BYTES, SLOT_BYTES, MEMORY = 1_000, 65_536, 100, 20 << 20


@pytest.mark.parametrize(("pages", "b", "count"), [(8, 2, 4), (8, 3, 3), (8, 8, 1), (8, 20, 1), (0, 1, 1)])
def test_a_pass_has_as_many_chunks_as_reads(pages: int, b: int, count: int) -> None:
    assert chunks(pages, b) == count


def test_the_tuples_of_all_chunks_fill_what_is_left_of_the_memory() -> None:
    b = np.arange(1, PAGES + 1)
    left, count = MEMORY - b * PAGE_BYTES, chunks(PAGES, b)
    w = tuples_per_step(left, count, SLOT_BYTES)
    used = w * count * SLOT_BYTES
    assert (used <= left).all()
    assert (used + count * SLOT_BYTES > left).all()  # one tuple more in each chunk would not fit


def test_the_rate_is_tuples_by_the_time_of_their_read() -> None:
    costs = UnitCosts(seek=0.008, read_byte=1e-8)
    assert rate(500, np.array([4]), PAGE_BYTES, costs)[0] == pytest.approx(500 / (0.008 + 4 * PAGE_BYTES * 1e-8))


def test_the_best_buffer_is_neither_the_smallest_nor_the_largest() -> None:
    b = np.arange(1, MEMORY // PAGE_BYTES)
    w = tuples_per_step(MEMORY - b * PAGE_BYTES, chunks(PAGES, b), SLOT_BYTES)
    best = int(rate(w, b, PAGE_BYTES, UnitCosts(seek=0.008, read_byte=1 / 70e6)).argmax())
    assert 0 < best < len(b) - 1
