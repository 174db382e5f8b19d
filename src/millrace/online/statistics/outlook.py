"""When a run will be narrow enough, and when it will be done."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from millrace.core.arrays import FloatArray
from millrace.online.statistics.pieces_snapshot import PiecesSnapshot

# Joining all partitions in the end takes about that part of the time to read, with temporary data and without. Measured once.
END_SHARE, END_SHARE_IN_MEMORY = 0.3, 0.1
Marks = Sequence[tuple[float, float]]  # seconds since reading began, and the share that had been read


def pace(seconds: float, share: float, marks: Marks) -> float:
    """Seconds for all of the input, at the speed since half of this share had been read: the start is slow.

    >>> pace(3.0, 0.4, [(1.0, 0.05), (2.0, 0.2), (2.5, 0.3)])
    5.0
    """
    before = [mark for mark in marks if mark[1] <= share / 2]
    since, from_ = before[-1] if before else (0.0, 0.0)
    return (seconds - since) / (share - from_)


def seconds_to_exact(
    seconds: float, share_read: float, share_done: float, ended_after: float | None, marks: Marks, temporary_bytes: int
) -> float | None:
    """`share_done`: of the partitions that are exact, once all input has been read (after `ended_after`)."""
    end = END_SHARE if temporary_bytes else END_SHARE_IN_MEMORY
    if ended_after is not None:
        if share_done <= 0:
            return end * ended_after
        return max(0.0, (seconds - ended_after) / share_done * (1 - share_done))
    if share_read <= 0:
        return None
    reading = pace(seconds, share_read, marks) * (1 - share_read)
    return reading + end * (seconds + reading)


def share_for(pieces: PiecesSnapshot, of_a: int, of_b: int, gradient: FloatArray, variance: float, group: int) -> float | None:
    """The share of either input that brings the variance of an aggregate down to this; None: it can't be told.

    With SX*, SY*, Q* and T* of the whole tables, along the gradient, and q = (1 - share)/share:

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
