"""INLJ: rate, with and without a buffer pool.

Polyzotis, Skiadopoulos, Vassiliadis, Simitsis, Frantzell: Supporting Streaming Updates in an Active Data Warehouse,
ICDE 2007, section 2 (the loop); the equations are ours.

    c_tuple = (1 - p_F) c_IO(v_P) + c_H + c_S + c_A + sigma c_O + c_E ; mu = 1 / c_tuple
    F       = sum of 1 - e^(-P_j T) ; p_F = sum of P_j (1 - e^(-P_j T))          (a pool of F pages, the last used stay)

    P_j   share of the stream that wants page j        F     pages of the pool
    T     tuples for which a page stays in the pool    p_F   share of the tuples whose page is in the pool

T is found from F: a page is in the pool if it was wanted among the last T tuples (Che's approximation). Tuples whose pages fit
the pool together go on together, so a page that several of them want is read once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from millrace.cost.iteration import IterationCost
from millrace.cost.pages import PageDemand, Places


def iteration(
    tuples: float, demand: PageDemand, *, pool_pages: int, N_R: int, v_P: int, sigma: float = 1.0, output_rows: float = np.inf,
    pages_each: float = 1.0,
) -> IterationCost:  # fmt: skip
    """One step with so many tuples. `pages_each`: pages on which the rows of a key lie. With a pool, tuples go on together as
    far as the pool holds their pages, and these pages are read in the order of the table."""
    places = demand.places()
    if pool_pages:
        missing, seeks = _missing(places, pool_pages, tuples * pages_each, N_R)
    else:
        missing = tuples * pages_each
        seeks = missing * (1.0 - float(np.sum(places.count * places.each**2)))
    return IterationCost(
        steps=max(1.0, tuples * sigma / output_rows),
        tuples_in=tuples,
        reads=missing,
        pages_read=missing,
        bytes_read=missing * v_P,
        seeks=seeks,
        probes=tuples * pages_each,
        matches=tuples * sigma,
        removed=tuples,
    )


def _missing(places: Places, F: float, wanted: float, N_R: int) -> tuple[float, float]:
    """Pages that a step has to read, and seeks. The tuples that want F different pages go on together; a page that none of the
    T tuples before them wanted is not in the pool. After a page whose neighbour is missing too, there is no seek."""
    if places.total <= F:
        return 0.0, 0.0
    T = places.tuples_for(F)
    together = min(wanted, T)
    missing = float(np.sum(places.count * -np.expm1(-places.each * together) * np.exp(-places.each * T)))
    times = wanted / together
    return times * missing, times * missing * (1.0 - min(1.0, missing / N_R))


def drained(
    n: float, tuples: float, demand: PageDemand, *, pool_pages: int, N_R: int, v_P: int, sigma: float = 1.0,
    output_rows: float = np.inf, pages_each: float = 1.0,
) -> IterationCost:  # fmt: skip
    """n tuples that come at once, so many in each step. A pool begins empty, and reads each page once until it is full."""
    steps = max(1.0, n / tuples)
    each = iteration(
        min(n, tuples), demand, pool_pages=pool_pages, N_R=N_R, v_P=v_P, sigma=sigma, output_rows=output_rows,
        pages_each=pages_each,
    )  # fmt: skip
    whole = each.times(steps)
    if not pool_pages:
        return whole
    places = demand.places()
    T = places.tuples_for(pool_pages) if pool_pages < places.total else float("inf")
    filled = min(n, T)
    first = places.distinct(filled * pages_each)
    pages = min(first + whole.pages_read * max(0.0, n - filled) / n, n * pages_each)
    near = min(1.0, places.distinct(min(n, tuples, T)) / places.total)  # of a page that the next one was wanted, too
    return replace(whole, reads=pages, pages_read=pages, bytes_read=pages * v_P, seeks=pages * (1 - near))
