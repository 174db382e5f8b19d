"""When a run will be narrow enough, and when it will be done."""

from __future__ import annotations

import numpy as np

from millrace.online.answers import Pieces
from millrace.online.sums import FloatArray

END_SHARE = 0.5  # joining all partitions in the end takes about half as long as reading; nobody has measured it before


def seconds_to_exact(seconds: float, share_read: float, share_done: float, ended_at: float | None) -> float | None:
    """`share_done`: of the partitions that are exact, once all input has been read (at `ended_at`)."""
    if ended_at is not None:
        if share_done <= 0:
            return END_SHARE * ended_at
        return max(0.0, (seconds - ended_at) / share_done * (1 - share_done))
    return seconds / share_read * (1 + END_SHARE) - seconds if share_read > 0 else None


def share_for(pieces: Pieces, of_a: int, of_b: int, gradient: FloatArray, variance: float, group: int) -> float | None:
    """The share of either input that brings the variance of an aggregate down to this; None: it can't be told.

    With SX*, SY*, Q* and T* of the whole tables (`forecast.Spread`), along the gradient, and q = (1 - share)/share:

        V = (SX* + SY* - T*^2 (1/(N-1) + 1/(M-1))) q + Q* q^2

    which has one root above 0.
    """
    if not len(pieces.rows_a) or pieces.rows_a.min() < 1 or pieces.rows_b.min() < 1:
        return None
    p, r = pieces.rows_a / of_a, pieces.rows_b / of_b
    own = [np.einsum("pkl,k,l->p", each[:, group], gradient, gradient) for each in (pieces.sx, pieces.sy, pieces.q)]
    q = own[2] / (p * r)
    sx, sy = (own[0] / p - r * (1 - r) * q) / r**2, (own[1] / r - p * (1 - p) * q) / p**2
    total = float((pieces.t[:, group] @ gradient / (p * r)).sum())
    linear = float((sx + sy).sum()) - total**2 * (1 / max(1, of_a - 1) + 1 / max(1, of_b - 1))
    square = float(q.sum())
    if not (np.isfinite([variance, linear, square]).all() and variance >= 0 and square > 0):
        return None
    odds = (np.sqrt(linear**2 + 4 * square * variance) - linear) / (2 * square)
    return float(1 / (1 + odds))
