"""MESHJOIN: memory and rate.

Polyzotis, Skiadopoulos, Vassiliadis, Simitsis, Frantzell: Supporting Streaming Updates in an Active Data Warehouse,
ICDE 2007, equations (1) to (5).

    M      = b v_P + w (N_R/b) v_S + (N_R/b) v_C                                                          (1)
    c_loop = c_IO(b) + b (v_P/v_R) c_H + w (c_E + c_S + c_A + sigma c_O)                                  (2)
    mu     = w / c_loop ; keeps up if lambda c_loop <= w                                                  (3)-(5)

    b     pages of the disk buffer                 v_P   bytes of a page
    w     tuples that enter with each read         v_S   bytes of a tuple in window, hash table and queue
    N_R   pages of R                               v_C   bytes of a chunk, beside its tuples
    R_t   rows of R, R_t/N_R = v_P/v_R on a page   M     memory
    mu    tuples per second                        lambda arrivals per second
    sigma rows of R that a tuple meets             c_H, c_O ... see `UnitCosts`: probe, output, expire, take, add

The paper pays for a seek in each c_IO(b). A scan goes on where it stopped, so here a lap has one seek, and each read a request.
The paper's sigma counts results for each row of R that is probed. Here it counts them for each tuple, which is the same number
of results: in the long run as many tuples leave as come, each with all of its matches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.unitcosts import UnitCosts
from millrace.cost.iteration import IterationCost


def chunks(N_R: int, b: Any) -> Any:
    """Chunks that wait at once, N_R/b: a tuple stays for one pass. One at least.

    >>> int(chunks(8, 3))
    3
    """
    return np.maximum(1, -(-N_R // b))


def memory(b: Any, w: Any, *, N_R: int, v_P: int, v_S: int, v_C: int = 16) -> Any:
    """M by (1)."""
    return b * v_P + chunks(N_R, b) * (w * v_S + v_C)


def tuples_per_step(left_bytes: Int64Array, chunks: Int64Array, v_S: int) -> Int64Array:
    """w by (1): what is left of the memory for tuples, shared out among the chunks."""
    return left_bytes // (chunks * v_S)


def rate(w: Any, b: Int64Array, *, N_R: int, R_t: int, v_P: int, costs: UnitCosts) -> FloatArray:
    """mu by (2) and (3), for many b at once. Small b make many short reads, large b leave no memory for the window."""
    N_R = max(1, N_R)
    each = costs.take + costs.add + costs.output + costs.expire
    lap = N_R * (v_P * costs.read_byte + costs.page) + R_t * costs.probe + costs.seek
    return np.asarray(w / (lap / chunks(N_R, b) + costs.request + costs.step + w * each))


def tuples_wanted(arrivals: float, b: Any, *, N_R: int, R_t: int, v_P: int, costs: UnitCosts) -> Any:
    """w for a wanted rate: lambda (c_IO(b) + b (v_P/v_R) c_H) / (1 - lambda (c_E + c_S + c_A + c_O)). Infinite where no w is
    enough, because the tuples alone take the processor longer than there is."""
    each = costs.take + costs.add + costs.output + costs.expire
    lap = N_R * (v_P * costs.read_byte + costs.page) + R_t * costs.probe + costs.seek
    if arrivals * each >= 1:
        return np.full(np.shape(b), np.inf)
    return arrivals * (lap / chunks(N_R, b) + costs.request + costs.step) / (1 - arrivals * each)


def iteration(
    w: float, b: int, *, N_R: int, R_t: int, v_P: int, sigma: float = 1.0, output_rows: float = np.inf, wanted: float = 1.0
) -> IterationCost:
    """One read, and the tuples that enter and leave with it. `wanted`: the part of the pages that some tuple waits for, where
    the scan skips the others."""
    reads = float(chunks(N_R, b))
    seeks = 1.0 + (reads * (1.0 - wanted) if wanted < 1.0 else 0.0)
    return IterationCost(
        steps=max(1.0, w * sigma / output_rows),
        tuples_in=w,
        reads=1.0,
        pages_read=wanted * N_R / reads,
        bytes_read=wanted * N_R * v_P / reads,
        seeks=seeks / reads,
        probes=wanted * R_t / reads,
        matches=w * sigma,
        removed=w,
    )


def drained(
    n: float, h: float, w: float, b: int, *, R_t: int, N_R: int, v_P: int, sigma: float = 1.0, output_rows: float = np.inf,
    wanted: float = 1.0,
) -> IterationCost:  # fmt: skip
    """n tuples that come at once, and go on until all have left. The last of them enters (n/w - 1) reads after the first."""
    loaded = max(0.0, min(n, h) / w - 1) * b  # pages that are read while tuples still enter
    laps = max(1.0, n / h) + min(1.0, loaded / N_R)
    whole = iteration(w, b, N_R=N_R, R_t=R_t, v_P=v_P, wanted=wanted).times(laps * float(chunks(N_R, b)))
    steps = max(whole.steps, n * sigma / output_rows)
    return replace(whole, steps=steps, tuples_in=n, matches=n * sigma, removed=n)
