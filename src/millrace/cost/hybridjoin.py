"""HYBRIDJOIN: rate.

Naeem, Dobbie, Weber: HYBRIDJOIN for Near-Real-Time Data Warehousing, International Journal of Data Warehousing and
Mining 7(4), 2011, equations (2) and (3).

    paper  w = 1.36 h_S D_t / R_t                                                                          (2)
    ours   r = sum of P_j / (1 + P_j T) ; w = 1/r
           h_S = sum of P_j T (1 + P_j T / 2) / (1 + P_j T) + (1 + T sum of P_j^2) / 2
    c_loop = c_IO(v_P) + D_t c_H + w (c_O + c_E + c_S + c_A) ; mu = w / c_loop                             (3)

    P_j   share of the stream that wants partition j      h_S   tuples of the window
    T     tuples that come from the moment a partition    D_t   rows of a partition
          is wanted until it is read                      R_t   rows of R
    r     reads for each tuple                            w     tuples that one read serves

The paper's 1.36 was fitted to one stream. Ours follows from the loop: partitions are read in the order in which somebody first
wanted them, so all of them wait for the same number of tuples, T. Partition j is idle for 1/P_j tuples, waits for T, and then
serves 1 + P_j T of them. T is found from the window, which is full at each read; the last term is what it lacks of that, on
average, for a tuple that comes. Keys wanted alike: w is near 2 h_S D_t / R_t.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.unitcosts import UnitCosts
from millrace.cost.iteration import IterationCost
from millrace.cost.pages import PageDemand, Places

FITTED = 1.36  # the paper's constant
_HALVINGS = 60


def paper_tuples(h_S: Any, D_t: Any, R_t: int, fitted: float = FITTED) -> Any:
    """w by the paper's (2)."""
    return fitted * h_S * D_t / R_t


def served(h_S: float, places: Places, refilled_late: float = 0.0) -> float:
    """w: tuples that a read serves. `refilled_late`: the part of w by which the window is not full when it reads, because
    that part of the last tuples was answered elsewhere."""
    if h_S <= 1:
        return 1.0
    each, count = places.each, places.count
    squares = float(np.sum(count * each**2))

    def found(T: float) -> tuple[float, float]:
        wants = each * T
        w = 1.0 / float(np.sum(count * each / (1.0 + wants)))
        return w, float(np.sum(count * wants * (1.0 + wants / 2) / (1.0 + wants))) + (1.0 + T * squares) / 2 + refilled_late * w

    low, high = 0.0, 2.0 * h_S
    while found(high)[1] < h_S and high < 1e18:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if found(middle)[1] < h_S else (low, middle)
        if high - low < 1e-6 * high:
            break
    return max(1.0, min(found(high)[0], h_S))


def served_alike(h_S: Any, n: Any, refilled_late: Any = 0.0) -> FloatArray:
    """w, for n partitions that are wanted alike: with x = T/n, w = 1 + x and h_S = n x (1 + x/2) / (1 + x) + w/2 + late."""
    # (h - (1+x)(1/2 + late)) (1 + x) = n x (1 + x/2): a quadratic equation in x
    c = 0.5 + refilled_late
    a2 = n / 2 + c
    a1 = n + 2 * c - h_S
    a0 = c - h_S
    x = (-a1 + np.sqrt(np.maximum(0.0, a1 * a1 - 4 * a2 * a0))) / (2 * a2)
    return np.asarray(np.clip(1.0 + x, 1.0, np.maximum(h_S, 1.0)))


def rate_alike(h_S: Any, k: Int64Array, *, R_t: int, N_R: int, v_P: int, costs: UnitCosts) -> FloatArray:
    """mu for many partition sizes, k pages each with windows of h_S, if all partitions are wanted alike."""
    w = served_alike(h_S, np.maximum(1.0, N_R / k))
    c_tuple = costs.output + costs.expire + costs.take + costs.add
    c_read = costs.seek + costs.request + costs.step + k * (v_P * costs.read_byte + costs.page + R_t / N_R * costs.probe)
    return np.asarray(w / (c_read + w * c_tuple))


def iteration(
    h_S: float, k: int, demand: PageDemand, *, R_t: int, N_R: int, v_P: int, sigma: float = 1.0, output_rows: float = np.inf
) -> IterationCost:
    """One read of k pages, by the oldest tuple."""
    places = demand.places(k)
    return fetched(served(h_S, places), places.total, k, R_t=R_t, N_R=N_R, v_P=v_P, sigma=sigma, output_rows=output_rows)


def fetched(
    w: float, n: float, k: int, *, R_t: int, N_R: int, v_P: int, sigma: float = 1.0, output_rows: float = np.inf
) -> IterationCost:
    """One read of one of n partitions that serves w tuples."""
    pages = min(k, N_R / max(n, 1.0) if n > 1 else N_R)
    return IterationCost(
        steps=max(1.0, w * sigma / output_rows),
        tuples_in=w,
        reads=1.0,
        pages_read=pages,
        bytes_read=pages * v_P,
        seeks=1.0 - (1.0 / n if n > 1 else 0.0),  # the next partition may lie behind this one
        probes=pages * R_t / N_R,
        matches=w * sigma,
        removed=w,
    )


def drained(
    n: float, h_S: float, k: int, demand: PageDemand, *, R_t: int, N_R: int, v_P: int, sigma: float = 1.0,
    output_rows: float = np.inf, pinned: int = 0,
) -> IterationCost:  # fmt: skip
    """n tuples that come at once, and go on until all have left: every partition that one of them wants is read."""
    places = demand.places(k, pinned)
    last = min(n, h_S)
    reads = places.distinct(last) + (n - last) / served(h_S, places)
    each = fetched(n / max(reads, 1e-9), places.total, k, R_t=R_t, N_R=N_R, v_P=v_P, sigma=sigma)
    whole = each.times(max(reads, 1e-9))
    return replace(whole, steps=max(reads, n * sigma / output_rows, 1.0))
