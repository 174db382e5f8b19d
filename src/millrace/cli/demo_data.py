"""The demo's data: products, and a bursty stream of sales that lands as small Parquet files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.core.arrays import Int64Array
from millrace.streams import BurstyArrivals, Workload, ZipfKeys

SALES_SCHEMA = "sale_id long, product_id long, quantity int, sale_time timestamp"
ABSENT_SHARE = 0.01
NULL_SHARE = 0.002

TICK_SECONDS = 0.5  # one landing file each
SALES_PER_TICK = 120_000
LEAST_TICKS = 4
STEPS_PER_TICK = 100  # of the arrival process, whose longest bursts last about a thousand steps

_SUPPLIERS = 5_000
_PRICE = pa.decimal128(7, 2)
_GROUPS = ["bolt", "chair", "cup", "drill", "jacket", "kettle", "lamp", "mirror", "notebook", "rope", "shelf", "table"]
_OPENING = int(datetime(2026, 1, 5, 8, tzinfo=UTC).timestamp()) * 1_000_000
_PART_ROWS = 250_000


def write_products(folder: Path, rows: int, seed: int) -> int:
    """Product master data as Parquet files; returns their bytes. Product ids run from 1 to `rows`."""
    folder.mkdir(parents=True)
    random = np.random.default_rng([seed, 1])
    surrogates = random.permutation(rows) + 1
    for part, first in enumerate(range(0, rows, _PART_ROWS)):
        ids = np.arange(first, min(first + _PART_ROWS, rows)) + 1
        table = pa.table(
            {
                "product_id": pa.array(ids),
                "surrogate_key": pa.array(surrogates[ids - 1]),
                "product_name": _names(ids, random),
                "sale_price": _money(random.integers(50, 100_000, len(ids))),
                "supplier_id": pa.array(random.integers(1, _SUPPLIERS, len(ids), dtype=np.int32, endpoint=True)),
            }
        )
        pq.write_table(table, folder / f"part-{part:03d}.parquet")
    return sum(path.stat().st_size for path in folder.iterdir())


def _names(ids: Int64Array, random: np.random.Generator) -> pa.Array:
    groups = pa.array(_GROUPS).take(pa.array(random.integers(0, len(_GROUPS), len(ids))))
    return pc.binary_join_element_wise(groups, pc.utf8_lpad(pa.array(ids).cast(pa.utf8()), 10, "0"), " no. ")


def _money(cents: Int64Array) -> pa.Array:
    """Exact decimals: 128-bit numbers of cents."""
    words = np.zeros((len(cents), 2), np.int64)
    words[:, 0] = cents
    return pa.Array.from_buffers(_PRICE, len(cents), [None, pa.py_buffer(words)])


def burst_sizes(sales: int, seed: int) -> Int64Array:
    """How many sales land in each tick: the shape of the bursty process, scaled to `sales` in all."""
    ticks = max(LEAST_TICKS, sales // SALES_PER_TICK)
    arrivals = BurstyArrivals(seed=seed).arrivals(ticks * STEPS_PER_TICK)
    reached = np.cumsum(arrivals.reshape(ticks, STEPS_PER_TICK).sum(axis=1))
    share = reached / reached[-1] if reached[-1] else (np.arange(ticks) + 1) / ticks
    return np.diff(np.floor(share * sales).astype(np.int64), prepend=0)


def sales_bursts(products: int, sales: int, zipf: float, seed: int) -> Iterator[pa.Table]:
    """The sales of each tick. Popular products lie all over the table; some ids are unknown, some missing."""
    workload = Workload(
        ZipfKeys(domain=products, exponent=zipf, scatter=True, seed=seed),
        BurstyArrivals(seed=seed),
        key_name="product_id",
        absent_share=ABSENT_SHARE,
        null_share=NULL_SHARE,
        seed=seed,
    )
    for tick, rows in enumerate(burst_sizes(sales, seed).tolist()):
        drawn = workload.draw(rows)
        share = np.arange(rows) / max(1, rows)
        times = _OPENING + ((tick + share) * TICK_SECONDS * 1e6).astype(np.int64)
        yield pa.table(
            {
                "sale_id": drawn.column("sequence"),
                "product_id": drawn.column("product_id"),
                "quantity": drawn.column("quantity"),
                "sale_time": pa.array(times).cast(pa.timestamp("us", tz="UTC")),
            }
        )


def land(burst: pa.Table, path: Path) -> None:
    """Spark must never see half a file: it is written under a hidden name and renamed."""
    hidden = path.with_name(f".{path.name}.partial")
    pq.write_table(burst, hidden)
    os.rename(hidden, path)
