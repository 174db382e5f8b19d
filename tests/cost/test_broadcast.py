"""The equations of a broadcast join."""

from __future__ import annotations

import pytest

from millrace.cost.broadcast import HASH_BYTES, BroadcastCosts, SentTable, parts_for, probe_seconds, spark_row_bytes

COSTS = BroadcastCosts(job=1.0, read_row=0.01, byte=0.001, hash_row=0.1, row=0.5, found_byte=0.25)


def test_a_table_is_read_by_its_parts_and_hashed_by_one_thread() -> None:
    table = SentTable(rows=100, row_bytes=20, limit_bytes=10_000, parts=2)
    assert table.bytes == 2_000
    assert table.seconds(COSTS, cores=8) == pytest.approx(1.0 + (100 * 0.01 + 2_000 * 0.001) / 2 + 100 * 0.1)
    assert table.seconds(COSTS, cores=1) == pytest.approx(1.0 + (100 * 0.01 + 2_000 * 0.001) + 100 * 0.1)


def test_an_empty_table_takes_a_job() -> None:
    assert SentTable(0, 104, 1_000).seconds(COSTS, cores=2) == 1.0


def test_rows_of_the_stream_cost_a_probe_and_their_matches() -> None:
    assert probe_seconds(COSTS, rows=10, found_bytes=4) == pytest.approx(10 * (0.5 + 4 * 0.25))
    assert probe_seconds(COSTS, rows=0, found_bytes=4) == 0


@pytest.mark.parametrize(("columns", "flags"), [(1, 8), (64, 8), (65, 16)])
def test_a_row_has_a_slot_for_each_column_and_flags_for_nulls(columns: int, flags: int) -> None:
    assert spark_row_bytes(columns, 0) == flags + 8 * columns + HASH_BYTES


def test_a_table_has_no_more_parts_than_pages_cores_or_need() -> None:
    size = 1 << 30
    assert [parts_for(size, pages, cores) for pages, cores in ((3, 8), (500, 8), (0, 8))] == [3, 8, 1]
    assert parts_for(20 << 20, 500, 64) == 3
