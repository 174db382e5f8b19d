"""Hot rows: what is kept by key, who makes room, and the file that a new process starts from."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from millrace.joins import hot_file
from millrace.joins.hot_rows import HotKeys, HotRows
from millrace.joins.recent_keys import RecentKeys

SCHEMA = pa.schema([("price", pa.int64()), ("name", pa.string())])


def rows_of(codes: np.ndarray, counts: np.ndarray) -> pa.RecordBatch:
    """Rows of keys; row i of key k has price 100 k + i, a name as long as i, and a null now and then."""
    prices = [100 * int(k) + i for k, n in zip(codes, counts, strict=True) for i in range(n)]
    names = [None if price % 7 == 0 else "x" * (price % 5) for price in prices]
    return pa.record_batch({"price": prices, "name": names}, schema=SCHEMA)


def put(hot: HotRows, codes: list[int], scores: list[float], counts: list[int] | None = None) -> int:
    rows = np.array(counts or [1] * len(codes))
    keys = HotKeys(np.array(codes), np.array(scores, np.float64), rows)
    return hot.put(keys, rows_of(keys.codes, rows) if rows.sum() else None)


def held(hot: HotRows, code: int) -> list[int] | None:
    """Prices of a key; None if the key is not here."""
    entries = hot.find(np.array([code]))
    if entries[0] < 0:
        return None
    _, records = hot.pairs(entries)
    return hot.take(records, ["price"])["price"].to_pylist() if len(records) else []


def test_a_key_has_all_of_its_rows_with_nulls_and_texts() -> None:
    hot = HotRows(SCHEMA, 16_384, 24)
    assert put(hot, [7, 9, 11], [3, 2, 1], [2, 1, 3]) == 3
    entries = hot.find(np.array([11, 7, 8]))
    assert entries[2] == -1
    tuples, records = hot.pairs(entries[:2])
    assert tuples.tolist() == [0, 0, 0, 1, 1]
    assert hot.take(records, ["price", "name"]).to_pylist() == rows_of(np.array([11, 7]), np.array([3, 2])).to_pylist()


def test_a_key_without_rows_is_known_to_be_absent() -> None:
    hot = HotRows(SCHEMA, 4_096, 24)
    put(hot, [5], [1], [0])
    assert held(hot, 5) == []
    assert held(hot, 6) is None


def test_a_rarer_key_never_replaces_a_more_frequent_one() -> None:
    hot = HotRows(SCHEMA, 4_096, 24)
    n = hot.capacity
    put(hot, [*range(n)], [10.0] * n)
    there = hot.keys
    assert put(hot, [1_000, 1_001], [10.0, 9.0]) == 0
    assert hot.keys == there
    assert held(hot, 1_000) is None
    assert put(hot, [1_002], [10.5]) == 1
    assert held(hot, 1_002) == [100_200]
    assert hot.take_evictions() >= 1


def test_hits_keep_a_key_and_a_key_without_hits_makes_room() -> None:
    hot = HotRows(SCHEMA, 4_096, 24)
    n = hot.capacity
    put(hot, [*range(n)], [2.0] * n)
    there = [code for code in range(n) if held(hot, code) is not None]
    wanted, left_out = there[::2], there[1::2]
    for _ in range(4):
        hot.note_hits(np.repeat(hot.find(np.array(wanted)), 8), hot.period)
    newcomers = [10_000 + i for i in range(len(left_out))]
    put(hot, newcomers, [1.0] * len(newcomers))
    assert all(held(hot, code) is not None for code in wanted)
    assert sum(held(hot, code) is None for code in left_out) > len(left_out) // 2


def test_blocks_of_all_sizes_come_and_go_and_nothing_is_mixed_up() -> None:
    rng = np.random.default_rng(3)
    hot = HotRows(SCHEMA, 6_000, 24)
    counts: dict[int, int] = {}
    for turn in range(400):
        codes = [code for code in rng.integers(0, 500, 8).tolist() if held(hot, code) is None]
        codes = list(dict.fromkeys(codes))
        sizes = rng.integers(0, 6, len(codes)).tolist()
        put(hot, codes, [turn + 1.0] * len(codes), sizes) if codes else None
        counts |= dict(zip(codes, sizes, strict=True))
        if turn % 20 == 0:
            for code in range(500):
                prices = held(hot, code)
                assert prices is None or prices == [100 * code + i for i in range(counts[code])]
    assert hot.keys > 10


def test_memory_is_what_was_given() -> None:
    for memory in (4_096, 100_000, 5_000_000):
        assert HotRows(SCHEMA, memory, 24).nbytes <= memory


def test_a_file_brings_the_most_wanted_keys_to_another_process(tmp_path: Path) -> None:
    hot, other = HotRows(SCHEMA, 65_536, 24), HotRows(SCHEMA, 65_536, 24)
    put(hot, [*range(100)], [float(200 - code) for code in range(100)], [code % 3 for code in range(100)])
    path = tmp_path / "a.hot"
    assert hot_file.save(path, hot, "a", 1 << 20)
    assert path.stat().st_mode & 0o777 == 0o600
    assert hot_file.load(path, other, "a")
    assert [held(other, code) for code in range(101)] == [held(hot, code) for code in range(101)]
    assert other.scores().sum() == pytest.approx(hot.scores().sum())


def test_a_file_that_can_not_be_trusted_is_no_file(tmp_path: Path) -> None:
    hot, path = HotRows(SCHEMA, 65_536, 24), tmp_path / "a.hot"
    put(hot, [1, 2], [2, 1])
    hot_file.save(path, hot, "a", 1 << 20)
    data = path.read_bytes()

    def cold(name: str = "a", schema: pa.Schema = SCHEMA) -> bool:
        other = HotRows(schema, 65_536, 24)
        return not hot_file.load(path, other, name) and other.keys == 0

    assert cold(name="b")
    assert cold(schema=SCHEMA.append(pa.field("more", pa.int32())))
    for damaged in (data[:-1], data[: len(data) // 2], b"", data[:40] + b"?" + data[41:], b"?" * len(data)):
        path.write_bytes(damaged)
        assert cold()
    path.write_bytes(data)
    os.chmod(path, 0o644)
    assert cold()
    path.unlink()
    assert cold()


def test_a_file_is_bounded_and_old_ones_go(tmp_path: Path) -> None:
    hot = HotRows(SCHEMA, 4 << 20, 24)
    put(hot, [*range(20_000)], [float(20_000 - code) for code in range(20_000)])
    for number in range(4):
        path = tmp_path / f"{number}.hot"
        hot_file.save(path, hot, "a", 100_000)
        assert path.stat().st_size < 600_000
        os.utime(path, (number, number))
    hot_file.remove_old(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.glob("*.hot")) == ["2.hot", "3.hot"]


def test_nothing_is_written_where_nothing_can_be(tmp_path: Path) -> None:
    hot = HotRows(SCHEMA, 65_536, 24)
    put(hot, [1], [1])
    (tmp_path / "file").write_text("")
    assert not hot_file.save(tmp_path / "file" / "a.hot", hot, "a", 1 << 20)


def test_recent_keys_forget() -> None:
    recent = RecentKeys(1_024, worth=1)
    recent.add(np.repeat(7, 20))
    before = recent.counts(np.array([7]))[0]
    for _ in range(20):
        recent.add(np.arange(100, 132))
    assert before == 20
    assert recent.counts(np.array([7]))[0] < 5
