"""What an object really holds: the bytes of all arrays and Arrow data that can be reached from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa


def held_bytes(root: object, *, without: Iterable[object] = ()) -> int:
    """Bytes of NumPy arrays and Arrow data reachable from `root`, each counted once.

    Not followed: the objects in `without`, runs of pages (they belong to the relation, or to the buffer that the budget
    has reserved for them), classes and functions.
    """
    seen = {id(thing) for thing in without}
    waiting: list[Any] = [root]
    total = 0
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, type) or callable(thing) or _is_run(thing):
            continue
        seen.add(id(thing))
        if isinstance(thing, np.ndarray):
            if isinstance(thing.base, np.ndarray):
                waiting.append(thing.base)
            else:
                total += thing.nbytes
        elif isinstance(thing, (pa.RecordBatch, pa.Table, pa.Array, pa.ChunkedArray, pa.Buffer)):
            total += thing.size if isinstance(thing, pa.Buffer) else thing.nbytes
        elif isinstance(thing, dict):
            waiting.extend(thing.values())
        elif isinstance(thing, (list, tuple, set, frozenset)):
            waiting.extend(thing)
        else:
            waiting.extend(getattr(thing, "__dict__", {}).values())
            waiting.extend(getattr(thing, name) for name in getattr(type(thing), "__slots__", ()) if hasattr(thing, name))
    return total


def _is_run(thing: object) -> bool:
    return all(hasattr(thing, name) for name in ("pages", "rows", "codes", "take"))
