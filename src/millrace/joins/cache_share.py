"""How a cached join shares its memory out between its front stage and its back stage.

    front stage: share s of the memory, answers a part p of the stream
    back stage:  1 - s of the memory, about 1 - s of its rate, and 1 - p of the tuples

The rate of both goes with (1 - s) / (1 - p). The scores of the keys in memory tell p for other shares.

Where a host drains the join after each group of rows, the window of the back stage need not hold more than the misses of a
group: memory beyond that is better spent in front.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from millrace.core.arrays import FloatArray
from millrace.core.budget import Budget, format_bytes
from millrace.core.errors import BudgetError, ParameterError
from millrace.core.protocols import JoinSpec, Relation
from millrace.cost.front_stage import gain
from millrace.joins.front_stage import FrontSizing, divide_front, kept_schema, least_front_bytes, most_front_bytes
from millrace.joins.hot_rows import HotRows

CacheShare = float | int | Literal["auto"]

FIRST_SHARE = 0.15  # the share that the paper finds best; where "auto" begins
DRAINED_SHARE = 0.5  # where a host drains the join after so many tuples, and an index finds their pages: few tuples wait
LEAST_SHARE = 1 / 128
SHARES = (LEAST_SHARE, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
DRAINED_SHARES = (LEAST_SHARE, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
LEARNED = 0.985  # of what the same keys would answer if they were always the most frequent: measured
BETTER = 1.05  # a change must promise this much, because all tuples have to leave first


class Division(NamedTuple):
    """How a cached join divides its budget. Without a front stage, `front` is None."""

    front: FrontSizing | None
    back_bytes: int


class Back:
    """The back stage: how it is made, and how it would divide a budget."""

    def __init__(self, join: Any, parameters: dict[str, Any]) -> None:
        self.make = partial(join, **parameters)
        self.divide = partial(join.divide, **parameters)


def divide_stages(
    relation: Relation, spec: JoinSpec, budget: Budget, back: Back, *,
    cache_share: CacheShare, recent: bool, now: float | None = None,
) -> Division:  # fmt: skip
    """The parts of both stages. `now`: the share to begin with, or to change to, where it is not fixed."""
    check_share(cache_share)
    free = budget.free_bytes
    if cache_share == 0 or relation.resident or not HotRows.serves(kept_schema(relation, spec)):
        back.divide(relation, spec, Budget(max(1, free)))
        return Division(None, free)
    least = least_front_bytes(relation, spec)
    share = (FIRST_SHARE if now is None else now) if cache_share == "auto" else cache_share
    front = max(least, min(int(share * free), most_front_bytes(relation, spec)))
    if cache_share == "auto":
        _check_back(relation, spec, budget, back, lambda total: total - least, lambda needed: needed + least)
        front = _fitting(relation, spec, back, free, front, least)
    else:
        _check_back(
            relation, spec, budget, back, lambda total: total - max(least, int(share * total)),
            lambda needed: max(needed + least, int(needed / (1 - share)) + 1), share,
        )  # fmt: skip
    return Division(divide_front(relation, spec, front, recent=recent), free - front)


def _check_back(
    relation: Relation, spec: JoinSpec, budget: Budget, back: Back, rest: Callable[[int], int], total: Callable[[int], int],
    share: float | None = None,
) -> None:  # fmt: skip
    """An error that says what both stages need together, if what is left for the back stage is too small. `rest`: the back
    stage's part of a budget; `total`: the budget for a back stage of so many bytes."""
    given = wanted = budget.free_bytes
    cause: BudgetError | None = None
    for _ in range(16):  # what the back stage needs may grow a little with what it has
        try:
            back.divide(relation, spec, Budget(max(1, rest(wanted))))
            break
        except BudgetError as small:
            cause, wanted = small, max(wanted + 1, total(small.needed_bytes))
    if cause is None:
        return
    needed = budget.used_bytes + wanted
    less = f", or a smaller cache_share than {share:g}" if share is not None and rest(given) < given // 2 else ""
    raise BudgetError(
        f"the memory budget of {format_bytes(budget.memory_bytes)} is too small for the back stage and one page of cache; "
        f"give memory={needed} or more{less}",
        needed,
    ) from cause


def _fitting(relation: Relation, spec: JoinSpec, back: Back, free: int, front: int, least: int) -> int:
    """The front stage as wanted, or less where the back stage needs the memory."""
    while front > least:
        try:
            back.divide(relation, spec, Budget(max(1, free - front)))
            return front
        except BudgetError:
            front = max(least, front // 2)
    return front


def check_share(share: Any) -> None:
    if share == "auto":
        return
    if isinstance(share, (bool, str)) or not isinstance(share, (int, float)) or not 0 <= share < 1:
        raise ParameterError(f'cache_share must be "auto", or a number from 0 to less than 1; got {share!r}')


def check_threshold(threshold: Any) -> None:
    if threshold == "auto":
        return
    if isinstance(threshold, (bool, str)) or not isinstance(threshold, (int, float)) or not 1 <= threshold < 1 << 31:
        raise ParameterError(f'threshold must be "auto" or a number of tuples, at least 1; got {threshold!r}')


def best_share(share: float, hit_share: float, scores: FloatArray, shares: Sequence[float] = SHARES) -> float:
    """The share with the highest rate, if another is clearly better than this one; otherwise this one.

    `scores`: of the keys in memory, the highest first. They say how much of the stream fewer keys would answer. For more keys,
    the growth from half of the keys to all of them is carried on, as by Zipf's law: as much for each doubling.
    """
    if not len(scores) or float(scores.sum()) <= 0:
        return LEAST_SHARE if share > 2 * LEAST_SHARE else share
    answered = _answered(hit_share, scores)

    def rate(other: float) -> float:
        return gain(other, answered(len(scores) * other / share))

    best = max(shares, key=rate)
    return best if rate(best) > BETTER * rate(share) else share


def best_drained_share(
    share: float, hit_share: float, scores: FloatArray, room: int, group_rows: float, capacity: int,
    shares: Sequence[float] = DRAINED_SHARES,
) -> float:  # fmt: skip
    """The same for a host that drains the join after each group of so many rows.

    `room`: keys that the front stage has room for now; with room to spare, more of it answers no more. `capacity`: tuples that
    the back stage has room for now. It works in several turns if the misses of a group are more.
    """
    if not len(scores) or float(scores.sum()) <= 0:
        return share
    answered = _answered(hit_share, scores, grows=len(scores) > 0.9 * room)

    def cost(other: float) -> float:
        missed = 1.0 - answered(room * other / share)
        window = max(1.0, capacity * (1 - other) / (1 - share))
        return missed * max(1.0, group_rows * missed / window)

    best = min(shares, key=cost)
    return best if BETTER * cost(best) < cost(share) else share


def _answered(hit_share: float, scores: FloatArray, *, grows: bool = True) -> Callable[[float], float]:
    """The share of the stream that so many keys would answer. With `grows`, more keys than there are would answer more."""
    upto = np.cumsum(scores) / float(scores.sum()) * hit_share
    doubling = float(upto[-1] - upto[max(0, len(upto) // 2 - 1)]) if grows else 0.0

    def answered(keys: float) -> float:
        if keys <= len(scores):
            return min(float(upto[max(0, int(keys) - 1)]), 0.99)
        return min(hit_share + doubling * float(np.log2(keys / len(scores))), 0.99)

    return answered
