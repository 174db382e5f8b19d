"""Keys, timing and payload together, as Arrow batches."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import millrace.streams
from millrace.core.errors import ParameterError
from millrace.streams import (
    BurstyArrivals,
    PausedArrivals,
    Payload,
    SteadyArrivals,
    TemporalLocalityKeys,
    UniformKeys,
    Workload,
    ZipfKeys,
)


def sales(**options: Any) -> Workload:
    return Workload(ZipfKeys(1000, seed=41), SteadyArrivals(per_step=10), **options)


def table(batches: list[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(batches).combine_chunks()


def test_a_tuple_of_the_papers_has_twenty_bytes_of_key_sequence_and_quantity() -> None:
    workload = sales()
    assert workload.schema == pa.schema([("key", pa.int64()), ("sequence", pa.int64()), ("quantity", pa.int32())])
    assert workload.stream_tuple_bytes == 20
    assert workload.draw(1000).nbytes == 20_000


@pytest.mark.parametrize(
    ("stream_tuple_bytes", "columns"),
    [
        (16, []),
        (19, ["padding"]),
        (20, ["quantity"]),
        (21, ["quantity", "padding"]),
        (32, ["quantity", "padding"]),
        (128, ["quantity", "padding"]),
    ],
)
def test_the_payload_fills_the_tuple_to_the_byte(stream_tuple_bytes: int, columns: list[str]) -> None:
    workload = sales(payload=Payload(stream_tuple_bytes))
    batch = workload.draw(100)
    batch.validate(full=True)
    assert batch.schema.names == ["key", "sequence", *columns]
    assert batch.nbytes == 100 * stream_tuple_bytes == 100 * workload.stream_tuple_bytes


def test_without_payload_there_are_key_and_sequence_only() -> None:
    workload = sales(payload=None, key_name="product_id")
    assert workload.draw(3).schema.names == ["product_id", "sequence"]
    assert workload.stream_tuple_bytes == 16


def test_every_step_is_a_batch_with_as_many_rows_as_arrive() -> None:
    workload = Workload(ZipfKeys(1000), BurstyArrivals(seed=42))
    rows = [batch.num_rows for batch in islice(workload, 200)]
    assert rows == BurstyArrivals(seed=42).arrivals(200).tolist()


def test_a_pause_is_a_run_of_empty_batches_with_the_full_schema() -> None:
    workload = Workload(ZipfKeys(1000), PausedArrivals(SteadyArrivals(10), pauses=[(2, 4)]), payload=Payload(32))
    batches = list(islice(workload, 6))
    assert [batch.num_rows for batch in batches] == [10, 10, 0, 0, 10, 10]
    assert all(batch.schema == workload.schema for batch in batches)


def test_sequence_numbers_count_on_over_batches_and_pauses() -> None:
    workload = Workload(UniformKeys(50), PausedArrivals(SteadyArrivals(7.5), pauses=[(2, 4)]))
    rows = table(list(islice(workload, 20)))
    assert rows["sequence"].to_pylist() == list(range(rows.num_rows))


@pytest.mark.parametrize(
    "keys",
    [
        ZipfKeys(1000, scatter=True, seed=43),
        UniformKeys(1000, seed=43),
        TemporalLocalityKeys(1000, intervals=5, tuples_per_interval=100, seed=43),
    ],
)
def test_how_rows_are_cut_into_batches_does_not_change_them(keys: Any) -> None:
    def workload() -> Workload:
        options: dict[str, Any] = {"null_share": 0.1, "absent_share": 0.2, "payload": Payload(40), "seed": 5}
        return Workload(keys, BurstyArrivals(seed=44), **options)

    pieces, steps = workload(), workload()
    whole = table([workload().draw(40_000)])
    assert table([pieces.draw(rows) for rows in (100, 50, 0, 1, 39_849)]).equals(whole)
    stepped = table(list(islice(steps, 15)))
    assert 0 < stepped.num_rows < whole.num_rows
    assert stepped.equals(whole.slice(0, stepped.num_rows))


def test_workloads_made_from_the_same_objects_do_not_disturb_each_other() -> None:
    keys, timing = ZipfKeys(1000, seed=45), BurstyArrivals(seed=45)
    first, second = Workload(keys, timing), Workload(keys, timing)
    taken = list(islice(first, 10))
    assert table(list(islice(second, 10))).equals(table(taken))
    assert np.array_equal(keys.draw(100), first_keys(taken, 100))


def first_keys(batches: list[pa.RecordBatch], count: int) -> Any:
    return table(batches)["key"].to_numpy()[:count]


def test_null_and_absent_keys_come_in_their_shares() -> None:
    keys = sales(null_share=0.03, absent_share=0.2).draw(100_000)["key"]
    assert keys.null_count / 100_000 == pytest.approx(0.03, abs=0.003)
    assert pc.sum(pc.greater(keys, 1000)).as_py() / 100_000 == pytest.approx(0.2, abs=0.006)
    assert pc.max(keys).as_py() <= 2000
    assert pc.min(keys).as_py() == 1


def test_marking_keys_leaves_the_other_rows_as_they_were() -> None:
    plain = sales().draw(10_000)
    marked = sales(null_share=0.1, absent_share=0.1).draw(10_000)
    absent = pc.greater(marked["key"], 1000)
    restored = pc.if_else(absent, pc.subtract(marked["key"], 1000), marked["key"])
    assert pc.fill_null(restored, plain["key"]).equals(plain["key"])
    assert marked["quantity"].equals(plain["quantity"])


@pytest.mark.parametrize(("shares", "nulls", "absent"), [((1.0, 0.0), 50, 0), ((0.0, 1.0), 0, 50), ((0.0, 0.0), 0, 0)])
def test_shares_of_nothing_and_of_everything_are_kept_exactly(shares: tuple[float, float], nulls: int, absent: int) -> None:
    keys = sales(null_share=shares[0], absent_share=shares[1]).draw(50)["key"]
    assert keys.null_count == nulls
    assert sum(key is not None and key > 1000 for key in keys.to_pylist()) == absent


def test_quantities_are_from_one_to_ten() -> None:
    quantities = sales().draw(10_000)["quantity"]
    assert sorted(set(quantities.to_pylist())) == list(range(1, 11))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Payload(15), "stream_tuple_bytes must be from 16"),
        (lambda: sales(null_share=1.5), "null_share must be at least 0 and at most 1; got 1.5"),
        (lambda: sales(absent_share=-0.1), "absent_share must be at least 0 and at most 1; got -0.1"),
        (lambda: sales(null_share=0.6, absent_share=0.6), "null_share + absent_share must be at most 1; got 0.6 + 0.6"),
        (lambda: sales(key_name="sequence"), "key_name must be a name other than sequence, quantity"),
        (lambda: sales(key_name=5), "key_name must be a name other than"),
        (lambda: sales(key_name=""), "key_name must be a name other than"),
        (lambda: sales(seed=-1), "seed must be at least 0; got -1"),
        (lambda: sales().draw(-5), "rows must be at least 0; got -5"),
    ],
)
def test_a_bad_parameter_is_an_error_that_names_it(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ParameterError) as raised:
        make()
    assert message in str(raised.value)


def test_the_examples_in_the_docstrings_run() -> None:
    modules = [millrace.streams] + [
        importlib.import_module(f"millrace.streams.{module.name}") for module in pkgutil.iter_modules(millrace.streams.__path__)
    ]
    results = [doctest.testmod(module) for module in modules]
    assert sum(result.failed for result in results) == 0
    assert sum(result.attempted for result in results) > 20
