"""What a front stage can earn. Derived from the loops of the cached joins; the paper prints no equations for them.

Naeem, Dobbie, Lutteroth, Weber: Skewed Distributions in Semi-Stream Joins: How Much Can Caching Help?

    p      = share of the stream on keys that are in the front stage; n_c keys by Zipf's law: H(n_c, e) / H(R_t, e)
    w_F    = w_B p / (1 - p) ; mu = (w_F + w_B) / c_loop
    c_loop = c_loop of the back stage, for what is left of the stream
             + (w_F + w_B) c_front + w_F (sigma c_O + c_S + c_A + c_E)
    M      = M of the back stage + n_c (bytes of a kept key)

    n_c    keys in the front stage        w_F, w_B   tuples that leave from front and back stage
    s      share of the memory that the front stage has

Where the back stage waits for the disk, its rate goes with its window, and a look-up in front costs nothing beside a read:

    rate of both stages / rate of the back stage alone = (1 - s) / (1 - p)                               (a bound)
"""

from __future__ import annotations

from dataclasses import replace

from millrace.cost.iteration import IterationCost
from millrace.cost.popularity import Popularity


def answered_share(keys: int, rows: int, exponent: float) -> float:
    """p of an ideal front stage.

    >>> round(answered_share(155_584, 10_000_000, 1), 2), answered_share(100, 1000, 0)
    (0.75, 0.1)
    """
    return Popularity.zipf(exponent, rows).share(min(keys, rows))


def gain(share: float, answered: float) -> float:
    """How many times the rate of the back stage alone.

    >>> round(gain(0.15, 0.775), 1)
    3.8
    """
    return (1 - share) / (1 - answered)


def iteration(back: IterationCost, p: float, *, sigma: float = 1.0, output_rows: float = float("inf")) -> IterationCost:
    """An iteration of both stages, from one of the back stage with what is left of the stream. `output_rows`: of a step of the
    front stage."""
    p = min(p, 0.9999)
    w_F = back.removed * p / (1.0 - p)
    taken = back.removed + w_F
    return replace(
        back,
        steps=max(back.steps, w_F / output_rows + 1.0),
        tuples_in=back.tuples_in + w_F,
        matches=back.matches + w_F * sigma,
        removed=taken,
        front_lookups=taken,
        front_hits=w_F,
    )


def drained(back: IterationCost, n: float, p: float, *, sigma: float = 1.0, output_rows: float = float("inf")) -> IterationCost:
    """n tuples that come at once, of which the front stage answers a share p, from what the back stage does for the others."""
    w_F = n * p
    return replace(
        back,
        steps=max(back.steps, w_F / output_rows),
        tuples_in=n,
        matches=n * sigma,
        removed=n,
        front_lookups=n,
        front_hits=w_F,
    )
