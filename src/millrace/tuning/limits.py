"""What a join spends its time on: the terms of its iteration, in few words."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.core.unitcosts import UnitCosts
from millrace.cost.iteration import IterationCost

SEEKS, BYTES, CALLS, INDEX, WORK = "seeks", "bytes to read", "calls of the disk", "reads of the index", "the processor"


def time_shares(iteration: IterationCost, costs: UnitCosts) -> Mapping[str, float]:
    """Shares of the time, which add up to 1.

    >>> costs = UnitCosts(seek=3e-6, read_byte=1e-9, expire=0, step=0)
    >>> shares = time_shares(IterationCost(reads=1, seeks=1, bytes_read=1000, removed=1), costs)
    >>> {name: round(share, 2) for name, share in shares.items() if share}
    {'seeks': 0.75, 'bytes to read': 0.25}
    """
    seconds = {
        SEEKS: iteration.seeks * costs.seek,
        BYTES: iteration.bytes_read * costs.read_byte,
        CALLS: iteration.reads * costs.request,
        INDEX: iteration.index_reads * costs.index_read,
        WORK: iteration.work_seconds(costs),
    }
    whole = sum(seconds.values())
    return {name: value / whole if whole else 0.0 for name, value in seconds.items()}


def what_limits(iteration: IterationCost, costs: UnitCosts) -> str:
    """The term that takes most of the time, with its share.

    >>> costs = UnitCosts(seek=3e-6, read_byte=1e-9, expire=0, step=0)
    >>> what_limits(IterationCost(reads=1, seeks=1, bytes_read=1000, removed=1), costs)
    'seeks 75 %'
    """
    shares = time_shares(iteration, costs)
    most = max(shares, key=lambda name: shares[name])
    return f"{most} {shares[most]:.0%}".replace("%", " %")
