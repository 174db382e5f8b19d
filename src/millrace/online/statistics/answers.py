"""From the pieces that a join has joined to estimated totals: the formula that fits each kind of piece.

partitions   staggered while input is read, then finishing           PR-Join
samples      sample_of_parts                                         GRACE, the end of Hash Ripple
rectangles   region                                                  Ripple, Hash Ripple, SMS, DBO
counts       none: what is covered depends on the data               RPJ, XJoin, HMJ
"""

from __future__ import annotations

import numpy as np

from millrace.core.arrays import BoolArray, Int64Array
from millrace.core.errors import ParameterError
from millrace.online.statistics.estimators import Totals, exactly, finishing, region, sample_of_parts, shares, staggered
from millrace.online.statistics.pieces_snapshot import PiecesSnapshot
from millrace.online.statistics.totals import Sums


def totals_of(pieces: PiecesSnapshot, of_a: int, of_b: int, *, input_ended: bool, done: bool = False) -> Totals | None:
    """Estimated totals of `of_a` by `of_b` rows; None where pieces are no random sample. `done`: they hold the answer."""
    sums = pieces.sums
    if done:
        return exactly(_added(sums)) + exactly(pieces.certain)
    if pieces.kind == "counts":
        return None
    if pieces.kind == "partitions":
        return _of_partitions(pieces, sums, of_a, of_b, input_ended) + exactly(pieces.certain)
    if pieces.kind == "samples":
        return sample_of_parts(_some(sums, pieces.exact), len(pieces.exact)) + exactly(pieces.certain)
    if pieces.kind == "rectangles":
        cover = shares(pieces.first_a, pieces.own_a, pieces.first_b, pieces.own_b)
        return region(sums, pieces.own_a, pieces.own_b, cover, of_a, of_b, exact=pieces.certain)
    raise ParameterError(f"there is no formula for pieces of kind {pieces.kind!r}")


def _of_partitions(pieces: PiecesSnapshot, sums: Sums, of_a: int, of_b: int, input_ended: bool) -> Totals:
    if not input_ended:
        return staggered(sums, pieces.rows_a, pieces.rows_b, of_a, of_b)
    own_a, own_b = (np.where(pieces.exact, total, own) for total, own in _sizes(pieces))
    unfinished = ((own_a < pieces.total_a) & (own_a < 2)) | ((own_b < pieces.total_b) & (own_b < 2))
    if (unfinished & ~pieces.exact & (pieces.total_a > 0) & (pieces.total_b > 0)).any():
        # A partition of which a row or none has been joined says nothing on its own, but the global counts still hold.
        n, m = (np.where(pieces.exact, total, rows) for total, rows in ((of_a, pieces.rows_a), (of_b, pieces.rows_b)))
        return staggered(sums, n, m, of_a, of_b)
    return finishing(sums, own_a, own_b, pieces.total_a, pieces.total_b)


def _sizes(pieces: PiecesSnapshot) -> tuple[tuple[Int64Array, Int64Array], tuple[Int64Array, Int64Array]]:
    return (pieces.total_a, pieces.own_a), (pieces.total_b, pieces.own_b)


def _some(sums: Sums, chosen: BoolArray) -> Sums:
    return Sums(sums.t[chosen], sums.sx[chosen], sums.sy[chosen], sums.q[chosen], sums.pairs[chosen])


def _added(sums: Sums) -> Sums:
    return Sums(sums.t.sum(axis=0), sums.sx.sum(axis=0), sums.sy.sum(axis=0), sums.q.sum(axis=0), sums.pairs.sum(axis=0))
