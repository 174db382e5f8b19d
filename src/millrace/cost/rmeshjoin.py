"""R-MESHJOIN: rate.

Naeem, Dobbie, Weber, Alam: R-MESHJOIN for Near-real-time Data Warehousing, DOLAP 2010, of which we know the abstract. The
equation is ours: all h tuples of the window leave in one lap, which takes N_R/b seeks and the reading of N_R pages.

    mu = h / (N_R/b c_seek + N_R v_P c_byte)

    h     tuples of the window          N_R   pages of R
    b     pages of the disk buffer      v_P   bytes of a page
    mu    tuples per second
"""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.unitcosts import UnitCosts


def rate(h: Any, b: Int64Array, N_R: int, v_P: int, costs: UnitCosts) -> FloatArray:
    """mu. The best b does not depend on N_R, unlike MESHJOIN's."""
    return np.asarray(h / (N_R * (costs.seek / b + v_P * costs.read_byte)))
