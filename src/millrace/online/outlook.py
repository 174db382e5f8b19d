"""When a run will be narrow enough, and when it will be done."""

from __future__ import annotations

import numpy as np

from millrace.online.answers import Pieces
from millrace.online.forecast import Spread, rows_for
from millrace.online.sums import FloatArray

END_SHARE = 0.5  # joining all partitions in the end takes about half as long as reading; nobody has measured it before


def seconds_to_exact(seconds: float, share_read: float, share_done: float, ended_at: float | None) -> float | None:
    """`share_done`: of the partitions that are exact, once all input has been read (at `ended_at`)."""
    if ended_at is not None:
        if share_done <= 0:
            return END_SHARE * ended_at
        return max(0.0, (seconds - ended_at) / share_done * (1 - share_done))
    return seconds / share_read * (1 + END_SHARE) - seconds if share_read > 0 else None


def spread_of(pieces: Pieces, of_a: int, of_b: int) -> Spread | None:
    """Sums of squares over whole tables, from partitions that were each joined at their own time; None before that."""
    if not len(pieces.rows_a) or pieces.rows_a.min() < 1 or pieces.rows_b.min() < 1:
        return None
    p, r = ((rows / total)[:, None, None, None] for rows, total in ((pieces.rows_a, of_a), (pieces.rows_b, of_b)))
    q = pieces.q / (p * r)
    sx = (pieces.sx / p - r * (1 - r) * q) / r**2
    sy = (pieces.sy / r - p * (1 - p) * q) / p**2
    t = pieces.t / (p * r)[..., 0]
    return Spread(sx.sum(axis=0), sy.sum(axis=0), q.sum(axis=0), t.sum(axis=0), of_a, of_b)


def share_for(spread: Spread, gradient: FloatArray, variance: float, group: int) -> float | None:
    """The share of the input that brings the variance of an aggregate down to this; None where the sums are no numbers."""
    if not (np.isfinite(variance) and np.isfinite(gradient).all() and np.isfinite(spread.sx[group]).all()):
        return None
    rows = rows_for(spread, gradient, variance, group)
    return sum(rows) / (spread.of_a + spread.of_b)
