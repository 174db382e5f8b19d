"""Inputs give every row once, count what they leave out, and wait on the clock where they should."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.online.inputs import parquet_input
from tests.online.tables import join_of, records

from millrace.core.devices import VirtualClock, VirtualDevice, device
from millrace.core.errors import ParameterError, SchemaError
from millrace.core.keys import KeyCodec
from millrace.online.protocol import Input, finished
from millrace.online.question.expressions import Names
from millrace.online.question.recorder import Recorder
from millrace.online.question.sides import Side, Word
from millrace.online.storage.inputs import ArrayInput, BatchInput
from millrace.online.virtual.inputs import Track, VirtualInput

SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.float64())])
V = Names((SCHEMA, SCHEMA), [("k", "k")]).parse("left.v", "test")
SIDE = Side(0, KeyCodec((pa.int64(),)), ["k"], words=[Word(V, (V,))])


def read_all(source: Input, rows: int) -> tuple[list[int], int, list[int]]:
    codes: list[int] = []
    count, sizes = 0, []
    while not source.ended:
        batch = source.read(rows)
        codes += batch.words[:, 0].tolist()
        count += batch.rows
        sizes.append(batch.rows)
    return codes, count, sizes


def test_batches_are_cut_to_what_is_asked_for_and_null_keys_are_counted() -> None:
    table = pa.table({"k": [1, None, 3, 4, None, 6, 7], "v": [0.0] * 7})
    source = BatchInput(iter(table.to_batches(max_chunksize=4)), Recorder(SIDE).numbered, 7, SIDE.width)
    codes, count, sizes = read_all(source, 3)
    assert (codes, count) == ([1, 3, 4, 6, 7], 7)
    assert sizes == [3, 1, 3]


def test_an_error_in_a_batch_reaches_the_reader() -> None:
    def broken():  # type: ignore[no-untyped-def]
        yield pa.record_batch({"k": [1], "v": [1.0]})
        raise OSError("the file is cut off")

    source = BatchInput(broken(), Recorder(SIDE).numbered, 2, SIDE.width)
    source.read(5)
    with pytest.raises(OSError, match="cut off"):
        source.read(5)


def test_parquet_files_are_read_in_a_seeded_order_of_row_groups(tmp_path: Path) -> None:
    for number in range(3):
        keys = np.arange(number * 100, number * 100 + 100)
        pq.write_table(pa.table({"k": keys, "v": keys * 1.0, "other": keys}), tmp_path / f"{number}.parquet", row_group_size=25)
    orders = [read_all(parquet_input(tmp_path, SIDE, batch_rows=10, seed=seed), 1000)[0] for seed in (None, 1, 1, 2)]
    assert orders[0] == list(range(300))
    assert orders[1] == orders[2] != orders[3]
    assert sorted(orders[1]) == sorted(orders[3]) == orders[0]


def test_parquet_tables_are_joined(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    keys = [random.integers(0, 4000, 9000) for _ in "ab"]
    for name, k in zip("ab", keys, strict=True):
        pq.write_table(pa.table({"k": k, "v": np.ones(9000)}), tmp_path / f"{name}.parquet", row_group_size=1000)
    a, b = (parquet_input(tmp_path / f"{name}.parquet", SIDE, batch_rows=500) for name in "ab")
    end = finished(join_of("prjoin", a, b, memory=3 << 15))
    expected = int((np.bincount(keys[0], minlength=4000) * np.bincount(keys[1], minlength=4000)).sum())
    assert end.pieces.answer().tolist() == [[expected, expected]]


def test_a_column_that_is_not_there_is_an_error_before_the_run(tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": [1]}), tmp_path / "a.parquet")
    with pytest.raises(SchemaError, match="no column 'v'; they have k"):
        parquet_input(tmp_path, SIDE)
    with pytest.raises(ParameterError, match="records are an int64 array"):
        ArrayInput(np.zeros(3))  # type: ignore[arg-type]


@pytest.mark.parametrize("overlapped", [False, True])
def test_a_virtual_input_takes_the_time_of_its_device_once(overlapped: bool) -> None:
    clock = VirtualClock()
    disk = VirtualDevice(device("prjoin-disk"), clock)
    track = Track()
    words = records(np.arange(5000))  # 80,000 bytes that stand for 8 MB
    inputs = [VirtualInput(ArrayInput(words), disk, track, scale=100.0, overlapped=overlapped) for _ in "ab"]
    while not all(source.ended for source in inputs):
        for source in inputs:
            if not source.ended:
                source.read(400)
    assert clock.now == pytest.approx(disk.model.seek + 16 * 13.687e-3)
    assert disk.seeks == 1
