"""What looking keys up in pages in memory takes, in tables of several sizes.

    seconds = calls x call + rows x (row + bytes found x found_byte)

A row of a big table is rarely in the caches of the processor: the cost of a row grows with the table, and is kept by its size.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millrace.core.calibration import LookUpCosts
from millrace.relations.key_lookup import InPlace
from millrace.relations.stored import StoredRelation
from millrace.tuning.fitting import fit
from millrace.tuning.scratch_tables import COLUMNS, COLUMNS_BYTES

_ROWS_OF_CALL = (200, 4_000, 60_000)
_LEAST_CALLS = 3


def calibrate_look_ups(
    tables: Sequence[StoredRelation], *, seconds: float = 3.0, seed: int = 0
) -> tuple[LookUpCosts, dict[str, float]]:
    """Costs, and their spread. `tables` are mapped, have the keys 1 to their rows, and grow in size."""
    counts, taken = [], []
    each = seconds / (len(tables) * len(_ROWS_OF_CALL) * 2)
    for number, table in enumerate(tables):
        table.touch(np.arange(table.pages))
        for columns, width in ((COLUMNS, COLUMNS_BYTES), ((), 0)):
            look_up = InPlace(table, columns)
            for rows in _ROWS_OF_CALL:
                by_table = [float(rows) if place == number else 0.0 for place in range(len(tables))]
                counts.append([1.0, float(rows * width), *by_table])
                taken.append(_timed(look_up, table.rows, rows, each, seed))
    guess = np.array([LookUpCosts.call, LookUpCosts.found_byte, *([LookUpCosts.row] * len(tables))])
    found = fit(np.array(counts), np.array(taken), guess)
    call, found_byte, *by_size = found.costs.tolist()
    curve = tuple((float(table.rows), seconds) for table, seconds in zip(tables, by_size, strict=True))
    spread = dict(zip(("call", "found_byte"), found.spread.tolist(), strict=False))
    spread["row"] = float(found.spread[2:].max())
    return LookUpCosts(call, by_size[-1], found_byte, curve), spread


def _timed(look_up: InPlace, table_rows: int, rows: int, seconds: float, seed: int) -> float:
    """Median seconds of a call with so many keys, drawn evenly."""
    random = np.random.default_rng(seed)
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken) < _LEAST_CALLS:
        keys = pa.array(random.integers(1, table_rows + 1, rows))
        before = time.perf_counter()
        look_up.look_up([keys])
        taken.append(time.perf_counter() - before)
    return float(np.median(taken[1:]))  # the first is cold
