"""The parts of the benchmarks that need no Spark session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.bench.data import ROW_BYTES, made_once, master_rows, stream_files, stream_schema
from millrace.bench.enrich.results import Result, checksums_agree, compared, merged, rows_agree
from millrace.bench.enrich.stores import VALUE_TYPE, enrich_batch, pack_keys, pack_values, unpack_values
from millrace.bench.memory import status_bytes
from millrace.bench.options import MASTER_COLUMNS, EnrichOptions, GrowthOptions
from millrace.core.errors import MillraceError


def _silent(_: str) -> None:
    return None


def test_a_master_row_is_120_bytes() -> None:
    rows = master_rows(1, 1000, seed=1)
    offsets = 3 * 4  # Arrow keeps the length of each of the three texts in four bytes more
    assert rows.nbytes / len(rows) == pytest.approx(ROW_BYTES + offsets, abs=0.1)


def test_the_same_seed_makes_the_same_rows() -> None:
    assert master_rows(5, 100, seed=3).equals(master_rows(5, 100, seed=3))
    assert not master_rows(5, 100, seed=3).equals(master_rows(5, 100, seed=4))


@pytest.mark.parametrize("wide", [False, True])
def test_stream_files_hold_whole_micro_batches_in_order(tmp_path: Path, wide: bool) -> None:
    options = EnrichOptions(rows=500, batch_rows=(40,), warm_batches=5, wide=wide)
    files = stream_files(options, 40, tmp_path, _silent)
    batches = [pq.read_table(files.batch_files(batch)) for batch in range(files.batches)]
    assert [len(batch) for batch in batches] == [40] * 7
    assert batches[0].schema.equals(stream_schema(wide))
    times = np.concatenate([batch.column("event_time").to_numpy() for batch in batches])
    assert (np.diff(times.astype(np.int64)) > 0).all()
    keys = np.concatenate([batch.column("key").to_numpy() for batch in batches])
    assert keys.min() >= 1
    assert keys.max() <= 500
    written = [os.stat(path).st_mtime for batch in range(files.batches) for path in files.batch_files(batch)]
    assert written == sorted(set(written))


def test_data_is_made_once_and_again_when_parameters_differ_or_it_was_left_half_made(tmp_path: Path) -> None:
    target = tmp_path / "table"

    def make() -> None:
        target.mkdir()

    def fail() -> None:
        target.mkdir()
        raise RuntimeError

    assert made_once(target, {"rows": 1}, make)
    assert not made_once(target, {"rows": 1}, make)
    with pytest.raises(RuntimeError):
        made_once(target, {"rows": 2}, fail)
    assert made_once(target, {"rows": 1}, make)


def test_packed_values_come_back_and_an_absent_one_is_a_row_of_nulls() -> None:
    rows = master_rows(1, 3, seed=1)
    packed = [value.tobytes() for value in pack_values(rows)]
    assert {len(value) for value in packed} == {VALUE_TYPE.itemsize}
    back = unpack_values([packed[0], None, packed[2]], MASTER_COLUMNS)
    expected = rows.drop_columns(["key"]).to_pylist()
    assert back.to_pylist() == [expected[0], dict.fromkeys(MASTER_COLUMNS), expected[2]]


@pytest.mark.parametrize(("how", "prices"), [("left", [True, False, True]), ("inner", [True, True])])
def test_a_look_up_asks_for_each_key_once_and_keeps_the_order_of_the_stream(how: str, prices: list[bool]) -> None:
    rows = master_rows(1, 9, seed=1)
    keys = pack_keys(rows.column("key").to_numpy())
    store = dict(zip(keys, (value.tobytes() for value in pack_values(rows)), strict=True))
    asked: list[bytes] = []

    def fetch(wanted: list[bytes]) -> list[bytes | None]:
        asked.extend(wanted)
        return [store.get(key) for key in wanted]

    batch = pa.record_batch({"key": pa.array([7, 77, 7])})
    joined = enrich_batch(batch, fetch, ("price", "category"), how)
    assert len(asked) == 2
    assert [price is not None for price in joined.column("price").to_pylist()] == prices
    assert set(joined.column("price").drop_null().to_pylist()) == {rows.column("price")[6].as_py()}


def test_packed_keys_sort_as_the_keys_do() -> None:
    keys = np.array([1, 255, 256, 65_536, 2**40], dtype=np.int64)
    assert pack_keys(keys) == sorted(pack_keys(keys[::-1]))


def test_ratios_are_to_the_floor_and_to_millrace_at_the_same_batch_size() -> None:
    results = [
        Result("identity-map", 10, seconds=(0.2, 0.2, 0.4)),
        Result("spark-sort-merge", 10, seconds=(2.0,)),
        Result("millrace-hybridjoin", 10, seconds=(0.1,)),
        Result("millrace-auto", 10, seconds=(0.4,)),
        Result("spark-sort-merge", 20, seconds=(8.0,)),
        Result("redis", 10, status="not installed"),
    ]
    by_name = {(plain["contender"], plain["batch_rows"]): plain for plain in compared(results)}
    assert by_name["spark-sort-merge", 10]["ratio_to_identity_map"] == 10
    assert by_name["spark-sort-merge", 10]["ratio_to_millrace"] == 5
    assert by_name["spark-sort-merge", 20]["ratio_to_identity_map"] is None
    assert by_name["redis", 10]["median_seconds"] is None


def test_a_repeat_adds_its_times_and_a_failed_one_takes_them_away() -> None:
    first, second = Result("a", 1, seconds=(1.0,), rows_out=(5,)), Result("a", 1, seconds=(3.0,), rows_out=(5,))
    (both,) = merged([first, second])
    assert both.median_seconds == 2.0
    (broken,) = merged([first, Result("a", 1, status="failed: no")])
    assert broken.status == "failed: no"
    assert broken.median_seconds is None


def test_differing_row_counts_and_checksums_are_noticed() -> None:
    one, other = Result("a", 1, rows_out=(5, 5), checksum="x"), Result("b", 1, rows_out=(5, 6), checksum="y")
    assert rows_agree([one, one])
    assert checksums_agree([one, Result("floor", 1, rows_out=(5, 5))])
    assert not rows_agree([one, other])
    assert not checksums_agree([one, other])


def test_own_memory_of_this_process_is_seen() -> None:
    assert (status_bytes(os.getpid(), "RssAnon") or 0) > 1 << 20


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 0},
        {"batch_rows": ()},
        {"batch_rows": (3,)},
        {"cold_batches": 1},
        {"warm_batches": 4},
        {"contenders": ("spark",)},
        {"strategies": ("auto", "auto")},
        {"columns": ("colour",)},
        {"how": "full"},
        {"zipf": -1.0},
        {"memory": "1q"},
    ],
)
def test_bad_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(MillraceError):
        EnrichOptions(**wrong)  # type: ignore[arg-type]


def test_options_survive_the_way_to_another_process(tmp_path: Path) -> None:
    options = EnrichOptions(rows=7, batch_rows=(2, 4), contenders=("redis",), data=tmp_path)
    assert EnrichOptions.from_json(options.to_json(), tmp_path) == options
    with pytest.raises(MillraceError, match="colour"):
        EnrichOptions.from_json({"colour": 1}, tmp_path)


def test_growth_runs_the_same_options_at_every_size() -> None:
    options = GrowthOptions(rows=(10, 20), batch_rows=4, seed=9)
    assert [options.at(rows).rows for rows in options.rows] == [10, 20]
    assert options.at(10).seed == 9
    assert options.at(10).batch_rows == (4,)


def test_ctrl_c_is_not_lost_where_python_drops_errors() -> None:
    """In a process of its own: a signal that comes while an object is taken away."""
    program = """
import os, signal
from millrace.bench.interrupts import treat_sigterm_as_interrupt

class Goes:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass

treat_sigterm_as_interrupt()
try:
    Goes()
    while True:
        pass
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
