"""SWEEPJOIN: rate. Our own join, and our own equations.

    T      = 2 h / (1 + sum of B_k^2 - sum of P_j^2)                           tuples that come in one sweep
    u_j    = 1 - e^(-P_j T)                     page j is wanted when the head comes
    pages  = sum of u_j (1 + E[gap pages read]) seeks = sum of u_j (1 - u)^(g+1)
    mu     = T / (seeks c_seek + pages v_P c_byte + reads c_request + T (c_H + c_S + c_A + sigma c_O + c_E))

    h     tuples of the window                    P_j   share of the stream that wants page j
    b     pages of the disk buffer                B_k   share of the stream that wants the k-th buffer full of pages
    g     pages that cost as much as a seek       u     chance that a page in the neighbourhood is wanted

The window is full whenever pages are read. A tuple waits for half a sweep on average, so a sweep takes 2 h tuples. What is
served with one buffer full of pages leaves at once, and its slots stay empty until then: hence the B_k^2. Where more tuples
wait for a page than a step compares, tuples that come meanwhile are served as well: such pages count in the second sum, and
their buffer does not in the first. A page is served for eight windows of tuples at most before the head moves on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.unitcosts import UnitCosts
from millrace.cost.iteration import IterationCost
from millrace.cost.pages import PageDemand, Places

_LEAST_PART = 0.02  # of the tuples of a sweep that the window has to hold: with one page, tuples could be served without an end


def sweep_tuples(h: float, places: Places) -> float:
    """T, where all that waits for one of these places leaves at once."""
    return max(1.0, 2.0 * h / (1.0 + float(np.sum(places.count * places.each**2))))


def rate_alike(
    h: Any, b: Int64Array, *, gap_pages: int, limit: float, R_t: int, N_R: int, v_P: int, costs: UnitCosts
) -> FloatArray:
    """mu for many sizes of the disk buffer, b pages each with windows of h, if all pages are wanted alike."""
    T = 2.0 * h * N_R / (N_R + b)
    u = np.clip(-np.expm1(-T / N_R), 1e-9, 1.0)
    through, seek = _gaps(u, gap_pages)
    pages = np.minimum(N_R, N_R * u * (1.0 + through))
    batches = np.maximum(1.0, pages / b)
    seeks = N_R * u * seek + batches * (1.0 - u)
    c_tuple = costs.probe + costs.output + costs.expire + costs.take + costs.add
    seconds = (
        seeks * costs.seek
        + np.maximum(seeks, batches) * costs.request
        + pages * (v_P * costs.read_byte + costs.page)
        + np.maximum(batches, T / limit) * costs.step
        + T * c_tuple
    )
    return np.asarray(T / seconds)


def _gaps(near: FloatArray, gap_pages: float) -> tuple[FloatArray, FloatArray]:
    """For a wanted page: pages of the gap before the next that are read through, E[k; k <= g], and the chance of a seek, for
    gaps of k pages with the chance near (1 - near)^k."""
    miss, g = 1.0 - near, gap_pages
    through = miss * (1.0 - (g + 1.0) * miss**g + g * miss ** (g + 1.0)) / near
    return np.where(near >= 1.0, 0.0, through), miss ** (g + 1.0)


def iteration(
    h: float, b: int, demand: PageDemand, *, gap_pages: int, N_R: int, v_P: int, sigma: float = 1.0, limit: float = np.inf,
    pages_each: float = 1.0,
) -> IterationCost:  # fmt: skip
    """One sweep over R. `limit`: tuples compared in one step. `pages_each`: pages on which the rows of a key lie."""
    buffers, places = demand.places(b), demand.places()
    T = 2.0 * h
    for _ in range(4):
        at_once = (buffers.count * buffers.each**2)[buffers.each * T <= limit].sum()
        by_turns = (places.count * places.each**2)[places.each * T > limit].sum()
        T = max(1.0, 2.0 * h / max(_LEAST_PART, 1.0 + float(at_once - by_turns)))
    wanted, pages, seeks = reads_of(demand, places.distinct(T) / places.total, T, gap_pages)
    batches = max(1.0, pages / b)
    seeks = min(seeks + batches * (1.0 - wanted / places.total), pages)
    more = float(np.sum(buffers.count * np.maximum(0.0, buffers.each * T * pages_each / limit - 1.0)))
    return IterationCost(
        steps=batches + more,
        tuples_in=T,
        reads=max(seeks, batches),
        pages_read=pages,
        bytes_read=pages * v_P,
        seeks=seeks,
        probes=T * pages_each,
        matches=T * sigma,
        removed=T,
    )


def reads_of(demand: PageDemand, wanted_share: float, tuples: float, gap_pages: int) -> tuple[float, float, float]:
    """Pages wanted by so many tuples, pages read for them in order, and seeks. Gaps of up to `gap_pages` are read through."""
    places = demand.places()
    u = -np.expm1(-places.each * tuples)
    wanted = float(np.sum(places.count * u))
    # the next page is wanted with the chance of its neighbourhood: its own where hot rows stand together
    near = u if demand.order == "sorted" else np.full(len(u), wanted_share)
    through, seek = _gaps(np.clip(near, 1e-12, 1.0), min(gap_pages, places.total))
    pages = float(np.sum(places.count * u * (1.0 + through)))
    seeks = float(np.sum(places.count * u * seek))
    return wanted, min(pages, places.total), max(seeks, 1.0 if wanted > 0 else 0.0)


def drained(
    n: float, h: float, b: int, demand: PageDemand, *, gap_pages: int, N_R: int, v_P: int, sigma: float = 1.0,
    limit: float = np.inf, pages_each: float = 1.0,
) -> IterationCost:  # fmt: skip
    """n tuples that come at once, and go on until all have left: one sweep, if the window has room for them."""
    last = min(n, h)
    places = demand.places()
    _, pages, seeks = reads_of(demand, places.distinct(last * pages_each) / places.total, last * pages_each, gap_pages)
    batches = max(1.0, pages / b)
    more = IterationCost(steps=0.0)
    if n > h:
        sweep = iteration(h, b, demand, gap_pages=gap_pages, N_R=N_R, v_P=v_P, sigma=sigma, limit=limit, pages_each=pages_each)
        more = sweep.times((n - last) / sweep.removed)
    once = IterationCost(
        steps=max(batches, last / limit),
        tuples_in=last,
        reads=max(seeks, batches),
        pages_read=pages,
        bytes_read=pages * v_P,
        seeks=seeks,
        probes=last * pages_each,
        matches=last * sigma,
        removed=last,
    )
    return once + more
