"""Unit costs from what was counted and what it took: least squares on the relative error, and no cost below zero.

    seconds = counts x costs

Terms that always grow together can't be told apart, and where the measurements disagree, a term may come out as nothing. A pull
towards a guess then shares the sum out as the guess does. The pull is as strong as the measurements are uncertain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millrace.core.arrays import FloatArray

_LEAST_PULL = 0.003  # weight of the guess of a cost, beside 1 of a measurement
_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Fitted:
    """Costs; how far each moves if a measurement is left out, relative to it; how far off predictions are, in the median."""

    costs: FloatArray
    spread: FloatArray
    error: float


def fit(counts: FloatArray, seconds: FloatArray, guess: FloatArray, *, pulled: bool = True) -> Fitted:
    """One row of counts for each measurement. A cost that nothing counts for stays as guessed, with no spread.

    `pulled`: towards the guess. Not wanted where measurements were made so that all terms are told apart.

    >>> counts = np.array([[1.0, 10.0], [1.0, 100.0], [2.0, 10.0]])
    >>> found = fit(counts, counts @ np.array([3.0, 0.5]), np.array([1.0, 1.0]))
    >>> found.costs.round(2).tolist()
    [3.0, 0.5]
    """
    used = counts.any(axis=0)
    costs, spread = guess.astype(np.float64), np.zeros(len(guess))
    pull = 0.0
    if pulled:
        first = _solved(counts[:, used], seconds, guess[used], _LEAST_PULL)
        pull = max(_LEAST_PULL, float(np.sqrt(np.mean((counts[:, used] @ first / seconds - 1) ** 2))))
    costs[used] = _solved(counts[:, used], seconds, guess[used], pull)
    error = float(np.median(np.abs(counts @ costs / seconds - 1)))
    if len(seconds) > 2:
        rows = np.arange(len(seconds))
        without = [_solved(counts[rows != row][:, used], seconds[rows != row], guess[used], pull) for row in rows]
        deviation = np.sqrt((len(rows) - 1) * np.var(np.array(without), axis=0))
        spread[used] = np.divide(deviation, costs[used], out=np.zeros(int(used.sum())), where=costs[used] > 0)
    return Fitted(costs, spread, error)


def _solved(counts: FloatArray, seconds: FloatArray, guess: FloatArray, pull: float) -> FloatArray:
    """In units of the guess, which is first brought to the speed of the machine."""
    speed = float(np.median(seconds / np.maximum(counts @ guess, 1e-300)))
    scaled = counts * (speed * guess) / seconds[:, None]
    pulled = np.vstack([scaled, pull * np.eye(len(guess))])
    wanted = np.concatenate([np.ones(len(seconds)), np.full(len(guess), pull)])
    return nonnegative(pulled, wanted) * speed * guess


def nonnegative(matrix: FloatArray, wanted: FloatArray) -> FloatArray:
    """The x >= 0 with the least squares of matrix x - wanted (Lawson, Hanson: Solving Least Squares Problems, 1974, ch. 23).

    >>> nonnegative(np.array([[1.0, 1.0], [1.0, 0.0]]), np.array([1.0, 2.0])).round(6).tolist()
    [1.5, 0.0]
    """
    columns = matrix.shape[1]
    x, free = np.zeros(columns), np.zeros(columns, bool)
    for _ in range(3 * columns):
        slope = matrix.T @ (wanted - matrix @ x)
        slope[free] = -np.inf
        if free.all() or slope.max() <= _TOLERANCE:
            break
        free[int(slope.argmax())] = True
        while True:
            best = np.zeros(columns)
            best[free] = np.linalg.lstsq(matrix[:, free], wanted, rcond=None)[0]
            below = free & (best <= 0)
            if not below.any():
                break
            step = float(np.min(x[below] / np.maximum(x[below] - best[below], 1e-300)))
            x = x + step * (best - x)
            free &= x > _TOLERANCE
            x[~free] = 0.0
        x = best
    return x
