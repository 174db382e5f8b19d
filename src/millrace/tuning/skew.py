"""What is known of a stream's keys before a join runs, and the stream that a forecast is then made for.

nothing known        all keys count as wanted alike
an exponent          Zipf's law
counts of hot keys   their shares as counted; the keys behind them go on by Zipf's law, from the share of the last one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace.core.arrays import FloatArray
from millrace.core.errors import ParameterError
from millrace.cost.expected import StreamShape
from millrace.cost.pages import Order
from millrace.cost.popularity import Popularity, check_exponent

_STEEPEST = 3.0  # exponent
_HALVINGS = 40


@dataclass(frozen=True)
class Skew:
    """How unevenly the keys of a stream come.

    >>> str(Skew.zipf(1))
    'Zipf exponent 1'
    >>> str(Skew.unknown())
    'nothing is known of the keys: all count as wanted alike'
    """

    exponent: float | None = None
    shares: tuple[float, ...] = ()  # of the most frequent keys, the largest first
    absent: float = 0.0  # share of the stream on keys that the table does not have, as far as known
    source: str = "nothing is known of the keys: all count as wanted alike"

    @staticmethod
    def unknown() -> Skew:
        return Skew()

    @staticmethod
    def zipf(exponent: float) -> Skew:
        check_exponent(exponent)
        return Skew(exponent=float(exponent), source=f"Zipf exponent {exponent:g}")

    @staticmethod
    def counted(shares: Sequence[float], source: str, absent: float = 0.0) -> Skew:
        """From the shares of keys that were counted. Shares that chance alone explains should be left out."""
        found = sorted((float(share) for share in shares if share > 0), reverse=True)
        if sum(found) > 1 + 1e-6:
            raise ParameterError(f"shares of keys add up to 1 at most; got {sum(found):g}")
        return Skew(shares=tuple(found), absent=absent, source=source)

    def __str__(self) -> str:
        return self.source

    @property
    def known(self) -> bool:
        return self.exponent is not None or bool(self.shares)

    def stream(self, rows: int, order: Order = "scattered", sigma: float = 1.0) -> StreamShape:
        """The stream, for a table of so many rows."""
        return StreamShape(self._popularity(max(1, rows)), order, self.absent, sigma)

    def _popularity(self, keys: int) -> Popularity:
        if self.shares and len(self.shares) < keys:
            return _with_tail(np.array(self.shares), keys)
        return Popularity.zipf(self.exponent or 0.0, keys)


def _with_tail(head: FloatArray, keys: int) -> Popularity:
    """The counted shares, and behind them a tail that begins at the last share and falls by Zipf's law, as steeply as the rest
    of the stream wants it. A tail that would have to rise is flat."""
    rest = max(0.0, 1.0 - float(head.sum()))
    low, high = 0.0, _STEEPEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _tail_share(middle, len(head), keys) * head[-1] > rest:
            low = middle
        else:
            high = middle
    law = Popularity.zipf(high, keys).without(len(head))
    each = np.concatenate((head, law.each * rest))
    count = np.concatenate((np.ones(len(head), np.int64), law.count))
    return Popularity(each / float(np.sum(each * count)), count)


def _tail_share(exponent: float, first: int, keys: int) -> float:
    """Sum of (rank / first) ^ -exponent over all ranks behind the first ones."""
    law = Popularity.zipf(exponent, keys)
    one = law.each[np.searchsorted(np.cumsum(law.count), first)]
    return (1.0 - law.share(first)) / float(one)


def as_skew(given: Any) -> Skew:
    """What a caller says of the keys: None, an exponent, or counted keys with `.share` each, as `mr.hot_keys` returns them."""
    if given is None:
        return Skew.unknown()
    if isinstance(given, Skew):
        return given
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return Skew.zipf(given)
    shares = (
        [getattr(one, "share", None) for one in given] if isinstance(given, Sequence) and not isinstance(given, str) else []
    )
    if not shares or any(share is None for share in shares):
        raise ParameterError(
            "skew must be a Zipf exponent such as 1.0 (0: keys wanted alike), what mr.hot_keys(query, limit=100) returns, or "
            f"the skew of an explanation; got {given!r}"
        )
    rows = getattr(given, "rows", 0)
    counted = f"{len(shares):,} hot keys" + (f" of {rows:,} rows" if rows else "")
    return Skew.counted([float(share) for share in shares if share is not None], counted)
