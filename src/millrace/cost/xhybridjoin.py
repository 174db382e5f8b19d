"""X-HYBRIDJOIN: rate.

Naeem, Dobbie, Weber: Efficient Processing of Streaming Updates with Archived Master Data in Near-Real-Time Data
Warehousing, Knowledge and Information Systems, 2013, equations (5) to (9).

    p_N    = share of the stream whose row is pinned; for R sorted by frequency H(d_N) / H(R_t) ; p_S = 1 - p_N
    paper  w = h_S p_old (1 - p_old) / (1 + p_old (1 - p_old) - p_new (1 - p_new)) ; p_old = 1/n ; p_new = p_N + p_S/n     (9)
    mean   w = h_S p_old / (1 + p_old - p_new)                                                   (9), as a mean
    ours   w_S as in HYBRIDJOIN for the p_S of the stream that waits ; w = w_S / p_S
    c_loop = c_IO(k v_P) + d_S c_H + w (c_H p_N + c_O + c_E + c_S + c_A) ; mu = w / c_loop                               (5, 6)

    k, l       pages of the disk buffer, pages that are pinned     h_S   tuples of the window
    d_S, d_N   rows on the k pages, on the l pages                 R_t   rows of R
    n          partitions behind the pinned pages                  v_P   bytes of a page
    w          tuples that leave in one iteration                  e     Zipf exponent of the stream
    H(x)       sum of i^-e for i = 1 ... x

The paper's (9) has a variance where the mean belongs, and its (5) probes with the pinned rows in every iteration; a tuple is
looked up there once here. Ours also knows that partitions behind the pinned pages are not wanted alike, and that slots which
pinned rows free stay empty until the next read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.unitcosts import UnitCosts
from millrace.cost import hybridjoin
from millrace.cost.hybridjoin import fetched, served, served_alike
from millrace.cost.iteration import IterationCost
from millrace.cost.pages import PageDemand


def paper_tuples(h_S: Any, p_N: Any, n: Any) -> Any:
    """w by the paper's (9)."""
    p_old, p_new = 1.0 / n, p_N + (1.0 - p_N) / n
    return h_S * p_old * (1 - p_old) / (1 + p_old * (1 - p_old) - p_new * (1 - p_new))


def mean_tuples(h_S: Any, p_N: Any, n: Any) -> Any:
    """w by (9) with a mean in the place of the variance."""
    p_old, p_new = 1.0 / n, p_N + (1.0 - p_N) / n
    return h_S * p_old / (1 + p_old - p_new)


def iteration(
    h_S: float, k: int, l: int, demand: PageDemand, *, R_t: int, N_R: int, v_P: int, sigma: float = 1.0,  # noqa: E741
    output_rows: float = np.inf,
) -> IterationCost:  # fmt: skip
    """One read of k pages, and the tuples that pinned rows answer meanwhile."""
    if l >= N_R:
        w = max(1.0, min(h_S, output_rows))
        return IterationCost(tuples_in=w, probes=w, matches=w * sigma, removed=w, pinned_matches=w * sigma)
    p_N = demand.pinned_share(l)
    places = demand.places(k, l)
    w_S = served(h_S, places, refilled_late=p_N / max(1e-9, 1.0 - p_N))
    read = fetched(w_S, places.total, k, R_t=R_t, N_R=N_R, v_P=v_P, sigma=sigma)
    w = w_S / max(1e-9, 1.0 - p_N)
    return replace(
        read,
        steps=max(1.0, w * sigma / output_rows),
        tuples_in=w,
        probes=read.probes + w * p_N,
        matches=w * sigma,
        removed=w,
        pinned_matches=w * p_N * sigma,
    )


def rate(
    h_S: FloatArray, k: Int64Array, l: Int64Array, demand: PageDemand, *, R_t: int, N_R: int, v_P: int,  # noqa: E741
    costs: UnitCosts, output_rows: float = np.inf,
) -> FloatArray:  # fmt: skip
    """mu of k x l, with the windows h_S of each. The middle of the road between speed and care: partitions behind the pinned
    pages count as wanted alike, but for the share of the hottest."""
    R_t, N_R = max(1, R_t), max(1, N_R)
    p_N = np.array([demand.pinned_share(int(pages)) for pages in l.ravel()]).reshape(l.shape)
    n = np.maximum(1.0, (N_R - l) / k)
    late = p_N / np.maximum(1e-9, 1.0 - p_N)
    w_S = served_alike(h_S, n, late)
    w = w_S / np.maximum(1e-9, 1.0 - p_N)
    w = np.where(l < N_R, w, np.minimum(h_S, output_rows))
    c_tuple = costs.output + costs.expire + costs.take + costs.add + p_N * costs.probe
    c_read = costs.seek + costs.request + k * (v_P * costs.read_byte + costs.page + R_t / N_R * costs.probe)
    c_read = np.where(l < N_R, c_read, 0.0)  # with all pages pinned nothing is read
    return np.asarray(w / (np.maximum(1.0, w / output_rows) * costs.step + c_read + w * c_tuple))


def drained(
    n: float, h_S: float, k: int, l: int, demand: PageDemand, *, R_t: int, N_R: int, v_P: int, sigma: float = 1.0,  # noqa: E741
    output_rows: float = np.inf,
) -> IterationCost:  # fmt: skip
    """n tuples that come at once, and go on until all have left. The pinned pages are read first."""
    pinned = IterationCost(steps=0.0, reads=1.0, pages_read=l, bytes_read=l * v_P, seeks=1.0) if l else IterationCost(steps=0.0)
    if l >= N_R:
        found = IterationCost(
            steps=max(1.0, n * sigma / output_rows),
            tuples_in=n,
            probes=n,
            matches=n * sigma,
            removed=n,
            pinned_matches=n * sigma,
        )
        return pinned + found
    p_N = demand.pinned_share(l)
    behind = hybridjoin.drained(n * (1 - p_N), h_S, k, demand, R_t=R_t, N_R=N_R, v_P=v_P, sigma=sigma, pinned=l)
    return replace(
        pinned + behind,
        steps=max(behind.steps, n * sigma / output_rows),
        tuples_in=n,
        probes=behind.probes + n * p_N,
        matches=n * sigma,
        removed=n,
        pinned_matches=n * p_N * sigma,
    )
