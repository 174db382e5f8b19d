"""SSIJ: rate. The equations are ours, for the loop that `joins.ssij` has.

Bornea, Deligiannakis, Kotidis, Vassalos: Semi-Streamed Index Join for Near-Real Time Execution of ETL Transformations,
ICDE 2011.

    p_C    = share of the stream on the C blocks that are wanted most, which stay in memory
    T      = 2 h' / (1 + sum of P_j^2) ; h' = h - (tuples in the input buffer)/2
    c_loop = (blocks wanted by T/2 tuples) c_IO + T (c_H + c_S + c_A + sigma c_O + c_E) ; mu = T / ((1 - p_C) c_loop)

    h    tuples of the window          P_j   share of what is left of the stream that wants block j
    T    tuples that wait for blocks, from one join phase to the same place of the next
    C    pages of the cache            c_IO  a seek and a page: blocks are read by how many wait for them

A join phase goes once through all blocks that are wanted, like a sweep in another order, and the next phase begins when it is
over: the window fills up meanwhile. A block that nobody waits for at that moment, when on average T/2 tuples have come since it
was read, has to wait for the next phase.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.unitcosts import UnitCosts
from millrace.cost.iteration import IterationCost
from millrace.cost.pages import PageDemand
from millrace.cost.sweepjoin import sweep_tuples


def rate_alike(h: FloatArray, b: Int64Array, *, R_t: int, N_R: int, v_P: int, costs: UnitCosts) -> FloatArray:
    """mu for many sizes of the disk buffer, b pages each with windows of h, if all blocks are wanted alike."""
    T = 2.0 * h * N_R / (N_R + 1)
    pages = N_R * -np.expm1(-T / 2 / N_R)
    c_page = costs.seek + costs.request + v_P * costs.read_byte + costs.page + costs.step / b
    c_tuple = costs.probe + costs.output + costs.expire + costs.take + costs.add
    return np.asarray(T / (pages * c_page + T * c_tuple))


def iteration(
    h: float, C: int, b: int, demand: PageDemand, *, pending: float, N_R: int, v_P: int, sigma: float = 1.0,
    output_rows: float = np.inf,
) -> IterationCost:  # fmt: skip
    """One join phase, b pages in each step."""
    p_C, places = demand.places().hottest(C)
    if p_C >= 1:
        w = max(1.0, min(h, output_rows))
        return IterationCost(tuples_in=w, probes=w, matches=w * sigma, removed=w, front_lookups=w, front_hits=w)
    T = sweep_tuples(max(1.0, h - pending / 2), places)
    pages = places.distinct(T / 2)
    steps = max(1.0, pages / b)
    w = T / (1.0 - p_C)
    waiting = max(0.1, T / 2 / places.total)
    together = min(0.5, 0.5 / np.sqrt(np.pi * waiting)) if b > 1 else 0.0  # neighbours for which as many tuples wait
    return replace(
        IterationCost(tuples_in=w, probes=w, matches=w * sigma, removed=w, front_lookups=w, front_hits=w * p_C),
        steps=max(steps, w * sigma / output_rows),
        reads=pages,
        pages_read=pages,
        bytes_read=pages * v_P,
        seeks=pages * (1.0 - together),
    )
