"""X-HYBRIDJOIN: rate.

Naeem, Dobbie, Weber: Efficient Processing of Streaming Updates with Archived Master Data in Near-Real-Time Data
Warehousing, Knowledge and Information Systems, 2013, equations (5), (6) and (9).

    c_loop = c_step + c_IO(k v_P) + d_S c_H + w (c_H + c_O + c_E + c_S + c_A) ; mu = w / c_loop          (5, 6)
    p_N    = H(d_N) / H(R_t) ; p_S = 1 - p_N ; n = (R_t - d_N) / d_S
    w      = h_S / (n p_S + p_N)                                                                         (9, as a mean)

    k, l       pages of the disk buffer, pages that are pinned     h_S   tuples of the window
    d_S, d_N   rows on the k pages, on the l pages                 R_t   rows of R
    n          partitions behind the pinned pages                  v_P   bytes of a page
    p_N        share of the stream whose row is pinned             w     tuples that leave in one iteration
    H(x)       sum of i^-e for i = 1 ... x                         e     Zipf exponent of the stream
    c_step     seconds of calls, whatever a step does: a window of a few tuples is no window

Assumes that R lies in the order of its keys' frequency. A read serves h_S / n waiting tuples, one in n; for each tuple that
comes in to wait, 1/p_S come in all. The paper's (9) has a variance where the mean belongs, and its (5) probes with the pinned
rows in every iteration; a tuple is looked up there once here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.unitcosts import UnitCosts

STEP_SECONDS = 1e-4


def rate(
    h_S: FloatArray, k: Int64Array, l: Int64Array, *, R_t: int, N_R: int, v_P: int, e: float, costs: UnitCosts  # noqa: E741
) -> FloatArray:  # fmt: skip
    """mu. `N_R` pages of R."""
    R_t, N_R = max(1, R_t), max(1, N_R)
    d_S, d_N = k * (R_t / N_R), l * (R_t / N_R)
    p_N = harmonic(d_N, e) / harmonic(np.float64(R_t), e)
    n = np.maximum(1.0, (R_t - d_N) / d_S)
    w = h_S / (n * (1.0 - p_N) + p_N)
    c_tuple = costs.probe + costs.output + costs.expire + costs.take + costs.add
    c_read = costs.seek + k * v_P * costs.read_byte + d_S * costs.probe
    c_read = np.where(l < N_R, c_read, 0.0)  # with all pages pinned nothing is read
    return np.asarray(w / (STEP_SECONDS + c_read + w * c_tuple))


def harmonic(x: Any, e: float) -> Any:
    """H(x), by the trapezoidal rule: 0 for x = 0, right at 1, and within a tenth everywhere."""
    x = np.asarray(x, np.float64)
    above = np.maximum(x, 1.0)
    area = np.log(above) if e == 1.0 else (above ** (1.0 - e) - 1.0) / (1.0 - e)
    return np.minimum(x, 1.0) * (area + (1.0 + above**-e) / 2)
