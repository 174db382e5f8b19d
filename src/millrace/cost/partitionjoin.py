"""The partition-based join: rate. The equations are ours, for the loop that `joins.partitionjoin` has.

Chakraborty, Singh: A Partition-based Approach to Support Streaming Updates over Persistent Data in an Active Data Warehouse,
IPDPS 2009.

    p_C  = p_K + (1 - p_K) sum of P_j r_j       answered at once: by pages that stay, and by the partition that was read last
    r_j  = c P_j / (1 + c P_j), sum of r_j = 1  share of the reads that are of partition j, whose tuples do not wait when it is
                                                at hand
    I_j  = min(x / P_j, 1/P_j + a w)            tuples between two reads of partition j
    h    = sum of P_j I_j / 2 + w/2 ; 1/w = sum of 1/I_j
    mu   = w / ((1 - p_C) (c_IO(k v_P) + w (c_H + c_S + c_A + sigma c_O + c_E)))

    x    tuples for which a partition is read       P_j   share of what the cache leaves that wants partition j
    a    steps after which it is read in any case   h     tuples of the window
    w    tuples that one read serves                k     pages of a partition
    p_K  halfway between the pages that were used last (INLJ's pool) and those that are wanted most, as measured: a page must
         be wanted again soon to stay

x is found from the window, which is full whenever a partition is read: the fullest partition goes first.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from millrace.core.arrays import FloatArray
from millrace.cost.hybridjoin import fetched
from millrace.cost.iteration import IterationCost
from millrace.cost.pages import PageDemand, Places

_HALVINGS = 60


def served(h: float, places: Places, age_limit: float) -> float:
    """w: tuples that a read serves."""

    def found(x: float) -> tuple[float, float]:
        w = max(1.0, x)
        for _ in range(20):
            between = np.maximum(1.0, np.minimum(x / places.each, 1.0 / places.each + age_limit * w))
            before, w = w, 1.0 / float(np.sum(places.count / between))
            if abs(w - before) < 1e-6 * w:
                break
        return w, float(np.sum(places.count * places.each * between)) / 2 + w / 2

    low, high = 1.0, max(2.0, h)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if found(middle)[1] < h else (low, middle)
        if high - low < 1e-6 * high:
            break
    return max(1.0, min(found(high)[0], h))


def without_the_last_read(places: Places) -> tuple[float, Places]:
    """The share of the stream that meets the partition which was read last, and the partitions that the rest waits for."""
    if places.total <= 1:
        return 1.0, places
    low, high = 0.0, 1.0
    while _read_shares(places, high).sum() < 1.0 and high < 1e18:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _read_shares(places, middle).sum() < 1.0 else (low, middle)
    at_hand = _read_shares(places, high) / places.count
    each = places.each * (1.0 - at_hand)
    rest = float(np.sum(places.count * each))
    if rest <= 0:
        return 1.0, places
    return 1.0 - rest, Places(each / rest, places.count)


def _read_shares(places: Places, c: float) -> FloatArray:
    """r_j of all partitions of each class."""
    return np.asarray(places.count * c * places.each / (1.0 + c * places.each))


def iteration(
    h: float, C: int, k: int, demand: PageDemand, *, age_limit: float, R_t: int, N_R: int, v_P: int, sigma: float = 1.0,
    output_rows: float = np.inf,
) -> IterationCost:  # fmt: skip
    """One read of a partition of k pages, behind a cache of C pages."""
    if C >= N_R:
        w = max(1.0, min(h, output_rows))
        return IterationCost(tuples_in=w, probes=w, matches=w * sigma, removed=w, front_lookups=w, front_hits=w)
    last_used, places = demand.behind_pool(C, k)
    kept = (last_used + demand.places().hottest(C)[0]) / 2
    at_hand, places = without_the_last_read(places)
    p_C = kept + (1.0 - kept) * at_hand
    w_B = served(h, places, age_limit)
    read = fetched(w_B, places.total, k, R_t=R_t, N_R=N_R, v_P=v_P, sigma=sigma)
    w = w_B / max(1e-3, 1.0 - p_C)
    return replace(
        read, steps=max(1.0, w * sigma / output_rows), tuples_in=w, probes=w, matches=w * sigma, removed=w,
        front_lookups=w, front_hits=w * p_C,
    )  # fmt: skip
