"""MESHJOIN's equations."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.core.unitcosts import UnitCosts
from millrace.cost.meshjoin import chunks, drained, iteration, memory, rate, tuples_per_step, tuples_wanted

PAGES, ROWS, PAGE_BYTES, SLOT_BYTES, MEMORY = 1_000, 500_000, 65_536, 100, 20 << 20
TABLE = {"N_R": PAGES, "R_t": ROWS, "v_P": PAGE_BYTES}
DISK = UnitCosts(seek=0.008, read_byte=1 / 70e6)
LAP = PAGES * PAGE_BYTES / 70e6 + ROWS * DISK.probe + 0.008
EACH = DISK.take + DISK.add + DISK.output + DISK.expire


@pytest.mark.parametrize(("pages", "b", "count"), [(8, 2, 4), (8, 3, 3), (8, 8, 1), (8, 20, 1), (0, 1, 1)])
def test_a_pass_has_as_many_chunks_as_reads(pages: int, b: int, count: int) -> None:
    assert chunks(pages, b) == count


def test_memory_is_buffer_and_tuples_and_chunks() -> None:
    assert memory(4, 50, N_R=10, v_P=1_000, v_S=20, v_C=16) == 4 * 1_000 + 3 * (50 * 20 + 16)


def test_the_tuples_of_all_chunks_fill_what_is_left_of_the_memory() -> None:
    b = np.arange(1, PAGES + 1)
    left, count = MEMORY - b * PAGE_BYTES, chunks(PAGES, b)
    w = tuples_per_step(left, count, SLOT_BYTES)
    used = w * count * SLOT_BYTES
    assert (used <= left).all()
    assert (used + count * SLOT_BYTES > left).all()  # one tuple more in each chunk would not fit


@pytest.mark.parametrize(("b", "reads"), [(1, 1_000), (4, 250), (1_000, 1), (5_000, 1)])
def test_the_rate_is_tuples_by_the_time_of_their_read(b: int, reads: int) -> None:
    found = rate(500, np.array([b]), **TABLE, costs=DISK)[0]
    assert found == pytest.approx(500 / (LAP / reads + 500 * EACH))


def test_a_read_and_a_step_have_their_price_however_short_they_are() -> None:
    costs = UnitCosts(seek=0.008, read_byte=1 / 70e6, request=0.002, step=0.001, page=1e-6)
    found = rate(500, np.array([4]), **TABLE, costs=costs)[0]
    assert found == pytest.approx(500 / ((LAP + PAGES * 1e-6) / 250 + 0.003 + 500 * EACH))


def test_no_tuple_enters_and_none_leaves() -> None:
    assert rate(np.array([0.0]), np.array([4]), **TABLE, costs=DISK)[0] == 0.0


def test_the_best_buffer_is_neither_the_smallest_nor_the_largest() -> None:
    b = np.arange(1, MEMORY // PAGE_BYTES)
    w = tuples_per_step(MEMORY - b * PAGE_BYTES, chunks(PAGES, b), SLOT_BYTES)
    best = int(rate(w, b, **TABLE, costs=UnitCosts(seek=0.008, read_byte=1 / 70e6, request=0.002)).argmax())
    assert 0 < best < len(b) - 1


@pytest.mark.parametrize("arrivals", [1.0, 5_000.0, 1e6])
@pytest.mark.parametrize("b", [1, 7, 500, 1_000])
def test_the_tuples_for_a_wanted_rate_give_that_rate(arrivals: float, b: int) -> None:
    w = tuples_wanted(arrivals, b, **TABLE, costs=DISK)
    assert rate(w, np.array([b]), **TABLE, costs=DISK)[0] == pytest.approx(arrivals)


def test_a_rate_beyond_what_tuples_alone_take_is_out_of_reach() -> None:
    assert np.isinf(tuples_wanted(1.01 / EACH, np.array([1, 2]), **TABLE, costs=DISK)).all()


def test_an_iteration_has_the_rate_of_the_equation() -> None:
    found = iteration(500, 4, **TABLE)
    assert found.rate(DISK) == pytest.approx(rate(500, np.array([4]), **TABLE, costs=DISK)[0])
    assert (found.pages_read, found.probes, found.seeks) == (4.0, 2_000.0, 1 / 250)


def test_several_rows_for_a_tuple_are_more_matches_and_steps_but_no_more_reads() -> None:
    one, five = iteration(500, 4, **TABLE), iteration(500, 4, **TABLE, sigma=5, output_rows=1_000)
    assert (five.matches, five.steps, five.reads) == (2_500, 2.5, one.reads)


def test_a_scan_that_skips_half_of_the_pages_reads_half_and_seeks() -> None:
    whole, half = iteration(500, 4, **TABLE), iteration(500, 4, **TABLE, wanted=0.5)
    assert half.bytes_read == whole.bytes_read / 2
    assert half.probes == whole.probes / 2
    assert half.seeks == pytest.approx((1 + 250 * 0.5) / 250)


def test_few_tuples_and_then_no_more_take_one_lap() -> None:
    found = drained(10, 100_000, 400, 4, **TABLE)
    assert (found.removed, found.matches, found.pages_read) == (10, 10, PAGES)


def test_the_last_of_many_tuples_enters_late_and_stays_for_a_lap_from_there() -> None:
    found = drained(50_000, 100_000, 400, 4, **TABLE)
    assert found.pages_read == pytest.approx(PAGES * (1 + (125 - 1) * 4 / PAGES))
