"""What a front stage can earn. Derived from the loops of the cached joins; the paper prints no equations for them.

    p = share of the stream on keys that are in the front stage. An ideal front stage of n keys, of a relation with R_t keys and
        a stream by Zipf's law with exponent e:  p = H(n, e) / H(R_t, e),  H(n, e) = sum of k^-e over k = 1 .. n
    s = share of the memory that the front stage has

    rate of both stages / rate of the back stage alone = (1 - s) / (1 - p)

The back stage gets 1 - p of the tuples. Its window is 1 - s of what it would be, and the rate of a join that waits for the disk
goes with its window. A look-up in front is taken to cost nothing beside a read, so this is a bound.
"""

from __future__ import annotations

import numpy as np

_EXACT = 1_000_000


def harmonic(count: int, exponent: float) -> float:
    """H(n, e); behind the first million terms by an integral."""
    first = min(count, _EXACT)
    total = float(np.sum(np.arange(1, first + 1, dtype=np.float64) ** -exponent))
    if count > first:
        low, high = first + 0.5, count + 0.5
        total += float(
            np.log(high / low) if exponent == 1 else (high ** (1 - exponent) - low ** (1 - exponent)) / (1 - exponent)
        )
    return total


def answered_share(keys: int, rows: int, exponent: float) -> float:
    """p of an ideal front stage.

    >>> round(answered_share(155_584, 10_000_000, 1), 2), answered_share(100, 1000, 0)
    (0.75, 0.1)
    """
    return harmonic(min(keys, rows), exponent) / harmonic(rows, exponent)


def gain(share: float, answered: float) -> float:
    """How many times the rate of the back stage alone.

    >>> round(gain(0.15, 0.775), 1)
    3.8
    """
    return (1 - share) / (1 - answered)
