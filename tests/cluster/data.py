"""Rows for the cluster: products, and sales of which some have an unknown product or none."""

from __future__ import annotations

import pyarrow as pa

FILES, FILES_PER_BATCH, ROWS_PER_FILE, KEYS = 12, 4, 2000, 5000
BATCHES = FILES // FILES_PER_BATCH
HELD = 5  # the file whose task waits: in the second of three batches

PRODUCTS = pa.table(
    {
        "id": pa.array(range(KEYS), pa.int64()),
        "name": [f"product number {n}" for n in range(KEYS)],
        "price": [n / 100 for n in range(KEYS)],
    }
)


def _ids(first: int, count: int) -> list[int | None]:
    return [None if n % 23 == 5 else n * 7919 % (KEYS + 500) for n in range(first, first + count)]


SALES = pa.table(
    {
        "n": pa.array(range(FILES * ROWS_PER_FILE), pa.int64()),
        "id": pa.array(_ids(0, FILES * ROWS_PER_FILE), pa.int64()),
        "file": pa.array([n // ROWS_PER_FILE for n in range(FILES * ROWS_PER_FILE)], pa.int64()),
    }
)


def truth(first: int, count: int, copies: int = 1) -> list[int]:
    """Rows in, matched, with an unknown key, without a key, and pairs, of so many sales."""
    ids = _ids(first, count)
    nulls, met = ids.count(None), sum(one is not None and one < KEYS for one in ids)
    return [count, met, count - met - nulls, nulls, met * copies]


def batches(copies: int = 1) -> list[list[int]]:
    size = FILES_PER_BATCH * ROWS_PER_FILE
    return [truth(batch * size, size, copies) for batch in range(BATCHES)]
