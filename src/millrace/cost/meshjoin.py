"""MESHJOIN: memory and rate.

Polyzotis, Skiadopoulos, Vassiliadis, Simitsis, Frantzell: Supporting Streaming Updates in an Active Data Warehouse,
ICDE 2007, equations (1) to (3).

    M  = b v_P + w (N_R/b) v_S + (N_R/b) v_C + (the rest)      (1), with the bytes of our own structures
    mu = w / (c_seek + b v_P c_byte)                            (2, 3), the part that is known without measuring

    b     pages of the disk buffer                 v_P   bytes of a page
    w     tuples that enter with each read         v_S   bytes of a tuple in window, hash table and queue
    N_R   pages of R                               v_C   bytes of a chunk, beside its tuples
    mu    tuples per second                        M     memory
"""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.unitcosts import UnitCosts


def chunks(N_R: int, b: Any) -> Any:
    """Chunks that wait at once, N_R/b: a tuple stays for one pass. One at least.

    >>> int(chunks(8, 3))
    3
    """
    return np.maximum(1, -(-N_R // b))


def tuples_per_step(left_bytes: Int64Array, chunks: Int64Array, v_S: int) -> Int64Array:
    """w by (1): what is left of the memory for tuples, shared out among the chunks."""
    return left_bytes // (chunks * v_S)


def rate(w: Any, b: Int64Array, v_P: int, costs: UnitCosts) -> FloatArray:
    """mu by (2) and (3). Small b make many short reads, large b leave no memory for the window."""
    return np.asarray(w / (costs.seek + b * v_P * costs.read_byte))
