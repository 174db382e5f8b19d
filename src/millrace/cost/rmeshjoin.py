"""R-MESHJOIN: rate.

Naeem, Dobbie, Weber, Alam: R-MESHJOIN for Near-real-time Data Warehousing, DOLAP 2010, of which we know the abstract. The
equation is ours: all h tuples of the window leave in one lap, which takes N_R/b reads, one seek and the probing of R_t rows.

    mu = h / (N_R/b (c_request + c_step) + c_seek + N_R v_P c_byte + R_t c_H + h (c_E + c_S + c_A + sigma c_O))

    h     tuples of the window          N_R   pages of R           R_t   rows of R
    b     pages of the disk buffer      v_P   bytes of a page      sigma rows of R that a tuple meets
    mu    tuples per second             c_... see `UnitCosts`
"""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.unitcosts import UnitCosts
from millrace.cost import meshjoin
from millrace.cost.iteration import IterationCost


def rate(h: Any, b: Int64Array, *, N_R: int, R_t: int, v_P: int, costs: UnitCosts) -> FloatArray:
    """mu. The best b does not depend on N_R, unlike MESHJOIN's."""
    return meshjoin.rate(h * 1.0 / meshjoin.chunks(N_R, b), b, N_R=N_R, R_t=R_t, v_P=v_P, costs=costs)


def iteration(
    h: float, b: int, *, N_R: int, R_t: int, v_P: int, sigma: float = 1.0, output_rows: float = np.inf, wanted: float = 1.0
) -> IterationCost:
    """One read. All h tuples leave in a lap, so as many leave with each read as a lap has reads."""
    w = h / float(meshjoin.chunks(N_R, b))
    return meshjoin.iteration(w, b, N_R=N_R, R_t=R_t, v_P=v_P, sigma=sigma, output_rows=output_rows, wanted=wanted)


def drained(
    n: float, h: float, b: int, *, R_t: int, N_R: int, v_P: int, sigma: float = 1.0, output_rows: float = np.inf,
    wanted: float = 1.0,
) -> IterationCost:  # fmt: skip
    """n tuples that come at once, and go on until all have left: one lap for each window of them."""
    return meshjoin.drained(
        n, h, max(h, 1.0), b, R_t=R_t, N_R=N_R, v_P=v_P, sigma=sigma, output_rows=output_rows, wanted=wanted
    )
